"""The demo on a few images, and refused folders."""

from functools import partial

import pytest

from benchmarks_toybox_ilab.datasets.toy_shapes.benchmark import ToyShapesFrames
from crumb_avalanche.cli import run as command
from crumb_avalanche.runs import demo
from crumb_avalanche.runs.command_settings import DemoSettings
from crumb_avalanche.system.folder_lock import FolderInUseError, locked


def test_a_folder_of_another_program_or_in_use_is_refused(tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError, match="is in use by another process"):
        command.demo(DemoSettings(output=str(tmp_path)))
    (tmp_path / "network.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match=r"network.safetensors exists and is not of a demo, so it stays as it is"):
        command.demo(DemoSettings(output=str(tmp_path), overwrite=True))


def test_the_whole_demo_on_a_few_images(monkeypatch, crumb, clips, tmp_path):
    few = dict(objects_per_class=2, sessions=2, held_out_sessions=(1,), frames_per_clip=1)
    monkeypatch.setattr(demo, "ToyShapesFrames", partial(ToyShapesFrames, **few))
    monkeypatch.setattr(demo, "BENCHMARK", "clip_folder")
    monkeypatch.setattr(demo, "RunSettings", partial(demo.RunSettings, dataset_root=str(clips)))
    monkeypatch.setattr(demo, "STRATEGIES", ("crumb", "rda"))
    arguments = ("demo", "--threads", "1", "--progress", "false", "--output", tmp_path)
    code, out, err = crumb(*arguments)
    assert code == 0, err
    assert (tmp_path / "report.png").stat().st_size > 10_000 and "rda" in out
    results = {name: tmp_path / name / "result.json" for name in ("crumb", "rda")}
    times = {name: path.stat().st_mtime_ns for name, path in results.items()}
    (tmp_path / "rda" / "result.json").unlink()  # as if it had been cut off there
    code, out, err = crumb(*arguments)
    assert code == 0 and "\nrda" in out and "training a small network" not in out, err
    assert results["crumb"].stat().st_mtime_ns == times["crumb"] and results["rda"].exists()
    code, _, err = crumb(*arguments, "--seed", "3")
    assert code == 1 and "holds a finished run with run=0, not 3" in err
