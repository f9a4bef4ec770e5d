"""Flags and files of earlier versions still work, with a note about the present names."""

import json

import pytest
import yaml
from fake_runs import without_digests

from crumb_avalanche.runs.arguments import run_arguments
from crumb_avalanche.runs.older_settings import present_settings, recorded_settings


def test_older_flags_are_replaced_with_a_note(capsys, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("own: 0.5\nmaps: false\n")
    given = ["run", "--storing-rule", "reservoir", "--direct-weight=1", "--strategy-config", str(file), "--run", "2"]
    present = run_arguments(given)
    expected = ["run", "--selection_rule=reservoir", "--method.direct_weight=1"]
    assert present == [*expected, "--method.own=0.5", "--method.maps=false", "--run", "2"]
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 3 and all("is deprecated" in note for note in notes)
    assert "--selection-rule" in notes[0] and "--method.own 0.5" in notes[2]
    assert run_arguments(["run", "--compile", "true", "--compile=false"]) == [
        *("run", "--runtime=compiled", "--runtime=torch"),
    ]
    assert "give --runtime=compiled" in capsys.readouterr().err
    assert run_arguments(["run", "--method.half-old-network", "true"]) == ["run", "--method.half_old_network", "true"]
    assert capsys.readouterr().err == ""


OLDER = dict(
    storing_rule="every_jth", direct_weight=0.5, codebook_weight=1.0, freeze_codebook=True, strategy_config=None
)


def test_older_files_are_read():
    assert present_settings({**OLDER, "strategy": "crumb", "run": 1}) == dict(
        selection_rule="every_jth",
        strategy="crumb",
        run=1,
        method=dict(direct_weight=0.5, codebook_weight=1.0, freeze_codebook=True),
    )
    assert present_settings({"compile": False}) == {"runtime": "torch"}
    assert present_settings({"compile": True}) == {"runtime": "compiled"}
    # Other methods took no notice of them.
    assert present_settings({**OLDER, "strategy": "ewc"}) == dict(selection_rule="every_jth", strategy="ewc")
    with pytest.raises(ValueError, match=r"no strategy config gone\.yaml"):
        present_settings({"strategy": "ewc", "strategy_config": "gone.yaml"})


def test_recorded_method_settings_override_a_missing_file():
    config = dict(OLDER, strategy="rda", benchmark="cifar100", strategy_config="gone.yaml", batch_size=None)
    recorded = recorded_settings(config, {"strategy_settings": {"own": 0.5}})
    assert recorded["method"]["own"] == 0.5 and recorded["method"]["power"] == 0.7
    assert recorded["batch_size"] == 128, "the benchmark's"


def test_runs_from_before_a_setting_did_what_they_did():
    config = dict(strategy="offline", benchmark="eth80", budget=1, capacity=None, method={})
    assert recorded_settings(config, {})["method"] == {"peak_rate": 0.0}
    assert present_settings(config)["method"] == {"peak_rate": 0.0}  # to repeat it
    newer = {**config, "method": {"peak_rate": 0.02}}
    assert recorded_settings(newer, {"strategy_settings": {"peak_rate": 0.02}})["method"] == {"peak_rate": 0.02}
    older = recorded_settings({**config, "strategy": "der"}, {"strategy_settings": {"alpha": 0.1, "beta": 0.5}})
    assert older["method"] == {"alpha": 0.1, "beta": 0.5, "evaluation_logits": False}
    older = recorded_settings({**config, "strategy": "rda"}, {"strategy_settings": {"own": 0.3, "maps": True}})[
        "method"
    ]
    assert older["deviations"] and older["cells"] == 1 and not older["equal_lengths"] and not older["diagonal"]
    assert present_settings({"strategy": "er", "run": 1}) == {"strategy": "er", "run": 1}  # written by hand


def test_a_run_of_an_older_config(crumb, tiny, tmp_path):
    arguments = (*tiny, "--mem-size", "8", "--runs", "0")
    code, _, err = crumb(*arguments, "--output", tmp_path / "a", "--method.direct-weight", "0.5")
    assert code == 0, err
    folder = tmp_path / "a" / "run0"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    method = config.pop("method")
    assert method == {"direct_weight": 0.5, "codebook_weight": 1.0, "freeze_codebook": False, "readout": "head"}
    older = {name: value for name, value in config.items() if name not in ("budget", "capacity", "selection_rule")}
    older |= {name: value for name, value in method.items() if name != "readout"}  # it came later
    older |= {"storing_rule": "every_jth", "strategy_config": None, "batch_size": 8}
    older["classes_per_experience"] = None
    (folder / "config.yaml").write_text(yaml.safe_dump(older))
    without_digests(folder)
    code, out, err = crumb(*arguments, "--output", tmp_path / "a", "--method.direct-weight", "0.5")
    assert code == 0 and "already finished" in out, err
    code, _, err = crumb(*arguments, "--output", tmp_path / "a")
    assert code == 1 and "method.direct_weight=0.5, not 0.0" in err
    code, _, err = crumb("run", "--config", folder / "config.yaml", "--output", tmp_path / "b", "--epochs", "2")
    assert code == 0, err
    again = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    assert again["method"] == method and again["selection_rule"] == "every_jth" and again["epochs"] == 2
    code, _, err = crumb("report", tmp_path / "a", "--output", tmp_path / "report")
    assert code == 0 and (tmp_path / "report" / "report.html").exists(), err


def test_a_finished_run_of_another_split_is_refused(crumb, tiny, tmp_path):
    arguments = (*tiny, "--strategy", "finetune", "--runs", "0", "--output", tmp_path)
    assert crumb(*arguments)[0] == 0
    path = tmp_path / "run0" / "result.json"
    result = json.loads(path.read_text())
    assert "already finished" in crumb(*arguments)[1]
    without_digests(path.parent, frame_table_sha256="0" * 64)
    code, _, err = crumb(*arguments)
    assert code == 1 and "other frames" in err and "0" * 16 in err and result["frame_table_sha256"][:16] in err
    assert "--overwrite true" in err


def test_the_config_of_a_run_repeats_it(crumb, tiny, tmp_path):
    assert crumb(*tiny, "--mem-size", "8", "--output", tmp_path / "a")[0] == 0
    code, _, err = crumb("run", "--config", tmp_path / "a" / "config.yaml", "--output", tmp_path / "b")
    assert code == 0, err
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first["plan_sha256"] == second["plan_sha256"] and first["accuracy_after"] == second["accuracy_after"]
