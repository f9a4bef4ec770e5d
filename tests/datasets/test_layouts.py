"""What holds for every data set that declares a layout: places, counts, misfits, errors and its generator."""

import os
import re
from itertools import chain

import fake_data as fake
import pytest

import benchmarks_toybox_ilab as streams
from benchmarks_toybox_ilab.catalog import BENCHMARKS, get_benchmark
from benchmarks_toybox_ilab.datasets.icub import LAYOUT, ICub, ICubFrames, listing_order
from benchmarks_toybox_ilab.datasets.openloris import STREAMS
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

FRAMES = {
    "core50": (streams.CORe50Frames, streams.CORe50),
    "toybox": (streams.ToyboxFrames, streams.Toybox),
    "ilab": (streams.ILabFrames, streams.ILab),
    "icub": (streams.ICubFrames, streams.ICub),
    "ilab_core50": (streams.ILabCORe50Frames, streams.ILabCORe50),
    "cifar100": (streams.CIFAR100Frames, streams.OnlineCIFAR100),
    "imagenet": (streams.ImageNetFrames, streams.OnlineImageNet),
    "tiny_imagenet": (streams.TinyImageNetFrames, streams.TinyImageNet),
    "eth80": (streams.ETH80Frames, streams.ETH80),
    "openloris_clutter": (streams.OpenLORISFrames, streams.OpenLORIS),
    "clear10": (streams.CLEARFrames, streams.CLEAR),
    "stream51": (streams.Stream51Frames, streams.Stream51),
    "orbit": (streams.ORBITFrames, streams.ORBIT),
}
WITHOUT_PATHS = ("tiny_imagenet", "eth80", "stream51", "orbit")
CLASSES = [f"class{number:02d}" for number in range(100)]
BOTH = [
    *(f"iLab-2M-Light/{name}" for name in fake.ilab_names(views=15)),
    *(f"core50/{name}" for name in fake.core50_names(frames=range(10, 300, 20))),
]
# As many files as the data sets have, and names that are not used; ImageNet has too
# many for a quick test.
WHOLE = {
    "core50": lambda: fake.core50_names(),
    "toybox": lambda: fake.toybox_names(),
    "ilab": lambda: fake.ilab_names(),
    "icub": lambda: fake.icub_names(),
    "ilab_core50": lambda: BOTH,
    "cifar100": lambda: fake.image_tree_names({"train": 500, "test": 100}, CLASSES),
}
ODD_IMAGES = [
    "LOC.csv",
    "val/.DS_Store",
    "train/n00000001/._x.JPEG",
    "val/n00000002/low.jpg",
]
ODD = {
    "core50": fake.odd_core50_names(),
    "toybox": fake.odd_toybox_names(),
    "ilab": fake.odd_ilab_names(),
    "icub": fake.odd_icub_names(),
    "cifar100": [
        *fake.TINY["cifar100"],
        "README.txt",
        "train/classes.txt",
        "train/bed/.x.png",
        "test/bed/LOUD.PNG",
    ],
    "imagenet": [*fake.TINY["imagenet"], *ODD_IMAGES],
}
LAYOUTS = {name: BENCHMARKS[name].files for name in FRAMES}


def clips(table):
    return {(row.class_name, row.object_name, row.session): row.split for row in table}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("reference", [False, True])
def test_the_whole_data_set_has_the_numbers_of_the_paper(name, reference):
    names, counts = WHOLE[name](), LAYOUTS[name].counts
    table = FRAMES[name][0](
        "nowhere",
        names if reference or name == "cifar100" else reversed(names),
        reference,
    )
    splits = list(clips(table).values())
    found = {
        "classes": len(table.classes),
        **{split: table.split.count(split) for split in ("train", "test")},
    }
    found |= {f"{split}_clips": splits.count(split) for split in ("train", "test")}
    assert {key: found[key] for key in counts} == counts and LAYOUTS[name].missing(
        table
    ) == []
    assert (
        len({tuple(count.values()) for count in table.counts().values()}) == 1
    )  # equal in all classes
    assert (BENCHMARKS[name].class_groups(table, False) is None) == (
        name != "ilab_core50"
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, at) for name in LAYOUTS for at in ("", name, *LAYOUTS[name].places)],
)
def test_the_folder_is_found_in_every_place(tmp_path, name, place):
    frames, names = FRAMES[name][0], ODD.get(name, fake.TINY[name])
    fake.write_tiny(name, tmp_path / place) if names is None else fake.write_files(
        tmp_path / place, names
    )
    table = frames(str(tmp_path))
    assert (
        table.name == name
        and table.root == tmp_path / place
        and table.read(len(table) - 1).size == (12, 8)
    )
    if name not in WITHOUT_PATHS:
        assert table.content_hash() == frames("x", names).content_hash()


def test_the_root_may_be_the_folder_of_the_images_of_ilab(tmp_path):
    fake.write_files(tmp_path, fake.odd_ilab_names())
    table = streams.ILabFrames(tmp_path / "train_img")
    assert [f"train_img/{path}" for path in table.path] == list(
        streams.ILabFrames(tmp_path).path
    )
    assert table.read(0).size == (12, 8)


BOAT, CUP = "boat-i1-b1-c0-r1-l0-f2.jpg", "cup_01_pivothead/cup_01_pivothead"
MISFITS = {
    "eth80": (
        "cup1/cup1-000-00.jpg",
        "cup1/cup2-000-000.jpg",
        "saucer1/saucer1-000-000.jpg",
    ),
    "core50": (
        *(
            f"s1/o3/C_{name}.png"
            for name in ("01_04_010", "02_03_010", "01_03_10", "01_03_300")
        ),
        *("s12/o3/C_12_03_010.png", "s1/C_01_03_010.png", "plot.PNG"),
    ),
    "toybox": (
        *(
            f"images/households/{CUP}_tx_0.png",
            f"images/households/{CUP}_rw_1.png",
            f"images/animals/{CUP}_tx_1.png",
        ),
        "images/households/cup_02_pivothead/cup_01_pivothead_tx_1.png",
    ),
    "ilab": (
        *(
            "train_img/boat-i0001-b0001-c00-r01.jpg",
            "train_img/blimp-i1-b1-c0-r1-l0-f2.jpg",
        ),
        *(
            f"{folder}/{BOAT}"
            for folder in ("train_img/car", "train_img/boat/more", "images")
        ),
    ),
    "icub": (
        *(
            f"{folder}/MIX/day1/left/0.jpg"
            for folder in ("part5/mug/mug1", "part1/mug/mug11", "mug/book1")
        ),
        *(
            f"part3/mug/mug1/{clip}/0.jpg"
            for clip in ("ROT4D/day1/left", "MIX/monday/left", "MIX/left")
        ),
    ),
    "cifar100": ("train/1.png", "train/apple/deep/1.png", "other/apple/1.png"),
    "imagenet": (
        "train/tench/1.JPEG",
        "train/n00000000/images/1.JPEG",
        "val/ILSVRC_1.JPEG",
    ),
    "tiny_imagenet": (
        "train/tench/images/1.JPEG",
        "train/1.JPEG",
        "train/n00000000/images/deep/1.JPEG",
    ),
    "openloris_clutter": tuple(
        f"train/{place}/1.jpg"
        for place in (
            "clutter/segment10/cup_10",
            "clutter/segment1/cup_09",
            "task1/cup_10",
        )
    ),
    "clear10": tuple(
        f"train/{place}/1.jpg"
        for place in (
            "labeled_images/1/watch",
            "labeled_images/11/bus",
            "labeled_images/bus",
            "1/bus",
        )
    ),
    "orbit": tuple(
        f"test/{place}-00001.jpg"
        for place in (
            "P744/bag/clean/v/v",
            "P177/bag/clean/v/w",
            "P177/bag/clutter-pan/v/v",
        )
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_image_that_does_not_fit_is_named_with_the_rule(name):
    layout, known = LAYOUTS[name], ODD.get(name, fake.TINY[name])
    for path in MISFITS[name]:
        words = f"image {path} does not fit the layout of {layout.title}: {layout.tree}; {layout.rule}. Rename it"
        with pytest.raises(FrameTableError, match=re.escape(words)):
            list(layout.images([path]))
        if name not in WITHOUT_PATHS:
            with pytest.raises(FrameTableError, match=re.escape(words)):
                FRAMES[name][0]("nowhere", [*known, path])


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("core50", "s1/o1/C_01_01_010.png", "s1/o1/C_01_01_010.PNG"),
        (
            "toybox",
            f"images/households/{CUP}_rzplus_1.png",
            f"images/households/{CUP}_rzplus_1.jpg",
        ),
        (
            "toybox",
            f"images/households/{CUP}_rzplus_1.png",
            f"images/households/{CUP}_rzplus_01.png",
        ),
        (
            "ilab",
            "train_img/boat-i0001-b0001-c00-r01-l0-f2.jpg",
            "train_img/boat-i1-b1-c0-r1-l0-f2.JPG",
        ),
        (
            "icub",
            "part3/mug/mug2/MIX/day4/left/00000000.jpg",
            "part1/mug/mug2/MIX/day4/left/00000000.jpg",
        ),
    ],
)
def test_a_repeated_frame_is_named(name, first, again):
    words = f"{re.escape(again)} and {re.escape(first)} are the same frame; keep one"
    with pytest.raises(FrameTableError, match=words):
        FRAMES[name][0]("nowhere", [*ODD[name], again])


@pytest.mark.parametrize("name", LAYOUTS)
def test_folders_with_another_layout(tmp_path, name):
    frames, layout = FRAMES[name][0], LAYOUTS[name]
    advice = re.escape(
        f"{name} is laid out as {layout.tree}; give that folder as root, or make it with `crumb prepare"
    )
    with pytest.raises(
        FrameTableError, match=f"there is no folder .*nowhere. {advice}"
    ):
        frames(tmp_path / "nowhere")
    for number in range(10):
        (tmp_path / f"d{number}").mkdir()
    holds = "but holds d0, d1, d2, d3, d4, d5, d6, d7 and 2 more"
    with pytest.raises(
        FrameTableError,
        match=f"{tmp_path} has no folder {layout.folders[0]}.*, {holds}. {advice}",
    ):
        frames(tmp_path)
    if layout.whole and len(layout.folders) == 2:
        (tmp_path / layout.folders[0]).mkdir()
        with pytest.raises(
            FrameTableError, match=f"has no folder {layout.folders[1]}, but holds"
        ):
            frames(tmp_path)


@pytest.mark.parametrize("name", ["core50", "toybox", "ilab", "icub"])
def test_a_folder_without_an_image_that_is_used(tmp_path, name):
    layout = LAYOUTS[name]
    fake.write_files(
        tmp_path / layout.folders[0],
        ["README.md", "boat-i0001-b0001-c00-r01-l0-f2.txt"],
    )
    words = f"{tmp_path} holds no images of {layout.title} that are used. The layout is {layout.tree}; `crumb"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        FRAMES[name][0](tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_generator_passes_on_its_arguments(tmp_path, name):
    frames, generator = FRAMES[name]
    fake.write_tiny(name, tmp_path)
    transforms = {
        "train_transform": lambda image: "train",
        "eval_transform": lambda image: "eval",
    }
    benchmark = generator(
        tmp_path, protocol="class_iid", run=3, classes_per_experience=1, **transforms
    )
    assert (
        benchmark.protocol == "class_iid"
        and benchmark.run == 3
        and benchmark.n_classes_per_exp == [1, 1]
    )
    table = BENCHMARKS[name].table(tmp_path, 3)
    assert benchmark.frame_table.content_hash() == table.content_hash()
    assert (
        benchmark.train_stream[0].dataset[0][0] == "train"
        and benchmark.test_stream[0].dataset[0][0] == "eval"
    )
    if "reference" in BENCHMARKS[name].options:
        table = generator(
            tmp_path, run=3, classes_per_experience=1, reference=True
        ).frame_table
        assert table.frames_hash() == frames(tmp_path, reference=True).frames_hash()


TWO_CLASSES = {"part3": ("mug",), "part1": ("book",)}


def test_every_tenth_file_of_the_first_day_by_position():
    table = ICubFrames("nowhere", fake.odd_icub_names())
    assert list(fake.frames_by_clip(table).items()) == [
        *((("book1", name), [0]) for name in fake.ICUB_CLIPS),
        (("mug2", "MIX"), [0, 10]),
        (("mug2", "ROT2D"), [5, 16, 26]),
        (("mug2", "SCALE"), [0]),
        (("mug2", "TRANSL"), [7]),
        (("mug10", "MIX"), [4]),
        (("mug10", "SCALE"), [10]),
    ]
    assert table.counts() == {
        "book": {"train": 4, "test": 1},
        "mug": {"train": 6, "test": 3},
    }
    assert "part3/mug/mug2/SCALE/day3/left/00000000.JPG" in table.path
    assert "part3/mug/mug2/ROT2D/day2/left/00000016.jpg" in table.path


def test_reference_sorts_the_days_as_text():
    names = fake.odd_icub_names()
    plain, reference = (
        fake.frames_by_clip(ICubFrames("nowhere", names, of)) for of in (False, True)
    )
    assert reference == {**plain, ("mug2", "ROT2D"): [90]}


def test_parts_may_be_left_out(tmp_path):
    names = fake.icub_names(TWO_CLASSES, (1,))
    flat = [name.partition("/")[2] for name in names]
    table = ICubFrames("nowhere", flat)
    assert (
        fake.frames_by_clip(table) == fake.frames_by_clip(ICubFrames("nowhere", names))
        and len(fake.frames_by_clip(table)) == 10
    )
    assert table.path[0] == "book/book1/MIX/day2/left/00000000.jpg"
    assert "class book: 4 of 40 training clips, 1 of 10 test clips" in LAYOUT.missing(
        table
    )
    fake.write_files(tmp_path, flat[::7])
    assert (
        ICubFrames(tmp_path).content_hash()
        == ICubFrames("nowhere", flat[::7]).content_hash()
    )
    assert sorted(listing_order(tmp_path)) == ["book", "mug"]


# np.random.RandomState(run).shuffle of [0, 1, 2] gives [2, 1, 0] for run 0 and [0, 2,
# 1] for run 1.
@pytest.mark.parametrize(
    ("run", "order"),
    [(0, ("cellphone", "book", "mouse")), (1, ("mouse", "cellphone", "book"))],
)
def test_reference_shuffles_the_classes_as_they_are_listed(
    tmp_path, monkeypatch, run, order
):
    names = fake.icub_names({"part1": ("book", "cellphone", "mouse")}, (1,), 1)
    fake.write_files(tmp_path, [*names, "part1/ringbinder/nothing.txt"])
    listdir, listed = (
        os.listdir,
        ["mouse", "ringbinder", "book", "cellphone"],
    )  # as the system lists them
    monkeypatch.setattr(
        os,
        "listdir",
        lambda path: listed if os.path.basename(path) == "part1" else listdir(path),
    )
    benchmark = ICub(tmp_path, run=run, classes_per_experience=1, reference=True)
    assert benchmark.class_names == order
    assert all("/day10/" in path for path in benchmark.frame_table.path)


PAPER = dict.fromkeys(("core50", "toybox", "ilab"), (2, 21, 15))
PAPER |= dict.fromkeys(("icub", "ilab_core50"), (2, 21, 30))
PAPER |= {"cifar100": (5, 128, 100), "imagenet": (100, 128, 10_000)}
OTHERS = dict.fromkeys(
    ("eth80", "clip_folder", "toy_shapes", "toy_shapes_short", "toy_dots"), (2, 21, 15)
) | {
    "tiny_imagenet": (10, 128, 200),
    "stream51": (1, 128, 51),
    "orbit": (1, 21, 15),
    **dict.fromkeys(("clear10", "clear100"), (None, 64, 100)),
    **{f"openloris_{name}": (None, 32, 121) for name in STREAMS},
}


@pytest.mark.parametrize(("name", "numbers"), [*PAPER.items(), *OTHERS.items()])
def test_settings_of_each_benchmark(name, numbers):
    benchmark = get_benchmark(name)
    assert benchmark is BENCHMARKS[name] and benchmark.name == name
    assert (
        benchmark.classes_per_experience,
        benchmark.batch_size,
        benchmark.budget_images,
    ) == numbers
    assert (
        benchmark.needs_root == (not name.startswith("toy_")) and benchmark.files.source
    )
    assert ("reference" in benchmark.options) == (name in PAPER)
    assert set(BENCHMARKS) == PAPER.keys() | OTHERS.keys() == fake.TINY.keys()


@pytest.mark.parametrize("name", fake.TINY)
def test_all_tables_are_called_alike(tmp_path, name):
    fake.write_tiny(name, tmp_path)
    benchmark = get_benchmark(name)
    table = benchmark.table(str(tmp_path), 1)
    assert isinstance(table, FrameTable) and all(
        min(count.values()) for count in table.counts().values()
    )
    run = {"run": 1} if "run" in benchmark.options else {}
    assert table.content_hash() == benchmark.frames(str(tmp_path), **run).content_hash()
    groups = benchmark.class_groups(table, True)
    assert groups is None or sorted(chain(*groups)) == sorted(table.classes)
    assert (benchmark.class_groups(table, False) is None) == (name != "ilab_core50")


def test_what_a_benchmark_needs_and_takes(tmp_path):
    with pytest.raises(
        FrameTableError,
        match=r"benchmark core50 needs --dataset-root; expected there: <root>/core50",
    ):
        get_benchmark("core50").table(None, 0)
    with pytest.raises(
        FrameTableError,
        match="benchmark toybox reads no video files; fps=2 is for clip_folder",
    ):
        get_benchmark("toybox").table(str(tmp_path), 0, fps=2.0)
    fake.write_files(tmp_path, fake.toybox_names(["cup"], [1], 2))
    assert get_benchmark("toybox").table(str(tmp_path), 0, reference=True).padded
    with pytest.raises(ValueError, match="fps is 0"):
        get_benchmark("clip_folder").table(str(tmp_path), 0, fps=0.0)
    words = (
        "unknown benchmark 'core51'; known are cifar100, clear10, clear100, clip_folder"
    )
    with pytest.raises(ValueError, match=words):
        get_benchmark("core51")


def test_every_public_name_exists_and_no_other():
    for name in streams.__all__:
        assert getattr(streams, name) is not None and name in dir(streams)
    with pytest.raises(AttributeError, match="attribute CORe51"):
        streams.CORe51  # noqa: B018
