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
def several(tiny, done, clips, tmp_path):
    """The arguments of a finished `--runs 0`, some of them changed; the clips are a copy."""
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    usual = {"--dataset-root": root, "--method.own": 0.0, "--output": tmp_path / "out"}

    def arguments(changes=()):
        changed = {**usual, **dict(changes)}
        common = (*tiny, "--strategy", "rda", "--budget-images", "40", "--runs", "0")
        return *common, *(text for pair in changed.items() for text in pair)

    assert "already" not in done(*arguments())
    return arguments


def test_the_same_files_at_other_paths_are_accepted_and_other_contents_refused(several, done, refused, tmp_path):
    shutil.copytree(tmp_path / "clips", tmp_path / "moved")
    assert "run 0: already finished" in done(*several({"--dataset-root": tmp_path / "moved"}))
    before = (tmp_path / "out/run0/result.json").read_text()
    words = "holds a finished run with method.own=0.0, not 0.5; use another --output"
    refused(words, *several({"--method.own": 0.5}))
    image = next((tmp_path / "clips").rglob("*.png"))
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # of the same size
    for change in (lambda: image.write_bytes(content), lambda: image.write_bytes(content + b"more"), image.unlink):
        change()
        refused(f"of other clips: some in {tmp_path / 'clips'} were added, removed or changed", *several())
    refused(f"there is no folder {tmp_path / 'nowhere'}", *several({"--dataset-root": tmp_path / "nowhere"}))
    assert (tmp_path / "out/run0/result.json").read_text() == before


def test_other_weights_under_the_same_name_and_another_runtime_are_refused(done, refused, tiny, tmp_path, monkeypatch):
    file, state = tmp_path / "weights.safetensors", SmallCNN(10).state_dict()
    options = (*tiny, "--weights", file, "--strategy", "ncm", "--runs", "0", "--output", tmp_path / "out")
    write_tensors(file, state, {})
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    done(*options, "--runtime", "auto")
    write_tensors(file, state, {"a": "1"})  # what is noted in the file is no part of the weights
    assert "already finished" in done(*options, "--runtime", "auto")
    refused("runtime='onnxruntime', not 'torch'", *options)
    write_tensors(file, SmallCNN(10).state_dict(), {})
    refused("holds a finished run with weights='sha256:", *options, "--runtime", "auto")


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
    "truncated result": ("result.json", lambda content: content[: len(content) // 2]),
    "no object": ("result.json", lambda content: b"[]"),
    "flipped answer": ("predictions.npz", lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
}


def test_changed_files_of_a_run_are_noticed(several, done, refused, tmp_path):
    folder = tmp_path / "out" / "run0"
    result = json.loads((folder / "result.json").read_text())
    files = {"config.yaml", "metrics.csv", "accuracy_matrix.csv", "ledger.json", "predictions.npz"}
    assert result["files"].keys() == files
    for name, change in CHANGES.values():
        whole = (folder / name).read_bytes()
        assert change(whole) != whole
        (folder / name).write_bytes(change(whole))
        for command in (several(), ("report", folder, "--output", tmp_path / "report")):
            words = f"{folder / name} is not what the run wrote.*repeat the run with --overwrite true, or move"
            refused(words, *command)
        (folder / name).write_bytes(whole)
    done("report", folder, "--output", tmp_path / "report")
    with_other_frames = with_digests(folder, {**result, "frame_table_sha256": "0" * 64})
    (folder / "result.json").write_text(json.dumps(with_other_frames))
    err = refused("other frames", *several())
    assert "0" * 16 in err and result["frame_table_sha256"][:16] in err
    (folder / "config.yaml").unlink()
    refused("config.yaml is not what the run wrote: it is missing", *several())


def test_the_config_of_a_run_repeats_it_and_a_refused_overwrite_keeps_it(done, refused, tiny, tmp_path):
    options = (*tiny, "--strategy", "finetune", "--output", tmp_path / "a")
    done(*options)
    done("run", "--config", tmp_path / "a" / "config.yaml", "--output", tmp_path / "b")
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first["plan_sha256"] == second["plan_sha256"] and first["accuracy_after"] == second["accuracy_after"]
    before = {name: (tmp_path / "a" / name).read_text() for name in ("result.json", "config.yaml")}
    refused("there is no folder", *options, "--overwrite", "true", "--dataset-root", tmp_path / "typo")
    assert {name: (tmp_path / "a" / name).read_text() for name in before} == before
    assert yaml.safe_load(before["config.yaml"])["overwrite"] is False
