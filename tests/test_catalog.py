from itertools import chain

import pytest
from fake_data import TINY, toybox_names, write_files, write_tiny

import benchmarks_toybox_ilab
from benchmarks_toybox_ilab.catalog import BENCHMARKS, get_benchmark
from benchmarks_toybox_ilab.datasets.openloris import STREAMS
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PAPER = {
    "core50": (2, 21, 15),
    "toybox": (2, 21, 15),
    "ilab": (2, 21, 15),
    "icub": (2, 21, 30),
    "ilab_core50": (2, 21, 30),
    "cifar100": (5, 128, 100),
    "imagenet": (100, 128, 10_000),
}
OTHERS = dict.fromkeys(("eth80", "clip_folder", "toy_shapes", "toy_shapes_short", "toy_dots"), (2, 21, 15)) | {
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
    assert (benchmark.classes_per_experience, benchmark.batch_size, benchmark.budget_images) == numbers
    assert benchmark.needs_root == (not name.startswith("toy_")) and benchmark.files.source
    assert ("reference" in benchmark.options) == (name in PAPER)
    assert set(BENCHMARKS) == PAPER.keys() | OTHERS.keys() == TINY.keys()


@pytest.mark.parametrize("name", TINY)
def test_all_tables_are_called_alike(tmp_path, name):
    write_tiny(name, tmp_path)
    benchmark = get_benchmark(name)
    table = benchmark.table(str(tmp_path), 1)
    assert isinstance(table, FrameTable) and all(min(count.values()) for count in table.counts().values())
    run = {"run": 1} if "run" in benchmark.options else {}
    assert table.content_hash() == benchmark.frames(str(tmp_path), **run).content_hash()
    groups = benchmark.class_groups(table, True)
    assert groups is None or sorted(chain(*groups)) == sorted(table.classes)
    assert (benchmark.class_groups(table, False) is None) == (name != "ilab_core50")


def test_what_a_benchmark_needs_and_takes(tmp_path):
    with pytest.raises(FrameTableError, match=r"benchmark core50 needs --dataset-root; expected there: <root>/core50"):
        get_benchmark("core50").table(None, 0)
    with pytest.raises(FrameTableError, match="benchmark toybox reads no video files; fps=2 is for clip_folder"):
        get_benchmark("toybox").table(str(tmp_path), 0, fps=2.0)
    write_files(tmp_path, toybox_names(["cup"], [1], 2))
    assert get_benchmark("toybox").table(str(tmp_path), 0, reference=True).padded
    with pytest.raises(ValueError, match="fps is 0"):
        get_benchmark("clip_folder").table(str(tmp_path), 0, fps=0.0)
    with pytest.raises(
        ValueError, match="unknown benchmark 'core51'; known are cifar100, clear10, clear100, clip_folder"
    ):
        get_benchmark("core51")


def test_every_public_name_exists_and_no_other():
    for name in benchmarks_toybox_ilab.__all__:
        assert getattr(benchmarks_toybox_ilab, name) is not None and name in dir(benchmarks_toybox_ilab)
    assert set(benchmarks_toybox_ilab.__all__) == set(benchmarks_toybox_ilab._HOMES)
    with pytest.raises(AttributeError, match="no attribute 'CORe51'"):
        benchmarks_toybox_ilab.CORe51  # noqa: B018
