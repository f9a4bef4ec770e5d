"""Looks of a run: the numbers of a learner, and cached maps of each look."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from flags import flags
from PIL import Image

from benchmarks_toybox_ilab.streams.protocols import make_benchmark
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.learner.lesson import learn
from crumb_avalanche.methods import look_weights as weights_module
from crumb_avalanche.methods.look_shares import text_of
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.models.look_store import LookStore
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.runs.plan import preset_settings
from crumb_avalanche.training.feature_cache import FeatureCache

SIDE = 32
OBJECTS = 5  # of a class
FRAMES = 4  # of a clip, and images of a batch
LEAST_CLIPS = 4
COLOURS = {"class0": (200, 40, 40), "class1": (40, 200, 40), "class2": (40, 40, 200)}


def read(path):
    """A noisy square of the colour of a class, on a ground that says nothing."""
    class_name, number = path.split("/")
    draws = np.random.default_rng(int(number))
    pixels = draws.integers(0, 256, (40, 48, 3))
    pixels[10:30, 12:36] = COLOURS[class_name] + draws.integers(-30, 30, (20, 24, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def table():
    """Three classes of five objects, two clips each; the last object is asked."""
    rows = []
    for name in COLOURS:
        for number in range(2 * OBJECTS * FRAMES):
            clip, frame = divmod(number, FRAMES)
            item, session = divmod(clip, 2)
            split = "test" if item == OBJECTS - 1 else "train"
            path = f"{name}/{len(rows)}"
            rows.append(Frame(path, name, f"o{item}", f"s{session}", frame, split))
    return FrameTable(rows, reader=read, name="squares")


class Taught:
    """The same clips, learned by a strategy and by a learner in one lesson."""

    def __init__(self, table, weights_file, cache=None):
        self.table = table
        self.learner = Learner("recommended", "small_cnn", weights_file, SIDE)
        self.benchmark = make_benchmark(
            table,
            run=0,
            classes_per_experience=3,
            train_transform=LookTransform(LOOKS, SIDE),
            eval_transform=LookTransform(LOOKS, SIDE),
        )
        model = split_backbone(
            "small_cnn",
            weights_file,
            n_classes=3,
            codebook=None,
            image_size=SIDE,
            fine_tuning=False,
        )
        plugins = []
        if cache is not None:
            plugins = [cached(cache, model, len(table))]
        self.strategy = build_strategy(
            "rda",
            model,
            LearningSettings(batch_size=FRAMES),
            mem_size=1000,
            method={"looks": text_of(LOOKS)},
            evaluator=EvaluationPlugin(loggers=[]),
            plugins=plugins,
        )

    def run(self):
        """Learn by both."""
        (experience,) = self.benchmark.train_stream
        self.strategy.train(experience)
        rows = list(experience.dataset.frame_row)
        clips = [rows[start : start + FRAMES] for start in range(0, len(rows), FRAMES)]
        lesson = ((table_class(self.table, clip), self.batch(clip)) for clip in clips)
        learn(self.learner._classifier, lesson, [])
        return self

    def batch(self, rows):
        """Features of some rows, as ``learn`` takes them."""
        yield [self.table.path[row] for row in rows], self.features(rows)

    def features(self, rows):
        transform = self.learner._transform
        pixels = torch.stack([transform(self.table.read(row)) for row in rows])
        return self.learner._compute(pixels, transform.shares)

    def asked(self):
        """Names that both give to the test images."""
        rows = self.table.rows("test").tolist()
        classifier = self.learner._classifier
        evidence = classifier.evidence(self.features(rows))
        by_learner = [
            classifier.classes.names[number]
            for number in evidence.class_of_column[evidence.scores.argmax(1)].tolist()
        ]
        self.strategy.is_training = False
        transform = LookTransform(LOOKS, SIDE)
        images = torch.stack([transform(self.table.read(row)) for row in rows])
        self.strategy.mbatch = [images, torch.zeros(len(rows)), None]
        scores = self.strategy.forward()
        by_run = [self.table.classes[number] for number in scores.argmax(1).tolist()]
        return by_learner, by_run


def table_class(table, clip):
    return table.class_name[clip[0]]


def cached(folder, model, count):
    """A cache of the maps of each look."""
    stores = []
    for key in ("whole", "mid"):
        stores.append(MapStore(folder, model, count, key, progress=False))
    return FeatureCache(LookStore(stores))


@pytest.fixture(scope="module")
def taught(table, weights_file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_module, "LEAST_CLIPS", LEAST_CLIPS)
        return Taught(table, weights_file).run()


def weights_of_both(taught):
    return taught.strategy.look_weights, taught.learner._classifier.look_weights


def test_the_preset_has_the_looks_of_a_learner():
    looks = preset_settings("recommended")["method"]["rda"]["looks"]
    assert looks == text_of(LOOKS)


def test_run_and_learner_observe_the_same_clips(taught):
    of_run, of_learner = weights_of_both(taught)
    assert of_run.clips == of_learner.clips > LEAST_CLIPS
    torch.testing.assert_close(of_run.losses, of_learner.losses)


def test_run_and_learner_use_the_same_looks(taught):
    of_run, of_learner = weights_of_both(taught)
    assert of_run.used == of_learner.used


def test_run_and_learner_answer_the_same(taught):
    by_learner, by_run = taught.asked()
    assert by_run == by_learner


def test_run_and_learner_hold_the_same(taught):
    of_run = taught.strategy.forms.by_look
    of_learner = taught.learner._classifier.forms.by_look
    names = taught.learner._classifier.classes.names
    numbers = list(map(taught.table.classes.index, names))
    assert of_run.keys() == of_learner.keys()
    for look, form in of_learner.items():
        expected = form.named_tensors()
        tensors = of_run[look].named_tensors()
        torch.testing.assert_close(tensors["counts"][numbers], expected["counts"])
        torch.testing.assert_close(tensors["means"][numbers], expected["means"])


def test_cached_maps_are_those_of_the_looks(table, weights_file, taught, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_module, "LEAST_CLIPS", LEAST_CLIPS)
        from_cache = Taught(table, weights_file, cache=tmp_path)
        (experience,) = from_cache.benchmark.train_stream
        from_cache.strategy.train(experience)
    assert len(list(tmp_path.glob("*.maps"))) == len(LOOKS)
    expected = taught.strategy.statistics.named_tensors()
    tensors = from_cache.strategy.statistics.named_tensors()
    torch.testing.assert_close(tensors["means"], expected["means"])


@pytest.mark.parametrize("name", ["seconds", "filled", "damaged"])
def test_counts_of_all_looks_are_set_as_one(name):
    whole, middle = SimpleNamespace(**{name: 3}), SimpleNamespace(**{name: 4})
    store = LookStore([whole, middle])
    assert getattr(store, name) == 7
    setattr(store, name, 10)
    assert getattr(store, name) == 10
    setattr(middle, name, 5)  # computed since
    assert getattr(store, name) == 15


def test_images_without_looks_are_refused(taught):
    taught.strategy.mbatch = [torch.zeros(2, 3, SIDE, SIDE), torch.zeros(2), None]
    taught.strategy.is_training = False
    with pytest.raises(ValueError, match=r"looks at the parts 1,0.6: give \(B, 2, 3"):
        taught.strategy.forward()


# By the command


def run_of_looks(ran, folder, looks, **settings):
    method = ["--method.looks", looks]
    preset = flags(preset="recommended", budget_images=40, **settings)
    return ran(folder, *preset, *method)


@pytest.mark.parametrize(
    ("text", "looks"), [("1,0.5", (1.0, 0.5)), ("1", (1.0,)), ("0.6", (0.6,))]
)
def test_the_learner_of_a_run_has_its_looks(ran, tmp_path, text, looks):
    result, _ = run_of_looks(ran, tmp_path / "run", text)
    learner = Learner.load(tmp_path / "run")
    assert learner.looks == looks
    assert 0 < result["final_accuracy"] <= 100


def test_a_rival_has_the_same_looks(ran, tmp_path):
    settings = flags(strategy="slda", budget_images=50)
    ran(tmp_path, *settings, "--method.looks", "1,0.6")
    assert Learner.load(Path(tmp_path)).looks == LOOKS


def test_other_texts_are_refused(refused, tiny):
    settings = [*tiny, "--strategy", "slda", "--method.looks", "wide"]
    refused("looks is 'wide'; give one to three shares", *settings)


@pytest.fixture
def short_of_bytes(table, weights_file):
    """A strategy that gave a look up within an experience."""
    taught = Taught(table, weights_file)
    taught.strategy.budget = 2_500
    (experience,) = taught.benchmark.train_stream
    taught.strategy.train(experience)
    return taught.strategy


def test_a_look_is_given_up_where_a_budget_is_small(short_of_bytes):
    assert len(short_of_bytes.forms.used) == 1
    assert short_of_bytes.statistics_bytes <= short_of_bytes.budget


def test_a_state_is_loaded_after_a_look_was_given_up(
    short_of_bytes, table, weights_file
):
    strategy = Taught(table, weights_file).strategy
    strategy.load_state_dict(short_of_bytes.state_dict())
    assert strategy.forms.used == short_of_bytes.forms.used
    means = short_of_bytes.statistics.named_tensors()["means"]
    assert torch.equal(strategy.statistics.named_tensors()["means"], means)
