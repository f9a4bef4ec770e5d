# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Teach ten objects from clips
#
# A robot is shown ten objects, one after the other, and asked about them later. The clips are rendered here; on a robot
# they come from its camera. Nothing is downloaded. It takes one or two minutes on two CPU cores.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch.utils.data import Subset

from benchmarks_toybox_ilab import ToyShapesFrames, pixel_transform
from crumb_avalanche import Learner
from crumb_avalanche.report.pictures import COLOURS
from crumb_avalanche.runs.demo import shapes, train_network
from crumb_avalanche.system.tensor_file import write_tensors

OBJECTS = (
    "arrow",
    "cross",
    "fish",
    "heart",
    "key",
    "lightning",
    "mug",
    "spiral",
    "tree",
    "umbrella",
)
SIZE = 64
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A network that has seen other shapes
#
# ImageNet weights (`weights="torchvision"`, the default) would be a download, so a small network learns ten *other*
# shapes first.

# %%
torch.manual_seed(0)
images = shapes(pixel_transform(SIZE), progress=False)
network = train_network(Subset(images, range(0, len(images), 2)), progress=False)
write_tensors(folder / "network.safetensors", network.state_dict(), {})

# %% [markdown]
# ## Clips in folders
#
# One folder for each class, and in it a folder of frames for each clip. Videos would lie there as `class/clip.mp4`.

# %%
table = ToyShapesFrames(
    classes=OBJECTS, objects_per_class=1, sessions=10, held_out_sessions=(2,), size=SIZE
)
for row, path in enumerate(table.path):
    name, _, session, frame = path.split("-")[0].split("/")
    target = folder / table.split[row] / name / session / f"{frame}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    table.read(row).save(target)
print(
    *sorted(
        path.relative_to(folder).as_posix()
        for path in (folder / "train" / "mug").iterdir()
    ),
    sep="\n",
)

# %% alt="A frame of each of the ten objects on a cluttered background"
figure, axes = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
for ax, name in zip(axes.flat, OBJECTS):
    ax.imshow(Image.open(next((folder / "train" / name).rglob("*07.png"))))
    ax.set_title(name)
    ax.axis("off")
plt.show()

# %% [markdown]
# ## Teach
#
# One call is one lesson. Classes come one after the other, as a robot meets them.

# %%
learner = Learner(
    "recommended",
    backbone="small_cnn",
    weights=folder / "network.safetensors",
    image_size=SIZE,
)
for name in OBJECTS:
    lesson = learner.teach(folder / "train" / name, name)
    print(f"{name}: {lesson.images[name]} frames")
print(f"{learner.bytes:,} of {learner.budget_bytes:,} bytes")

# %% [markdown]
# ## Ask
#
# The photos of the test are a clip of each object that was not taught, in other light and motion.

# %%
answers = list(learner.predict_all(folder / "test"))
for name in OBJECTS:
    labels = [answer.label for answer in answers if answer.truth == name]
    print(
        f"{name:9} {labels.count(name):2} of {len(labels)} right, most often {max(set(labels), key=labels.count)}"
    )
print(
    f"{sum(answer.label == answer.truth for answer in answers)} of {len(answers)} photos"
)

# %% [markdown]
# An answer has a confidence, and says whether the learner was taught anything like it (`known`).

# %% alt="Number of photos by confidence, for right and for wrong answers: most right answers are confident"
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
right = [answer.confidence for answer in answers if answer.label == answer.truth]
wrong = [answer.confidence for answer in answers if answer.label != answer.truth]
ax.hist(
    [right, wrong],
    bins=10,
    range=(0, 1),
    stacked=True,
    color=COLOURS[:2],
    label=["right", "wrong"],
)
ax.set(xlabel="confidence", ylabel="photos")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# `explain` says where in the image the evidence for the answer lies.

# %% alt="A photo of a mug, and beside it the same photo with the evidence for the answer as colours"
photo = sorted((folder / "test" / "mug").rglob("*.png"))[0]
figure, axes = plt.subplots(1, 2, figsize=(5, 2.7), layout="constrained")
for ax in axes:
    ax.imshow(Image.open(photo))
    ax.axis("off")
heat = learner.explain(photo).numpy()
axes[1].imshow(heat, cmap="viridis", alpha=0.6, extent=(0, SIZE, SIZE, 0))
axes[0].set_title(learner.predict(photo).label)
axes[1].set_title("evidence")
plt.show()

# %% [markdown]
# ## Forget, save, load
#
# The file holds everything: network, statistics, calibration. It is read without running code, and
# `crumb predict robot.safetensors photo.jpg` and `crumb serve robot.safetensors` take it too.

# %%
learner.forget("arrow")
learner.save(folder / "robot.safetensors")
again = Learner.load(folder / "robot.safetensors")
print(
    len(again.classes),
    "classes;",
    f"{(folder / 'robot.safetensors').stat().st_size:,} bytes",
)
