"""A learner on photos of real objects: right answers, and evidence where it matters."""

import zipfile

import pytest
import torch
from real_data import TEST_DATA

from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.replay import REPLAY
from crumb_avalanche.learner.sources import batches, clips_of

ARCHIVE = TEST_DATA / "eth80" / "eth80_128.zip"
WEIGHTS = TEST_DATA / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"
CLASSES = ("apple", "car", "cow", "cup")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE.exists() or not WEIGHTS.exists(), reason="needs CRUMB_TEST_DATA"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of four objects of four classes: three to be taught, one to be asked about."""
    folder = tmp_path_factory.mktemp("eth80")
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in sorted(archive.namelist()):
            parts = name.split("/")
            label = parts[1].rstrip("0123456789") if len(parts) == 3 else ""
            number = parts[1][len(label) :] if label else ""
            if label in CLASSES and number in ("1", "2", "3", "5" if label == "car" else "4") and name.endswith(".jpg"):
                part = "test" if number in "45" else "learn"
                target = folder / part / label / parts[1] / parts[2]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    return folder


def taught(method, photos):
    learner = Learner(method, weights=WEIGHTS)
    for label in CLASSES:
        for item in sorted((photos / "learn" / label).iterdir()):
            learner.teach(sorted(item.glob("*.jpg"))[::6], label)
    return learner


def right_answers(learner, photos):
    """The photos of new objects, most of which must be answered right."""
    asked = [photo for label in CLASSES for photo in sorted((photos / "test" / label).rglob("*.jpg"))[::6]]
    right = sum(learner.predict(photo).label == photo.parent.parent.name for photo in asked)
    assert right >= 0.85 * len(asked)
    return asked


@pytest.mark.parametrize("method", [*CLOSED_FORMS, *REPLAY])
def test_it_recognises_new_objects_and_knows_why(photos, method):
    learner = taught(method, photos)
    known, model, random = learner._classifier, learner.network.model, torch.Generator().manual_seed(0)
    for photo in right_answers(learner, photos)[::6]:
        ((_, pixels),) = batches(next(iter(clips_of(photo))).frames, 1, 224)
        shares = known.explain(model, pixels).flatten()
        if method in REPLAY:
            maps, scores = known.network.inputs(known.compute(model, pixels)), known._scores
        else:
            maps = model.features(pixels)

            def scores(maps):
                return known.statistics.scores(known.features.of_maps(model, maps))

        best = scores(maps)[0].topk(2).indices

        def margin(removed, maps=maps, scores=scores, best=best):
            """The margin if locations hold the mean of the map."""
            changed = maps.flatten(2).clone()
            changed[:, :, removed] = changed.mean(2, keepdim=True)
            first, second = scores(changed.view_as(maps))[0, best].tolist()
            return first - second

        # Without the tenth of the locations that speak most for the answer, it falls more than without any tenth.
        tenth = len(shares) // 10
        tenths = [torch.randperm(len(shares), generator=random)[:tenth] for _ in range(4)]
        assert margin(shares.topk(tenth).indices) < sum(map(margin, tenths)) / 4, photo
