"""Predictions on test images: read in the order of the frame table, refused if damaged."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crumb_avalanche.runs.recorder import PREDICTIONS, PredictionsPlugin, read_predictions


def evaluated(batches):
    plugin = PredictionsPlugin()
    plugin.labels, plugin.answers = [9], [9]
    plugin.before_eval(None)  # only the latest evaluation counts
    for labels, logits in batches:
        plugin.after_eval_iteration(SimpleNamespace(mb_y=torch.tensor(labels), mb_output=torch.tensor(logits)))
    return plugin


def test_predictions_are_read_by_row_and_damaged_ones_refused(tmp_path):
    plugin = evaluated([([1, 0], [[0.0, 2.0], [0.0, 1.0]]), ([1], [[3.0, 1.0]])])
    plugin.write(tmp_path, np.array([7, 2, 5]))
    assert [path.name for path in tmp_path.iterdir()] == [PREDICTIONS]
    read = {name: values.tolist() for name, values in read_predictions(tmp_path).items()}
    shares = [torch.tensor(gap).sigmoid().item() for gap in (1.0, 2.0, 2.0)]
    assert read.pop("confidence") == pytest.approx(shares)
    assert read == {"row": [2, 5, 7], "label": [0, 1, 1], "answer": [1, 0, 1]}
    loaded = PredictionsPlugin()
    loaded.load_state_dict(plugin.state_dict())
    assert loaded.confidence == pytest.approx(plugin.confidence) and loaded.answers == plugin.answers
    whole = (tmp_path / PREDICTIONS).read_bytes()
    (tmp_path / PREDICTIONS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"is damaged .*run it again with --overwrite true"):
        read_predictions(tmp_path)
    (tmp_path / PREDICTIONS).unlink()
    with pytest.raises(ValueError, match=r"there are no predictions in .*; give the folder of a finished run"):
        read_predictions(tmp_path)
