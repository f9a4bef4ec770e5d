# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Compare four strategies in Avalanche
#
# Four strategies learn the same stream of rendered shapes: fine-tuning, Avalanche's replay of 20 images,
# CRUMB at the same bytes, and the recommended strategy in closed form. Nothing is downloaded. It takes a few minutes on
# two CPU cores.

# %%
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from torch.utils.data import Subset

from benchmarks_toybox_ilab import ToyShapes, pixel_transform
from crumb_avalanche import (
    CodeBuffer,
    CRUMBStrategy,
    ImageBuffer,
    calibrate,
    recommended_strategy,
    split_backbone,
)
from crumb_avalanche.report.pictures import COLOURS
from crumb_avalanche.runs.demo import shapes, train_network
from crumb_avalanche.system.tensor_file import write_tensors

warnings.filterwarnings("ignore")
CLASSES = ("fish", "key", "mug", "tree", "umbrella", "cross")
SIZE = 64

# %% [markdown]
# ## A network that has seen other shapes
#
# ImageNet weights would be a download, so a small network learns ten *other* shapes first. Its early layers then stay
# frozen. With a download, `"squeezenet1_0", "torchvision"` takes the place of `"small_cnn", weights` below.

# %%
torch.manual_seed(0)
images = shapes(pixel_transform(SIZE), progress=False)
network = train_network(Subset(images, range(0, len(images), 2)), progress=False)
weights = Path(tempfile.mkdtemp()) / "network.safetensors"
write_tensors(weights, network.state_dict(), {})

# %% [markdown]
# ## The stream
#
# Six new classes come two at a time. A clip is a shape that turns and moves; clip 2 of each object is held out. A
# strategy may change its experiences, so each gets a stream of its own.


# %%
def make_stream():
    """Make the benchmark: three experiences of two classes."""
    transform = pixel_transform(SIZE)
    return ToyShapes(
        classes=CLASSES,
        objects_per_class=3,
        sessions=6,
        held_out_sessions=(2,),
        size=SIZE,
        train_transform=transform,
        eval_transform=transform,
    )


stream = make_stream()
for experience in stream.train_stream:
    names = [sorted(CLASSES)[label] for label in experience.classes_in_this_experience]
    print(
        f"experience {experience.current_experience}: {len(experience.dataset)} frames of {' and '.join(names)}"
    )

# %% alt="Eight frames of each of the first two classes: one shape, turned and moved from frame to frame"
figure, axes = plt.subplots(2, 8, figsize=(9, 2.6), layout="constrained")
frames = stream.train_stream[0].dataset
for row, label in zip(axes, sorted(stream.train_stream[0].classes_in_this_experience)):
    first = list(frames.targets).index(label)
    row[0].set_title(sorted(CLASSES)[label], loc="left")
    for place, ax in enumerate(row):
        ax.imshow(frames[first + 2 * place][0].permute(1, 2, 0))
        ax.axis("off")
plt.show()

# %% [markdown]
# ## The strategies
#
# All have the same network and the bytes of 20 raw images: CRUMB's codes are smaller, so it keeps more of them (the
# codebook's 16 kB come on top). Its codebook is filled by k-means of the first experience.


# %%
def build(name):
    """Build a strategy with a fresh head."""
    torch.manual_seed(0)
    model = split_backbone(
        "small_cnn",
        weights,
        n_classes=len(CLASSES),
        codebook=name == "crumb",
        image_size=SIZE,
    )
    arguments = dict(
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9),
        train_mb_size=15,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    if name == "crumb":
        calibrate(model, stream.train_stream[0].dataset, codebook_init="kmeans")
        codes = 20 * ImageBuffer.item_bytes(model) // CodeBuffer.item_bytes(model)
        return CRUMBStrategy(
            model=model, mem_size=codes, first_epochs=4, replay_steps=3, **arguments
        )
    if name == "rda":  # at the bytes of 60 principal directions
        return recommended_strategy(
            model, mem_size=60, evaluator=arguments["evaluator"]
        )
    replay = [ReplayPlugin(20)] if name == "image replay" else []
    return Naive(model=model, plugins=replay, **arguments)


# %% [markdown]
# ## Train and test
#
# After each experience, the accuracy over all classes seen so far.

# %%
results = {}
for name in ("fine-tuning", "image replay", "crumb", "rda"):
    benchmark, strategy = make_stream(), build(name)
    results[name] = []
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        metrics = strategy.eval(benchmark.test_stream[: number + 1])
        results[name].append(
            100
            * next(
                value
                for key, value in metrics.items()
                if key.startswith("Top1_Acc_Stream")
            )
        )

# %%
print(f"{'':14}" + "".join(f"after {number + 1:<4}" for number in range(3)))
for name, accuracies in results.items():
    print(f"{name:14}" + "".join(f"{value:5.1f} %   " for value in accuracies))

# %% alt="Accuracy over all seen classes after each experience, a line for each of the four strategies of the table"
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for (name, accuracies), colour, marker in zip(results.items(), COLOURS, "osD^"):
    ax.plot(range(1, 4), accuracies, marker=marker, color=colour, label=name)
ax.set(
    xticks=range(1, 4),
    xlabel="experience",
    ylabel="accuracy over all seen classes, %",
    ylim=(0, 102),
)
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# This is one run of a toy task. [All methods compared](../compared.md) has ten runs on photos of real objects.
