import numpy as np
import pytest
from fake_data import values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks_toybox_ilab.datasets.toy_shapes import (
    CLASSES,
    PRETRAINING_CLASSES,
    STREAM_CLASSES,
    ToyShapesFrames,
    ToyShapesReader,
)
from benchmarks_toybox_ilab.datasets.toy_shapes.scene import DRAWING, render

# Mean red of frame 7 of one object of each class.
MEANS = [
    154,
    35,
    155,
    150,
    58,
    89,
    136,
    21,
    42,
    179,
    171,
    57,
    166,
    193,
    47,
    178,
    198,
    116,
    56,
    158,
]


def test_images_are_unchanged():
    # Coarse on purpose: another Pillow may round a corner differently. If this fails
    # because the drawing was changed, raise DRAWING in scene.py, because caches are
    # keyed by it, and write the new numbers here.
    drawn = [render(name, number, number + 1, 7) for number, name in enumerate(CLASSES)]
    assert [
        image.resize((1, 1)).getpixel((0, 0))[0] for image in drawn
    ] == pytest.approx(MEANS, abs=1)
    assert DRAWING == 1


def test_colour_does_not_reveal_the_class():
    table = ToyShapesFrames(frames_per_clip=1, size=16)
    colour = np.array(
        [
            np.asarray(table.reader(path), dtype=float).mean(axis=(0, 1))
            for path in table.path
        ]
    )
    train = table.rows("train")
    test = table.rows("test")
    centres = np.array(
        [
            colour[train][table.labels[train] == label].mean(axis=0)
            for label in range(20)
        ]
    )
    nearest = ((colour[test][:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == table.labels[test]).mean() < 0.25


def test_counts_and_split():
    table = ToyShapesFrames()
    assert len(table) == 20 * 6 * 4 * 15
    assert table.classes == CLASSES and sorted(
        PRETRAINING_CLASSES + STREAM_CLASSES
    ) == list(CLASSES)
    assert len(PRETRAINING_CLASSES) == len(STREAM_CLASSES) == 10
    assert table.counts()["star"] == {"train": 6 * 3 * 15, "test": 6 * 15}
    assert values_of(table.session, table.rows("test")) == {"session3"}
    assert values_of(table.session, table.rows("train")) == {
        "session0",
        "session1",
        "session2",
    }
    assert "star/object2/session1/frame07" in table.path
    assert len(table.clips(table.rows("train", "star"))) == 6 * 3


def test_arguments_of_the_table():
    shape = dict(sessions=3, frames_per_clip=4, size=32, held_out_sessions=(0, 2))
    table = ToyShapesFrames(None, 3, ["star", "fish"], 2, **shape)
    assert table.classes == ("fish", "star")
    assert len(table) == 2 * 2 * 3 * 4
    assert values_of(table.session, table.rows("train")) == {"session1"}
    assert table.path[5] == "fish/object0/session1/frame01-of4-32px"
    assert (
        table.read(5).tobytes()
        == render("fish", 0, 1, 1, size=32, frames_per_clip=4).tobytes()
    )
    assert (
        ToyShapesFrames(held_out_sessions=3).path
        == ToyShapesFrames(root="/nowhere", run=9).path
    )
    assert len(ToyShapesFrames(held_out_sessions=()).rows("test")) == 0


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(CLASSES),
    item=st.integers(0, 10**6),
    session=st.integers(0, 10**6),
    count=st.integers(1, 40),
    size=st.integers(16, 80),
    data=st.data(),
)
def test_any_path_is_drawn_by_its_numbers(name, item, session, count, size, data):
    frame = data.draw(st.integers(0, count - 1))
    drawn = ToyShapesReader()(
        f"{name}/object{item}/session{session}/frame{frame:02d}-of{count}-{size}px"
    )
    assert (drawn.mode, drawn.size) == ("RGB", (size, size))
    assert drawn.tobytes() == render(name, item, session, frame, size, count).tobytes()


@pytest.fixture
def dots():
    """The paths of images of a key, drawn as dots."""
    table = ToyShapesFrames(
        classes=["key"], objects_per_class=1, sessions=2, held_out_sessions=1, dots=True
    )
    assert table.name == "toy_dots"
    return table.path


def drawn(path):
    """Return the pixels of an image, in greys."""
    return np.asarray(ToyShapesReader()(path).convert("L"), int)


def test_dots_are_where_brightness_changes(dots):
    path = dots[0]
    assert path.endswith("frame00-dots")
    paths = dots[:10]
    images = np.stack(list(map(drawn, paths)))
    plain = np.stack([drawn(path.removesuffix("-dots")) for path in paths])
    down = np.abs(np.diff(plain, axis=1, prepend=plain[:, :1]))
    across = np.abs(np.diff(plain, axis=2, prepend=plain[:, :, :1]))
    change = down + across
    assert set(np.unique(images)) == {0, 255}
    assert 0.4 < (images[change > 100] == 255).mean() < 0.6
    assert 0.005 < (images[change == 0] == 255).mean() < 0.04


def test_dots_differ_between_frames(dots):
    assert np.array_equal(drawn(dots[0]), drawn(dots[0]))
    assert not np.array_equal(drawn(dots[0]), drawn(dots[1]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ToyShapesFrames(classes=["star", "teapot"]),
            r"does not know \['teapot'\].*umbrella",
        ),
        (lambda: ToyShapesFrames(classes="star"), "single string 'star'"),
        (lambda: ToyShapesFrames(classes=["star", "star"]), "only once"),
        (
            lambda: ToyShapesFrames(frames_per_clip=1.5),
            "frames_per_clip is 1.5.*whole number",
        ),
        (lambda: ToyShapesFrames(size=8), "size is 8.* at least 16"),
        (
            lambda: ToyShapesFrames(sessions=3),
            r"held_out_sessions is \(3,\).*sessions=3",
        ),
        (
            lambda: ToyShapesFrames(held_out_sessions=range(4)),
            "at least one session must remain",
        ),
        (lambda: render("star", 0, 0, 15), "frame_index is 15.*ends at 14"),
        (
            lambda: ToyShapesReader()("star/object2/session1/frame07.png"),
            "class/object<n>/session<n>/frame<n>",
        ),
    ],
)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()
