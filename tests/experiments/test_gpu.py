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


def names_of(figures):
    return [figure.name for figure in figures]


@pytest.mark.parametrize("part", [gpu.step, gpu.search])
def test_parts_on_a_played_device(part):
    with PlayedDevice():
        names = names_of(part(DEVICE, SMALL))
    assert names == names_of(part(CPU, SMALL))


def test_the_host_waits_for_nothing_it_is_not_given():
    event = SimpleNamespace
    events = [
        event(key="cudaStreamSynchronize", count=3),
        event(key="cudaLaunchKernel", count=50),
        event(key="cudaStreamSynchronize", count=1),
    ]
    assert waits_of(events) == {"cudaStreamSynchronize": 4}


def test_operations_of_an_image():
    """Three convolutions of 3x3, each of half the side of the one before."""
    first = 2 * 3 * 9 * 32 * 32**2  # two for each product of channels, window and map
    second = 2 * 32 * 9 * 64 * 16**2
    third = 2 * 64 * 9 * 128 * 8**2
    assert flops_of(SMALL) == first + second + third


def test_the_peak_is_a_rate(monkeypatch):
    """A value of the product of two matrices of 64 x 64 has 64 products and sums."""
    monkeypatch.setattr(gpu, "seconds_on", lambda device, function, repeats: 0.5)
    assert peak(CPU, torch.float32, side=64) == 64**2 * 2 * 64 / 0.5


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
