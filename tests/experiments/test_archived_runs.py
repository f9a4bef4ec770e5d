"""The archived run folders make their published tables, to the byte, and the lists of their runs."""

import csv
import tarfile

import pytest
import torch
from called_script import called
from made_runs import EXPERIMENTS
from safetensors.torch import save_file

pytestmark = pytest.mark.slow
RESULTS, TABLES = EXPERIMENTS / "results", EXPERIMENTS.parent / "docs" / "results"
WEIGHTS = (
    "--weights",
    "squeezenet1_0_deepcomp.npz",
    "--protocols",
    "class_iid",
    "--processes",
    2,
    "--replay-weight",
    1,
)
CIFAR = ("--benchmark", "cifar100", *WEIGHTS, "--cache-precision", "fp16", "--runs", "0-2", "--evaluate-every", 20)
ETH = ("--benchmark", "eth80", *WEIGHTS)
# Name of the archive and its table: script, folder in the archive, options as in docs/results.md.
MADE_BY = {
    "table3_cifar100": (
        "table3_codes_vs_images",
        "table3_cifar",
        (*CIFAR, "--dataset-root", "CIFAR100", "--feature-cache", "cache", "--counts", 200, 400, 800, 1600),
    ),
    "table4_cifar100": (
        "table4_ablations",
        "table4_cifar",
        (*CIFAR, "--dataset-root", "cifar100", "--feature-cache", "cache_cifar", "--checkpoint"),
    ),
    "table4_class_iid": (
        "table4_ablations",
        "table4",
        (*ETH, "--dataset-root", "eth80", "--feature-cache", "cache", "--cifar100-start", "cifar100.safetensors"),
    ),
}


def listed(path):
    """The lines of a list of runs, without the settings, which have today's names in a new list."""
    with open(path, newline="") as file:
        return [line[:-1] for line in csv.reader(file)]


@pytest.mark.parametrize("name", MADE_BY)
def test_an_archive_makes_its_table(name, tmp_path, monkeypatch):
    script, folder, options = MADE_BY[name]
    monkeypatch.chdir(tmp_path)
    with tarfile.open(RESULTS / f"{name}_runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    save_file({"x": torch.zeros(1)}, "cifar100.safetensors")  # the runs have its name; it has to exist
    if script == "table4_ablations":
        with open(TABLES / f"{name}.csv", newline="") as file:
            options += ("--rows", *(line["row"] for line in csv.DictReader(file)))
    done = called(script, *options, "--output", folder, "--table-only")
    assert done.returncode == 0, done.stderr
    table = script.partition("_")[0]
    assert (tmp_path / folder / f"{table}.csv").read_bytes() == (TABLES / f"{name}.csv").read_bytes()
    assert listed(tmp_path / folder / f"{table}_runs.csv") == listed(RESULTS / f"{name}_runs.csv")
