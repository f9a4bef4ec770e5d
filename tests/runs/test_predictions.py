"""``predictions.npz``: what is recorded, written, read and refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crumb_avalanche.runs.predictions import (
    PREDICTIONS,
    PredictionsPlugin,
    read_predictions,
)


def batch(labels, logits):
    """What a plugin sees of an evaluated batch."""
    return SimpleNamespace(mb_y=torch.tensor(labels), mb_output=torch.tensor(logits))


@pytest.fixture
def plugin():
    """The plugin after an evaluation of three images, and one before it."""
    plugin = PredictionsPlugin()
    plugin.after_eval_iteration(batch([9], [[0.0] * 10]))
    plugin.before_eval(None)  # only the latest evaluation counts
    plugin.after_eval_iteration(batch([1, 0], [[0.0, 2.0], [0.0, 1.0]]))
    plugin.after_eval_iteration(batch([1], [[3.0, 1.0]]))
    return plugin


@pytest.fixture
def folder(plugin, tmp_path):
    """A folder with predictions of the rows 7, 2 and 5."""
    plugin.write(tmp_path, np.array([7, 2, 5]))
    return tmp_path


def test_one_file_is_written(folder):
    assert [path.name for path in folder.iterdir()] == [PREDICTIONS]


@pytest.mark.parametrize(
    ("column", "values"),
    [("row", [2, 5, 7]), ("label", [0, 1, 1]), ("answer", [1, 0, 1])],
)
def test_predictions_are_sorted_by_row(folder, column, values):
    assert read_predictions(folder)[column].tolist() == values


def test_confidence_is_the_softmax(folder):
    gaps = torch.tensor([1.0, 2.0, 2.0])
    confidence = read_predictions(folder)["confidence"]
    assert confidence.tolist() == pytest.approx(gaps.sigmoid().tolist())


@pytest.mark.parametrize("name", ["labels", "answers", "confidence"])
def test_a_state_gives_back_the_evaluation(plugin, name):
    loaded = PredictionsPlugin()
    loaded.load_state_dict(plugin.state_dict())
    assert getattr(loaded, name) == pytest.approx(getattr(plugin, name))


def test_a_cut_file_is_refused(folder):
    path = folder / PREDICTIONS
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    words = r"is damaged .*run it again with --overwrite true"
    with pytest.raises(ValueError, match=words):
        read_predictions(folder)


def test_a_missing_file_is_named(tmp_path):
    words = r"there are no predictions in .*; give the folder of a finished run"
    with pytest.raises(ValueError, match=words):
        read_predictions(tmp_path)


COLUMNS = {
    "row": np.array([7, 2, 5], np.int32),
    "label": np.array([0, 1, 1], np.int32),
    "answer": np.array([0, 1, 0], np.int32),
    "confidence": np.array([0.5, 1.0, 0.75], np.float32),
}


def test_a_crafted_file_is_read(tmp_path):
    np.savez_compressed(tmp_path / PREDICTIONS, **COLUMNS)
    assert read_predictions(tmp_path)["row"].tolist() == [2, 5, 7]


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("row", np.array([7, -2, 5], np.int32), "row holds -2"),
        ("label", np.array([-1, 0, 1], np.int32), "label holds -1"),
        ("answer", np.array([0, 1, -9], np.int32), "answer holds -9"),
        ("answer", np.array([0, 1], np.int32), r"answer is int32 \(2,\), not int32"),
        ("label", np.array([[0, 1, 1]], np.int32), r"label is int32 \(1, 3\)"),
        ("row", np.int32(7), r"row is int32 \(\)"),
        ("row", np.array([1.0, 2.0, 3.0]), "row is float64"),
        ("row", np.array([None, None, None]), "allow_pickle"),
        ("confidence", np.array([0.5, np.nan, 0.5], np.float32), "holds nan"),
        ("confidence", np.array([0.5, 1.5, 0.5], np.float32), "holds 1.5"),
        ("confidence", np.array([0.5, -0.5, 0.5], np.float32), "holds -0.5"),
        ("confidence", np.array([1, 0, 1], np.int32), "confidence is int32"),
    ],
)
def test_columns_of_no_run_are_refused(tmp_path, column, values, words):
    np.savez_compressed(tmp_path / PREDICTIONS, **{**COLUMNS, column: values})
    with pytest.raises(ValueError, match=rf"is damaged \(.*{words}.*run it again"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("column", COLUMNS)
def test_missing_columns_are_refused(tmp_path, column):
    columns = {name: values for name, values in COLUMNS.items() if name != column}
    np.savez_compressed(tmp_path / PREDICTIONS, **columns)
    with pytest.raises(ValueError, match=rf"is damaged \(.*{column}.*run it again"):
        read_predictions(tmp_path)
