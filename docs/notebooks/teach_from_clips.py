# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Teach ten objects from clips
#
# A robot is shown ten objects, one after the other, and asked about them later. The clips are rendered here; on a robot
# they come from its camera. Nothing is downloaded. It takes about a minute on two CPU cores.

# %%
import tempfile
from pathlib import Path

import numpy as np

from benchmarks_toybox_ilab import ToyShapesFrames
from crumb_avalanche import Learner

OBJECTS = ("bottle", "fish", "gear", "hammer", "heart", "key", "ladder", "mug", "tree", "umbrella")

# %% [markdown]
# ## Clips in folders
#
# One folder for each class, and in it a folder of frames for each clip. Videos would lie there as `class/clip.mp4`.

# %%
folder = Path(tempfile.mkdtemp())
table = ToyShapesFrames(classes=OBJECTS, objects_per_class=1, sessions=4, held_out_sessions=3, size=64)
for row, path in enumerate(table.path):
    name, _, session, frame = path.split("-")[0].split("/")
    target = folder / table.split[row] / name / session / f"{frame}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    table.read(row).save(target)
print(sorted(path.name for path in (folder / "train").iterdir()))

# %% [markdown]
# ## Teach
#
# One call is one lesson. Classes come one after the other, as a robot meets them. Without a download the network has
# random weights; with ImageNet's (`weights="torchvision"`, the default) it is far better.

# %%
learner = Learner("recommended", backbone="small_cnn", weights=None, image_size=64)
for name in OBJECTS:
    lesson = learner.teach(folder / "train" / name, name)
    print(f"{name}: {lesson.images[name]} frames")
print(f"{learner.bytes:,} of {learner.budget_bytes:,} bytes")

# %% [markdown]
# ## Ask
#
# The photos of the test show the objects in light and motion that were not taught.

# %%
answers = list(learner.predict_all(folder / "test"))
for name in OBJECTS:
    labels = [answer.label for answer in answers if answer.truth == name]
    print(f"{name:9} {labels.count(name):2} of {len(labels)} right, most often {max(set(labels), key=labels.count)}")
right = sum(answer.label == answer.truth for answer in answers)
print(f"{right} of {len(answers)} photos")

# %% [markdown]
# `explain` says where in the image the evidence for the answer lies, over a grid of locations.

# %%
photo = next((folder / "test" / "mug").rglob("*.png"))
heat = learner.explain(photo)
print(np.round(heat.numpy(), 2).shape)

# %% [markdown]
# ## Forget, save, load
#
# The file holds everything: network, statistics, calibration. It is read without running code.

# %%
learner.forget("hammer")
learner.save(folder / "robot.safetensors")
again = Learner.load(folder / "robot.safetensors")
print(len(again.classes), "classes;", f"{(folder / 'robot.safetensors').stat().st_size:,} bytes")
