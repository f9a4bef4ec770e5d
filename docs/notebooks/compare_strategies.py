# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Compare four strategies in Avalanche
#
# Four strategies learn the same stream of rendered shapes: fine-tuning, Avalanche's replay with an `ImageBuffer`,
# CRUMB at the same bytes, and the recommended strategy in closed form. Nothing is downloaded. It takes about a minute
# on two CPU cores.

# %%
import warnings

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

from benchmarks_toybox_ilab import ToyShapes, pixel_transform
from crumb_avalanche import CodeBuffer, CRUMBStrategy, ImageBuffer, recommended_strategy, split_backbone

warnings.filterwarnings("ignore")
CLASSES = ("fish", "key", "mug", "tree", "umbrella", "cross")
SIZE = 64

# %% [markdown]
# ## The stream
#
# Six classes come two at a time. A clip is a shape that turns and moves; the last clip of each object is held out. A
# strategy may change its experiences, so each gets a stream of its own.


# %%
def make_stream():
    """Make the benchmark: three experiences of two classes."""
    transform = pixel_transform(SIZE)
    return ToyShapes(
        classes=CLASSES,
        objects_per_class=2,
        sessions=3,
        held_out_sessions=2,
        size=SIZE,
        train_transform=transform,
        eval_transform=transform,
    )


for experience in make_stream().train_stream:
    print(experience.current_experience, len(experience.dataset), "frames of", experience.classes_in_this_experience)

# %% [markdown]
# ## The strategies
#
# All have the same small network with random weights, and the bytes of 20 raw images: CRUMB's codes are smaller, so it
# keeps more of them (the codebook's 16 kB come on top).


# %%
def build(name):
    """Build a strategy with a fresh network."""
    torch.manual_seed(0)
    codebook = name == "crumb"
    model = split_backbone("small_cnn", None, n_classes=len(CLASSES), codebook=codebook, image_size=SIZE)
    arguments = dict(
        optimizer=torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9),
        train_mb_size=10,
        train_epochs=2,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    if name == "crumb":
        codes = 20 * ImageBuffer.item_bytes(model) // CodeBuffer.item_bytes(model)
        return CRUMBStrategy(model=model, mem_size=codes, **arguments)
    if name == "rda":
        return recommended_strategy(model, mem_size=60, evaluator=arguments["evaluator"])  # 60 principal directions
    replay = [ReplayPlugin(20, storage_policy=ImageBuffer(20))] if name == "image replay" else []
    return Naive(model=model, plugins=replay, **arguments)


# %% [markdown]
# ## Train and test
#
# After each experience, the accuracy over all classes seen so far. With random weights and so few steps, the strategies
# that train hardly leave chance; the closed form needs no training. With ImageNet weights (`"torchvision"` in the place
# of `None`, and a larger network) all are better: see [All methods compared](../comparison.md).

# %%
results = {}
for name in ("fine-tuning", "image replay", "crumb", "rda"):
    benchmark, strategy = make_stream(), build(name)
    results[name] = []
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        metrics = strategy.eval(benchmark.test_stream[: number + 1])
        results[name].append(next(value for key, value in metrics.items() if key.startswith("Top1_Acc_Stream")))

# %%
print(f"{'':14}" + "".join(f"after {number + 1:<4}" for number in range(3)))
for name, accuracies in results.items():
    print(f"{name:14}" + "".join(f"{100 * value:5.1f} %   " for value in accuracies))
