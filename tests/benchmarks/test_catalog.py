import subprocess
import sys

import pytest
from fake_data import write_clip_folder, write_eth80

import benchmarks_toybox_ilab
from benchmarks_toybox_ilab.catalog import BENCHMARKS, get_benchmark
from benchmarks_toybox_ilab.frame_table import FrameTable

LIGHT = """
import sys
import benchmarks_toybox_ilab as streams
table = streams.ETH80Frames(sys.argv[1])
table.read(0), table.content_hash(), streams.get_benchmark("eth80"), streams.ClipFolderFrames, streams.ToyShapesFrames
heavy = {"torch", "torchvision", "avalanche"} & set(sys.modules)
assert not heavy, heavy
"""


def test_tables_and_catalog_import_neither_torch_nor_avalanche(tmp_path):
    write_eth80(tmp_path)
    done = subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["eth80", "clip_folder", "toy_shapes"])
def test_settings_of_each_benchmark(name):
    benchmark = get_benchmark(name)
    assert benchmark is BENCHMARKS[name] and benchmark.name == name
    assert (benchmark.classes_per_experience, benchmark.batch_size, benchmark.budget_images) == (2, 21, 15)
    assert benchmark.needs_root == (name != "toy_shapes") and benchmark.layout and benchmark.source


@pytest.mark.parametrize(
    ("name", "write"), [("eth80", write_eth80), ("clip_folder", write_clip_folder), ("toy_shapes", None)]
)
def test_all_tables_are_called_alike(tmp_path, name, write):
    table = get_benchmark(name).frames(write(tmp_path) if write else None, 1)
    assert isinstance(table, FrameTable) and all(min(count.values()) for count in table.counts().values())


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="unknown benchmark 'core51'; known are eth80, clip_folder, toy_shapes"):
        get_benchmark("core51")


def test_every_public_name_exists_and_no_other():
    for name in benchmarks_toybox_ilab.__all__:
        assert getattr(benchmarks_toybox_ilab, name) is not None and name in dir(benchmarks_toybox_ilab)
    assert set(benchmarks_toybox_ilab.__all__) == set(benchmarks_toybox_ilab._HOME)
    with pytest.raises(AttributeError, match="no attribute 'CORe51'"):
        benchmarks_toybox_ilab.CORe51  # noqa: B018
