"""Finished runs are recognised by their settings, frames and the content of their input files, not by paths."""

import json
import shutil

import pytest
import yaml
from fake_runs import fake_run

from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.report.runs import find_runs, groups_of, notes_on, read_run
from crumb_avalanche.runs.run_folder import with_digests
from crumb_avalanche.system.tensor_file import write_tensors


@pytest.fixture
def several(crumb, tiny, clips, tmp_path):
    """Repeat a finished `--runs 0` with other arguments; the clips are a copy."""
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    usual = {"--dataset-root": root, "--method.own": 0.0, "--output": tmp_path / "out"}

    def call(changes=()):
        changed = {**usual, **dict(changes)}
        common = (*tiny, "--strategy", "rda", "--budget-images", "40", "--runs", "0")
        return crumb(*common, *(text for pair in changed.items() for text in pair))

    code, out, err = call()
    assert code == 0 and "already" not in out, err
    return call


def test_the_same_files_at_other_paths_are_accepted_and_other_contents_refused(several, tmp_path):
    shutil.copytree(tmp_path / "clips", tmp_path / "moved")
    code, out, err = several({"--dataset-root": tmp_path / "moved"})
    assert code == 0 and "run 0: already finished" in out, err
    before = (tmp_path / "out/run0/result.json").read_text()
    code, _, err = several({"--method.own": 0.5})
    assert code == 1 and "holds a finished run with method.own=0.0, not 0.5; use another --output" in err
    image = next((tmp_path / "clips").rglob("*.png"))
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # of the same size
    for change in (lambda: image.write_bytes(content), lambda: image.write_bytes(content + b"more"), image.unlink):
        change()
        code, _, err = several()
        assert code == 1 and f"of other clips: some in {tmp_path / 'clips'} were added, removed or changed" in err
    code, _, err = several({"--dataset-root": tmp_path / "nowhere"})
    assert code == 1 and f"there is no folder {tmp_path / 'nowhere'}" in err
    assert (tmp_path / "out/run0/result.json").read_text() == before


def test_other_weights_under_the_same_name_are_refused(crumb, tiny, tmp_path):
    file, state = tmp_path / "weights.safetensors", SmallCNN(10).state_dict()
    options = (*tiny, "--weights", file, "--strategy", "ncm", "--runs", "0", "--output", tmp_path / "out")
    write_tensors(file, state, {})
    code, _, err = crumb(*options)
    assert code == 0, err
    write_tensors(file, state, {"a": "1"})  # what is noted in the file is no part of the weights
    assert "already finished" in crumb(*options)[1]
    write_tensors(file, SmallCNN(10).state_dict(), {})
    code, _, err = crumb(*options)
    assert code == 1 and "holds a finished run with weights='sha256:" in err


def test_a_report_separates_runs_by_content(tmp_path):
    for place, (path, digest) in enumerate([("a", "1"), ("a", "2"), ("b", "1")]):
        found = {"provenance": {"weights": f"sha256:{digest}"}}
        fake_run(tmp_path / str(place), run=place, result=found, weights=path)
    groups = groups_of([read_run(folder) for folder in find_runs([str(tmp_path)])[0]])
    assert [[run.result["run"] for run in group.runs] for group in groups] == [[0, 2], [1]]
    assert [group.label for group in groups] == ["crumb", "crumb (2)"]
    assert "crumb and crumb (2): the files that they name differ in content" in notes_on(groups)


CHANGES = {
    "truncated config": ("config.yaml", lambda content: content[: len(content) // 2]),
    "other count": ("ledger.json", lambda content: content.replace(b'"buffer_items": 0', b'"buffer_items": 7')),
    "other accuracy": ("accuracy_matrix.csv", lambda content: content.replace(b"1,", b"1,5.5000,", 1)),
    "other result": ("result.json", lambda content: content.replace(b'"run": 0', b'"run": 1')),
    "flipped answer": ("predictions.npz", lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
}


def test_changed_files_of_a_run_are_noticed(several, crumb, tmp_path):
    folder = tmp_path / "out" / "run0"
    result = json.loads((folder / "result.json").read_text())
    files = {"config.yaml", "metrics.csv", "accuracy_matrix.csv", "ledger.json", "predictions.npz"}
    assert result["files"].keys() == files
    for name, change in CHANGES.values():
        whole = (folder / name).read_bytes()
        assert change(whole) != whole
        (folder / name).write_bytes(change(whole))
        for code, _, err in (several(), crumb("report", folder, "--output", tmp_path / "report")):
            assert code == 1 and f"{folder / name} is not what the run wrote" in err, err
            assert "restore it, repeat the run with --overwrite true, or move" in err
        (folder / name).write_bytes(whole)
    assert crumb("report", folder, "--output", tmp_path / "report")[0] == 0
    with_other_frames = with_digests(folder, {**result, "frame_table_sha256": "0" * 64})
    (folder / "result.json").write_text(json.dumps(with_other_frames))
    code, _, err = several()
    assert code == 1 and "other frames" in err and "0" * 16 in err and result["frame_table_sha256"][:16] in err
    (folder / "config.yaml").unlink()
    code, _, err = several()
    assert code == 1 and "config.yaml is not what the run wrote: it is missing" in err


def test_the_config_of_a_run_repeats_it_and_a_refused_overwrite_keeps_it(crumb, tiny, tmp_path):
    options = (*tiny, "--strategy", "finetune", "--output", tmp_path / "a")
    assert crumb(*options)[0] == 0
    code, _, err = crumb("run", "--config", tmp_path / "a" / "config.yaml", "--output", tmp_path / "b")
    assert code == 0, err
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first["plan_sha256"] == second["plan_sha256"] and first["accuracy_after"] == second["accuracy_after"]
    before = {name: (tmp_path / "a" / name).read_text() for name in ("result.json", "config.yaml")}
    code, _, err = crumb(*options, "--overwrite", "true", "--dataset-root", tmp_path / "typo")
    assert code == 1 and "there is no folder" in err
    assert {name: (tmp_path / "a" / name).read_text() for name in before} == before
    assert yaml.safe_load(before["config.yaml"])["overwrite"] is False
