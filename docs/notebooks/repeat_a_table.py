# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Repeat a table and add a method
#
# A small table of four methods, two runs each, and then a method of your own in the same table. The stream is rendered,
# so nothing is downloaded. It takes a few minutes on two CPU cores.

# %%
import io
import json
import statistics
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch.utils.data import Subset

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche.cli import main
from crumb_avalanche.runs.demo import shapes, train_network
from crumb_avalanche.system.tensor_file import write_tensors

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A network that has seen other shapes
#
# It takes the place of ImageNet weights, which would be a download.

# %%
torch.manual_seed(0)
images = shapes(pixel_transform(64), progress=False)
network = train_network(Subset(images, range(0, len(images), 2)), progress=False)
write_tensors(folder / "network.safetensors", network.state_dict(), {})

# %% [markdown]
# ## The runs
#
# On a command line this is `crumb run ... --strategy NAME --output runs/NAME`. Finished runs are not repeated. The
# scripts of `experiments/` build their runs from the same settings; [Scripts](../scripts.md) lists the table that each
# one makes.

# %%
COMMON = "--benchmark toy_shapes_short --backbone small_cnn --image-size 64 --first-epochs 4 --preset paper"
COMMON += " --budget-images 20 --replay-steps 3 --runs 0-1 --threads 1 --progress false"


def run(strategy):
    """Do both runs of a strategy, as the command line does, and print its last line."""
    paths = [
        "--weights",
        str(folder / "network.safetensors"),
        "--output",
        str(folder / strategy),
    ]
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = main(["run", *COMMON.split(), "--strategy", strategy, *paths])
    assert code == 0
    print(printed.getvalue().splitlines()[-1])


for strategy in ("finetune", "image_replay", "crumb", "ncm"):
    run(strategy)

# %% [markdown]
# ## The table
#
# Each run leaves a folder with `result.json`, `ledger.json` and more.


# %%
def table():
    """Print the final accuracy and the bytes of every finished run."""
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        accuracies, memory = [], 0
        for result in sorted(path.rglob("result.json")):
            ledger = json.loads((result.parent / "ledger.json").read_text())
            accuracies.append(json.loads(result.read_text())["final_accuracy"])
            memory = max(memory, ledger["memory_bytes"])
        print(
            f"{path.name:14} {statistics.fmean(accuracies):6.1f} %  {memory:>9,} bytes"
        )


table()

# %% [markdown]
# ## A method of your own
#
# Nearest class mean by Euclidean distance instead of the cosine: a closed form with other scores. `register` describes
# it, and `crumb run` takes it like any other.

# %%
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register


@register(
    "euclidean_ncm",
    summary="class means of frozen features, nearest by Euclidean distance",
    source="this notebook",
    stores="a mean for each class",
)
class EuclideanMeans(ClassMeans):
    """Class means, nearest by Euclidean distance."""

    def _solve(self, seen):
        return self.means[seen].double()

    def _answers(self, features, solution):
        return -torch.cdist(features, solution)


run("euclidean_ncm")
table()

# %% [markdown]
# ## A report
#
# `crumb report` makes a page of all runs, `report.html`, and their picture.

# %% alt="Accuracy along the stream, and final accuracy, of all five methods"
from IPython.display import Image

with redirect_stdout(io.StringIO()):
    assert main(["report", str(folder)]) == 0
print(*sorted(path.name for path in folder.glob("report.*")))
Image(folder / "report.png", width=800)
