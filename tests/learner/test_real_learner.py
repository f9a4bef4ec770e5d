"""A learner on photos of real objects: right answers, and evidence where it matters."""

import copy
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import TEST_DATA
from torch.nn import functional

from crumb_avalanche.images.sources import batches, clips_of
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.explanation import explanation
from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson import learn
from crumb_avalanche.methods.looks import Looks

ARCHIVE = TEST_DATA / "eth80" / "eth80_128.zip"
WEIGHTS = TEST_DATA / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"
CLASSES = ("apple", "car", "cow", "cup")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ARCHIVE.exists() or not WEIGHTS.exists(), reason="needs CRUMB_TEST_DATA"
    ),
]


EVERY = 6  # photo of an object that is taught or asked about


def numbered_views(archive):
    """Yield class, number and view of each photo of ETH-80, by name of the file."""
    for name in sorted(archive.namelist()):
        folders = name.split("/")
        if len(folders) == 3 and name.endswith(".jpg"):
            label = folders[1].rstrip("0123456789")
            yield name, label, folders[1][len(label) :], folders[2]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of four objects of four classes: three to be taught, one to be asked."""
    folder = tmp_path_factory.mktemp("eth80")
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name, label, number, view in numbered_views(archive):
            asked = "5" if label == "car" else "4"
            if label in CLASSES and number in ("1", "2", "3", asked):
                split = "test" if number == asked else "learn"
                target = folder / split / label / number / view
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    return folder


@pytest.fixture(scope="module", params=CLOSED_FORMS)
def learner(photos, request):
    """A learner of a method that was taught three objects of each class."""
    learner = Learner(request.param, weights=WEIGHTS, looks=(1.0,))
    for label in CLASSES:
        for folder in sorted((photos / "learn" / label).iterdir()):
            learner.teach(sorted(folder.glob("*.jpg"))[::EVERY], label)
    return learner


@pytest.fixture(scope="module")
def asked(photos):
    """Photos of objects that were not taught."""
    paths: list[Path] = []
    for label in CLASSES:
        paths += sorted((photos / "test" / label).rglob("*.jpg"))[::EVERY]
    return paths


def test_new_objects(learner, asked):
    right = [learner.predict(path).label == path.parts[-3] for path in asked]
    assert np.mean(right) >= 0.85


@pytest.mark.parametrize("number", range(5))
def test_evidence_by_location(learner, asked, number):
    """Without the locations that speak most for the answer, its margin falls most."""
    path = asked[::6][number]
    classifier = learner._classifier
    model = learner.network.model
    (clip,) = clips_of(path)
    ((_, pixels),) = batches(clip.frames, 1, learner._transform)
    maps = model.features(pixels)

    def scores(maps):
        return classifier.statistics.scores(classifier.features.of_maps(model, maps))

    best = scores(maps)[0].topk(2).indices

    def margin(removed):
        """The margin if locations hold the mean of the map."""
        changed = maps.flatten(2).clone()
        changed[:, :, removed] = changed.mean(2, keepdim=True)
        first, second = scores(changed.view_as(maps))[0, best].tolist()
        return first - second

    explained = explanation(classifier, model, pixels, classifier.shares)[None]
    shares = functional.adaptive_avg_pool2d(explained, maps.shape[2:]).flatten()
    tenth = len(shares) // 10
    random = torch.Generator().manual_seed(number)
    tenths = [torch.randperm(len(shares), generator=random)[:tenth] for _ in range(4)]
    assert margin(shares.topk(tenth).indices) < np.mean(list(map(margin, tenths)))


SPLITS = range(100, 116)
LESSONS = 10
VIEWS = 10


@pytest.fixture(scope="module")
def doubted():
    """Whether each right and each wrong label was doubted, in many short streams.

    One lesson of ten has the name of another known class. Clips that were unknown are
    news, whose labels are in no doubt; their wrong labels are left out.
    """
    learner = Learner(backbone="squeezenet1_0", weights=WEIGHTS)
    features = features_of_objects(learner)
    doubted: dict[str, list[bool]] = {"right": [], "wrong": []}
    for split in SPLITS:
        stream = lessons_of(split, features)
        wrong = int(stream.draws.integers(stream.classes, LESSONS))
        classifier = Classifier.of_model(
            "rda",
            learner.network.model,
            learner.budget_bytes,
            looks=Looks(learner.looks),
        )
        for number, (name, clip) in enumerate(stream.lessons):
            if number != wrong:
                doubts = learn(classifier, [(name, clip)], []).doubts
                doubted["right"].append(bool(doubts))
                continue
            before = classifier  # every other name is tried; the last one is learned
            for label in stream.names:
                if label != name:
                    classifier = copy.deepcopy(before)
                    lesson = learn(classifier, [(label, clip)], [])
                    if not lesson.unknown:
                        doubted["wrong"].append(bool(lesson.doubts))
    return doubted


@dataclass
class Stream:
    """A short stream of lessons.

    Attributes:
        names: of the classes, in order of arrival.
        lessons: name and clip of each lesson, the first ones of a class each.
        draws: what was drawn from.
    """

    names: list[str]
    lessons: list[tuple[str, list]]
    draws: np.random.Generator

    @property
    def classes(self):
        return len(self.names)


def lessons_of(split, features):
    """Draw a stream of three to six classes; each lesson is another object."""
    draws = np.random.default_rng(split)
    labels = sorted({label for label, _ in features})
    names = draws.choice(labels, 3 + split % 4, replace=False).tolist()
    order = [*names, *draws.choice(names, LESSONS - len(names)).tolist()]
    objects = {name: draws.permutation(10).tolist() for name in names}
    lessons = []
    for name in order:
        batch = ([""] * VIEWS, features[name, objects[name].pop()])
        lessons.append((name, [batch]))
    return Stream(names, lessons, draws)


def features_of_objects(learner):
    """What is learned of ten views of each object of ETH-80, by class and number."""
    features = {}
    with zipfile.ZipFile(ARCHIVE) as archive:
        objects: dict = {}
        for name, label, number, _ in numbered_views(archive):
            objects.setdefault(label, {}).setdefault(number, []).append(name)
        for label, views_of_objects in objects.items():
            for index, names in enumerate(views_of_objects.values()):
                views = [archive.open(name) for name in names[::4][:VIEWS]]
                (clip,) = clips_of([Image.open(view).convert("RGB") for view in views])
                pieces = [values for _, values in learner._batches_of(clip, None)]
                features[label, index] = torch.cat(pieces)
    return features


def test_wrong_labels_of_known_clips_are_doubted(doubted):
    assert len(doubted["wrong"]) >= 40
    assert np.mean(doubted["wrong"]) >= 0.9


def test_right_labels_are_not_doubted(doubted):
    assert np.mean(doubted["right"]) <= 0.05
