"""Streams: the frames of each experience and their order, and the transforms of their images."""

import pickle
from itertools import chain

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import ICaRL, Replay
from fake_data import make_table, toybox_names, write_files
from hypothesis import given, settings
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
    """Tables of any shape, in any row order, without any image; every class has training and test frames."""
    frames = []
    for c in range(draw(st.integers(1, 6))):
        clips = draw(st.lists(st.integers(1, 4), min_size=2, max_size=6))
        for number, length in enumerate(clips):
            split = (
                ("train", "test")[number]
                if number < 2
                else draw(st.sampled_from(("train", "test")))
            )
            for f in draw(
                st.lists(st.integers(0, 99), min_size=length, max_size=length)
            ):
                path = f"{c}/{number}/{len(frames)}.png"
                frames.append(
                    Frame(
                        path,
                        f"class{c}",
                        f"object{number % 3}",
                        f"session{number // 3}",
                        f,
                        split,
                    )
                )
    draw(st.randoms(use_true_random=False)).shuffle(frames)
    return FrameTable(frames)


runs = st.integers(0, 20)
sizes = st.integers(1, 4)
protocols = st.sampled_from(PROTOCOLS)


def row_lists(stream):
    return [list(experience.dataset.frame_row) for experience in stream]


def class_sets(stream):
    return [set(experience.dataset.targets) for experience in stream]


@settings(max_examples=15)
@given(tables(), protocols, runs, sizes)
def test_a_stream_uses_every_frame_once_with_its_label_and_is_drawn_from_the_run(
    table, protocol, run, size
):
    benchmark = make_benchmark(table, protocol, run, size)
    train, test = (
        row_lists(stream) for stream in (benchmark.train_stream, benchmark.test_stream)
    )
    assert sorted(chain(*train)) == table.rows("train").tolist()
    assert sorted(chain(*test)) == table.rows("test").tolist() and all(
        rows == sorted(rows) for rows in test
    )
    for experience in (*benchmark.train_stream, *benchmark.test_stream):
        data = experience.dataset
        assert [table.labels[row] for row in data.frame_row] == list(data.targets)
        assert set(data.targets_task_labels) == {0} and experience.task_label == 0
        assert experience.classes_in_this_experience == set(data.targets)
    assert row_lists(make_benchmark(table, protocol, run, size).train_stream) == train
    plan = plan_stream(table, protocol, run, size)
    assert [rows.tolist() for rows in plan.train] == train and [
        rows.tolist() for rows in plan.test
    ] == test
    order = benchmark.classes_order
    assert sorted(order) == list(range(len(table.classes)))
    chunks = [set(order[start : start + size]) for start in range(0, len(order), size)]
    assert class_sets(benchmark.test_stream) == chunks
    assert class_sets(benchmark.train_stream) == (
        [set(order)] if protocol == "offline" else chunks
    )
    assert benchmark.original_classes_in_exp == class_sets(benchmark.train_stream)
    assert benchmark.n_classes_per_exp == [
        len(classes) for classes in class_sets(benchmark.train_stream)
    ]
    if protocol != "offline":
        for t, experience in enumerate(benchmark.train_stream):
            assert (
                set().union(*class_sets(benchmark.test_stream[: t + 1]))
                == experience.classes_seen_so_far
            )


@settings(max_examples=15)
@given(tables(), runs, sizes)
def test_the_protocols_of_a_run_differ_only_in_order_and_clips_stay_whole(
    table, run, size
):
    instance, iid, offline = (
        make_benchmark(table, protocol, run, size) for protocol in PROTOCOLS
    )
    assert instance.classes_order == iid.classes_order == offline.classes_order
    assert list(map(sorted, row_lists(instance.train_stream))) == list(
        map(sorted, row_lists(iid.train_stream))
    )
    assert len(offline.train_stream) == 1
    assert (
        row_lists(instance.test_stream)
        == row_lists(iid.test_stream)
        == row_lists(offline.test_stream)
    )
    for rows in row_lists(instance.train_stream):
        clips = [
            (table.class_name[row], table.object_name[row], table.session[row])
            for row in rows
        ]
        starts = [clip for clip, before in zip(clips, [None, *clips]) if clip != before]
        assert len(starts) == len(set(starts))
        for clip in starts:
            frames = [table.frame[row] for row, of in zip(rows, clips) if of == clip]
            assert frames == sorted(frames)


def test_orders_stay_the_same_in_later_versions():
    """Golden values: later versions repeat the same runs."""
    table = make_table(classes=4, objects=1, sessions=3, frames=2)
    assert [plan_stream(table, run=run).chunks for run in (0, 1)] == [
        ((1, 0), (3, 2)),
        ((3, 1), (0, 2)),
    ]
    assert [
        plan_stream(table, protocol).train[0].tolist() for protocol in PROTOCOLS
    ] == [
        [2, 3, 6, 7, 8, 9, 0, 1],
        [2, 8, 9, 0, 1, 7, 3, 6],
        [9, 14, 8, 15, 20, 7, 2, 0, 12, 1, 21, 18, 13, 19, 3, 6],
    ]


def test_groups_of_classes_keep_their_order():
    table = make_table(classes=6)
    groups = [["class5", "class1", "class3"], ["class0", "class2", "class4"]]
    for run in range(8):
        order = [
            label
            for labels in plan_stream(table, run=run, class_groups=groups).chunks
            for label in labels
        ]
        assert (set(order[:3]), set(order[3:])) == ({5, 1, 3}, {0, 2, 4})
    assert (
        len(
            {
                plan_stream(table, run=run, class_groups=groups).chunks
                for run in range(8)
            }
        )
        == 8
    )


@pytest.mark.parametrize("run", [0, 3])
def test_orders_of_the_published_code(run):
    """The draws written out with numpy's legacy functions, as a script would call them."""
    table = make_table(classes=4, objects=2, sessions=3, frames=2)
    names = ["class2", "class0", "class3", "class1"]  # as they are numbered
    np.random.seed(run)
    order = list(names)
    np.random.shuffle(order)
    chunks, clips_of = [order[:2], order[2:]], []
    for labels in chunks:
        triples = [
            (o, s, names.index(c)) for c in labels for o in (0, 1) for s in (0, 1)
        ]  # two sessions to train on
        clips = np.unique(triples, axis=0)
        np.random.shuffle(clips)
        clips_of.append([(names[c], f"o{o}", f"s{s}") for o, s, c in clips])
    arguments = dict(run=run, class_groups=[names], reference=True)
    benchmark = make_benchmark(table, "class_instance", **arguments)
    appearance = list(dict.fromkeys(clip[0] for clips in clips_of for clip in clips))
    assert list(
        benchmark.class_names
    ) == appearance and benchmark.frame_table.classes == tuple(appearance)
    for experience, clips in zip(benchmark.train_stream, clips_of):
        rows = list(experience.dataset.frame_row)
        seen = [
            (table.class_name[row], table.object_name[row], table.session[row])
            for row in rows
        ]
        assert seen == [clip for clip in clips for _ in range(2)]
        assert list(experience.dataset.targets) == [
            appearance.index(clip[0]) for clip in seen
        ]
    iid = make_benchmark(table, "class_iid", **arguments)
    first_seen = []
    for experience, labels in zip(iid.train_stream, chunks):
        rows = np.array(
            [row for row in table.rows("train") if table.class_name[row] in labels]
        )
        drawn = rows[np.random.RandomState(run).permutation(len(rows))]
        assert list(experience.dataset.frame_row) == drawn.tolist()
        first_seen += dict.fromkeys(table.class_name[row] for row in drawn)
    assert list(iid.class_names) == first_seen
    assert sorted(iid.test_stream[0].dataset.targets) == [0] * 4 + [1] * 4
    assert [sorted(labels) for labels in iid.original_classes_in_exp] == [
        [0, 1],
        [2, 3],
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_items_are_the_frames_of_their_rows(protocol):
    table = make_table(classes=3, frames=2)
    benchmark = make_benchmark(
        table, protocol, 5, 2, pixel_transform(8), pixel_transform(4)
    )
    for stream, size in ((benchmark.train_stream, 8), (benchmark.test_stream, 4)):
        for experience in stream:
            for (pixels, label, task), row in zip(
                experience.dataset, experience.dataset.frame_row
            ):
                assert (
                    pixels.shape == (3, size, size)
                    and row <= pixels.float().mean() <= row + 1
                )
                assert (label, task) == (table.labels[row], 0)
    shuffled = benchmark.train_stream[0].dataset
    assert shuffled.eval()[0][0].shape == (3, 4, 4)
    assert list(shuffled.subset([3, 1]).frame_row) == [
        list(shuffled.frame_row)[index] for index in (3, 1)
    ]


def test_attributes_of_a_benchmark():
    table = make_table(classes=5)
    benchmark = make_benchmark(table, "class_iid", run=2)
    assert benchmark.n_classes == 5
    assert (
        benchmark.class_names[benchmark.classes_order[0]]
        == f"class{benchmark.classes_order[0]}"
    )
    assert (benchmark.frame_table, benchmark.protocol, benchmark.run) == (
        table,
        "class_iid",
        2,
    )
    assert (
        set(benchmark.streams) == {"train", "test"}
        and benchmark.train_stream.benchmark is benchmark
    )
    info = benchmark.train_stream[1].train().benchmark
    assert (info.n_classes_per_exp, info.classes_order) == (
        [2, 2, 1],
        benchmark.classes_order,
    )
    offline = make_benchmark(table, "offline")
    assert offline.n_classes_per_exp == [5] and offline.test_stream[
        0
    ].benchmark.n_classes_per_exp == [2, 2, 1]


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
    table = make_table()
    with pytest.raises(FrameTableError, match="class 'class2' has no test frames"):
        make_benchmark(table.without(table.rows("test", "class2")))


@settings(max_examples=10)
@given(tables(), protocols, runs)
def test_an_experience_may_be_a_session_of_all_classes(table, protocol, run):
    benchmark = make_benchmark(table, protocol, run, None)
    streams = {"train": benchmark.train_stream, "test": benchmark.test_stream}
    for split, stream in streams.items():
        rows = row_lists(stream)
        sessions = [{table.session[row] for row in some} for some in rows]
        assert sorted(chain(*rows)) == table.rows(split).tolist()
        if split == "test" or protocol != "offline":
            assert all(len(some) == 1 for some in sessions)
            assert [some.pop() for some in sessions] == sorted(
                {table.session[row] for row in table.rows(split)}
            )
    assert sorted(benchmark.classes_order) == list(range(len(table.classes)))


@pytest.fixture(params=[(50, 31), (8, 8), (5, 90)])
def image(request):
    width, height = request.param
    pixels = np.random.default_rng(0).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
    return Image.fromarray(pixels)


def test_items_are_image_and_label_in_the_given_order():
    table = make_table()
    dataset = FrameDataset(table, [50, 3, 3], pixel_transform(8))
    assert len(dataset) == 3 and dataset.targets == [2, 0, 0]
    images, labels = zip(*(dataset[index] for index in range(3)))
    assert [
        image.float().mean().round().item() in (row, row + 1)
        for image, row in zip(images, [50, 3, 3])
    ]
    assert labels == (2, 0, 0) and torch.equal(images[1], images[2])
    assert isinstance(FrameDataset(table, [0])[0][0], Image.Image)


def test_uint8_and_float_agree_to_the_bit(image):
    pixels, floats = pixel_transform(24)(image), imagenet_transform(24)(image)
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


def test_transforms_can_be_pickled_and_have_stable_reprs_since_these_key_caches():
    for transform, shown in (
        (pixel_transform(16), "PixelTransform(size=16, interpolation='bilinear')"),
        (imagenet_transform(), "ImageNetTransform(size=224)"),
    ):
        assert (
            repr(transform) == shown
            and pickle.loads(pickle.dumps(transform)) == transform
        )


SMALL = {
    "train_transform": imagenet_transform(8),
    "eval_transform": imagenet_transform(8),
}


def rows(experiences):
    return [row for experience in experiences for row in experience.dataset.frame_row]


def test_streams_can_be_split_and_train_strategies_that_read_what_they_say_of_themselves(
    tmp_path,
):
    """Four classes, two per experience, as images of 8 x 8 pixels."""
    write_files(tmp_path, toybox_names(["cup", "mug", "duck", "car"], [1], 2))
    benchmark = Toybox(tmp_path, run=1, **SMALL)
    whole, net = (
        rows(benchmark.train_stream),
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    )
    online = list(
        split_online_stream(benchmark.train_stream, experience_size=3, shuffle=False)
    )
    assert rows(online) == whole and {
        len(experience.dataset) for experience in online[:-1]
    } <= {1, 2, 3}
    parts = benchmark_with_validation_stream(benchmark, validation_size=0.34)
    train, valid = rows(parts.train_stream), rows(parts.valid_stream)
    assert sorted(train + valid) == sorted(whole) and train and valid
    assert rows(parts.test_stream) == rows(benchmark.test_stream)

    head = nn.Linear(32, 5)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)
    common = dict(
        optimizer=optimizer,
        train_mb_size=5,
        eval_mb_size=10,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    replay = Replay(
        model=nn.Sequential(net, head),
        criterion=nn.CrossEntropyLoss(),
        mem_size=6,
        **common,
    )
    for experience in (*online[:4], parts.train_stream[0]):
        replay.train(experience)
    replay.eval(parts.valid_stream)
    memory = dict(memory_size=10, buffer_transform=None, fixed_memory=True)
    icarl, before = (
        ICaRL(feature_extractor=net, classifier=head, **memory, **common),
        head.weight.detach().clone(),
    )
    for experience in benchmark.train_stream:
        icarl.train(experience, shuffle=False)
        icarl.eval(benchmark.test_stream)
    assert replay.clock.train_exp_counter == 5 and icarl.clock.train_exp_counter == 2
    assert not torch.equal(head.weight, before)
