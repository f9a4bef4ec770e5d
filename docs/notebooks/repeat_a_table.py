# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Repeat a table and add a method
#
# A small table of three methods, two runs each, and then a method of your own in the same table. The stream is
# rendered, so nothing is downloaded. It takes about two minutes on two CPU cores.

# %%
import json
import statistics
import tempfile
from pathlib import Path

from crumb_avalanche.cli import main

folder = Path(tempfile.mkdtemp())
COMMON = "--benchmark toy_shapes_short --weights none --backbone small_cnn --image-size 32 --first-epochs 1"
COMMON += " --budget-images 200 --preset paper --runs 0-1 --threads 1 --progress false"


def run(strategy):
    """Do both runs of a strategy, as the command line does."""
    code = main(["run", *COMMON.split(), "--strategy", strategy, "--output", str(folder / strategy)])
    assert code == 0


# %% [markdown]
# ## The runs
#
# On a command line this is `crumb run ... --strategy NAME --output runs/NAME`. Finished runs are not repeated.

# %%
for strategy in ("finetune", "image_replay", "ncm"):
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
        print(f"{path.name:14} {statistics.fmean(accuracies):6.1f} %  {memory:>9,} bytes")


table()

# %% [markdown]
# ## A method of your own
#
# Nearest class mean by Euclidean distance instead of the cosine: a closed form with other scores. The entry describes
# it, `METHOD_SETTINGS` holds the type of its own settings, and `crumb run` takes it like any other.

# %%
import torch

from crumb_avalanche.baselines.class_statistics import closed_form
from crumb_avalanche.baselines.entry import Entry
from crumb_avalanche.baselines.method_settings import METHOD_SETTINGS, NoSettings
from crumb_avalanche.baselines.registry import STRATEGIES
from crumb_avalanche.closed_form.class_means import ClassMeans
from crumb_avalanche.closed_form.feature_moments import feature_length


class EuclideanMeans(ClassMeans):
    """Class means, nearest by Euclidean distance."""

    def _solve(self, seen):
        return self.means[seen].double()

    def _answers(self, features, solution):
        return -torch.cdist(features, solution)


METHOD_SETTINGS["euclidean_ncm"] = NoSettings
STRATEGIES["euclidean_ncm"] = Entry(
    name="euclidean_ncm",
    summary="class means of frozen features, nearest by Euclidean distance",
    source="this notebook",
    stores="a mean for each class",
    build=lambda recipe: closed_form(recipe, EuclideanMeans(recipe.n_classes, feature_length(recipe.model))),
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * (feature_length(model) + 1),
    gradient=False,
)
run("euclidean_ncm")
table()

# %% [markdown]
# ## A report
#
# `crumb report` makes a page of all runs.

# %%
assert main(["report", str(folder)]) == 0
print(sorted(path.name for path in folder.glob("report.*")))
