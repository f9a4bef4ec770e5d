"""The options that all scripts share."""

import sys
from pathlib import Path

import pytest
from support.common_options import common_options, parser_for, run_script

from crumb_avalanche.runs.plan import RunPlan


def options(*given, several=False):
    return common_options(parser_for("Doc.", "runs/table9", several).parse_args([*given]))


def test_folders():
    assert options("--benchmark", "core50").output == Path("runs/table9/core50")
    assert options("--benchmark", "core50", "cifar100", several=True).output == Path("runs/table9")
    assert options("--quick").output == options("--quick", several=True).output == Path("runs/table9/quick")
    assert options("--output", "there").output == Path("there")


def test_settings():
    given = options("--benchmark", "core50", "--dataset-root", "IMAGES", "--runs", "0,3-4", "--weights", "FILE")
    assert given.runs == [0, 3, 4] and given.benchmark == "core50"
    settings = given.settings("core50", strategy="ewc")
    assert (settings.benchmark, settings.dataset_root, settings.weights) == ("core50", "IMAGES", "FILE")
    assert (settings.strategy, settings.runs, settings.threads, settings.checkpoint) == ("ewc", None, 1, False)
    assert options("--checkpoint-every", "50").base.checkpoint
    quick = options("--quick", "--benchmark", "core50", "--dataset-root", "IMAGES", "--preset", "reference")
    assert quick.roots == {"toy_shapes_short": None} and quick.runs == [0] and quick.base.preset == "paper"
    RunPlan.of(quick.settings("toy_shapes_short"))
    assert options("--processes", "3").processes == 3


def test_protocols():
    given = options("--benchmark", "core50", "cifar100", several=True)
    assert given.protocols("core50") == ["class_instance", "class_iid"] and given.protocols("cifar100") == ["class_iid"]
    assert given.protocols("cifar100", ["class_instance"]) == []
    assert options("--quick").protocols("toy_shapes_short") == ["class_instance"]


def test_an_error_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(SystemExit, match=r"^1$"):
        run_script(lambda: options("--runs", "1-"))
    assert capsys.readouterr().err.startswith("error: runs is '1-'; write 0-9")
