"""Streams: the frames of each experience and their order, and transforms of images."""

import pickle
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import ICaRL, Replay
from fake_data import make_table, toybox_names, values_of, write_files
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import transforms

from benchmarks_toybox_ilab import Toybox
from benchmarks_toybox_ilab.streams.orders import PROTOCOLS
from benchmarks_toybox_ilab.streams.protocols import make_benchmark, plan_stream
from benchmarks_toybox_ilab.streams.torch_dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    FrameDataset,
    imagenet_transform,
    normalize_pixels,
    pixel_transform,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


@st.composite
def tables(draw):
    """Tables of any shape, in any row order, without any image.

    Every class has training and test frames.
    """
    frames = []
    for label in range(draw(st.integers(1, 6))):
        clips = draw(st.lists(st.integers(1, 4), min_size=2, max_size=6))
        for number, length in enumerate(clips):
            if number < 2:
                split = ("train", "test")[number]
            else:
                split = draw(st.sampled_from(("train", "test")))
            numbers = st.lists(st.integers(0, 99), min_size=length, max_size=length)
            for frame in draw(numbers):
                frames.append(
                    Frame(
                        path=f"{label}/{number}/{len(frames)}.png",
                        class_name=f"class{label}",
                        object_name=f"object{number % 3}",
                        session=f"session{number // 3}",
                        frame=frame,
                        split=split,
                    )
                )
    draw(st.randoms(use_true_random=False)).shuffle(frames)
    return FrameTable(frames)


runs = st.integers(0, 20)
sizes = st.integers(1, 4)
protocols = st.sampled_from(PROTOCOLS)


def rows_by_experience(stream):
    return [list(experience.dataset.frame_row) for experience in stream]


def classes_by_experience(stream):
    return [set(experience.dataset.targets) for experience in stream]


def all_experiences(benchmark):
    return [*benchmark.train_stream, *benchmark.test_stream]


def clips_of(table, rows):
    """Return the name of the clip of each row."""
    return [
        (table.class_name[row], table.object_name[row], table.session[row])
        for row in rows
    ]


# What every stream has


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_every_frame_is_used_once(table, protocol, run, size):
    benchmark = make_benchmark(table, protocol, run, size)
    train = rows_by_experience(benchmark.train_stream)
    test = rows_by_experience(benchmark.test_stream)
    assert sorted(chain(*train)) == table.rows("train").tolist()
    assert sorted(chain(*test)) == table.rows("test").tolist()
    assert test == list(map(sorted, test))


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_items_have_the_labels_of_their_rows(table, protocol, run, size):
    benchmark = make_benchmark(table, protocol, run, size)
    for experience in all_experiences(benchmark):
        data = experience.dataset
        assert table.labels[list(data.frame_row)].tolist() == list(data.targets)
        assert set(data.targets_task_labels) == {0} and experience.task_label == 0
        assert experience.classes_in_this_experience == set(data.targets)


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_a_run_is_repeated(table, protocol, run, size):
    first = make_benchmark(table, protocol, run, size)
    second = make_benchmark(table, protocol, run, size)
    train = rows_by_experience(first.train_stream)
    assert rows_by_experience(second.train_stream) == train


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_a_plan_has_the_rows_of_the_stream(table, protocol, run, size):
    benchmark = make_benchmark(table, protocol, run, size)
    plan = plan_stream(table, protocol, run, size)
    train = [rows.tolist() for rows in plan.train]
    test = [rows.tolist() for rows in plan.test]
    assert train == rows_by_experience(benchmark.train_stream)
    assert test == rows_by_experience(benchmark.test_stream)


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_classes_come_in_chunks(table, protocol, run, size):
    benchmark = make_benchmark(table, protocol, run, size)
    order = benchmark.classes_order
    chunks = [set(order[start : start + size]) for start in range(0, len(order), size)]
    train = classes_by_experience(benchmark.train_stream)
    assert sorted(order) == list(range(len(table.classes)))
    assert classes_by_experience(benchmark.test_stream) == chunks
    assert train == ([set(order)] if protocol == "offline" else chunks)
    assert benchmark.original_classes_in_exp == train
    assert benchmark.n_classes_per_exp == list(map(len, train))


@settings(max_examples=15)
@given(tables(), st.sampled_from(["class_instance", "class_iid"]), runs, sizes)
def test_classes_seen_are_those_of_the_tests_so_far(table, protocol, run, size):
    benchmark = make_benchmark(table, protocol, run, size)
    seen = set()
    for train, test in zip(benchmark.train_stream, benchmark.test_stream):
        seen |= set(test.dataset.targets)
        assert train.classes_seen_so_far == seen


@settings(max_examples=15)
@given(tables(), runs, sizes)
def test_protocols_of_a_run_differ_only_in_order(table, run, size):
    instance = make_benchmark(table, "class_instance", run, size)
    iid = make_benchmark(table, "class_iid", run, size)
    offline = make_benchmark(table, "offline", run, size)
    assert instance.classes_order == iid.classes_order == offline.classes_order
    instance_rows = map(sorted, rows_by_experience(instance.train_stream))
    iid_rows = map(sorted, rows_by_experience(iid.train_stream))
    assert list(instance_rows) == list(iid_rows)
    assert len(offline.train_stream) == 1
    test = rows_by_experience(instance.test_stream)
    assert rows_by_experience(iid.test_stream) == test
    assert rows_by_experience(offline.test_stream) == test


@settings(max_examples=15)
@given(tables(), runs, sizes)
def test_clips_stay_whole(table, run, size):
    benchmark = make_benchmark(table, "class_instance", run, size)
    for rows in rows_by_experience(benchmark.train_stream):
        clips = clips_of(table, rows)
        changes = sum(before != after for before, after in pairwise(clips))
        assert changes == len(set(clips)) - 1
        frames = [table.frame[row] for row in rows]
        for position in range(1, len(rows)):
            if clips[position] == clips[position - 1]:
                assert frames[position - 1] <= frames[position]


@settings(max_examples=10)
@given(tables(), protocols, runs)
def test_an_experience_may_be_a_session_of_all_classes(table, protocol, run):
    train_sessions, test_sessions = (all_sessions(table, s) for s in ("train", "test"))
    assume(train_sessions == test_sessions or len(test_sessions) == 1)
    benchmark = make_benchmark(table, protocol, run, None)
    test = rows_by_experience(benchmark.test_stream)
    train = rows_by_experience(benchmark.train_stream)
    assert sorted(chain(*train)) == table.rows("train").tolist()
    assert sorted(chain(*test)) == table.rows("test").tolist()
    assert sessions_of(table, test) == all_sessions(table, "test")
    if protocol != "offline":
        assert sessions_of(table, train) == all_sessions(table, "train")
    assert sorted(benchmark.classes_order) == list(range(len(table.classes)))


def test_sessions_come_in_natural_order():
    table = make_table(classes=2, objects=1, sessions=13, frames=1)
    benchmark = make_benchmark(table, classes_per_experience=None)
    train = rows_by_experience(benchmark.train_stream)
    assert sessions_of(table, train) == [f"s{number}" for number in range(12)]


def table_of_sessions(train, test):
    """A table of one class with a frame of each session in each split."""
    frames = []
    for split, sessions in (("train", train), ("test", test)):
        for session in sessions:
            frames.append(Frame(f"{split}/{session}", "bus", "a", session, 0, split))
    return FrameTable(frames)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ("123", "13", "^session 2 has no test frames, so"),
        ("13", "123", "^session 2 has no train frames, so"),
        (
            "134",
            "123",
            "^session 2 has no train frames and session 4 has no test frames, so .* "
            "Complete the data, or leave the whole session out",
        ),
    ],
)
def test_a_session_that_one_split_lacks(train, test, words):
    with pytest.raises(FrameTableError, match=words):
        plan_stream(table_of_sessions(train, test), classes_per_experience=None)


@pytest.mark.parametrize(("train", "test"), [("123", "3"), ("123", "45")])
def test_test_sessions_of_no_training_session(train, test):
    plan = plan_stream(table_of_sessions(train, test), classes_per_experience=None)
    assert (len(plan.train), len(plan.test)) == (len(train), len(test))


def sessions_of(table, experiences):
    """Return the session of each experience; they have one each."""
    sessions = []
    for rows in experiences:
        (session,) = values_of(table.session, rows)
        sessions.append(session)
    return sessions


def all_sessions(table, split):
    return sorted(values_of(table.session, table.rows(split)))


# Orders


def test_the_order_of_classes_in_later_versions():
    """Golden values: later versions repeat the same runs."""
    table = make_table(classes=4, objects=1, sessions=3, frames=2)
    assert plan_stream(table, run=0).chunks == ((1, 0), (3, 2))
    assert plan_stream(table, run=1).chunks == ((3, 1), (0, 2))


@pytest.mark.parametrize(
    ("protocol", "rows"),
    [
        ("class_instance", [2, 3, 6, 7, 8, 9, 0, 1]),
        ("class_iid", [2, 8, 9, 0, 1, 7, 3, 6]),
        ("offline", [9, 14, 8, 15, 20, 7, 2, 0, 12, 1, 21, 18, 13, 19, 3, 6]),
    ],
)
def test_the_order_of_frames_in_later_versions(protocol, rows):
    """Golden values, as above."""
    table = make_table(classes=4, objects=1, sessions=3, frames=2)
    assert plan_stream(table, protocol).train[0].tolist() == rows


GROUPS = [["class5", "class1", "class3"], ["class0", "class2", "class4"]]


@pytest.mark.parametrize("run", range(8))
def test_groups_of_classes_keep_their_order(run):
    plan = plan_stream(make_table(classes=6), run=run, class_groups=GROUPS)
    order = list(chain(*plan.chunks))
    assert set(order[:3]) == {5, 1, 3}
    assert set(order[3:]) == {0, 2, 4}


def test_groups_of_classes_are_shuffled():
    table = make_table(classes=6)
    plans = [plan_stream(table, run=run, class_groups=GROUPS) for run in range(8)]
    assert len({plan.chunks for plan in plans}) == 8


# Classes as they are numbered in the tests of the published code.
NUMBERED = ["class2", "class0", "class3", "class1"]


def published_table():
    return make_table(classes=4, objects=2, sessions=3, frames=2)


def published_draws(run):
    """Return the classes and clips of each experience as a script would draw them.

    Written out with numpy's legacy functions.
    """
    np.random.seed(run)
    order = list(NUMBERED)
    np.random.shuffle(order)
    experiences = []
    for names in (order[:2], order[2:]):
        triples = []  # of object, session and class
        for name in names:
            for number in (0, 1):
                for session in (0, 1):  # two sessions to train on
                    triples.append((number, session, NUMBERED.index(name)))
        clips = np.unique(triples, axis=0)
        np.random.shuffle(clips)
        experiences.append(
            [
                (NUMBERED[label], f"o{instance}", f"s{session}")
                for instance, session, label in clips
            ]
        )
    return experiences


@pytest.mark.parametrize("run", [0, 3])
def test_clips_of_the_published_code(run):
    table = published_table()
    benchmark = make_benchmark(
        table, "class_instance", run=run, class_groups=[NUMBERED], reference=True
    )
    experiences = published_draws(run)
    appearance = list(dict.fromkeys(name for name, _, _ in chain(*experiences)))
    assert list(benchmark.class_names) == appearance
    assert benchmark.frame_table.classes == tuple(appearance)
    for experience, clips in zip(benchmark.train_stream, experiences):
        of_rows = clips_of(table, experience.dataset.frame_row)
        assert of_rows[0::2] == of_rows[1::2] == clips
        labels = [appearance.index(name) for name, _, _ in of_rows]
        assert list(experience.dataset.targets) == labels


@pytest.mark.parametrize("run", [0, 3])
def test_frames_of_the_published_code(run):
    table = published_table()
    benchmark = make_benchmark(
        table, "class_iid", run=run, class_groups=[NUMBERED], reference=True
    )
    appearance = []
    for experience, clips in zip(benchmark.train_stream, published_draws(run)):
        names = {name for name, _, _ in clips}
        of_classes = np.isin(table.class_name, list(names))
        rows = np.flatnonzero(of_classes & np.isin(table.split, "train"))
        drawn = rows[np.random.RandomState(run).permutation(len(rows))]
        assert list(experience.dataset.frame_row) == drawn.tolist()
        appearance += dict.fromkeys(table.class_name[row] for row in drawn)
    assert list(benchmark.class_names) == appearance
    assert sorted(benchmark.test_stream[0].dataset.targets) == [0] * 4 + [1] * 4
    assert benchmark.original_classes_in_exp == [{0, 1}, {2, 3}]


# Items and attributes


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("stream", "size"), [("train", 8), ("test", 4)])
def test_items_are_the_frames_of_their_rows(protocol, stream, size):
    table = make_table(classes=3, frames=2)
    benchmark = make_benchmark(
        table, protocol, 5, 2, pixel_transform(8), pixel_transform(4)
    )
    for experience in benchmark.streams[stream]:
        data = experience.dataset
        for (pixels, label, task), row in zip(data, data.frame_row):
            assert pixels.shape == (3, size, size)
            assert row <= pixels.float().mean() <= row + 1
            assert (label, task) == (table.labels[row], 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subset_of_a_dataset(protocol):
    table = make_table(classes=3, frames=2)
    benchmark = make_benchmark(
        table, protocol, 5, 2, pixel_transform(8), pixel_transform(4)
    )
    data = benchmark.train_stream[0].dataset
    rows = list(data.frame_row)
    assert data.eval()[0][0].shape == (3, 4, 4)
    assert list(data.subset([3, 1]).frame_row) == [rows[3], rows[1]]


def test_attributes_of_a_benchmark():
    table = make_table(classes=5)
    benchmark = make_benchmark(table, "class_iid", run=2)
    first = benchmark.classes_order[0]
    assert benchmark.n_classes == 5
    assert benchmark.class_names[first] == f"class{first}"
    assert benchmark.frame_table is table
    assert benchmark.protocol == "class_iid"
    assert benchmark.run == 2
    assert set(benchmark.streams) == {"train", "test"}
    assert benchmark.train_stream.benchmark is benchmark


def test_an_experience_knows_the_classes_of_all():
    benchmark = make_benchmark(make_table(classes=5), "class_iid", run=2)
    info = benchmark.train_stream[1].train().benchmark
    assert info.n_classes_per_exp == [2, 2, 1]
    assert info.classes_order == benchmark.classes_order


def test_numbers_of_classes_of_an_offline_stream():
    offline = make_benchmark(make_table(classes=5), "offline")
    assert offline.n_classes_per_exp == [5]
    assert offline.test_stream[0].benchmark.n_classes_per_exp == [2, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"protocol": "iid"},
            "unknown protocol 'iid'; known are class_instance, class_iid, offline",
        ),
        ({"run": -1}, "run is -1, but must be a whole number of at least 0"),
        ({"run": 0.5}, "run is 0.5"),
        (
            {"classes_per_experience": 0},
            "classes_per_experience is 0, but must be a whole number of at least 1",
        ),
        (
            {"class_groups": [["class0"]]},
            "must contain each class of the table once: class0, class1",
        ),
        (
            {"class_groups": [["class0", "class1"]] * 2},
            "must contain each class of the table once: class0, class1",
        ),
    ],
)
def test_arguments_out_of_range(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_benchmark(make_table(classes=2), **arguments)


def test_a_class_without_test_frames():
    table = make_table()
    with pytest.raises(FrameTableError, match="class 'class2' has no test frames"):
        make_benchmark(table.without(table.rows("test", "class2")))


def test_a_class_without_test_frames_that_is_left_out():
    table = make_table()
    table = table.without(table.rows("test", "class2"))
    order = ["class3", "class0", "class4", "class1"]
    benchmark = make_benchmark(table, fixed_class_order=order)
    assert classes_by_experience(benchmark.test_stream) == [{0, 3}, {1, 4}]


# Images and tensors


@pytest.fixture(params=[(50, 31), (8, 8), (5, 90)])
def image(request):
    width, height = request.param
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_items_are_image_and_label_in_the_given_order():
    rows = [50, 3, 3]
    dataset = FrameDataset(make_table(), rows, pixel_transform(8))
    images, labels = zip(*map(dataset.__getitem__, range(3)))
    assert len(dataset) == 3
    assert dataset.targets == [2, 0, 0]
    assert labels == (2, 0, 0)
    brightness = [pixels.float().mean().item() for pixels in images]
    assert brightness == pytest.approx(rows, abs=1)
    assert torch.equal(images[1], images[2])


def test_items_without_a_transform_are_images():
    assert isinstance(FrameDataset(make_table(), [0])[0][0], Image.Image)


def test_uint8_and_float_agree_to_the_bit(image):
    pixels = pixel_transform(24)(image)
    floats = imagenet_transform(24)(image)
    assert floats.dtype == torch.float32 and pixels.dtype == torch.uint8
    assert pixels.shape == (3, 24, 24) and pixels.is_contiguous()
    assert torch.equal(normalize_pixels(pixels), floats)
    assert torch.equal(normalize_pixels(pixels.expand(2, 5, -1, -1, -1))[1, 4], floats)


def test_transforms_equal_those_of_torchvision(image):
    theirs = transforms.Compose(
        [
            transforms.Resize((24, 24)),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    assert torch.equal(imagenet_transform(24)(image), theirs(image))


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (pixel_transform(16), "PixelTransform(size=16, interpolation='bilinear')"),
        (imagenet_transform(), "ImageNetTransform(size=224)"),
    ],
)
def test_transforms_key_caches(transform, text):
    assert repr(transform) == text
    assert pickle.loads(pickle.dumps(transform)) == transform


# With Avalanche


@pytest.fixture
def toybox(tmp_path):
    """Four classes, two per experience, as images of 8 x 8 pixels."""
    write_files(tmp_path, toybox_names(["cup", "mug", "duck", "car"], [1], 2))
    transform = imagenet_transform(8)
    return Toybox(tmp_path, run=1, train_transform=transform, eval_transform=transform)


def rows_of(stream):
    return list(chain(*rows_by_experience(stream)))


def online_experiences(benchmark):
    stream = benchmark.train_stream
    return list(split_online_stream(stream, experience_size=3, shuffle=False))


def test_a_stream_can_be_split_online(toybox):
    online = online_experiences(toybox)
    assert rows_of(online) == rows_of(toybox.train_stream)
    assert {len(experience.dataset) for experience in online[:-1]} <= {1, 2, 3}


def test_a_stream_can_be_split_for_validation(toybox):
    divided = benchmark_with_validation_stream(toybox, validation_size=0.34)
    train = rows_of(divided.train_stream)
    valid = rows_of(divided.valid_stream)
    assert train and valid
    assert sorted(train + valid) == sorted(rows_of(toybox.train_stream))
    assert rows_of(divided.test_stream) == rows_of(toybox.test_stream)


def feature_extractor():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def common_arguments(*modules):
    """Return the arguments of a strategy of Avalanche that trains these modules."""
    parameters = chain.from_iterable(module.parameters() for module in modules)
    return {
        "optimizer": torch.optim.SGD(parameters, 0.1),
        "train_mb_size": 5,
        "eval_mb_size": 10,
        "evaluator": EvaluationPlugin(loggers=[]),
    }


def train(strategy, experiences, **options):
    for experience in experiences:
        strategy.train(experience, **options)


def test_replay_trains_on_split_streams(toybox):
    divided = benchmark_with_validation_stream(toybox, validation_size=0.34)
    model = nn.Sequential(feature_extractor(), nn.Linear(32, 5))
    replay = Replay(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        mem_size=6,
        **common_arguments(model),
    )
    train(replay, [*online_experiences(toybox)[:4], divided.train_stream[0]])
    replay.eval(divided.valid_stream)
    assert replay.clock.train_exp_counter == 5


def test_icarl_reads_what_a_stream_says_of_itself(toybox):
    net = feature_extractor()
    head = nn.Linear(32, 5)
    before = head.weight.detach().clone()
    icarl = ICaRL(
        feature_extractor=net,
        classifier=head,
        memory_size=10,
        buffer_transform=None,
        fixed_memory=True,
        **common_arguments(net, head),
    )
    train(icarl, toybox.train_stream, shuffle=False)
    icarl.eval(toybox.test_stream)
    assert icarl.clock.train_exp_counter == 2
    assert not torch.equal(head.weight, before)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("fixed_class_order", [0, 1]),
        ("first_exp_with_half_classes", True),
        ("per_exp_classes", {0: 2}),
    ],
)
def test_sessions_that_are_experiences_are_not_divided(keyword, value):
    words = f"are the sessions of the table, so {keyword} cannot be given"
    with pytest.raises(ValueError, match=words):
        plan_stream(
            make_table(), "table", classes_per_experience=None, **{keyword: value}
        )


def test_more_classes_an_experience_than_there_are_is_told():
    words = "classes_per_experience is 9, but there are 5 classes, so one experience"
    with pytest.warns(UserWarning, match=words):
        make_benchmark(make_table(), classes_per_experience=9)
