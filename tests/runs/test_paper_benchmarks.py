"""The paper's benchmarks, and videos, through ``crumb run``."""

import json

import pytest
from fake_data import write_tiny
from fake_videos import write_video

from benchmarks_toybox_ilab.catalog import BENCHMARKS

PAPER = [name for name, benchmark in BENCHMARKS.items() if "reference" in benchmark.options]


def results(done, output, *arguments):
    fast = ("--weights", "none", "--backbone", "small_cnn", "--image-size", "16", "--batch-size", "32")
    rest = ("--first-epochs", "1", "--threads", "1", "--progress", "false", "--checkpoint", "false")
    done("run", *arguments, *fast, *rest, "--output", output)
    return json.loads((output / "result.json").read_text())


@pytest.mark.parametrize(
    ("name", "reference"), [*((name, "true") for name in PAPER), ("core50", "false"), ("cifar100", "false")]
)
def test_every_benchmark_runs_with_and_without_the_reference_stream(done, tmp_path, name, reference):
    root = write_tiny(name, tmp_path / "data")
    arguments = ("--benchmark", name, "--dataset-root", root, "--strategy", "ncm", "--reference-stream", reference)
    result = results(done, tmp_path / "run", *arguments, "--classes-per-experience", "1")
    table = BENCHMARKS[name].table(root, 0, reference == "true")
    assert result["benchmark"] == name and len(result["accuracy_after"]) == 2
    assert result["frame_table_sha256"] == table.content_hash()
    assert sorted(result["classes_order"]) == sorted(table.classes)


def test_videos_need_no_preparation(done, tmp_path):
    pytest.importorskip("av")
    for name in ("cup", "dice"):
        for item in ("a", "b"):
            write_video(tmp_path / "clips" / name / item / "kitchen.mp4", seconds=2)
    arguments = ("--benchmark", "clip_folder", "--dataset-root", tmp_path / "clips", "--strategy", "finetune")
    lengths = {}
    for fps in (None, "2"):
        output = tmp_path / f"fps{fps}"
        results(done, output, *arguments, *(("--fps", fps) if fps else ()))
        lengths[fps] = len(list((tmp_path / "clips" / ".crumb_frames").rglob("*.png")))
    assert lengths == {None: 4 * 2, "2": 4 * 2 + 4 * 4}
