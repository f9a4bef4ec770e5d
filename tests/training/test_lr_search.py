"""The learning rate is chosen on a small stream of the first experience alone."""

import math
from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import SupervisedPlugin
from fake_data import values_of
from host_benchmarks import LabelledImages
from hypothesis import given
from hypothesis import strategies as st
from watched import make as make_strategy

from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.lr_search import (
    Trial,
    _HeadLoss,
    choose_trial,
    classes_of_experiences,
    pseudo_classes,
    small_stream,
    split_experience,
    tune,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy

# Pieces of the first experience

LABELS = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
# "a" of class 1 is another object; "c" has one image, which cannot be held out.
OBJECTS = ["a", "b", "a", "b", "c", "a", "a", "d", "d", "e", "e"]
BY_CLASS = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]


def test_pieces_are_objects_in_turn():
    # The first object of each class, then the second of each.
    pieces = pseudo_classes(LABELS, OBJECTS, 8)
    assert pieces == [[0, 2], [5, 6], [1, 3], [7, 8], [9, 10]]


def test_at_most_so_many_pieces():
    assert pseudo_classes(LABELS, OBJECTS, 4) == [[0, 2], [5, 6], [1, 3], [7, 8]]


@pytest.mark.parametrize(
    "objects", [None, ["a"] * 11], ids=["unknown", "one for a class"]
)
def test_pieces_are_classes_without_objects(objects):
    assert pseudo_classes(LABELS, objects, 8) == BY_CLASS


def test_a_large_piece_is_thinned_out():
    (piece,) = pseudo_classes([0] * 250, None, 8)
    assert len(piece) == 100
    assert piece[:3] == [0, 2, 5]
    assert piece[-1] == 247


@pytest.mark.parametrize(
    ("pieces", "arrivals"),
    [
        (3, [[0, 1, 2]]),
        (4, [[0, 1], [2], [3]]),
        (5, [[0, 1], [2], [3], [4]]),
        (10, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    ],
)
def test_pieces_arrive_one_after_the_other(pieces, arrivals):
    assert classes_of_experiences(pieces) == arrivals


def test_the_number_of_experiences_may_be_limited():
    assert classes_of_experiences(5, most=2) == [[0, 1, 2], [3, 4]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_last_fifth_is_held_out(labels):
    labels = [*labels, 0, 0, 1, 1, 2, 2, 3, 3]
    learned, tested = split_experience(labels)
    assert sorted(learned + tested) == list(range(len(labels)))
    for label in range(4):
        before = [position for position in learned if labels[position] == label]
        after = [position for position in tested if labels[position] == label]
        assert max(before) < min(after)
        assert abs(len(after) - 0.2 * (len(before) + len(after))) <= 1


def test_a_class_of_one_frame_is_refused():
    words = (
        "class 3 of the first experience has 1 frame, but tuning .* "
        "give the class 2 frames or more"
    )
    with pytest.raises(ValueError, match=words):
        split_experience([1, 1, 3])


# The small stream


class SmallStream:
    """The small stream of an experience of two classes, with two objects each.

    Each object has a clip of five frames.

    Attributes:
        experience: that it is made of.
        table: the frames of the stream.
        stream: the small stream, an object a class.
    """

    def __init__(self, benchmark):
        self.experience = benchmark.train_stream[0]
        self.table = benchmark.frame_table
        rows = self.experience.dataset.frame_row
        objects = [self.table.object_name[row] for row in rows]
        self.stream = small_stream(self.experience, objects, 4)
        self.train = [experience.dataset for experience in self.stream.train_stream]
        self.test = [experience.dataset for experience in self.stream.test_stream]

    def rows_by_label(self):
        """The rows of the table behind each class of the small stream."""
        rows = {}
        for dataset in (*self.train, *self.test):
            for label, row in zip(labels_of(dataset), dataset.frame_row, strict=True):
                rows.setdefault(label, []).append(row)
        return rows


@pytest.fixture(scope="module")
def small(make_stream):
    return SmallStream(make_stream())


def test_objects_arrive_as_classes(small):
    labels = [set(labels_of(dataset)) for dataset in small.train]
    assert labels == [{0, 1}, {2}, {3}]


def test_a_frame_of_each_object_is_held_out(small):
    for train, test in zip(small.train, small.test, strict=True):
        labels = sorted(set(labels_of(train)))
        assert sorted(labels_of(train)) == sorted(labels * 4)
        assert sorted(labels_of(test)) == labels


def test_the_last_frame_is_held_out(small):
    for dataset in small.test:
        assert {small.table.frame[row] for row in dataset.frame_row} == {4}


def test_images_are_those_of_the_experience(small):
    rows = list(small.experience.dataset.frame_row)
    for dataset in (*small.train, *small.test):
        for item, row in zip(dataset, dataset.frame_row, strict=True):
            image = small.experience.dataset[rows.index(row)][0]
            assert torch.equal(item[0], image)


def test_items_have_the_small_labels(small):
    for dataset in (*small.train, *small.test):
        for item, label in zip(dataset, labels_of(dataset), strict=True):
            assert tuple(item[1:]) == (label, 0)


def test_a_piece_is_one_object(small):
    for rows in small.rows_by_label().values():
        classes = {small.table.class_name[row] for row in rows}
        objects = values_of(small.table.object_name, rows)
        assert (len(classes), len(objects)) == (1, 1)


def test_the_first_pieces_are_of_all_classes(small):
    rows = small.rows_by_label()
    labels = {small.table.labels[rows[piece][0]] for piece in (0, 1)}
    assert labels == set(labels_of(small.experience.dataset))


# Tuning


@pytest.fixture
def first(pixels):
    """The small stream of 20 images: ten dark ones, then ten bright ones."""
    generator = torch.Generator().manual_seed(0)
    size = (20, *pixels.shape[1:])
    images = torch.randint(0, 60, size, dtype=torch.uint8, generator=generator)
    images[10:] += 150
    data = as_classification_dataset(LabelledImages(images, torch.arange(20) // 10))
    return small_stream(benchmark_from_datasets(train=[data]).train_stream[0])


class Learners:
    """Makes the learner of each trial, and lists them in ``strategies``."""

    def __init__(self, make_model, *plugins):
        self.make_model = make_model
        self.plugins = plugins
        self.strategies = []

    def __call__(self, rate, evaluator):
        torch.manual_seed(7)
        model = self.make_model(codebook=False)
        strategy = make_strategy(
            StreamStrategy,
            model,
            *self.plugins,
            optimizer=torch.optim.SGD(model.parameters(), rate),
            train_mb_size=4,
            evaluator=evaluator,
        )
        self.strategies.append(strategy)
        return strategy


RATES = (1e-9, 1e-2, 1e30)


def test_trials_are_sorted_best_first(make_model, first):
    trials = tune(Learners(make_model), first, rates=RATES)
    assert [trial.learning_rate for trial in trials] == [1e-2, 1e-9, 1e30]
    assert trials[0] == choose_trial(trials)


def test_each_frame_is_seen_once(make_model, first):
    learners = Learners(make_model)
    tune(learners, first, rates=RATES[:2])
    steps = [strategy.clock.train_iterations for strategy in learners.strategies]
    assert steps == [4, 4]  # 16 of the 20 images, four at a time


def test_tuning_draws_no_random_numbers(make_model, first):
    state = torch.get_rng_state()
    tune(Learners(make_model), first, rates=RATES)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_rates_diverge(make_model, first):
    words = r"training diverged at every learning rate of 1e\+30, 1e\+36"
    with pytest.raises(ValueError, match=words):
        tune(Learners(make_model), first, rates=(1e30, 1e36))


# Of each learning rate the accuracy and the loss.
NEARLY_PERFECT = {
    1e-4: (100, 0.043),
    3e-4: (100, 0.0063),
    1e-3: (100, 0.0007),
    1e-2: (100, 0.0),
}
WITHIN_A_POINT = {1e-4: (98.9, 0.005), 3e-4: (99.1, 0.009), 1e-3: (100, 0.0)}
HARD = {1e-4: (40, 2.5), 3e-4: (60, 1.9), 1e-3: (75, 1.1), 3e-3: (74, 1.2)}


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@pytest.mark.parametrize(
    ("results", "rate"),
    [(NEARLY_PERFECT, 3e-4), (WITHIN_A_POINT, 3e-4), (HARD, 1e-3)],
    ids=["nearly perfect", "within a point", "hard"],
)
def test_the_lowest_rate_as_good_as_the_best(results, rate, order):
    trials = [Trial(rate, *measured) for rate, measured in results.items()]
    assert choose_trial(trials[::order]).learning_rate == rate


class SmallOutputs(SupervisedPlugin):
    """Answers with distances, as nearest-mean learners do: right, but all alike."""

    def after_eval_forward(self, strategy, **kwargs):
        strategy.mb_output = strategy.mb_output * 1e-3


def loss_at_1e_2(learners, first, **options):
    (trial,) = tune(learners, first, rates=(1e-2,), **options)
    return trial.loss


def test_the_head_is_judged_for_scores(make_model, first):
    expected = loss_at_1e_2(Learners(make_model), first)
    learners = Learners(make_model, SmallOutputs())
    loss = loss_at_1e_2(learners, first, head_loss=True)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_the_head_is_of_all_batches():
    recorder = _HeadLoss()
    recorder.before_eval(None)
    batch = SimpleNamespace(mb_output=torch.zeros(2, 4), mb_y=torch.tensor([0, 3]))
    recorder.after_eval_forward(batch)
    recorder.after_eval_forward(batch)
    assert recorder.losses == pytest.approx([math.log(4)] * 4)


def test_scores_are_judged_by_default(make_model, first):
    expected = loss_at_1e_2(Learners(make_model), first)
    loss = loss_at_1e_2(Learners(make_model, SmallOutputs()), first, head_loss=False)
    assert loss != pytest.approx(expected, rel=1e-5)
