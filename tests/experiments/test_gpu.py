"""``gpu.py``: one line without a GPU, and its parts on a device that is played."""

from types import SimpleNamespace

import gpu
import pytest
import torch
from called_script import called
from gpu import Figure, Sizes, flops_of, peak, waits_of
from played_device import CPU, DEVICE, PlayedDevice

from benchmarks_toybox_ilab.catalog import BENCHMARKS

SMALL = Sizes("small_cnn", pixels=32, batch=4, batches=2, f_batch=4, repeats=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_one_line(tmp_path):
    done = called("gpu", "--output", tmp_path / "gpu")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: there is no GPU here")
    assert not (tmp_path / "gpu").exists()


def values_of(figures):
    return {figure.name: figure.value for figure in figures}


@pytest.mark.parametrize("part", [gpu.step, gpu.search])
def test_parts_on_a_played_device(part):
    with PlayedDevice():
        on_device = values_of(part(DEVICE, SMALL))
    assert on_device.keys() == values_of(part(CPU, SMALL)).keys()
    assert all(value >= 0 for value in on_device.values())


def test_the_host_waits_for_nothing_it_is_not_given():
    event = SimpleNamespace
    events = [
        event(key="cudaStreamSynchronize", count=3),
        event(key="cudaLaunchKernel", count=50),
        event(key="cudaStreamSynchronize", count=1),
    ]
    assert waits_of(events) == {"cudaStreamSynchronize": 4}


def test_operations_of_the_first_layers():
    """A convolution of 3x3 from 3 channels alone has 2 * 27 operations a value."""
    assert flops_of(SMALL) > 2 * 27 * 16 * 16


def test_the_peak_is_a_rate():
    assert peak(CPU, torch.float32, side=64) > 0


def test_parts_are_one_table(tmp_path):
    gpu.write(tmp_path, [Figure("step", "step over bare", 1.23456, "times")])
    lines = (tmp_path / "gpu.csv").read_text().splitlines()
    assert lines == ["part,figure,value,unit", "step,step over bare,1.235,times"]


def test_a_run_on_the_cpu(tmp_path, clips, monkeypatch):
    quick = dict(backbone="small_cnn", image_size=32, first_epochs=1, preset="paper")
    few_images = dict(benchmark="clip_folder", dataset_root=str(clips))
    settings = gpu.RunSettings

    def quick_settings(**chosen):
        assert chosen["benchmark"] in BENCHMARKS
        return settings(**{**chosen, **quick, **few_images})

    monkeypatch.setattr(gpu, "RunSettings", quick_settings)
    options = SimpleNamespace(dataset_root=None, weights="none", output=str(tmp_path))
    assert 0 <= gpu.run_on("cpu", options)["final_accuracy"] <= 100
