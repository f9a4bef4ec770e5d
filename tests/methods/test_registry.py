"""The registry of methods: names without torch, and a method that is one file."""

import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import test_contract
from site_parts.result_tables import methods

from crumb_avalanche import Learner
from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.registry import STRATEGIES, get_strategy
from crumb_avalanche.training.ledger import LedgerMetric

TOY = """
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, Reservoir, draw
from crumb_avalanche.system.setting_ranges import Positive

@register("toy_means", summary="toy", source="here", stores="means")
class ToyMeans(ClassMeans):
    scale: Positive = 2.0

    def _answers(self, features, solution):
        return self.scale * super()._answers(features, solution)

@register("toy_replay", summary="toy", source="here", stores="images")
class ToyPlugin(ImageMemoryPlugin):
    weight: Positive = 0.5
    rule = Reservoir

    def before_backward(self, strategy, **kwargs):
        slots = draw(self.storage_policy, len(strategy.mb_y))
        if len(slots):
            strategy.loss = strategy.loss + self.weight * strategy._criterion(*self.memory_logits(strategy, slots))
"""


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A closed form and a replay method of a file of a user, which are gone after the test."""
    (tmp_path / "of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    yield __import__("of_a_user")
    sys.modules.pop("of_a_user")


def test_names_are_listed_without_torch():
    code = "import sys; from crumb_avalanche.methods.registry import STRATEGIES as names; "
    code += "print(*names, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *names, loaded = done.stdout.split()
    assert loaded == "False" and len(names) > 30 and {"crumb", "rda", "klda", "icarl"} <= {*names}
    assert all(STRATEGIES[name].name == name for name in names)
    with pytest.raises(ValueError, match=r"'ewk' is unknown; known are .*crumb"):
        get_strategy("ewk")


def test_a_method_of_one_file_gets_settings_and_its_place_in_the_docs(one_file):
    means, replay = STRATEGIES["toy_means"], STRATEGIES["toy_replay"]
    assert [item.name for item in fields(means.settings)][-1] == "scale" and means.form is one_file.ToyMeans
    with pytest.raises(ValueError, match="scale is 0; give more than 0"):
        means.method_settings({"scale": 0})
    with pytest.raises(ValueError, match="strategy toy_replay has no setting 'scale'; it has weight"):
        replay.method_settings({"scale": 1})
    assert "| `toy_means` | toy | here | means |" in methods() and "| `toy_replay` |" in methods()


@pytest.mark.parametrize("name", ["toy_means", "toy_replay"])
def test_a_method_of_one_file_keeps_the_contract_and_its_bytes(one_file, name, make_model, make_stream, tmp_path):
    test_contract.test_learns_a_stream_and_answers_only_with_classes_it_saw(name, make_model, make_stream)
    resumes = test_contract.test_repeated_pickled_and_loaded_it_is_the_same_and_goes_on_alike
    resumes(name, make_model, make_stream, tmp_path)
    strategy, stream, watch, _ = test_contract.learn(name, make_model, make_stream)
    if name == "toy_replay":
        assert 0 < max(watch.bytes) <= test_contract.BUDGET
        return
    entry = STRATEGIES[name]
    fixed = entry.fixed_bytes(strategy.model, entry.settings(), stream.n_classes)
    assert LedgerMetric().count(strategy)["memory_bytes"] == fixed


def test_a_learner_takes_a_closed_form_of_one_file_and_is_exported(one_file, tmp_path):
    pytest.importorskip("onnxruntime")
    learner, images = Learner.__new__(Learner), np.random.default_rng(0).integers(0, 256, (3, 4, 32, 32, 3), np.uint8)
    learner._set_up("toy_means", FrozenNetwork.build("small_cnn", None, 32), 9_000_000)
    for name, some in zip("abc", images):
        learner.teach(some, name)
    assert export_onnx(learner, tmp_path / "toy.onnx", [*images.reshape(-1, 32, 32, 3)]).score_error < 1e-4


@pytest.mark.parametrize("settings", [("toy_means", "scale", 3.0), ("toy_replay", "weight", 0.25)])
def test_a_run_takes_it_by_name_and_leaves_a_learner(one_file, crumb, tiny, tmp_path, settings):
    name, setting, value = settings
    run = tmp_path / "run"
    code, _, err = crumb(*tiny, "--strategy", name, f"--method.{setting}", value, "--output", run)
    assert code == 0, err
    assert f"{setting}: {value}" in (run / "config.yaml").read_text()
    learner = Learner.load(run)
    assert learner.method == name and len(learner.classes) > 1
