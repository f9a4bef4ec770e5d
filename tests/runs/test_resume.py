"""Interrupted runs resume with the same bits; finished ones are known by settings, frames and content, not by paths."""

import json
import re
import shutil
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import yaml
from fake_runs import fake_run, tensors_of

from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.report.runs import find_runs, groups_of, notes_on, read_run
from crumb_avalanche.runs import run, session
from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.runs.run_folder import with_digests
from crumb_avalanche.system.folder_lock import in_use
from crumb_avalanche.system.tensor_file import (
    checksum,
    read_state,
    write_state,
    write_tensors,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy


class PowerCut(BaseException):
    """Stands for the sudden end of the process."""


@pytest.fixture
def cut_off(crumb, monkeypatch):
    """Give a command whose training ends at the n-th step."""

    def cut(steps, *arguments):
        left, step = iter(range(steps)), StreamStrategy.optimizer_step

        def counted(self):
            if next(left, None) is None:
                raise PowerCut
            step(self)

        with monkeypatch.context() as patch, pytest.raises(PowerCut):
            patch.setattr(StreamStrategy, "optimizer_step", counted)
            crumb(*arguments)

    return cut


def bits(folder):
    learned = {
        name: checksum(name, tensor) for name, tensor in tensors_of(folder).items()
    }
    assert learned
    return [
        learned,
        *(
            (folder / name).read_bytes()
            for name in ("accuracy_matrix.csv", "predictions.npz")
        ),
    ]


def values_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def commands(done, tiny, tmp_path):
    """The same command for the folders ``whole``, where it was done, and ``cut``."""

    def command(name):
        return (
            *tiny,
            "--mem-size",
            "8",
            "--feature-cache",
            tmp_path / f"cache {name}",
            "--output",
            tmp_path / name,
        )

    done(*command("whole"))
    return tmp_path / "whole", tmp_path / "cut", command("cut")


@pytest.mark.filterwarnings(
    "error:class .* returns"
)  # an experience that is resumed is not another one
def test_the_same_bits_after_power_cuts_and_a_damaged_checkpoint(
    done, commands, cut_off
):
    whole, cut, command = commands
    command = (*command, "--checkpoint-every", "1")
    for steps in (3, 12, 2, 1):
        cut_off(steps, *command)
        assert not (cut / "result.json").exists()
    newest = max((cut / "resume").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        done(*command)
    assert bits(cut) == bits(whole)
    assert not (cut / "resume").exists() and not (cut / "interrupted").exists()
    ledgers = [values_of(folder, "ledger") for folder in (whole, cut)]
    assert (
        ledgers[0]["feature_cache_images_filled"]
        == ledgers[1]["feature_cache_images_filled"]
        == 120
    )
    assert ledgers[1]["feature_cache_seconds"] > 0


def renamed(by_class):
    """Give a class of a buffer another number."""
    by_class[99] = by_class.pop(0)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda notes, state: notes["position"].update(experience=3),
            "position.experience is 3.* equal to 2",
        ),
        (
            lambda notes, state: notes["progress"]["matrix"].clear(),
            "progress.matrix is a list of 0",
        ),
        (
            lambda notes, state: notes["position"].update(step=99),
            r"its clock is at Position\(experience=1, .*its note at .*step=99\)",
        ),
        (
            lambda notes, state: state["strategy"]["buffers"][0]["labels"].fill_(99),
            "labels holds the class 99, but the stream has the classes 0 to 3",
        ),
        (
            lambda notes, state: state["strategy"]["buffers"][0]["labels"].fill_(-2),
            "labels holds the class -2",
        ),
        (
            lambda notes, state: renamed(state["strategy"]["buffers"][0]["by_class"]),
            "by_class holds the class 99",
        ),
        (
            lambda notes, state: state["strategy"]["plugins"]["SeenClassesPlugin"][
                "seen"
            ].append(99),
            "seen holds the class 99",
        ),
    ],
)
def test_a_checkpoint_of_other_values_is_refused(
    refused, commands, cut_off, change, words
):
    cut_off(12, *commands[2])  # two steps into the second experience
    [path] = (commands[1] / "resume").glob("*.safetensors")
    state, metadata = read_state(path)
    change(notes := json.loads(metadata["notes"]), state)
    write_state(path, state, metadata | {"notes": json.dumps(notes)})
    with warnings.catch_warnings(record=True, action="always") as said:
        error = refused("remove that", *commands[2])
    assert path.exists() and re.search(
        words, error + str([one.message for one in said])
    )


def test_finished_experiences_stay_and_seconds_add_up_over_processes(
    done, commands, cut_off, monkeypatch
):
    whole, cut, command = commands
    clock, save = SimpleNamespace(perf_counter=lambda: clock.now), Resume.save

    def save_after_a_minute(self, position):
        assert in_use(self.files.folder.parent)
        clock.now += 60
        save(self, position)

    monkeypatch.setattr("crumb_avalanche.runs.run.time", clock)
    monkeypatch.setattr("crumb_avalanche.runs.resume.time", clock)
    monkeypatch.setattr(Resume, "save", save_after_a_minute)
    clock.now = 1000.0  # each process has a zero of its own
    cut_off(
        12, *command
    )  # 2 epochs of 5 batches, then two steps of the second experience
    clock.now = 5.0
    out = done(*command)
    assert values_of(cut, "result")["seconds"] == 120
    assert "resuming: 1 of 2 experiences are finished\n" in out
    assert "after experience 1/2" not in out and "after experience 2/2" in out
    assert bits(cut) == bits(whole)
    found, expected = (
        (folder / "metrics.csv").read_text().splitlines() for folder in (cut, whole)
    )
    assert len(found) == len(expected) and any(
        line.startswith("Ledger") for line in found
    )
    assert [line for line in found if line[:6] != "Ledger"] == [
        line for line in expected if line[:6] != "Ledger"
    ]


def test_a_tuned_rate_is_not_tuned_again(crumb, done, tiny, tmp_path, monkeypatch):
    command = (*tiny, "--family", "fair", "--mem-size", "8", "--output")
    monkeypatch.setattr(session, "tune", partial(session.tune, rates=(1e-3, 1e-2)))
    done(*command, tmp_path / "whole")
    learn, train = run.learn, StreamStrategy.train

    def only_the_first(self, experience, *arguments, **keywords):
        if experience.current_experience == 1:
            raise PowerCut
        return train(self, experience, *arguments, **keywords)

    def learn_the_first(*arguments):  # tuning has a stream of its own, which is not cut
        with monkeypatch.context() as patch:
            patch.setattr(StreamStrategy, "train", only_the_first)
            learn(*arguments)

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(run, "learn", learn_the_first)
        crumb(*command, tmp_path / "cut")
    monkeypatch.setattr(
        session, "tune", lambda *args, **kwargs: pytest.fail("tuned again")
    )
    done(*command, tmp_path / "cut")
    trials = [
        values_of(tmp_path / name, "result")["learning_rate_trials"]
        for name in ("whole", "cut")
    ]
    assert trials[0] == trials[1] and len(trials[0]) == 2
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_other_settings_are_refused_and_overwrite_starts_over(
    done, refused, tiny, tmp_path, cut_off
):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path)
    cut_off(12, *arguments)
    words = "holds checkpoints made with learning_rate=0.001, not 0.002; resume with the same settings"
    refused(words, *arguments, "--learning-rate", "0.002")
    assert (
        yaml.safe_load((tmp_path / "config.yaml").read_text())["learning_rate"] == 0.001
    )
    assert "after experience 1/2" in done(
        *arguments, "--learning-rate", "0.002", "--overwrite", "true"
    )


def test_a_resumed_run_keeps_the_runtime_that_auto_chose(
    done, ran, tiny, tmp_path, cut_off, monkeypatch
):
    faster = f"onnxruntime {pytest.importorskip('onnxruntime').__version__}"
    more = (
        "--mem-size",
        "8",
        "--first-epochs",
        "1",
        "--checkpoint-every",
        "2",
        "--runtime",
        "auto",
    )
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    whole, _ = ran(tmp_path / "whole", *more)
    cut_off(5, *tiny, *more, "--output", tmp_path / "cut")
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    resumed, out = ran(tmp_path / "cut", *more)
    assert "resuming" in out and f"runtime {faster}, " in out
    text = (tmp_path / "cut" / "config.yaml").read_text()
    assert (
        f"# runtime {faster}, " in text
        and yaml.safe_load(text)["runtime"] == "onnxruntime"
    )
    assert resumed["runtime"] == whole["runtime"] == faster
    assert all(
        resumed[name] == whole[name] for name in ("accuracy_after", "plan_sha256")
    )
    assert f"runtime {faster}" in done("learner", "show", tmp_path / "cut")


@pytest.fixture
def several(tiny, done, clips, tmp_path):
    """The arguments of a finished `--runs 0`, some of them changed; the clips are a copy."""
    root = shutil.copytree(clips, tmp_path / "clips")
    usual = {
        "--dataset-root": root,
        "--method.own": 0.0,
        "--output": tmp_path / "out",
        "--runs": "0",
    }
    usual |= {"--strategy": "rda", "--budget-images": "40"}

    def arguments(changes=()):
        return *tiny, *(
            text for pair in (usual | dict(changes)).items() for text in pair
        )

    assert "already" not in done(*arguments())
    return arguments


def test_the_same_files_at_other_paths_are_accepted_and_other_contents_refused(
    several, done, refused, tmp_path
):
    shutil.copytree(tmp_path / "clips", tmp_path / "moved")
    assert "run 0: already finished" in done(
        *several({"--dataset-root": tmp_path / "moved"})
    )
    before = (tmp_path / "out/run0/result.json").read_text()
    words = "holds a finished run with method.own=0.0, not 0.5; use another --output"
    refused(words, *several({"--method.own": 0.5}))
    image = next((tmp_path / "clips").rglob("*.png"))
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # of the same size
    for change in (
        lambda: image.write_bytes(content),
        lambda: image.write_bytes(content + b"more"),
        image.unlink,
    ):
        change()
        refused(
            f"of other clips: some in {tmp_path / 'clips'} were added, removed or changed",
            *several(),
        )
    refused(
        f"there is no folder {tmp_path / 'nowhere'}",
        *several({"--dataset-root": tmp_path / "nowhere"}),
    )
    assert (tmp_path / "out/run0/result.json").read_text() == before


def test_other_weights_under_the_same_name_and_another_runtime_are_refused(
    done, refused, tiny, tmp_path, monkeypatch
):
    file, state = tmp_path / "weights.safetensors", SmallCNN(10).state_dict()
    options = (
        *tiny,
        "--weights",
        file,
        "--strategy",
        "ncm",
        "--runs",
        "0",
        "--output",
        tmp_path / "out",
    )
    write_tensors(file, state, {})
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    done(*options, "--runtime", "auto")
    write_tensors(
        file, state, {"a": "1"}
    )  # what is noted in the file is no part of the weights
    assert "already finished" in done(*options, "--runtime", "auto")
    refused("runtime='onnxruntime', not 'torch'", *options)
    write_tensors(file, SmallCNN(10).state_dict(), {})
    refused("holds a finished run with weights='sha256:", *options, "--runtime", "auto")


def test_a_report_separates_runs_by_content(tmp_path):
    for place, (path, digest) in enumerate([("a", "1"), ("a", "2"), ("b", "1")]):
        found = {"provenance": {"weights": f"sha256:{digest}"}}
        fake_run(tmp_path / str(place), run=place, result=found, weights=path)
    groups = groups_of(
        [read_run(folder) for folder in find_runs([str(tmp_path)]).finished]
    )
    assert [[run.result["run"] for run in group.runs] for group in groups] == [
        [0, 2],
        [1],
    ]
    assert [group.label for group in groups] == ["crumb", "crumb (2)"]
    assert (
        "crumb and crumb (2): the files that they name differ in content"
        in notes_on(groups)
    )


CHANGES = {
    "truncated config": ("config.yaml", lambda content: content[: len(content) // 2]),
    "other count": (
        "ledger.json",
        lambda content: content.replace(b'"buffer_items": 0', b'"buffer_items": 7'),
    ),
    "other accuracy": (
        "accuracy_matrix.csv",
        lambda content: content.replace(b"1,", b"1,5.5000,", 1),
    ),
    "other result": (
        "result.json",
        lambda content: content.replace(b'"run": 0', b'"run": 1'),
    ),
    "truncated result": ("result.json", lambda content: content[: len(content) // 2]),
    "no object": ("result.json", lambda content: b"[]"),
    "flipped answer": (
        "predictions.npz",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    ),
}


def test_changed_files_of_a_run_are_noticed(several, done, refused, tmp_path):
    folder = tmp_path / "out" / "run0"
    result = json.loads((folder / "result.json").read_text())
    files = {
        "config.yaml",
        "metrics.csv",
        "accuracy_matrix.csv",
        "ledger.json",
        "predictions.npz",
    }
    assert result["files"].keys() == files
    for name, change in CHANGES.values():
        whole = (folder / name).read_bytes()
        assert change(whole) != whole
        (folder / name).write_bytes(change(whole))
        for one in (several(), ("report", folder, "--output", tmp_path / "report")):
            refused(
                f"{folder / name} is not what the run wrote.*repeat the run with --overwrite true, or move",
                *one,
            )
        (folder / name).write_bytes(whole)
    done("report", folder, "--output", tmp_path / "report")
    with_other_frames = with_digests(folder, {**result, "frame_table_sha256": "0" * 64})
    (folder / "result.json").write_text(json.dumps(with_other_frames))
    err = refused("other frames", *several())
    assert "0" * 16 in err and result["frame_table_sha256"][:16] in err
    (folder / "config.yaml").unlink()
    refused("config.yaml is not what the run wrote: it is missing", *several())


def test_the_config_of_a_run_repeats_it_and_a_refused_overwrite_keeps_it(
    done, refused, tiny, tmp_path
):
    options = (*tiny, "--strategy", "finetune", "--output", tmp_path / "a")
    done(*options)
    done("run", "--config", tmp_path / "a" / "config.yaml", "--output", tmp_path / "b")
    first, second = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"
    )
    assert (
        first["plan_sha256"] == second["plan_sha256"]
        and first["accuracy_after"] == second["accuracy_after"]
    )
    before = {
        name: (tmp_path / "a" / name).read_text()
        for name in ("result.json", "config.yaml")
    }
    refused(
        "there is no folder",
        *options,
        "--overwrite",
        "true",
        "--dataset-root",
        tmp_path / "typo",
    )
    assert {name: (tmp_path / "a" / name).read_text() for name in before} == before
    assert yaml.safe_load(before["config.yaml"])["overwrite"] is False
