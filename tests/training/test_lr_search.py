"""The learning rate is chosen on a small stream of the first experience alone, without side effects."""

import re

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import SupervisedPlugin
from host_benchmarks import LabelledImages
from hypothesis import given
from hypothesis import strategies as st
from watched import make as make_strategy

from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.lr_search import (
    Trial,
    arrivals_of,
    chosen,
    pieces_of,
    small_stream,
    split_experience,
    tune,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy


@pytest.fixture
def first(pixels):
    """20 images of two classes that differ in brightness, in the order 0 0 0 ... 1 1 1."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 60, (20, *pixels.shape[1:]), dtype=torch.uint8, generator=generator
    )
    images[10:] += 150
    data = as_classification_dataset(LabelledImages(images, torch.arange(20) // 10))
    return small_stream(benchmark_from_datasets(train=[data]).train_stream[0])


def learner(model_maker, seen=None, *plugins):
    def make(rate, evaluator):
        torch.manual_seed(7)
        model = model_maker(codebook=False)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        made = make_strategy(
            StreamStrategy,
            model,
            optimizer=optimizer,
            train_mb_size=4,
            evaluator=evaluator,
        )
        made.plugins += [kind() for kind in plugins]
        if seen is not None:
            seen.append(made)
        return made

    return make


def test_few_classes_are_divided_into_their_objects_which_arrive_in_up_to_four_experiences():
    labels = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    objects = [
        "a",
        "b",
        "a",
        "b",
        "c",
        "a",
        "a",
        "d",
        "d",
        "e",
        "e",
    ]  # "a" of class 1 is another one
    # In turn: the first object of each class, the second of each; "c" has one image,
    # which cannot be held out.
    assert pieces_of(labels, objects, 8) == [[0, 2], [5, 6], [1, 3], [7, 8], [9, 10]]
    assert pieces_of(labels, objects, 4) == [[0, 2], [5, 6], [1, 3], [7, 8]]
    assert pieces_of(labels, None, 8) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    assert pieces_of(labels, ["a"] * 11, 8) == pieces_of(labels, None, 8), (
        "two objects are no more than the classes"
    )
    (many,) = pieces_of([0] * 250, None, 8)
    assert len(many) == 100 and many[:3] == [0, 2, 5] and many[-1] == 247
    assert arrivals_of(5) == [[0, 1], [2], [3], [4]] and arrivals_of(4) == [
        [0, 1],
        [2],
        [3],
    ]
    assert arrivals_of(10) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]] and arrivals_of(
        3
    ) == [[0, 1, 2]]


def test_the_small_stream_of_two_classes_by_hand(make_stream):
    first = make_stream().train_stream[
        0
    ]  # two classes of two objects, a clip of five frames each
    table = make_stream().frame_table
    rows = list(first.dataset.frame_row)
    stream = small_stream(first, [table.object_name[row] for row in rows], 4)
    assert [sorted(set(labels_of(one.dataset))) for one in stream.train_stream] == [
        [0, 1],
        [2],
        [3],
    ]
    held_out, seen = [], {}
    for train, test in zip(stream.train_stream, stream.test_stream, strict=True):
        for part, count in ((train.dataset, 4), (test.dataset, 1)):
            labels = labels_of(part)
            assert all(labels.count(label) == count for label in set(labels))
            for item, label, row in zip(part, labels, part.frame_row, strict=True):
                assert torch.equal(item[0], first.dataset[rows.index(row)][0]) and list(
                    item[1:]
                ) == [label, 0]
                seen.setdefault(label, []).append(row)
        held_out += list(test.dataset.frame_row)
    # A piece is one object of one class, and the last frame of its clip is held out.
    assert all(
        len({(table.class_name[row], table.object_name[row]) for row in of}) == 1
        for of in seen.values()
    )
    assert all(table.frame[row] == 4 for row in held_out)
    assert {table.labels[of[0]] for label, of in seen.items() if label < 2} == set(
        labels_of(first.dataset)
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_last_fifth_of_each_class_is_held_out(labels):
    labels = [*labels, 0, 0, 1, 1, 2, 2, 3, 3]
    learned, tested = split_experience(labels)
    assert sorted(learned + tested) == list(range(len(labels)))
    for label in set(labels):
        mine = [place for place in learned if labels[place] == label]
        held = [place for place in tested if labels[place] == label]
        assert mine and held and max(mine) < min(held)
        assert abs(len(held) - 0.2 * (len(mine) + len(held))) <= 1


def test_best_first_each_frame_seen_once_and_errors(make_model, first):
    seen, before = [], torch.get_rng_state()
    trials = tune(learner(make_model, seen), first, rates=(1e-9, 1e-2, 1e30))
    assert torch.equal(torch.get_rng_state(), before)
    assert trials[0] == chosen(trials) and [
        trial.learning_rate for trial in trials
    ] == [1e-2, 1e-9, 1e30]
    assert [made.clock.train_iterations for made in seen[:2]] == [
        4
    ] * 2  # 16 of the 20 images, four at a time, once
    with pytest.raises(
        ValueError,
        match=re.escape("training diverged at every learning rate of 1e+30, 1e+36"),
    ):
        tune(learner(make_model), first, rates=(1e30, 1e36))
    message = "class 3 of the first experience has 1 frame, but tuning .* give the class 2 frames or more"
    with pytest.raises(ValueError, match=message):
        split_experience([1, 1, 3])


def test_the_lowest_rate_that_is_as_good_as_the_best():
    for results, rate in (
        # rate: (accuracy, loss)
        (
            {
                1e-4: (100, 0.043),
                3e-4: (100, 0.0063),
                1e-3: (100, 0.0007),
                1e-2: (100, 0.0),
            },
            3e-4,
        ),  # all but perfect
        (
            {1e-4: (98.9, 0.005), 3e-4: (99.1, 0.009), 1e-3: (100, 0.0)},
            3e-4,
        ),  # a point of accuracy counts too
        (
            {1e-4: (40, 2.5), 3e-4: (60, 1.9), 1e-3: (75, 1.1), 3e-3: (74, 1.2)},
            1e-3,
        ),  # a hard experience: the best
    ):
        trials = [
            Trial(rate, accuracy, loss) for rate, (accuracy, loss) in results.items()
        ]
        assert (
            chosen(trials).learning_rate == chosen(trials[::-1]).learning_rate == rate
        )


class Scores(SupervisedPlugin):
    """Answers with distances, as nearest-mean learners do: right, but all alike."""

    def after_eval_forward(self, strategy, **kwargs):
        strategy.mb_output = strategy.mb_output * 1e-3


def test_answers_without_probabilities_are_judged_by_the_head(make_model, first):
    (plain,) = tune(learner(make_model), first, rates=(1e-2,))
    by_scores, by_head = (
        tune(learner(make_model, None, Scores), first, rates=(1e-2,), head_loss=head)[0]
        for head in (False, True)
    )
    assert by_head.loss == pytest.approx(plain.loss, rel=1e-5) != by_scores.loss
