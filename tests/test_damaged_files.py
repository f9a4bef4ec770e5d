"""A damaged byte in any file that a command reads.

The same result, or an error or a warning of ours.

Each kind gives the files of which one is damaged, and what is done with it. The result
of the undamaged one is right.
"""

import contextlib
import io
import sys
from functools import cache

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
    """Three classes of two objects of two frames, of which each class has another
    format.
    """
    for label, ending in enumerate((".png", ".jpg", ".tif")):
        for seed in range(4):
            path = (
                root
                / "abc"[label]
                / f"object{seed // 2}"
                / "clip"
                / f"{seed % 2}{ending}"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(PHOTO, 10 * label + seed)).save(path)
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
        if not (found := CheckpointFolder(folder / "resume", {"run": 3}).newest()):
            return None
        tree, tensors = flatten(found.state)
        return found.number, found.notes, tree, checksums(tensors)

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
    torch.save(state, folder / "a.pth")
    np.savez(
        folder / "a.npz", **{name: tensor.numpy() for name, tensor in state.items()}
    )
    paths = [folder / "a.pth", folder / "a.npz"]
    return paths, lambda path: checksums(read_weights(path))


def maps(folder):
    model, images = (
        make_model(),
        torch.stack(
            [torch.from_numpy(np.roll(PHOTO, n)).permute(2, 0, 1) for n in range(9)]
        ),
    )

    def act(_):
        with MapStore(folder, model, 9, "images", progress=False) as store:
            dataset = store.dataset(
                torch.utils.data.TensorDataset(images), np.arange(9), [0] * 9
            )
            return torch.stack([values for values, _ in dataset]).numpy().tobytes()

    act(None)
    return sorted(folder.iterdir()), act


def learners(folder):
    paths = []
    for method in ("recommended", "ncm", "ranpac"):
        paths.append(folder / f"{method}.safetensors")
    for path in paths:
        learner = Learner(path.stem, "small_cnn", None, 32, budget_bytes=200_000)
        for number, label in enumerate(("Straße", "<b>mug")):
            learner.teach(np.roll(PHOTO, number)[None].repeat(3, 0), label)
        learner.save(path)

    def act(path):
        learner = Learner.load(path)
        return (
            learner.predict(PHOTO),
            learner.classes,
            [dict(lesson.images) for lesson in learner.lessons],
        )

    return paths, act


def index(folder):
    ClipFolderFrames(write_clips(folder / "clips")).to_csv(folder / "index.csv")
    return [folder / "index.csv"], lambda path: tuple(FrameTable.from_csv(path, None))


def run_of(folder):
    """Do a run on clips; return its folder, and what a rerun reads of it."""
    options = {
        "preset": "paper",
        "weights": "none",
        "backbone": "small_cnn",
        "image_size": 32,
        "strategy": "ncm",
    }
    options |= {
        "budget_images": 9,
        "threads": 1,
        "progress": False,
        "output": str(folder / "run"),
    }
    plan = RunPlan.of(
        RunSettings("clip_folder", dataset_root=str(folder / "clips"), **options)
    )
    with contextlib.redirect_stdout(io.StringIO()):
        run_once(plan)
    return folder / "run", lambda: check_finished(folder / "run", plan)


def records(folder):
    write_clips(folder / "clips")
    run, again = run_of(folder)

    def act(_):
        read = read_run(run)
        return again(), read, [group.label for group in groups_of([read])]

    return [run / name for name in RECORDS], act


def run_learner(folder):
    write_clips(folder / "clips")
    run, _ = run_of(folder)
    Image.fromarray(PHOTO).save(folder / "photo.png")

    def act(_):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(
                ["predict", str(run), str(folder / "photo.png"), "--threads", "1"]
            )
        if code:
            assert err.getvalue().count("\n") == 1, err.getvalue()
            raise OtherWordsError(err.getvalue())
        return out.getvalue()

    return [run / "learner.safetensors"], act


def images(folder):
    root = write_clips(folder / "clips")
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    _, again = run_of(folder)
    usual = []

    def act(_):
        table = ClipFolderFrames(root)
        problem = (
            tuple(table),
            [np.asarray(table.read(row)).tobytes() for row in range(len(table))],
        )
        if usual and problem != usual[0]:
            again()  # says that images were changed
        usual.append(problem)
        return problem

    return paths, act


KINDS = [checkpoint, pretrained, index, learners]
KINDS += [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in (weights, maps, records, run_learner, images)
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A function that gives the files and the act of a kind, made once, and the right
    result of each file.
    """
    prepared_kinds = {}

    def of(kind):
        if kind not in prepared_kinds:
            folder = tmp_path_factory.mktemp(kind.__name__)
            paths, act = kind(folder)
            kept = {}
            for path in folder.rglob("*"):
                if path.is_file():
                    kept[path] = path.read_bytes()
            prepared_kinds[kind] = folder, paths, act, kept, cache(act)
        return prepared_kinds[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
@settings(phases=[Phase.generate])
@given(data=st.data())
def test_damaged_files(prepared, kind, data):
    folder, paths, act, kept, result_of = prepared(kind)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path not in kept:
            path.unlink()
    for path, content in kept.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    path = data.draw(st.sampled_from(paths))
    right, new = result_of(path), damaged(data.draw, kept[path])
    path.write_bytes(new)
    for name, module in list(
        sys.modules.items()
    ):  # digests that a process keeps by size and time of a file
        if name.startswith(("crumb_avalanche.runs", "benchmarks_toybox_ilab.tables")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    check(lambda: act(path), lambda found: found == right, (path, new[:200]))
