"""The registry of methods: names without torch, and a method that is one file."""

import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from site_parts.methods import methods

from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy, get_strategy, register
from crumb_avalanche.training.ledger import LedgerMetric


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A closed form and a strategy of a file of a user, which are gone after the test."""
    (tmp_path / "of_a_user.py").write_text(
        "from dataclasses import dataclass\n"
        "from crumb_avalanche.methods.ncm import ClassMeans\n"
        "from crumb_avalanche.methods.registry import register\n"
        "from crumb_avalanche.system.setting_ranges import InRange, Positive\n"
        "from crumb_avalanche.training.stream_strategy import StreamStrategy\n\n"
        '@register("toy_means", summary="toy", source="here", stores="means")\n'
        "class ToyMeans(ClassMeans):\n"
        "    def __init__(self, n_classes: int, length: int, *, scale: Positive = 2.0):\n"
        "        super().__init__(n_classes, length)\n\n"
        "    def _answers(self, features, solution):\n"
        '        return self.settings["scale"] * super()._answers(features, solution)\n\n'
        "@dataclass(frozen=True)\n"
        "class ToySettings(InRange):\n"
        "    rate: Positive = 0.01\n\n"
        '@register("toy_steps", summary="toy", source="here", stores="nothing", settings=ToySettings)\n'
        "def build(recipe):\n"
        "    return StreamStrategy(optimizer=recipe.optimizer(lr=recipe.method.rate), **recipe.common())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    yield __import__("of_a_user")
    sys.modules.pop("of_a_user")


def test_names_are_listed_without_torch():
    code = (
        "import sys; from crumb_avalanche.methods.registry import STRATEGIES; print(*STRATEGIES, 'torch' in sys.modules"
    )
    code += ")"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *names, loaded = done.stdout.split()
    assert loaded == "False" and len(names) > 30 and {"crumb", "rda", "klda", "icarl"} <= {*names}
    for name in names:
        assert STRATEGIES[name].name == name


def test_closed_forms_come_without_avalanche():
    code = (
        "import sys; from crumb_avalanche.methods.registry import STRATEGIES\n"
        "for name in 'ncm slda ranpac rda klda fecam srda lr_rgda'.split(): assert STRATEGIES[name].form\n"
        "print('avalanche' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'ewk' is unknown; known are .*crumb"):
        get_strategy("ewk")


def test_a_method_of_one_file_gets_settings_bytes_strategy_and_its_place_in_the_docs(one_file, make_model, make_stream):
    means, steps = STRATEGIES["toy_means"], STRATEGIES["toy_steps"]
    assert [item.name for item in fields(means.settings)][-1] == "scale" and means.form is one_file.ToyMeans
    with pytest.raises(ValueError, match="scale is 0; give more than 0"):
        means.method_settings({"scale": 0})
    with pytest.raises(ValueError, match="strategy toy_steps has no setting 'scale'; it has rate"):
        steps.method_settings({"scale": 1})
    for name in ("toy_means", "toy_steps"):
        model, stream = make_model(codebook=False), make_stream()
        strategy = build_strategy(
            name, model, LearningSettings(first_epochs=1), method={}, evaluator=EvaluationPlugin(loggers=[])
        )
        for experience in stream.train_stream:
            strategy.train(experience)
        entry = STRATEGIES[name]
        assert LedgerMetric().count(strategy)["memory_bytes"] == entry.fixed_bytes(model, entry.settings(), 4)
    assert "### `toy_means`" in methods() and "`--method.rate 0.01`" in methods()


def test_a_run_takes_it_by_name(one_file, crumb, tiny, tmp_path):
    code, _, err = crumb(*tiny, "--strategy", "toy_means", "--method.scale", "3", "--output", tmp_path / "run")
    assert code == 0, err
    assert "scale: 3.0" in (tmp_path / "run" / "config.yaml").read_text()


def test_registering_a_name_again_replaces_it(one_file):
    @register("toy_means", summary="another", source="here", stores="means")
    class Others(ClassMeans):
        pass

    assert STRATEGIES["toy_means"].form is Others and torch.equal(Others(2, 3).means, torch.zeros(2, 3))
