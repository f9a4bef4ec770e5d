"""``crumb run`` from the command line to the run folder.

What it writes and prints, and the demo.
"""

import contextlib
import csv
import io
import json
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from fake_data import write_tiny
from fake_runs import weights_of
from fake_videos import write_video
from flags import flags
from small_models import same_tensors
from support.runs import differences

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesFrames
from crumb_avalanche.cli import main
from crumb_avalanche.memory.selection import ReferenceRule
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.map_store import ENTRY_BYTES
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.runs import demo
from crumb_avalanche.runs.predictions import read_predictions
from crumb_avalanche.system.folder_lock import in_use
from crumb_avalanche.system.tensor_file import read_tensors, write_tensors
from crumb_avalanche.training.crumb import CRUMBPlugin
from crumb_avalanche.training.plugins import ClampGradients

SHORT = flags(first_epochs=1)


@dataclass
class Finished:
    """A finished run: its folder, what it printed, and its files."""

    folder: Path
    out: str

    def json(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())

    @property
    def result(self):
        return self.json("result")

    @property
    def accuracy_after(self):
        return self.result["accuracy_after"]

    @property
    def settings(self):
        return yaml.safe_load((self.folder / "config.yaml").read_text())

    @property
    def matrix(self):
        """The lines of the accuracy matrix below the heading."""
        with open(self.folder / "accuracy_matrix.csv") as file:
            _, *lines = csv.reader(file)
        return lines

    @property
    def metrics(self):
        return (self.folder / "metrics.csv").read_text()


@pytest.fixture(scope="module")
def run(tiny):
    """Do a run of a second: ``run(folder, "--strategy", "ncm")``."""

    def call(folder, *more):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            arguments = (*tiny, "--output", folder, *more)
            assert main(list(map(str, arguments))) == 0
        return Finished(folder, out.getvalue())

    return call


@pytest.fixture(scope="module", params=["crumb", "offline"])
def finished(run, tmp_path_factory, request):
    """A run of a method that stores memories, and one that learns all at once."""
    folder = tmp_path_factory.mktemp("run")
    return run(folder, *flags(strategy=request.param, mem_size=6))


@pytest.fixture
def experiences(finished):
    return 1 if finished.result["strategy"] == "offline" else 2


@pytest.mark.parametrize(("name", "value"), [("benchmark", "clip_folder"), ("run", 0)])
def test_a_result_names_the_run(finished, name, value):
    assert finished.result[name] == value


def test_a_result_has_all_accuracies(finished, experiences):
    assert len(finished.accuracy_after) == experiences
    assert finished.result["final_accuracy"] == finished.accuracy_after[-1]


def test_the_final_accuracy_is_the_mean_of_the_parts(finished):
    # Every test object gives as many frames.
    accuracies = finished.result["final_accuracy_per_experience"]
    assert finished.result["final_accuracy"] == pytest.approx(sum(accuracies) / 2)


def test_the_config_has_the_defaults(finished):
    assert finished.settings["selection_rule"] == "every_jth"


def test_the_ledger_adds_up(finished):
    ledger = finished.json("ledger")
    names = ("buffer_bytes", "label_bytes", "codebook_bytes", "statistics_bytes")
    assert ledger["memory_bytes"] == sum(ledger[name] for name in names)


@pytest.fixture(scope="module", params=[None, "fair"])
def budgeted(run, tmp_path_factory, request):
    """A run of CRUMB with a budget, and its family."""
    more = [] if request.param is None else flags(family=request.param)
    settings = flags(strategy="crumb", budget_bytes=30_000)
    return run(tmp_path_factory.mktemp("run"), *settings, *more)


def test_memory_above_the_budget_is_printed(budgeted):
    """The codebook has 256 rows of 16 values."""
    assert budgeted.result["budget_bytes"] == 30_000
    excess = budgeted.json("ledger")["memory_bytes"] - 30_000
    words = f"memory in all is {excess:,} B"
    is_fair = budgeted.result["family"] == "fair"
    assert (excess > 300) == (not is_fair)
    assert (words in budgeted.out) == (not is_fair)


def test_a_number_of_memories_is_no_budget(finished):
    assert finished.result["budget_bytes"] is None
    assert "above the budget" not in finished.out


def test_the_ledger_has_every_experience(finished, experiences):
    assert len(finished.json("ledger")["after_experience"]) == experiences


def test_the_matrix_ends_with_the_final_accuracies(finished, experiences):
    accuracies = finished.result["final_accuracy_per_experience"]
    assert len(finished.matrix) == experiences
    assert finished.matrix[-1][1:] == [f"{value:.4f}" for value in accuracies]


def test_unseen_classes_are_empty_in_the_matrix(finished, experiences):
    tested = [len([cell for cell in line[1:] if cell]) for line in finished.matrix]
    assert tested == [1, 2][-experiences:]


def test_the_matrix_begins_with_the_first_accuracy(finished):
    first = [float(cell) for cell in finished.matrix[0][1:] if cell]
    mean = sum(first) / len(first)
    assert finished.accuracy_after[0] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize(
    "words", ["metric,step,value", "Top1_Acc_Stream", "Ledger/memory_bytes"]
)
def test_metrics_are_written(finished, words):
    assert words in finished.metrics


def test_a_learner_is_written(finished):
    assert (finished.folder / LEARNER).exists()


def test_every_test_image_has_a_prediction(finished):
    predictions = read_predictions(finished.folder)
    rows = predictions["row"].tolist()
    assert rows == sorted(set(rows))
    assert set(predictions["label"].tolist()) == {0, 1, 2, 3}


def test_predictions_give_the_accuracy(finished):
    predictions = read_predictions(finished.folder)
    right = predictions["label"] == predictions["answer"]
    accuracy = finished.result["final_accuracy"]
    assert 100 * right.mean() == pytest.approx(accuracy)


def test_mistakes_are_counted(finished):
    predictions = read_predictions(finished.folder)
    wrong = predictions["label"] != predictions["answer"]
    page = (finished.folder / "mistakes.html").read_text()
    assert f"{wrong.sum()} mistakes of {len(wrong)} test images" in page


def test_the_end_says_what_to_do_next(finished):
    folder = finished.folder
    assert f"final accuracy {finished.result['final_accuracy']:.2f} %" in finished.out
    assert f"crumb predict {folder} photo.jpg" in finished.out
    assert f"what would help: {folder / 'mistakes.html'}" in finished.out


def test_what_cannot_be_taught_is_not_said(finished):
    assert "crumb teach" not in finished.out


BUDGET = [*flags(budget_images=5), *SHORT]


@pytest.mark.parametrize(
    ("strategy", "size"),
    [
        # 5 images of 3,072 bytes; 128 x 4 x 4 maps are 128 codes of one byte, and the
        # codebook counts 4,096 bytes.
        ("crumb", (5 * 3072 - 4096 + 32) // 128),
        ("image_replay", 5),
    ],
)
def test_every_strategy_gets_the_same_bytes(run, tmp_path, strategy, size):
    finished = run(tmp_path, "--strategy", strategy, *BUDGET)
    assert finished.result["mem_size"] == size


def test_a_budget_without_room_is_refused(refused, tiny, tmp_path):
    # One float32 map takes 8,192 bytes: too few for four classes.
    words = "mem_size=1 cannot hold a memory of each of the 4 classes; raise --mem-size"
    refused(words, *tiny, *flags(output=tmp_path, strategy="map_replay"), *BUDGET)


IMAGES = 120


class Cached:
    """Runs with a feature cache that holds the maps of all images."""

    def __init__(self, run, clips, folder):
        self.run = run
        self.folder = folder
        self.root = folder / "clips"
        shutil.copytree(clips, self.root)
        self.settings = flags(strategy="slda", dataset_root=self.root)
        self.plain = run(folder / "plain", *self.settings)
        self.first = self.again("first")

    def again(self, name):
        cache = self.folder / "cache"
        return self.run(self.folder / name, *self.settings, *flags(feature_cache=cache))

    def counts(self, done):
        """Images whose maps were computed, and whose maps were damaged."""
        ledger = done.json("ledger")
        names = ("feature_cache_images_filled", "feature_cache_images_damaged")
        return tuple(ledger[name] for name in names)


@pytest.fixture
def cached(run, clips, tmp_path):
    return Cached(run, clips, tmp_path)


def test_a_new_cache_changes_no_result(cached):
    assert cached.first.accuracy_after == cached.plain.accuracy_after
    assert cached.counts(cached.first) == (IMAGES, 0)


def test_a_full_cache_changes_no_result(cached):
    second = cached.again("second")
    assert second.accuracy_after == cached.plain.accuracy_after
    assert cached.counts(second) == (0, 0)


@pytest.mark.filterwarnings("ignore:.*maps in .* are damaged")
def test_damaged_maps_are_computed_again(cached):
    (path,) = (cached.folder / "cache").glob("*.maps")
    content = bytearray(path.read_bytes())
    start = IMAGES * ENTRY_BYTES
    size = (len(content) - start) // IMAGES
    content[start + 5 * size + 3] ^= 0x40  # an exponent
    content[start + 70 * size : start + 72 * size] = bytes(2 * size)
    path.write_bytes(content)
    second = cached.again("second")
    assert second.accuracy_after == cached.plain.accuracy_after
    assert cached.counts(second) == (3, 3)


def test_a_changed_image_is_not_missed(cached):
    frames = cached.root / "cup" / "object0" / "clip0"
    shutil.copy(frames / "frame1.png", frames / "frame0.png")
    assert cached.counts(cached.again("second")) == (IMAGES, 0)


@pytest.fixture(scope="module", params=["crumb", "icarl"])
def often_and_seldom(run, tmp_path_factory, request):
    """Runs of four experiences of one class, tested after each and not after the
    second.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    common = flags(
        strategy=request.param, classes_per_experience=1, mem_size=6, first_epochs=1
    )
    often = run(folder / "often", *common, *flags(evaluate_every=1))
    seldom = run(folder / "seldom", *common, *flags(evaluate_every=3))
    return often, seldom


def test_seldom_tests_have_the_same_results(often_and_seldom):
    often, seldom = often_and_seldom
    first, _, third, last = often.accuracy_after
    assert seldom.accuracy_after == [first, None, third, last]


def test_seldom_tests_leave_rows_empty(often_and_seldom):
    often, seldom = often_and_seldom
    expected = often.matrix
    expected[1][1:] = ["", "", "", ""]
    assert seldom.matrix == expected


def test_nothing_else_differs(often_and_seldom):
    often, seldom = often_and_seldom
    matrix, result = differences(often.folder, seldom.folder)
    assert matrix == "accuracy_matrix.csv"
    assert result.startswith("result.json: accuracy_after is ")


def test_seldom_tests_are_printed(often_and_seldom):
    _, seldom = often_and_seldom
    assert "after experience 2/4: not tested" in seldom.out
    assert "after experience 3/4: " in seldom.out


def test_seldom_tests_have_every_ledger(often_and_seldom):
    _, seldom = often_and_seldom
    assert len(seldom.json("ledger")["after_experience"]) == 4


def test_other_weights_are_a_difference(often_and_seldom, tmp_path):
    often, seldom = often_and_seldom
    shutil.copytree(seldom.folder, tmp_path / "changed")
    tensors, metadata = read_tensors(seldom.folder / LEARNER)
    bias = "strategy.model.plastic_layers.head.bias"
    tensors[bias] = tensors[bias] + 1
    write_tensors(tmp_path / "changed" / LEARNER, tensors, metadata)
    assert f"{LEARNER}: {bias}" in differences(often.folder, tmp_path / "changed")


@pytest.mark.parametrize(
    "settings",
    [
        {"selection-rule": "reservoir", "fused": True, "codebook-init": "kmeans"},
        {
            "evaluate-quantized": True,
            "method.direct-weight": 1,
            "protocol": "class_iid",
        },
        {
            "precision": "bf16",
            "codebook-size": 16,
            "replay-steps": 2,
            "clamp-gradients": 10,
        },
    ],
    ids=" ".join,
)
def test_each_option_runs(run, tmp_path, settings):
    run(tmp_path, *SHORT, *flags(settings))


@pytest.fixture
def built():
    """A strategy whose settings are not the defaults."""
    model = split_backbone(
        "small_cnn", n_classes=4, weights=None, codebook=Codebook(16, 16), image_size=32
    )
    settings = LearningSettings(
        replay_weight=3.0,
        replay_steps=3,
        replay_limit=7,
        fused=True,
        selection_rule="reference",
        clamp_gradients=0.1,
    )
    method = {"freeze_codebook": True, "direct_weight": 0.5, "codebook_weight": 2.0}
    return build_strategy("crumb", model, settings, 8, 0, method=method)


def plugin_of(strategy, kind):
    (plugin,) = [plugin for plugin in strategy.plugins if type(plugin) is kind]
    return plugin


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replay_weight", 3.0),
        ("replay_steps", 3),
        ("replay_limit", 7),
        ("fused", True),
        ("direct_weight", 0.5),
        ("codebook_weight", 2.0),
    ],
)
def test_options_reach_the_plugin(built, name, value):
    assert getattr(plugin_of(built, CRUMBPlugin), name) == value


def test_the_selection_rule_reaches_the_buffer(built):
    assert isinstance(built.storage_policy.rule, ReferenceRule)


def test_a_frozen_codebook_has_no_gradient(built):
    assert not built.model.codebook.blocks.requires_grad


def test_the_clamp_reaches_its_plugin(built):
    assert plugin_of(built, ClampGradients).limit == 0.1


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    """A run whose codebook is trained."""
    folder = tmp_path_factory.mktemp("plain")
    return run(folder, *SHORT, *flags(mem_size=6, learning_rate=0.02))


def blocks_of(done):
    return weights_of(done.folder)["codebook.blocks"]


def test_a_frozen_codebook_stays(run, tmp_path, plain):
    freeze = flags({"method.freeze-codebook": True}, mem_size=6)
    frozen = run(tmp_path / "frozen", *SHORT, *freeze, "--learning-rate", "0.02")
    untrained = run(tmp_path / "none", *SHORT, *freeze, "--learning-rate", "0")
    assert torch.equal(blocks_of(frozen), blocks_of(untrained))
    assert not torch.equal(blocks_of(frozen), blocks_of(plain))


def evaluated_losses(done):
    lines = done.metrics.splitlines()
    return [line for line in lines if line.startswith("Loss_Exp/eval")]


def test_quantized_maps_are_evaluated(run, tmp_path, plain):
    settings = flags(mem_size=6, learning_rate=0.02, evaluate_quantized=True)
    quantized = run(tmp_path, *SHORT, *settings)
    weights = weights_of(quantized.folder)
    expected = weights_of(plain.folder)
    assert same_tensors(expected, weights)
    assert evaluated_losses(quantized) != evaluated_losses(plain)


def test_the_reference_preset_on_a_squeezenet(run, tmp_path):
    settings = flags(preset="reference", backbone="squeezenet1_1", image_size=64)
    finished = run(tmp_path, *settings, *SHORT)
    expected = {
        "replay_weight": 5.0,
        "clamp_gradients": 10.0,
        "relu_logits": True,
        "head_kernel": 3,
        "selection_rule": "reference",
    }
    assert finished.settings.items() >= expected.items()


@pytest.fixture(scope="module")
def several(run, tmp_path_factory):
    """Do runs of some numbers in one folder; the first one is finished."""
    folder = tmp_path_factory.mktemp("several")
    settings = [*flags(strategy="finetune"), *SHORT]

    def call(runs):
        finished = run(folder, *settings, *flags(runs=runs))
        return json.loads((folder / "summary.json").read_text()), finished.out

    call.command = [*settings, *flags(output=folder)]
    call.folder = folder
    call.first = call("0")
    return call


def test_one_run_has_no_deviation(several):
    summary, out = several.first
    mean = summary["final_accuracy_mean"]
    assert summary["final_accuracy_std"] is None
    assert f"\nfinetune, 1 run: final accuracy {mean:.2f} %\n" in out


def test_several_runs_have_mean_and_deviation(several):
    summary, out = several("0-1")
    folders = [several.folder / f"run{number}" for number in (0, 1)]
    first, second = (
        Finished(folder, "").result["final_accuracy"] for folder in folders
    )
    mean = (first + second) / 2
    assert summary["runs"] == [0, 1]
    assert summary["final_accuracy_mean"] == pytest.approx(mean)
    deviation = abs(first - second) / 2**0.5
    assert summary["final_accuracy_std"] == pytest.approx(deviation)
    assert "2 runs: final accuracy" in out


def test_finished_runs_are_not_repeated(several):
    _, out = several("0")
    assert out.count("already finished") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"runs": "0-1", "epochs": 2}, "holds a finished run with "),
        (
            {"runs": "0,5-3"},
            "runs is '0,5-3', where 5-3 is an empty range; write 3-5",
        ),
    ],
)
def test_other_runs_are_refused(several, refused, tiny, more, words):
    refused(words, *tiny, *several.command, *flags(**more))


def test_a_run_holds_its_folder(run, tmp_path, monkeypatch):
    replace = os.replace
    locked = {}

    def noted(source, target):
        locked[Path(target).name] = in_use(tmp_path / "run0")
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    run(tmp_path, *flags(strategy="finetune", runs="0"), *SHORT)
    assert locked["result.json"]
    assert not locked["summary.json"]


def test_printed_settings_are_a_config(done, tiny, tmp_path):
    settings = yaml.safe_load(done(*tiny, "--print_config"))
    assert settings["backbone"] == "small_cnn"
    assert settings["replay_weight"] is None
    settings["output"] = str(tmp_path / "out")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    done("run", *flags(config=tmp_path / "mine.yaml", run=2))
    assert Finished(tmp_path / "out", "").result["run"] == 2


FAST = flags(
    weights="none",
    backbone="small_cnn",
    image_size=16,
    batch_size=32,
    first_epochs=1,
    threads=1,
    progress=False,
    checkpoint=False,
)
PAPER = [name for name, entry in BENCHMARKS.items() if "reference" in entry.options]


@pytest.mark.parametrize(
    ("name", "reference"),
    [*((name, True) for name in PAPER), ("core50", False), ("cifar100", False)],
)
def test_every_benchmark_runs(done, tmp_path, name, reference):
    root = write_tiny(name, tmp_path / "data")
    settings = flags(
        benchmark=name,
        dataset_root=root,
        strategy="ncm",
        reference_stream=reference,
        classes_per_experience=1,
    )
    done("run", *settings, *FAST, *flags(output=tmp_path / "run"))
    table = BENCHMARKS[name].table(root, 0, reference)
    result = Finished(tmp_path / "run", "").result
    assert (result["benchmark"], len(result["accuracy_after"])) == (name, 2)
    assert result["frame_table_sha256"] == table.content_hash()
    assert sorted(result["classes_order"]) == sorted(table.classes)


@pytest.mark.parametrize(("more", "frames"), [({}, 2), ({"fps": 2}, 4)])
def test_videos_need_no_preparation(done, tmp_path, more, frames):
    pytest.importorskip("av")
    clips = tmp_path / "clips"
    paths = [clips / name / instance for name in ("cup", "dice") for instance in "ab"]
    for path in paths:
        write_video(path / "kitchen.mp4", seconds=2)
    settings = flags(
        benchmark="clip_folder", dataset_root=clips, strategy="finetune", **more
    )
    done("run", *settings, *FAST, *flags(output=tmp_path / "run"))
    assert len(list((clips / ".crumb_frames").rglob("*.png"))) == len(paths) * frames


@pytest.fixture
def small_demo(monkeypatch, clips, tmp_path):
    """The command of the demo on few images and three strategies."""
    few_images = partial(
        ToyShapesFrames,
        objects_per_class=2,
        sessions=2,
        held_out_sessions=(1,),
    )
    settings = partial(demo.RunSettings, dataset_root=str(clips))
    monkeypatch.setattr(demo, "ToyShapesFrames", few_images)
    monkeypatch.setattr(demo, "FRAMES_PER_CLIP", 1)
    monkeypatch.setattr(demo, "BENCHMARK", "clip_folder")
    monkeypatch.setattr(demo, "RunSettings", settings)
    monkeypatch.setattr(demo, "STRATEGIES", ("crumb", "image_replay", "rda"))
    return ["demo", *flags(threads=1, progress=False, output=tmp_path)]


def test_the_demo_resumes_and_refuses_another_seed(small_demo, done, refused, tmp_path):
    out = done(*small_demo)
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert "rda" in out
    assert "In the same bytes CRUMB keeps" in out
    first = (tmp_path / "crumb" / "result.json").stat().st_mtime_ns
    (tmp_path / "rda" / "result.json").unlink()  # as if it had been cut off there
    out = done(*small_demo)
    assert "\nrda" in out
    assert "training a small network" not in out
    assert (tmp_path / "crumb" / "result.json").stat().st_mtime_ns == first
    words = "holds a finished run with run=0, not 3"
    refused(words, *small_demo, *flags(seed=3))
