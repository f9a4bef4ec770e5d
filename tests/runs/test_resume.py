"""Interrupted runs resume with the same bits; what does not fit is refused."""

import contextlib
import io
import json
import re
import shutil
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import yaml
from avalanche.training.plugins import EvaluationPlugin
from fake_runs import tensors_of
from flags import flags

from crumb_avalanche.cli import main
from crumb_avalanche.runs import run, session
from crumb_avalanche.runs.resume import Resume, _restore_metrics
from crumb_avalanche.system.folder_lock import in_use
from crumb_avalanche.system.tensor_file import checksum, read_state, write_state
from crumb_avalanche.training.stream_strategy import StreamStrategy

# 2 epochs of 5 batches, then two steps of the second experience.
IN_THE_SECOND = 12


class PowerCut(BaseException):
    """Stands for the sudden end of the process."""


def cut_off(steps, *arguments):
    """Give a command whose training ends at the n-th step."""
    take_step = StreamStrategy.optimizer_step
    left = iter(range(steps))

    def counted(strategy):
        if next(left, None) is None:
            raise PowerCut
        take_step(strategy)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(StreamStrategy, "optimizer_step", counted)
        main(list(map(str, arguments)))


def bits(folder):
    """What a run learned and measured, bit by bit."""
    learned = {}
    for name, tensor in tensors_of(folder).items():
        learned[name] = checksum(name, tensor)
    assert learned
    matrix = (folder / "accuracy_matrix.csv").read_bytes()
    return learned, matrix, (folder / "predictions.npz").read_bytes()


def read_json(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def command_in(folder, tiny):
    """The command of a run in a folder, with a feature cache beside it."""
    cache = folder.with_name(f"cache {folder.name}")
    return (*tiny, *flags(mem_size=8, feature_cache=cache, output=folder))


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The folder of a run that was not cut off."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(list(map(str, command_in(folder, tiny)))) == 0
    return folder


@pytest.fixture(scope="module")
def cut_once(tiny, tmp_path_factory):
    """The folder of a run that was cut off in its second experience."""
    folder = tmp_path_factory.mktemp("runs") / "cut"
    cut_off(IN_THE_SECOND, *command_in(folder, tiny))
    return folder


@pytest.fixture
def cut(tmp_path):
    """The folder of the run that is cut off."""
    return tmp_path / "cut"


@pytest.fixture
def command(tiny, cut):
    """The command of the run that is cut off."""
    return command_in(cut, tiny)


@pytest.fixture
def interrupted(command, cut_once, cut):
    """The command of a run that was cut off in its second experience."""
    shutil.copytree(cut_once, cut)
    return command


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture
def after_power_cuts(done, command, cut):
    """The folder of a run that was cut off at four steps, with a damaged checkpoint."""
    every_step = (*command, *flags(checkpoint_every=1))
    for steps in (3, IN_THE_SECOND, 2, 1):
        cut_off(steps, *every_step)
        assert not (cut / "result.json").exists()
    flip_a_bit(max((cut / "resume").glob("*.safetensors")))
    with pytest.warns(UserWarning, match="is damaged"):
        done(*every_step)
    return cut


# An experience that is resumed is not another one.
@pytest.mark.filterwarnings("error:class .* returns")
def test_the_same_bits_after_power_cuts(after_power_cuts, whole):
    assert bits(after_power_cuts) == bits(whole)
    assert not (after_power_cuts / "resume").exists()
    ledger = read_json(after_power_cuts, "ledger")
    expected = read_json(whole, "ledger")
    assert expected["feature_cache_images_filled"] == 120
    assert ledger["feature_cache_images_filled"] == 120
    assert ledger["feature_cache_seconds"] > 0


@pytest.fixture(scope="module")
def resumed(tiny, cut_once, tmp_path_factory):
    """The folder of a run that was cut off and went on, and what it printed then."""
    folder = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(cut_once, folder)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(map(str, command_in(folder, tiny)))) == 0
    return folder, out.getvalue()


def test_a_resumed_run_has_the_same_bits(resumed, whole):
    folder, _ = resumed
    assert bits(folder) == bits(whole)


@pytest.mark.parametrize(
    "method", [{"strategy": "der"}, {"strategy": "er", "method.ring_below": 0}]
)
def test_a_run_with_a_reservoir_resumes(done, tiny, tmp_path, method):
    command = [*tiny, *flags(method, mem_size=8)]
    cut_off(IN_THE_SECOND, *command, "--output", tmp_path / "cut")
    done(*command, "--output", tmp_path / "whole")
    out = done(*command, "--output", tmp_path / "cut")
    assert "resuming: 1 of 2 experiences are finished\n" in out
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_finished_experiences_are_not_repeated(resumed):
    _, out = resumed
    assert "resuming: 1 of 2 experiences are finished\n" in out
    assert "after experience 1/2" not in out
    assert "after experience 2/2" in out


def test_metrics_of_earlier_processes_are_kept(resumed, whole):
    folder, _ = resumed
    lines = (folder / "metrics.csv").read_text().splitlines()
    expected_lines = (whole / "metrics.csv").read_text().splitlines()
    for line, expected in zip(lines, expected_lines, strict=True):
        # The ledger has seconds and the memory of the process.
        assert line == expected or line.startswith("Ledger")


def test_the_latest_metrics_are_the_last_values():
    evaluator = EvaluationPlugin(loggers=[], strict_checks=False)
    saved = {"steps": [3, 7], "values": [0.5, 0.25]}
    _restore_metrics(SimpleNamespace(evaluator=evaluator), {"Loss": saved})
    assert evaluator.get_all_metrics() == {"Loss": ([3, 7], [0.5, 0.25])}
    assert evaluator.get_last_metrics() == {"Loss": 0.25}


def test_seconds_add_up_over_processes(done, command, cut, monkeypatch):
    clock = SimpleNamespace(perf_counter=lambda: clock.now)
    save = Resume.save

    def save_after_a_minute(resume, position):
        assert in_use(resume.files.folder.parent)
        clock.now += 60
        save(resume, position)

    monkeypatch.setattr("crumb_avalanche.runs.run.time", clock)
    monkeypatch.setattr("crumb_avalanche.runs.resume.time", clock)
    monkeypatch.setattr(Resume, "save", save_after_a_minute)
    clock.now = 1000.0  # each process has a zero of its own
    cut_off(IN_THE_SECOND, *command)
    clock.now = 5.0
    done(*command)
    assert read_json(cut, "result")["seconds"] == 120


def buffer_of(state):
    """The state of the only replay buffer."""
    (buffer,) = state["strategy"]["buffers"]
    return buffer


def later_experience(notes, state):
    notes["position"]["experience"] = 3


def no_matrix(notes, state):
    notes["progress"]["matrix"].clear()


def later_step(notes, state):
    notes["position"]["step"] = 99


def large_labels(notes, state):
    buffer_of(state)["labels"].fill_(99)


def negative_labels(notes, state):
    buffer_of(state)["labels"].fill_(-2)


def other_class(notes, state):
    by_class = buffer_of(state)["by_class"]
    by_class[99] = by_class.pop(0)


def other_class_seen(notes, state):
    state["strategy"]["plugins"]["SeenClassesPlugin"]["seen"].append(99)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (later_experience, "position.experience is 3.* equal to 2"),
        (no_matrix, "progress.matrix is a list of 0"),
        (
            later_step,
            r"its clock is at Position\(experience=1, .*its note at .*step=99\)",
        ),
        (
            large_labels,
            "labels holds the class 99, but the stream has the classes 0 to 3",
        ),
        (negative_labels, "labels holds the class -2"),
        (other_class, "by_class holds the class 99"),
        (other_class_seen, "seen holds the class 99"),
    ],
)
def test_a_checkpoint_of_other_values_is_refused(
    refused, interrupted, cut, change, words
):
    [path] = (cut / "resume").glob("*.safetensors")
    state, metadata = read_state(path)
    notes = json.loads(metadata["notes"])
    change(notes, state)
    write_state(path, state, metadata | {"notes": json.dumps(notes)})
    with warnings.catch_warnings(record=True, action="always") as caught:
        error = refused("remove that", *interrupted)
    warned = " ".join(str(warning.message) for warning in caught)
    assert re.search(words, error + warned)
    assert path.exists()


def test_a_tuned_rate_is_not_tuned_again(crumb, done, tiny, tmp_path, monkeypatch):
    command = (*tiny, *flags(family="fair", mem_size=8), "--output")
    monkeypatch.setattr(session, "tune", partial(session.tune, rates=(1e-3, 1e-2)))
    done(*command, tmp_path / "whole")
    learn_stream = run.learn_stream
    train = StreamStrategy.train

    def only_the_first(strategy, experience, *arguments, **keywords):
        if experience.current_experience == 1:
            raise PowerCut
        return train(strategy, experience, *arguments, **keywords)

    def learn_the_first(*arguments):  # tuning has a stream of its own, which is not cut
        with monkeypatch.context() as patch:
            patch.setattr(StreamStrategy, "train", only_the_first)
            learn_stream(*arguments)

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(run, "learn_stream", learn_the_first)
        crumb(*command, tmp_path / "cut")
    monkeypatch.setattr(
        session, "tune", lambda *args, **kwargs: pytest.fail("tuned again")
    )
    done(*command, tmp_path / "cut")
    expected = read_json(tmp_path / "whole", "result")["learning_rate_trials"]
    assert len(expected) == 2
    assert read_json(tmp_path / "cut", "result")["learning_rate_trials"] == expected
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_other_settings_are_refused(refused, interrupted, cut):
    words = (
        "holds checkpoints made with learning_rate=0.001, not 0.002; resume with the "
        "same settings"
    )
    refused(words, *interrupted, *flags(learning_rate=0.002))
    settings = yaml.safe_load((cut / "config.yaml").read_text())
    assert settings["learning_rate"] == 0.001


def test_overwrite_starts_over(done, interrupted):
    out = done(*interrupted, *flags(learning_rate=0.002, overwrite=True))
    assert "after experience 1/2" in out


def test_a_resumed_run_keeps_its_runtime(done, ran, tiny, tmp_path, monkeypatch):
    version = pytest.importorskip("onnxruntime").__version__
    faster = f"onnxruntime {version}"
    settings = flags(mem_size=8, first_epochs=1, checkpoint_every=2, runtime="auto")
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    expected, _ = ran(tmp_path / "whole", *settings)
    cut_off(5, *tiny, *settings, *flags(output=tmp_path / "cut"))
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    resumed, out = ran(tmp_path / "cut", *settings)
    assert "resuming" in out
    assert f"runtime {faster}, " in out
    config = (tmp_path / "cut" / "config.yaml").read_text()
    assert f"# runtime {faster}, " in config
    assert yaml.safe_load(config)["runtime"] == "onnxruntime"
    assert resumed["runtime"] == expected["runtime"] == faster
    assert resumed["accuracy_after"] == expected["accuracy_after"]
    assert resumed["plan_sha256"] == expected["plan_sha256"]
    assert f"runtime {faster}" in done("learner", "show", tmp_path / "cut")


def test_an_interrupted_run_goes_on_with_its_config(done, tiny, tmp_path, monkeypatch):
    """Its plan said auto and overwrite, neither of which is in the file."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    settings = flags(mem_size=8, checkpoint_every=2, runtime="auto", overwrite=True)
    cut_off(5, *tiny, *settings, *flags(output=tmp_path / "cut"))
    config = tmp_path / "cut" / "config.yaml"
    assert yaml.safe_load(config.read_text())["overwrite"] is False
    assert "resuming: " in done("run", *flags(config=config))


def test_another_runtime_than_auto_chose_is_refused(
    refused, tiny, tmp_path, monkeypatch
):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    command = (*tiny, *flags(mem_size=8, checkpoint_every=2, output=tmp_path / "cut"))
    cut_off(5, *command, *flags(runtime="auto"))
    words = "holds checkpoints made with runtime='onnxruntime', not 'torch'"
    refused(words, *command, *flags(runtime="torch"))


def test_a_run_that_is_killed_at_its_page_goes_on(done, command, cut, monkeypatch):
    def killed(*arguments):
        raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr("crumb_avalanche.cli.run.page_of_mistakes", killed)
        main(list(map(str, command)))
    assert not (cut / "result.json").exists()
    assert "resuming: " in done(*command)
    assert (cut / "result.json").exists() and (cut / "mistakes.html").exists()
