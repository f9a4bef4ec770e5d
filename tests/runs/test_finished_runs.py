"""Finished runs are known by settings, frames and content, not by paths.

Damage is noticed.
"""

import json
import shutil

import pytest
import yaml
from fake_runs import fake_run
from flags import flags

from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.report.runs import find_runs, groups_of, notes_on, read_run
from crumb_avalanche.runs.run_folder import DamagedRunError, with_digests
from crumb_avalanche.system.tensor_file import write_tensors


@pytest.fixture
def several(tiny, done, clips, tmp_path):
    """The command of a finished `--runs 0` with some settings changed.

    Its clips are a copy.
    """
    root = shutil.copytree(clips, tmp_path / "clips")
    usual = {
        "dataset-root": root,
        "method.own": 0.0,
        "output": tmp_path / "out",
        "runs": "0",
        "strategy": "rda",
        "budget-images": "40",
    }

    def command(**changes):
        return *tiny, *flags(usual | changes)

    assert "already" not in done(*command())
    return command


@pytest.fixture
def folder(several, tmp_path):
    """The folder of the finished run."""
    return tmp_path / "out" / "run0"


def test_the_same_files_elsewhere_are_accepted(several, done, tmp_path):
    shutil.copytree(tmp_path / "clips", tmp_path / "moved")
    out = done(*several(**{"dataset-root": tmp_path / "moved"}))
    assert "run 0: already finished" in out


def test_other_settings_are_refused(several, refused, folder):
    before = (folder / "result.json").read_text()
    words = "holds a finished run with method.own=0.0, not 0.5; use another --output"
    refused(words, *several(**{"method.own": 0.5}))
    assert (folder / "result.json").read_text() == before


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # of the same size
    path.write_bytes(content)


def append(path):
    path.write_bytes(path.read_bytes() + b"more")


@pytest.mark.parametrize("change", [change_a_byte, append, lambda path: path.unlink()])
def test_other_images_are_refused(several, refused, tmp_path, change):
    clips = tmp_path / "clips"
    change(next(clips.rglob("*.png")))
    words = f"of other clips: some in {clips} were added, removed or changed"
    refused(words, *several())


def test_missing_images_are_refused(several, refused, tmp_path):
    nowhere = tmp_path / "nowhere"
    refused(f"there is no folder {nowhere}", *several(**{"dataset-root": nowhere}))


@pytest.fixture
def with_weights(done, tiny, tmp_path):
    """The command of a finished run with a weight file, the file and its tensors."""
    file = tmp_path / "weights.safetensors"
    state = SmallCNN(10).state_dict()
    write_tensors(file, state, {})
    settings = flags(weights=file, strategy="ncm", runs="0", output=tmp_path / "out")
    command = (*tiny, *settings)
    done(*command)
    return command, file, state


def test_notes_in_weights_do_not_count(with_weights, done):
    command, file, state = with_weights
    write_tensors(file, state, {"a": "1"})
    assert "already finished" in done(*command)


def test_other_weights_of_a_name_are_refused(with_weights, refused):
    command, file, _ = with_weights
    write_tensors(file, SmallCNN(10).state_dict(), {})
    refused("holds a finished run with weights='sha256:", *command)


@pytest.fixture
def with_onnx(done, tiny, tmp_path, monkeypatch):
    """The command of a finished run for which auto chose ONNX Runtime."""
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    command = (*tiny, *flags(strategy="ncm", runs="0", output=tmp_path / "out"))
    done(*command, *flags(runtime="auto"))
    return command


def test_auto_takes_what_was_chosen(with_onnx, done, monkeypatch):
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    assert "already finished" in done(*with_onnx, *flags(runtime="auto"))


def test_another_runtime_is_refused(with_onnx, refused):
    refused("runtime='onnxruntime', not 'torch'", *with_onnx)


@pytest.fixture
def by_content(tmp_path):
    """Groups of three runs, two of which have weights of one content."""
    contents = [("a", "1"), ("a", "2"), ("b", "1")]
    for number, (path, digest) in enumerate(contents):
        result = {"provenance": {"weights": f"sha256:{digest}"}}
        fake_run(tmp_path / str(number), run=number, result=result, weights=path)
    runs = list(map(read_run, find_runs([str(tmp_path)]).finished))
    return groups_of(runs)


def test_a_report_groups_runs_by_content(by_content):
    assert [group.numbers for group in by_content] == [[0, 2], [1]]


def test_groups_of_other_content_are_numbered(by_content):
    assert [group.label for group in by_content] == ["crumb", "crumb (2)"]


def test_other_content_is_noted(by_content):
    note = "crumb and crumb (2): the files that they name differ in content"
    assert note in notes_on(by_content)


def first_half(content):
    return content[: len(content) // 2]


def flip_near_the_end(content):
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def replaced(old, new):
    return lambda content: content.replace(old, new, 1)


def an_array(content):
    return b"[]"


CHANGES = {
    "truncated config": ("config.yaml", first_half),
    "other count": (
        "ledger.json",
        replaced(b'"buffer_items": 0', b'"buffer_items": 7'),
    ),
    "other accuracy": ("accuracy_matrix.csv", replaced(b"1,", b"1,5.5000,")),
    "other result": ("result.json", replaced(b'"run": 0', b'"run": 1')),
    "truncated result": ("result.json", first_half),
    "no object": ("result.json", an_array),
    "flipped answer": ("predictions.npz", flip_near_the_end),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES)
def test_changed_files_are_noticed(several, refused, folder, tmp_path, name, change):
    content = (folder / name).read_bytes()
    changed = change(content)
    assert changed != content
    (folder / name).write_bytes(changed)
    words = (
        f"{folder / name} is not what the run wrote.*repeat the run with --overwrite "
        "true, or move"
    )
    refused(words, *several())
    refused(words, "report", folder, *flags(output=tmp_path / "report"))


def test_missing_files_are_noticed(several, refused, folder):
    (folder / "config.yaml").unlink()
    refused("config.yaml is not what the run wrote: it is missing", *several())


@pytest.mark.parametrize("name", ["config.yaml", "ledger.json", "accuracy_matrix.csv"])
def test_a_file_without_digest_may_be_missing_too(tmp_path, name):
    folder = fake_run(tmp_path / "run")
    (folder / name).unlink()
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(with_digests(folder, result)))
    with pytest.raises(DamagedRunError, match=f"{name} cannot be read"):
        read_run(folder)


def test_all_records_have_digests(folder):
    result = json.loads((folder / "result.json").read_text())
    assert result["files"].keys() == {
        "config.yaml",
        "metrics.csv",
        "accuracy_matrix.csv",
        "ledger.json",
        "predictions.npz",
    }


def test_other_frames_are_refused(several, refused, folder):
    result = json.loads((folder / "result.json").read_text())
    changed = with_digests(folder, {**result, "frame_table_sha256": "0" * 64})
    (folder / "result.json").write_text(json.dumps(changed))
    error = refused("other frames", *several())
    assert "0" * 16 in error
    assert result["frame_table_sha256"][:16] in error


@pytest.fixture
def command(tiny, tmp_path):
    return (*tiny, *flags(strategy="finetune", output=tmp_path / "a"))


def test_the_config_of_a_run_repeats_it(done, command, tmp_path):
    done(*command)
    config = tmp_path / "a" / "config.yaml"
    done("run", *flags(config=config, output=tmp_path / "b"))
    first = json.loads((tmp_path / "a" / "result.json").read_text())
    second = json.loads((tmp_path / "b" / "result.json").read_text())
    assert first["plan_sha256"] == second["plan_sha256"]
    assert first["accuracy_after"] == second["accuracy_after"]


def test_a_refused_overwrite_keeps_the_run(done, refused, command, tmp_path):
    done(*command)
    names = ("result.json", "config.yaml")
    before = {name: (tmp_path / "a" / name).read_text() for name in names}
    typo = flags(overwrite=True, dataset_root=tmp_path / "typo")
    refused("there is no folder", *command, *typo)
    after = {name: (tmp_path / "a" / name).read_text() for name in names}
    assert after == before
    assert yaml.safe_load(before["config.yaml"])["overwrite"] is False
