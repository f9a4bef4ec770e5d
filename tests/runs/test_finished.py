"""A finished run is recognised by its settings and frames, and its ``config.yaml`` repeats it."""

import json

from fake_runs import without_digests


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
