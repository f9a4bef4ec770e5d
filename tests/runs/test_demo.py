"""The demo on a few images."""

from functools import partial

from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesFrames
from crumb_avalanche.runs import demo


def test_the_whole_demo_on_a_few_images(monkeypatch, done, refused, clips, tmp_path):
    few = dict(objects_per_class=2, sessions=2, held_out_sessions=(1,), frames_per_clip=1)
    monkeypatch.setattr(demo, "ToyShapesFrames", partial(ToyShapesFrames, **few))
    monkeypatch.setattr(demo, "BENCHMARK", "clip_folder")
    monkeypatch.setattr(demo, "RunSettings", partial(demo.RunSettings, dataset_root=str(clips)))
    monkeypatch.setattr(demo, "STRATEGIES", ("crumb", "rda"))
    arguments = ("demo", "--threads", "1", "--progress", "false", "--output", tmp_path)
    out = done(*arguments)
    assert (tmp_path / "report.png").stat().st_size > 10_000 and "rda" in out
    results = {name: tmp_path / name / "result.json" for name in ("crumb", "rda")}
    times = {name: path.stat().st_mtime_ns for name, path in results.items()}
    (tmp_path / "rda" / "result.json").unlink()  # as if it had been cut off there
    out = done(*arguments)
    assert "\nrda" in out and "training a small network" not in out
    assert results["crumb"].stat().st_mtime_ns == times["crumb"] and results["rda"].exists()
    refused("holds a finished run with run=0, not 3", *arguments, "--seed", "3")
