"""Photos, folders, patterns, lists and arrays as clips; what cannot be read is named, and left out on request."""

import os
import re

import numpy as np
import pytest
import torch
from clip_trees import TREE, pixels, read, save, write_tree
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables import folders
from benchmarks_toybox_ilab.tables.frame import BadFrameError, natural_key
from crumb_avalanche.images.clips import BadImage, Clip, class_folders
from crumb_avalanche.images.sources import batches, clips_of

FOUND = [
    ("cup/blue/desk", TREE[:2]),
    ("cup/red/sofa", TREE[2:3]),
    ("mug", TREE[3:]),
]  # the clips of TREE
BLACK = Image.new("RGB", (2, 2))


@pytest.mark.parametrize(
    ("source", "label", "expected"),
    [
        (".", None, [(path, path[:3], frames) for path, frames in FOUND]),
        (".", "both", [(path, "both", frames) for path, frames in FOUND]),
        ("mug", None, [("mug", None, TREE[3:])]),
        ("mug/a.png", "mug", [("mug/a.png", "mug", TREE[3:4])]),
        ("**/*.png", None, [(path, None, frames) for path, frames in FOUND]),
        (
            "cup/*/*/1.png",
            None,
            [("cup/blue/desk", None, TREE[:1]), ("cup/red/sofa", None, TREE[2:3])],
        ),
        # Folders that match hold all that lies below, once, and their names are no
        # labels.
        ("*", None, [(path, None, frames) for path, frames in FOUND]),
        ("**/*", None, [(path, None, frames) for path, frames in FOUND]),
        ("m*", "mug", [("mug", "mug", TREE[3:])]),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_paths_and_patterns(tmp_path, source, label, expected):
    write_tree(tmp_path)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    for clutter in (
        "notes.txt",
        ".hidden.png",
        "Thumbs.db",
        ".git/a.png",
        "mug/__MACOSX/a.png",
    ):
        (tmp_path / clutter).parent.mkdir(exist_ok=True)
        (tmp_path / clutter).write_bytes(b"no image")
    for one in (tmp_path / source, str(tmp_path / source)):
        assert read(one, tmp_path, label=label) == [
            (path, name, list(frames)) for path, name, frames in expected
        ]
        assert list(class_folders(one).values()) == ["cup", "mug"] * (source == ".")


def test_photos_beside_folders_and_odd_sources_give_no_labels(tmp_path):
    write_tree(tmp_path, (*TREE, "beside.png"))
    clips = read(tmp_path, tmp_path)
    assert {label for _, label, _ in clips} == {None}
    assert (
        clips[0] == (".", None, ["beside.png"])
        and sum(len(frames) for _, _, frames in clips) == 6
    )
    for source in (tmp_path, [tmp_path], BLACK, "absent", 3):
        assert class_folders(source) == {}


def test_brackets_in_names_and_the_home_folder(tmp_path, monkeypatch):
    write_tree(tmp_path, ("set[1]/a[2].png", "set[1]/b.png"))
    assert read(tmp_path / "set[1]" / "a[2].png", tmp_path)[0][2] == ["set[1]/a[2].png"]
    frames = ["set[1]/a[2].png", "set[1]/b.png"]
    assert read(tmp_path / "set[1]" / "*.png", tmp_path) == [("set[1]", None, frames)]
    monkeypatch.chdir(tmp_path / "set[1]")
    assert read("*.png") == [(".", None, ["a[2].png", "b.png"])]
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "set[1]"))
    assert read("~/b.png", tmp_path / "set[1]") == [("b.png", None, ["b.png"])]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "frame", "b-"]),
            st.integers(0, 2000),
            st.integers(0, 2),
        ),
        unique=True,
    )
)
def test_natural_order_is_that_of_the_numbers(parts):
    names = [f"{text}{'0' * zeros}{number}.png" for text, number, zeros in parts]
    numbered = sorted(zip(parts, names), key=lambda pair: (pair[0][:2], pair[1]))
    assert sorted(names, key=natural_key) == [name for _, name in numbered]


def test_photos_of_a_folder_come_in_natural_order(tmp_path):
    write_tree(tmp_path, ["frame10.png", "frame2.png", "frame1.png"])
    assert read(tmp_path, tmp_path) == [
        (".", None, ["frame1.png", "frame2.png", "frame10.png"])
    ]


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_single_images_of_a_list_are_one_clip(tmp_path, kind):
    photo, array = save(tmp_path / "a.png"), np.zeros((2, 2, 3), np.uint8)
    ((path, label, frames),) = read(
        kind([photo, str(photo), Image.new("L", (2, 2)), array]), label="mug"
    )
    assert (path, label, frames) == (
        "source",
        "mug",
        [str(photo)] * 2 + ["source[2]", "source[3]"],
    )
    clips = read(kind([kind([array, array]), array, array[None], photo, photo]))
    assert [(path, len(frames)) for path, _, frames in clips] == [
        *[("source[0]", 2), ("source", 1), ("source[2]", 1), ("source", 2)],
    ]
    if kind is not iter:  # any order
        clips = list(clips_of(kind([array, array[None], array])))
        assert [len(list(clip.frames)) for clip in reversed(clips)] == [1, 1, 1]


def test_lists_are_read_lazily_and_nest(tmp_path):
    write_tree(tmp_path)
    clip, named = (
        Clip("camera 0", None, iter([("f", BLACK)])),
        Clip("camera 1", "own", iter([])),
    )

    def items():
        yield tmp_path / "mug"
        yield [np.zeros((2, 2, 2, 3), np.uint8), Image.new("L", (2, 2))]
        yield clip
        yield named
        raise AssertionError("read too far")

    clips = clips_of(items())
    found = [next(clips) for _ in range(5)]
    assert [clip.path for clip in found[1:]] == [
        "source[1][0]",
        "source[1]",
        "camera 0",
        "camera 1",
    ]
    assert [path for path, _ in found[1].frames] == [
        "source[1][0][0]",
        "source[1][0][1]",
    ]
    assert [path for path, _ in found[2].frames] == ["source[1][1]"]
    assert [clip.label for clip in found] == [None, None, None, None, "own"]
    assert [clip.label for clip in clips_of([clip, named], "mug")] == ["mug", "mug"]


def test_an_image_of_the_caller_is_left_as_it_is(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    Image.fromarray(np.repeat(np.uint8([[[0], [255]]]), 3, axis=2)).save(
        tmp_path / "a.png", exif=exif
    )
    with Image.open(tmp_path / "a.png") as opened:
        ((path, image),) = next(clips_of(opened)).frames
        assert (
            path == str(tmp_path / "a.png")
            and image.size == (1, 2)
            and opened.size == (2, 1)
        )
    ((_, image),) = next(clips_of(BLACK)).frames
    ImageDraw.Draw(image).rectangle((0, 0, 4, 4), fill="white")
    assert BLACK.getextrema() == ((0, 0),) * 3


# Arrays and tensors

EIGHT = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)


@pytest.mark.parametrize("dtype", ["u1", ">f4", "f2", "f4", "f8"])
@pytest.mark.parametrize("tensor", [False, True])
def test_arrays_and_tensors_keep_their_eight_bits(dtype, tensor):
    values = EIGHT if dtype == "u1" else (EIGHT / 255).astype(dtype)
    if tensor:
        values = torch.from_numpy(
            values.astype(values.dtype.newbyteorder("="))
        ).permute(0, 3, 1, 2)
        values = values.requires_grad_() if values.is_floating_point() else values
    (clip,) = clips_of(values, "mug")
    assert (clip.path, clip.label) == ("source", "mug")
    frames = list(clip.frames)
    assert [path for path, _ in frames] == ["source[0]", "source[1]"]
    assert np.array_equal([np.asarray(image) for _, image in frames], EIGHT)
    ((path, image),) = next(clips_of(values[1])).frames
    assert path == "source" and np.array_equal(np.asarray(image), EIGHT[1])


def test_bfloat16_and_sixteen_bits():
    (image,) = pixels(
        torch.tensor([0.0, 1.0, 0.5], dtype=torch.bfloat16).reshape(3, 1, 1)
    )
    assert image.tolist() == [[[0, 255, 128]]]
    values = np.array(
        [[[[4095, 160, 0]]], [[[16, 32, 48]]]]
    )  # a batch of a camera of 12 bits has one depth
    tensor = torch.from_numpy(np.moveaxis(values.astype(np.uint16), -1, 1).copy())
    for source in (values.astype("<u2"), values.astype(">u2"), tensor):
        assert [image.tolist() for image in pixels(source)] == [
            [[[255, 10, 0]]],
            [[[1, 2, 3]]],
        ]


@pytest.mark.parametrize(
    ("array", "fact"),
    [
        (np.zeros((4, 5), np.uint8), r"array of shape \(4, 5\).*\(H, W, C\)"),
        (np.zeros((3, 4, 5), np.uint8), r"shape \(3, 4, 5\)"),
        (np.zeros((0, 4, 5, 3), np.uint8), r"shape \(0, 4, 5, 3\).*not empty"),
        (np.zeros((1, 1, 4, 5, 3), np.uint8), r"shape \(1, 1, 4, 5, 3\)"),
        (
            np.zeros((4, 5, 3), np.int64),
            "dtype int64.*uint8, uint16 or floating-point from 0 to 1",
        ),
        (np.zeros((4, 5, 3), complex), "dtype complex128"),
        (torch.zeros((6, 5, 3)), r"tensor of shape \(6, 5, 3\).*\(C, H, W\)"),
        (torch.zeros((3, 4, 5), dtype=torch.int8), "dtype torch.int8"),
    ],
)
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_arrays_that_break_the_rule(array, fact, on_bad):
    with pytest.raises(ValueError, match=fact):
        pixels(array, on_bad=on_bad)


@pytest.mark.parametrize(
    ("array", "fact"),
    [
        (np.float32([[[0, 0.5, np.nan]]]), "holds NaN.*from 0 to 1"),
        (np.float32([[[0, 0.5, 255]]]), "values from 0 to 255.*divide"),
        (
            torch.tensor([-2.0, 0.5, 2.0]).reshape(3, 1, 1),
            "values from -2 to 2.*normalisation",
        ),
        (np.float32([[[0, 0, np.inf]]]), "values from 0 to inf"),
    ],
)
def test_values_that_break_the_rule_are_refused_or_left_out(array, fact):
    good, left_out = np.zeros(np.asarray(array).shape, np.float32), []
    batch = (
        np.stack([good, array, good])
        if isinstance(array, np.ndarray)
        else torch.stack([array * 0, array])
    )
    frames = next(clips_of([batch])).frames
    assert next(frames)[0] == "source[0][0]"
    with pytest.raises(
        ValueError, match=rf"source\[0\]\[1\] holds.*{fact.removeprefix('holds ')}"
    ):
        next(frames)
    assert len(pixels([batch], on_bad="skip", report=left_out.append)) == len(batch) - 1
    assert [bad.path for bad in left_out] == ["source[0][1]"] and re.search(
        fact, left_out[0].reason
    )


def test_batches_are_resized_as_in_a_run():
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    (clip,) = clips_of(noise)
    found = list(batches(clip.frames, 2, PixelTransform(24)))
    assert [paths for paths, _ in found] == [
        ["source[0]", "source[1]"],
        ["source[2]", "source[3]"],
        ["source[4]"],
    ]
    assert all(
        images.dtype == torch.uint8 and images.shape[1:] == (3, 24, 24)
        for _, images in found
    )
    expected = torch.stack(
        [PixelTransform(24)(Image.fromarray(image)) for image in noise]
    )
    assert torch.equal(torch.cat([images for _, images in found]), expected)
    assert list(batches([], 2, PixelTransform(24))) == []


def link(path, target):
    try:
        path.symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("this file system has no symbolic links")


@pytest.fixture
def bad_files(tmp_path):
    """Paths of bad files beside two good photos, each with a fact of the reason."""
    good = save(tmp_path / "1.png", 1)
    Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    ).save(tmp_path / "good.jpg")
    photo = (tmp_path / "good.jpg").read_bytes()
    (tmp_path / "2.jpg").write_bytes(photo[: len(photo) // 2])
    for name, content in (
        ("3.png", b"no image"),
        ("4.png", b""),
        ("5.png", good.read_bytes()[:40]),
    ):
        (tmp_path / name).write_bytes(content)
    Image.fromarray(np.float32([[0.5, 1.0]])).save(tmp_path / "6.tif")
    link(tmp_path / "7.png", tmp_path / "gone.png")
    reasons = [
        "truncated",
        "not an image.*convert it to JPEG or PNG",
        "not an image",
        "",
        "mode F",
        "No such file",
    ]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "8.png")
        reasons.append("not a regular file.*camera")
    return dict(
        zip(
            map(
                str,
                sorted(path for path in tmp_path.iterdir() if path.stem in "2345678"),
            ),
            reasons,
        )
    )


def test_bad_files_raise_or_are_left_out_and_reported(bad_files, tmp_path, recwarn):
    bad = []
    assert read(tmp_path, tmp_path, on_bad="skip", report=bad.append) == [
        (".", None, ["1.png", "good.jpg"])
    ]
    assert [entry.path for entry in bad] == list(bad_files)
    for entry, (path, reason) in zip(bad, bad_files.items()):
        assert (
            isinstance(entry, BadImage)
            and entry.reason
            and re.search(reason, entry.reason)
            and path in str(entry)
        )
        assert read(path, on_bad="skip", report=lambda bad: None) == [(path, None, [])]
        with pytest.raises(
            BadFrameError, match=rf"{re.escape(path)}: .*{reason}.*on_bad='skip'"
        ):
            read(path)
    # Garbage of other tests may warn of a file that it leaves open.
    assert not [one for one in recwarn if one.category is not ResourceWarning]
    with pytest.warns(UserWarning, match=r"left out .*2\.jpg: .*truncated"):
        read(tmp_path, on_bad="skip")
    frames = next(clips_of(tmp_path)).frames
    assert next(frames)[0].endswith("1.png")
    with pytest.raises(BadFrameError, match=r"2\.jpg"):
        next(frames)


def test_items_that_do_not_exist_count_as_bad(tmp_path):
    there, gone, video = (
        save(tmp_path / "a.png"),
        tmp_path / "gone.png",
        tmp_path / "gone.mp4",
    )
    bad = []
    clips = read(
        [there, gone, video, tmp_path / "no*.png"],
        tmp_path,
        on_bad="skip",
        report=bad.append,
    )
    assert [len(frames) for _, _, frames in clips] == [1, 0]
    assert [entry.path for entry in bad] == [str(gone), str(video)]
    with pytest.raises(BadFrameError, match=r"gone\.png: No such file"):
        read([there, gone])


def test_what_is_ignored_is_counted_and_classes_without_images_are_named(tmp_path):
    save(tmp_path / "cup" / "a.jpg")
    for name in (
        "cup/1.HEIC",
        "cup/2.heic",
        "mug/3.heic",
        "4.dng",
        "cup/labels.txt",
        "cup/@eaDir/a.jpg",
        "dog/a.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    ignored = r"ignored: 3 \.heic \(convert them to JPEG or PNG\), 2 \.txt, 1 \.dng .* and 1 hidden or system$"
    with pytest.warns(
        UserWarning,
        match=rf"no class, as there is no photo and no video in it: dog, mug; {ignored}",
    ):
        assert len(read(tmp_path)) == 1
    with pytest.warns(UserWarning, match=rf"/\*: {ignored}"):
        assert len(read(str(tmp_path / "*"))) == 1
    with pytest.raises(ValueError, match=r"no photo.*ignored: 1 \.heic .*convert"):
        read(tmp_path / "mug")


@pytest.mark.parametrize(
    ("source", "options", "kind", "fact"),
    [
        *(
            (one, {}, TypeError, r"^source(\[0\])? is .*; give a path, a PIL image")
            for one in (3, b"a.png", {"a": 1})
        ),
        *(
            (one, {}, TypeError, r"^source\[0\] is .*; give a path, a PIL image")
            for one in ([1.5], [b"x"])
        ),
        *(
            (one, {}, ValueError, "holds no photo and no video.*JPEG.*MP4")
            for one in ("deep", "*.jpg", [], iter([]))
        ),
        ("", {}, ValueError, "path is empty"),
        ("gone.png", {}, FileNotFoundError, r"no file or folder .*gone\.png"),
        (
            BLACK,
            {"on_bad": "ignore"},
            ValueError,
            r"on_bad is 'ignore'.*'raise' or 'skip'",
        ),
        (BLACK, {"label": "a/b"}, ValueError, "class name 'a/b' contains '/'"),
        (Image.new("RGB", (0, 5)), {}, BadFrameError, "it has 0 x 5 pixels"),
    ],
)
def test_errors_say_what_came_and_the_rule(
    tmp_path, monkeypatch, source, options, kind, fact
):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=fact):
        read(source, **options)


def test_links_are_followed_but_not_in_circles(tmp_path):
    root = write_tree(tmp_path / "root")
    save(tmp_path / "outside" / "x.png")
    link(root / "round", root)
    link(root / "cup" / "up", tmp_path)
    link(root / "cup" / "blue" / "self", root / "cup" / "blue")
    link(root / "itself", root / "itself")
    for number in range(12):  # folders that all link to each other
        save(tmp_path / "ring" / str(number) / "1.png")
        for other in range(12):
            link(
                tmp_path / "ring" / str(number) / f"to{other}",
                tmp_path / "ring" / str(other),
            )
        link(root / "mug" / f"l{number}", tmp_path / "ring" / str(number))
    link(
        root / "cup" / "far", tmp_path / "ring" / "0"
    )  # is read for this class as well
    clips = read(root, root)
    frames = [frame for _, _, frames in clips for frame in frames]
    assert set(TREE) < set(frames) and len(frames) == 5 + 12 + 12
    assert [label for _, label, _ in clips] == ["cup"] * 14 + ["mug"] * 13
    assert sum(len(frames) for _, _, frames in read(str(root / "**" / "*.png"))) == 5
    with pytest.raises(BadFrameError, match="itself"):
        read(root / "itself")


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    write_tree(tmp_path)

    def listed(folder, entries_of=folders.entries_of):
        if folder.name == "red":
            raise PermissionError(13, "Permission denied", str(folder))
        return entries_of(folder)

    monkeypatch.setattr(folders, "entries_of", listed)
    bad, reason = [], "the folder cannot be read: Permission denied"
    assert len(read(tmp_path, on_bad="skip", report=bad.append)) == 2
    assert [(entry.path, entry.reason) for entry in bad] == [
        (str(tmp_path / "cup" / "red"), reason)
    ]
    with pytest.raises(BadFrameError, match=f"red: {reason}"):
        read(tmp_path)
