"""A damaged byte in any file that a command reads.

The result is the same, or there is an error or a warning of ours.

Each kind makes files of which one is damaged, and gives a function that uses it. Its
result with the undamaged file is right.
"""

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from checksums import checksums
from faults import OtherWordsError, check, damaged
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import SIZE, make_model

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.weights import read_weights
from crumb_avalanche.report.runs import groups_of, read_run
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import run_once
from crumb_avalanche.runs.run_folder import check_finished
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.tensor_file import flatten
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import read_pretrained, save_pretrained

PHOTO = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
RECORDS = (
    "result.json",
    "config.yaml",
    "accuracy_matrix.csv",
    "ledger.json",
    "predictions.npz",
    "metrics.csv",
)


def write_clips(root):
    """Three classes of two objects of two frames; each class has another format."""
    formats = {"a": ".png", "b": ".jpg", "c": ".tif"}
    for label, (name, suffix) in enumerate(formats.items()):
        for seed in range(4):
            folder = root / name / f"object{seed // 2}" / "clip"
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.roll(PHOTO, 10 * label + seed))
            image.save(folder / f"{seed % 2}{suffix}")
    return root


def checkpoint(folder):
    files = CheckpointFolder(folder / "resume", {"run": 3})
    for number in range(3):
        state = {
            "weights": torch.arange(600.0) + number,
            "count": number,
            "rows": [1, (2, None)],
        }
        files.write({"position": number}, state)

    def act(_):
        newest = CheckpointFolder(folder / "resume", {"run": 3}).newest()
        if not newest:
            return None
        tree, tensors = flatten(newest.state)
        return newest.number, newest.notes, tree, checksums(tensors)

    return sorted((folder / "resume").iterdir()), act


def pretrained(folder):
    model = make_model()
    made_with = {
        "backbone": "small",
        "classes": model.n_classes,
        "head_kernel": 1,
        "codebook_size": model.codebook.codebook_size,
        "codebook_dim": model.codebook.codebook_dim,
        "history": [{"loss": 1.5}],
    }
    save_pretrained(folder / "a.safetensors", model, made_with)

    def act(path):
        tensors, notes = read_pretrained(path)
        return checksums(tensors), notes

    return [folder / "a.safetensors"], act


def weights(folder):
    state = make_model().state_dict()
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    torch.save(state, folder / "a.pth")
    np.savez(folder / "a.npz", **arrays)

    def act(path):
        return checksums(read_weights(path))

    return [folder / "a.pth", folder / "a.npz"], act


def maps(folder):
    model = make_model()
    shifted = [np.roll(PHOTO, shift) for shift in range(9)]
    images = torch.from_numpy(np.stack(shifted)).permute(0, 3, 1, 2).contiguous()
    dataset = torch.utils.data.TensorDataset(images)

    def act(_):
        with MapStore(folder, model, 9, "images", progress=False) as store:
            stored = store.dataset(dataset, np.arange(9), [0] * 9)
            return torch.stack([values for values, _ in stored]).numpy().tobytes()

    act(None)
    return sorted(folder.iterdir()), act


def learners(folder):
    paths = []
    for method in ("recommended", "ncm", "ranpac"):
        learner = Learner(method, "small_cnn", None, 32, budget_bytes=200_000)
        for number, label in enumerate(("Straße", "<b>mug")):
            learner.teach(np.roll(PHOTO, number)[None].repeat(3, 0), label)
        path = folder / f"{method}.safetensors"
        learner.save(path)
        paths.append(path)

    def act(path):
        learner = Learner.load(path)
        images = [dict(lesson.images) for lesson in learner.lessons]
        return learner.predict(PHOTO), learner.classes, images

    return paths, act


def index(folder):
    path = folder / "index.csv"
    ClipFolderFrames(write_clips(folder / "clips")).to_csv(path)

    def act(path):
        return tuple(FrameTable.from_csv(path, None))

    return [path], act


def run_of(folder):
    """Do a run on clips; return its folder, and what a rerun reads of it."""
    output = folder / "run"
    settings = RunSettings(
        benchmark="clip_folder",
        dataset_root=str(folder / "clips"),
        preset="paper",
        weights="none",
        backbone="small_cnn",
        image_size=32,
        strategy="ncm",
        budget_images=9,
        threads=1,
        progress=False,
        output=str(output),
    )
    plan = RunPlan.of(settings)
    with contextlib.redirect_stdout(io.StringIO()):
        run_once(plan)
    return output, partial(check_finished, output, plan)


def records(folder):
    write_clips(folder / "clips")
    output, rerun = run_of(folder)

    def act(_):
        run = read_run(output)
        return rerun(), run, [group.label for group in groups_of([run])]

    return [output / name for name in RECORDS], act


def run_learner(folder):
    write_clips(folder / "clips")
    output, _ = run_of(folder)
    photo = folder / "photo.png"
    Image.fromarray(PHOTO).save(photo)
    command = ["predict", str(output), str(photo), "--threads", "1"]

    def act(_):
        out = io.StringIO()
        err = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command)
        if code:
            assert err.getvalue().count("\n") == 1, err.getvalue()
            raise OtherWordsError(err.getvalue())
        return out.getvalue()

    return [output / "learner.safetensors"], act


def images(folder):
    root = write_clips(folder / "clips")
    paths = sorted(files_in(root))
    _, rerun = run_of(folder)
    undamaged = []

    def act(_):
        table = ClipFolderFrames(root)
        pixels = [np.asarray(table.read(row)).tobytes() for row in range(len(table))]
        result = (tuple(table), pixels)
        if not undamaged:
            undamaged.append(result)
        if result != undamaged[0]:
            rerun()  # says that images were changed
        return result

    return paths, act


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


KINDS = [checkpoint, pretrained, index, learners]
KINDS += [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in (weights, maps, records, run_learner, images)
]


@dataclass
class Prepared:
    """The files of a kind.

    Attributes:
        folder: of all files.
        paths: files of which one is damaged.
        contents: the undamaged bytes of all files.
        act: uses a file.
        right: what ``act`` returns of the undamaged file.
    """

    folder: Path
    paths: list[Path]
    contents: dict[Path, bytes]
    act: Callable[[Path], object]
    right: Callable[[Path], object]

    def restore(self):
        """Make all files as they were."""
        for path in files_in(self.folder):
            if path not in self.contents:
                path.unlink()
        for path, content in self.contents.items():
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A function that makes the files of a kind, once."""

    @cache
    def prepare(kind):
        folder = tmp_path_factory.mktemp(kind.__name__)
        paths, act = kind(folder)
        contents = {path: path.read_bytes() for path in files_in(folder)}
        return Prepared(folder, paths, contents, act, right=cache(act))

    return prepare


def clear_digests():
    """Forget digests that a process keeps by size and time of a file."""
    packages = ("crumb_avalanche.runs", "benchmarks_toybox_ilab.tables")
    for name, module in list(sys.modules.items()):
        if name.startswith(packages):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
@settings(phases=[Phase.generate])
@given(data=st.data())
def test_damaged_files(prepared, kind, data):
    # Given files, and the right result of one
    files = prepared(kind)
    files.restore()
    path = data.draw(st.sampled_from(files.paths))
    right = files.right(path)
    # When it is damaged
    content = damaged(data.draw, files.contents[path])
    path.write_bytes(content)
    clear_digests()
    # Then its result is right, or words of ours say what is wrong
    check(
        act=lambda: files.act(path),
        right=lambda result: result == right,
        what=(path, content[:200]),
    )
