"""What holds for every data set that declares a layout.

Places, counts, misfits, errors and its generator.
"""

import os
import re
from functools import cache
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
ILAB_OF_BOTH = [f"iLab-2M-Light/{name}" for name in fake.ilab_names(views=15)]
USED_OF_CORE50 = fake.core50_names(frames=range(10, 300, 20))
BOTH = [*ILAB_OF_BOTH, *(f"core50/{name}" for name in USED_OF_CORE50)]
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


def table_of(name, root, *arguments, **keywords):
    """Make the table of a data set."""
    make, _ = FRAMES[name]
    return make(root, *arguments, **keywords)


@cache
def whole_table(name):
    """Make the table of a whole data set once."""
    return table_of(name, "nowhere", WHOLE[name]())


def counted(table):
    """Return the numbers that a layout may state, by its keys."""
    split_of = {}  # by clip
    for row in table:
        split_of[row.class_name, row.object_name, row.session] = row.split
    splits = list(split_of.values())
    return {
        "classes": len(table.classes),
        "train": table.split.count("train"),
        "test": table.split.count("test"),
        "train_clips": splits.count("train"),
        "test_clips": splits.count("test"),
    }


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("reference", [False, True])
def test_the_whole_data_set_has_the_numbers_of_the_paper(name, reference):
    names = WHOLE[name]()
    if not reference and name != "cifar100":  # the order of files does not matter
        names = reversed(names)
    table = table_of(name, "nowhere", names, reference)
    numbers = counted(table)
    counts = LAYOUTS[name].counts
    assert {key: numbers[key] for key in counts} == counts
    assert LAYOUTS[name].missing(table) == []


@pytest.mark.parametrize("name", WHOLE)
def test_classes_have_equal_numbers(name):
    table = whole_table(name)
    counts = [tuple(count.values()) for count in table.counts().values()]
    assert len(set(counts)) == 1


@pytest.mark.parametrize("name", WHOLE)
def test_groups_of_classes(name):
    table = whole_table(name)
    groups = BENCHMARKS[name].class_groups(table, False)
    assert (groups is None) == (name != "ilab_core50")


def all_places():
    for name, layout in LAYOUTS.items():
        for folder in ("", name, *layout.inner_folders):
            yield name, folder


@pytest.mark.parametrize(("name", "place"), all_places())
def test_the_folder_is_found_in_every_place(tmp_path, name, place):
    names = ODD.get(name, fake.TINY[name])
    if names is None:
        fake.write_tiny(name, tmp_path / place)
    else:
        fake.write_files(tmp_path / place, names)
    table = table_of(name, str(tmp_path))
    assert table.name == name
    assert table.root == tmp_path / place
    assert table.read(len(table) - 1).size == (12, 8)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - set(WITHOUT_PATHS)))
def test_a_folder_gives_the_table_of_its_paths(tmp_path, name):
    names = ODD.get(name, fake.TINY[name])
    table = table_of(name, fake.write_files(tmp_path, names))
    assert table.content_hash() == table_of(name, "x", names).content_hash()


def test_the_root_may_be_the_folder_of_the_images_of_ilab(tmp_path):
    fake.write_files(tmp_path, fake.odd_ilab_names())
    table = streams.ILabFrames(tmp_path / "train_img")
    paths = [f"train_img/{path}" for path in table.path]
    assert paths == list(streams.ILabFrames(tmp_path).path)
    assert table.read(0).size == (12, 8)


BOAT = "boat-i1-b1-c0-r1-l0-f2.jpg"
CUP = "cup_01_pivothead/cup_01_pivothead"
MISFITS = {
    "eth80": (
        "cup1/cup1-000-00.jpg",
        "cup1/cup2-000-000.jpg",
        "saucer1/saucer1-000-000.jpg",
    ),
    "core50": (
        "s1/o3/C_01_04_010.png",
        "s1/o3/C_02_03_010.png",
        "s1/o3/C_01_03_10.png",
        "s1/o3/C_01_03_300.png",
        "s12/o3/C_12_03_010.png",
        "s1/C_01_03_010.png",
        "plot.PNG",
    ),
    "toybox": (
        f"images/households/{CUP}_tx_0.png",
        f"images/households/{CUP}_rw_1.png",
        f"images/animals/{CUP}_tx_1.png",
        "images/households/cup_02_pivothead/cup_01_pivothead_tx_1.png",
    ),
    "ilab": (
        "train_img/boat-i0001-b0001-c00-r01.jpg",
        "train_img/blimp-i1-b1-c0-r1-l0-f2.jpg",
        f"train_img/car/{BOAT}",
        f"train_img/boat/more/{BOAT}",
        f"images/{BOAT}",
    ),
    "icub": (
        "part5/mug/mug1/MIX/day1/left/0.jpg",
        "part1/mug/mug11/MIX/day1/left/0.jpg",
        "mug/book1/MIX/day1/left/0.jpg",
        "part3/mug/mug1/ROT4D/day1/left/0.jpg",
        "part3/mug/mug1/MIX/monday/left/0.jpg",
        "part3/mug/mug1/MIX/left/0.jpg",
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
    "openloris_clutter": (
        "train/clutter/segment10/cup_10/1.jpg",
        "train/clutter/segment1/cup_09/1.jpg",
        "train/task1/cup_10/1.jpg",
    ),
    "clear10": (
        "train/labeled_images/1/watch/1.jpg",
        "train/labeled_images/11/bus/1.jpg",
        "train/labeled_images/bus/1.jpg",
        "train/1/bus/1.jpg",
    ),
    "orbit": (
        "test/P744/bag/clean/v/v-00001.jpg",
        "test/P177/bag/clean/v/w-00001.jpg",
        "test/P177/bag/clutter-pan/v/v-00001.jpg",
    ),
}


def all_misfits():
    for name, paths in MISFITS.items():
        for path in paths:
            yield name, path


@pytest.mark.parametrize(("name", "path"), all_misfits())
def test_an_image_that_does_not_fit_is_named_with_the_rule(name, path):
    layout = LAYOUTS[name]
    words = (
        f"image {path} does not fit the layout of {layout.title}: {layout.tree}; "
        f"{layout.rule}. Rename it"
    )
    with pytest.raises(FrameTableError, match=re.escape(words)):
        list(layout.images([path]))


@pytest.mark.parametrize(("name", "path"), all_misfits())
def test_a_table_with_an_image_that_does_not_fit(name, path):
    if name in WITHOUT_PATHS:
        pytest.skip("its table takes no paths")
    names = ODD.get(name, fake.TINY[name])
    with pytest.raises(FrameTableError, match=f"image {re.escape(path)} does not fit"):
        table_of(name, "nowhere", [*names, path])


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
        table_of(name, "nowhere", [*ODD[name], again])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_that_does_not_exist(tmp_path, name):
    words = f"there is no folder {tmp_path}/nowhere. {advice(name)}"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        table_of(name, tmp_path / "nowhere")


def advice(name):
    return (
        f"{name} is laid out as {LAYOUTS[name].tree}; give that folder as root, or "
        "make it with `crumb prepare"
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_folders_with_another_layout(tmp_path, name):
    for number in range(10):
        (tmp_path / f"d{number}").mkdir()
    first = LAYOUTS[name].folders[0]
    holds = "but holds d0, d1, d2, d3, d4, d5, d6, d7 and 2 more"
    words = f"{tmp_path} has no folder {first}.*, {holds}. {re.escape(advice(name))}"
    with pytest.raises(FrameTableError, match=words):
        table_of(name, tmp_path)


OF_TWO_FOLDERS = [
    name
    for name, layout in LAYOUTS.items()
    if layout.needs_all_folders and len(layout.folders) == 2
]


@pytest.mark.parametrize("name", OF_TWO_FOLDERS)
def test_one_of_two_folders(tmp_path, name):
    first, second = LAYOUTS[name].folders
    (tmp_path / first).mkdir()
    with pytest.raises(FrameTableError, match=f"has no folder {second}, but holds"):
        table_of(name, tmp_path)


@pytest.mark.parametrize("name", ["core50", "toybox", "ilab", "icub"])
def test_a_folder_without_an_image_that_is_used(tmp_path, name):
    layout = LAYOUTS[name]
    fake.write_files(
        tmp_path / layout.folders[0],
        ["README.md", "boat-i0001-b0001-c00-r01-l0-f2.txt"],
    )
    words = (
        f"{tmp_path} holds no images of {layout.title} that are used. The layout is "
        f"{layout.tree}; `crumb"
    )
    with pytest.raises(FrameTableError, match=re.escape(words)):
        table_of(name, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_generator_passes_on_its_arguments(tmp_path, name):
    _, generator = FRAMES[name]
    fake.write_tiny(name, tmp_path)
    benchmark = generator(
        tmp_path,
        protocol="class_iid",
        run=3,
        classes_per_experience=1,
        train_transform=lambda image: "train",
        eval_transform=lambda image: "eval",
    )
    table = BENCHMARKS[name].table(tmp_path, 3)
    assert benchmark.protocol == "class_iid"
    assert benchmark.run == 3
    assert benchmark.n_classes_per_exp == [1, 1]
    assert benchmark.frame_table.content_hash() == table.content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train"
    assert benchmark.test_stream[0].dataset[0][0] == "eval"


@pytest.mark.parametrize(
    "name", [name for name in LAYOUTS if "reference" in BENCHMARKS[name].options]
)
def test_the_generator_passes_on_reference(tmp_path, name):
    _, generator = FRAMES[name]
    fake.write_tiny(name, tmp_path)
    benchmark = generator(tmp_path, run=3, classes_per_experience=1, reference=True)
    table = table_of(name, tmp_path, reference=True)
    assert benchmark.frame_table.frames_hash() == table.frames_hash()


TWO_CLASSES = {"part3": ("mug",), "part1": ("book",)}


def clips_of(names, reference=False):
    return fake.frames_by_clip(ICubFrames("nowhere", names, reference))


def test_every_tenth_file_of_the_first_day_by_position():
    assert list(clips_of(fake.odd_icub_names()).items()) == [
        (("book1", "MIX"), [0]),
        (("book1", "ROT2D"), [0]),
        (("book1", "ROT3D"), [0]),
        (("book1", "SCALE"), [0]),
        (("book1", "TRANSL"), [0]),
        (("mug2", "MIX"), [0, 10]),
        (("mug2", "ROT2D"), [5, 16, 26]),
        (("mug2", "SCALE"), [0]),
        (("mug2", "TRANSL"), [7]),
        (("mug10", "MIX"), [4]),
        (("mug10", "SCALE"), [10]),
    ]


def test_the_split_of_icub():
    table = ICubFrames("nowhere", fake.odd_icub_names())
    assert table.counts() == {
        "book": {"train": 4, "test": 1},
        "mug": {"train": 6, "test": 3},
    }
    assert "part3/mug/mug2/SCALE/day3/left/00000000.JPG" in table.path
    assert "part3/mug/mug2/ROT2D/day2/left/00000016.jpg" in table.path


def test_reference_sorts_the_days_as_text():
    names = fake.odd_icub_names()
    expected = clips_of(names) | {("mug2", "ROT2D"): [90]}
    assert clips_of(names, reference=True) == expected


@pytest.fixture
def flat():
    """Names of images of iCubWorld without parts."""
    names = fake.icub_names(TWO_CLASSES, (1,))
    return [name.partition("/")[2] for name in names]


def test_parts_may_be_left_out(flat):
    table = ICubFrames("nowhere", flat)
    assert fake.frames_by_clip(table) == clips_of(fake.icub_names(TWO_CLASSES, (1,)))
    assert len(fake.frames_by_clip(table)) == 10
    assert table.path[0] == "book/book1/MIX/day2/left/00000000.jpg"
    line = "class book: 4 of 40 training clips, 1 of 10 test clips"
    assert line in LAYOUT.missing(table)


def test_a_folder_without_parts(tmp_path, flat):
    names = flat[::7]
    fake.write_files(tmp_path, names)
    content = ICubFrames("nowhere", names).content_hash()
    assert ICubFrames(tmp_path).content_hash() == content
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
    # as the system lists them
    listdir = os.listdir
    listed = ["mouse", "ringbinder", "book", "cellphone"]
    monkeypatch.setattr(
        os,
        "listdir",
        lambda path: listed if os.path.basename(path) == "part1" else listdir(path),
    )
    benchmark = ICub(tmp_path, run=run, classes_per_experience=1, reference=True)
    assert benchmark.class_names == order
    assert all("/day10/" in path for path in benchmark.frame_table.path)


# Classes in an experience, new images in a step, and images in memory.
PAPER = {
    "core50": (2, 21, 15),
    "toybox": (2, 21, 15),
    "ilab": (2, 21, 15),
    "icub": (2, 21, 30),
    "ilab_core50": (2, 21, 30),
    "cifar100": (5, 128, 100),
    "imagenet": (100, 128, 10_000),
}
OTHERS = {
    "eth80": (2, 21, 15),
    "clip_folder": (2, 21, 15),
    "toy_shapes": (2, 21, 15),
    "toy_shapes_short": (2, 21, 15),
    "toy_dots": (2, 21, 15),
    "tiny_imagenet": (10, 128, 200),
    "stream51": (1, 128, 51),
    "orbit": (1, 21, 15),
    "clear10": (None, 64, 100),
    "clear100": (None, 64, 100),
}
OTHERS |= {f"openloris_{name}": (None, 32, 121) for name in STREAMS}


@pytest.mark.parametrize(("name", "numbers"), [*PAPER.items(), *OTHERS.items()])
def test_settings_of_each_benchmark(name, numbers):
    benchmark = get_benchmark(name)
    classes, batch_size, budget_images = numbers
    assert benchmark is BENCHMARKS[name]
    assert benchmark.name == name
    assert benchmark.classes_per_experience == classes
    assert benchmark.batch_size == batch_size
    assert benchmark.budget_images == budget_images
    assert benchmark.needs_root == (not name.startswith("toy_"))
    assert benchmark.files.source
    assert ("reference" in benchmark.options) == (name in PAPER)


def test_the_names_of_all_benchmarks():
    assert set(BENCHMARKS) == PAPER.keys() | OTHERS.keys()
    assert set(BENCHMARKS) == fake.TINY.keys()


@pytest.mark.parametrize("name", fake.TINY)
def test_all_tables_are_called_alike(tmp_path, name):
    fake.write_tiny(name, tmp_path)
    benchmark = get_benchmark(name)
    table = benchmark.table(str(tmp_path), 1)
    assert isinstance(table, FrameTable)
    assert min(chain.from_iterable(count.values() for count in table.counts().values()))
    run = {"run": 1} if "run" in benchmark.options else {}
    content = benchmark.frames(str(tmp_path), **run).content_hash()
    assert table.content_hash() == content


@pytest.mark.parametrize("name", fake.TINY)
def test_all_groups_of_classes_are_called_alike(tmp_path, name):
    fake.write_tiny(name, tmp_path)
    benchmark = get_benchmark(name)
    table = benchmark.table(str(tmp_path), 1)
    groups = benchmark.class_groups(table, True)
    assert groups is None or sorted(chain(*groups)) == sorted(table.classes)
    assert (benchmark.class_groups(table, False) is None) == (name != "ilab_core50")


def test_a_benchmark_that_needs_a_root():
    words = r"benchmark core50 needs --dataset-root; expected there: <root>/core50"
    with pytest.raises(FrameTableError, match=words):
        get_benchmark("core50").table(None, 0)


def test_a_benchmark_without_videos(tmp_path):
    words = "benchmark toybox reads no video files; fps=2 is for clip_folder"
    with pytest.raises(FrameTableError, match=words):
        get_benchmark("toybox").table(str(tmp_path), 0, fps=2.0)


def test_a_benchmark_takes_reference(tmp_path):
    fake.write_files(tmp_path, fake.toybox_names(["cup"], [1], 2))
    assert get_benchmark("toybox").table(str(tmp_path), 0, reference=True).padded


def test_a_benchmark_takes_fps(tmp_path):
    with pytest.raises(ValueError, match="fps is 0"):
        get_benchmark("clip_folder").table(str(tmp_path), 0, fps=0.0)


def test_an_unknown_benchmark():
    words = (
        "unknown benchmark 'core51'; known are cifar100, clear10, clear100, clip_folder"
    )
    with pytest.raises(ValueError, match=words):
        get_benchmark("core51")


@pytest.mark.parametrize("name", streams.__all__)
def test_every_public_name_exists(name):
    assert getattr(streams, name) is not None
    assert name in dir(streams)


def test_no_other_name_exists():
    with pytest.raises(AttributeError, match="attribute CORe51"):
        streams.CORe51  # noqa: B018
