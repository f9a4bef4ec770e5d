"""The paper's benchmarks through ``crumb run``: names, memory sizes, options."""

import json

import pytest
from fake_data import write_tiny
from fake_videos import write_video

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.session import build_model, capacity_of
from crumb_avalanche.runs.settings import RunSettings

PAPER = [name for name, benchmark in BENCHMARKS.items() if "reference" in benchmark.options]
MEMORIES = {"core50": 417, "toybox": 417, "ilab": 417, "icub": 834, "ilab_core50": 834, "cifar100": 2782}
MEMORIES["imagenet"] = 278_342


def results(crumb, output, *arguments):
    fast = ("--weights", "none", "--backbone", "small_cnn", "--image-size", "16", "--batch-size", "32")
    rest = ("--first-epochs", "1", "--threads", "1", "--progress", "false", "--checkpoint", "false")
    code, _, err = crumb("run", *arguments, *fast, *rest, "--output", output)
    assert code == 0, err
    return json.loads((output / "result.json").read_text())


@pytest.fixture(scope="module")
def squeezenet():
    return build_model(RunPlan.of(RunSettings(weights="none")), 10, codebook=True)


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_sizes_of_the_paper_follow_from_the_budget(squeezenet, name):
    """(images * 150,528 - 256 * 16) / 5,408; supplement, S5."""
    plan = RunPlan.of(RunSettings(benchmark=name))
    assert capacity_of(plan, get_strategy("crumb"), squeezenet) == MEMORIES[name]
    images = RunPlan.of(RunSettings(benchmark=name, strategy="image_replay"))
    assert capacity_of(images, get_strategy("image_replay"), squeezenet) == BENCHMARKS[name].budget_images


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("reference", ["false", "true"])
def test_every_benchmark_runs_with_and_without_the_reference_stream(crumb, tmp_path, name, reference):
    root = write_tiny(name, tmp_path / "data")
    arguments = ("--benchmark", name, "--dataset-root", root, "--strategy", "ncm", "--reference-stream", reference)
    result = results(crumb, tmp_path / "run", *arguments, "--classes-per-experience", "1")
    table = BENCHMARKS[name].table(root, 0, reference == "true")
    assert result["benchmark"] == name and len(result["accuracy_after"]) == 2
    assert result["frame_table_sha256"] == table.content_hash()
    assert sorted(result["classes_order"]) == sorted(table.classes)


def test_videos_need_no_preparation(crumb, tmp_path):
    pytest.importorskip("av")
    for name in ("cup", "dice"):
        for item in ("a", "b"):
            write_video(tmp_path / "clips" / name / item / "kitchen.mp4", seconds=2)
    arguments = ("--benchmark", "clip_folder", "--dataset-root", tmp_path / "clips", "--strategy", "finetune")
    lengths = {}
    for fps in (None, "2"):
        output = tmp_path / f"fps{fps}"
        results(crumb, output, *arguments, *(("--fps", fps) if fps else ()))
        lengths[fps] = len(list((tmp_path / "clips" / ".crumb_frames").rglob("*.png")))
    assert lengths == {None: 4 * 2, "2": 4 * 2 + 4 * 4}


def test_options_of_other_benchmarks_are_refused(crumb, tmp_path):
    where = ("--dataset-root", write_tiny("core50", tmp_path / "data"), "--output", tmp_path / "o")
    code, _, err = crumb("run", "--benchmark", "core50", "--fps", "2", *where)
    assert code == 1 and "benchmark core50 reads no video files; fps=2 is for clip_folder" in err
