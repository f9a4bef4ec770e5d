"""``crumb run`` from the command line to the run folder: what it writes, predicts and prints, and the demo."""

import csv
import json
import os
import shutil
import statistics
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from fake_data import write_tiny
from fake_runs import weights_of
from fake_videos import write_video
from support.runs import differences

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesFrames
from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.memory.selection import ReferenceRule
from crumb_avalanche.methods import run_file
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.map_store import ENTRY_BYTES
from crumb_avalanche.runs import demo
from crumb_avalanche.runs.predictions import (
    PREDICTIONS,
    PredictionsPlugin,
    read_predictions,
)
from crumb_avalanche.runs.tables import LEARNER, TEACHABLE, cell, mean_text, usage_of
from crumb_avalanche.system.folder_lock import in_use
from crumb_avalanche.system.tensor_file import read_tensors, write_tensors
from crumb_avalanche.training.crumb import CRUMBPlugin
from crumb_avalanche.training.plugins import ClampGradients

SHORT = ("--first-epochs", "1")


@pytest.mark.parametrize("strategy", ["crumb", "offline"])
def test_every_strategy_writes_the_run_folder(ran, tmp_path, strategy):
    result, out = ran(tmp_path, "--strategy", strategy, "--mem-size", "6")
    assert (
        result["strategy"] == strategy
        and result["benchmark"] == "clip_folder"
        and result["run"] == 0
    )
    experiences = 1 if strategy == "offline" else 2
    assert len(result["accuracy_after"]) == experiences
    assert result["final_accuracy"] == result["accuracy_after"][-1]
    # every test object gives as many frames, so the whole is the mean of the parts
    assert result["final_accuracy"] == pytest.approx(
        sum(result["final_accuracy_per_experience"]) / 2
    )
    assert f"final accuracy {result['final_accuracy']:.2f} %" in out
    assert (
        yaml.safe_load((tmp_path / "config.yaml").read_text())["selection_rule"]
        == "every_jth"
    )
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    kept = ("buffer_bytes", "label_bytes", "codebook_bytes", "statistics_bytes")
    assert ledger["memory_bytes"] == sum(ledger[name] for name in kept)
    assert len(ledger["after_experience"]) == experiences
    with open(tmp_path / "accuracy_matrix.csv") as file:
        rows = list(csv.reader(file))
    last = [f"{value:.4f}" for value in result["final_accuracy_per_experience"]]
    assert len(rows) == 1 + experiences and rows[-1][1:] == last
    if strategy != "offline":  # after the first experience, its classes alone
        assert [sum(cell != "" for cell in row[1:]) for row in rows[1:]] == [1, 2]
        assert result["accuracy_after"][0] == pytest.approx(float(rows[1][1]), abs=1e-4)
    metrics = (tmp_path / "metrics.csv").read_text()
    assert (
        metrics.startswith("metric,step,value")
        and "Top1_Acc_Stream" in metrics
        and "Ledger/memory_bytes" in metrics
    )
    assert (tmp_path / "learner.safetensors").exists()
    answers = read_predictions(tmp_path)
    assert list(answers["row"]) == sorted(set(answers["row"])) and set(
        answers["label"]
    ) == {0, 1, 2, 3}
    assert (
        f"crumb predict {tmp_path} photo.jpg" in out
        and f"what would help: {tmp_path / 'mistakes.html'}" in out
    )
    assert "crumb teach" not in out  # this method cannot
    right = answers["label"] == answers["answer"]
    assert (
        f"{(~right).sum()} mistakes of {len(right)} test images"
        in (tmp_path / "mistakes.html").read_text()
    )
    assert 100 * right.mean() == pytest.approx(result["final_accuracy"])


def test_the_same_bytes_for_every_strategy(ran, refused, tiny, tmp_path):
    items, budget = {}, ("--budget-images", "5", *SHORT)
    for strategy in ("crumb", "image_replay"):
        items[strategy] = ran(tmp_path / strategy, "--strategy", strategy, *budget)[0][
            "mem_size"
        ]
    # 5 images of 3,072 bytes; 128 x 4 x 4 maps are 128 codes of one byte, and the
    # codebook counts 4,096 bytes
    assert items == {"crumb": (5 * 3072 - 4096 + 32) // 128, "image_replay": 5}
    # one float32 map takes 8,192 bytes: too few for four classes, which is said with
    # the cure
    words = "mem_size=1 cannot hold a memory of each of the 4 classes; raise --mem-size"
    refused(
        words, *tiny, "--output", tmp_path / "maps", "--strategy", "map_replay", *budget
    )


@pytest.mark.filterwarnings("ignore:.*maps in .* are damaged")
def test_a_feature_cache_changes_no_result_and_misses_no_changed_image(
    ran, clips, tmp_path
):
    root, results, ledgers = tmp_path / "clips", [], []
    shutil.copytree(clips, root)
    more = ("--strategy", "slda", "--dataset-root", root)
    expected = ran(tmp_path / "plain", *more)[0]["accuracy_after"]
    for name in ("new", "full", "damaged", "changed"):
        if name == "damaged":
            (path,) = (tmp_path / "cache").glob("*.maps")
            damaged = bytearray(path.read_bytes())
            start = 120 * ENTRY_BYTES
            size = (len(damaged) - start) // 120
            damaged[start + 5 * size + 3] ^= 0x40  # an exponent
            damaged[start + 70 * size : start + 72 * size] = bytes(2 * size)
            path.write_bytes(damaged)
        if name == "changed":
            one, other = (
                root / "cup" / "object0" / "clip0" / f"frame{number}.png"
                for number in (0, 1)
            )
            one.write_bytes(other.read_bytes())
        results.append(
            ran(tmp_path / name, *more, "--feature-cache", tmp_path / "cache")[0][
                "accuracy_after"
            ]
        )
        ledgers.append(json.loads((tmp_path / name / "ledger.json").read_text()))
    assert results[:3] == [expected] * 3
    assert [ledger["feature_cache_images_damaged"] for ledger in ledgers] == [
        0,
        0,
        3,
        0,
    ]
    assert [ledger["feature_cache_images_filled"] for ledger in ledgers] == [
        120,
        0,
        3,
        120,
    ]


@pytest.mark.parametrize("strategy", ["crumb", "icarl"])
def test_evaluate_every_does_not_change_what_is_learned(ran, tmp_path, strategy):
    """Four experiences of one class: ``often`` is tested after each, ``seldom`` not after the second.

    `differences` finds what differs between run folders, and nothing in times.
    """
    common = (
        "--strategy",
        strategy,
        "--classes-per-experience",
        "1",
        "--mem-size",
        "6",
        *SHORT,
        "--evaluate-every",
    )
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    every, (some, out) = (
        ran(often, *common, 1)[0]["accuracy_after"],
        ran(seldom, *common, 3),
    )
    assert (
        some["accuracy_after"] == [every[0], None, every[2], every[3]]
        and None not in every
    )
    matrix, *others = differences(often, seldom)
    assert matrix == "accuracy_matrix.csv"
    assert [one.split(" is ")[0] for one in others] == ["result.json: accuracy_after"]
    matrices = [
        (folder / matrix).read_text().splitlines() for folder in (often, seldom)
    ]
    matrices[0][2] = "1,,,,"
    assert matrices[0] == matrices[1]
    assert "after experience 2/4: not tested" in out and "after experience 3/4: " in out
    assert (
        len(json.loads((seldom / "ledger.json").read_text())["after_experience"]) == 4
    )
    tensors, metadata = read_tensors(seldom / LEARNER)
    tensors["strategy.model.plastic_layers.head.bias"] += 1
    write_tensors(seldom / LEARNER, tensors, metadata)
    assert f"{LEARNER}: strategy.model.plastic_layers.head.bias" in differences(
        often, seldom
    )


@pytest.mark.parametrize(
    "more",
    [
        (
            "--preset",
            "paper",
            "--selection-rule",
            "reservoir",
            "--fused",
            "true",
            "--codebook-init",
            "kmeans",
        ),
        (
            "--evaluate-quantized",
            "true",
            "--method.direct-weight",
            "1",
            "--protocol",
            "class_iid",
        ),
        (
            "--precision",
            "bf16",
            "--codebook-size",
            "16",
            "--replay-steps",
            "2",
            "--clamp-gradients",
            "10",
        ),
    ],
)
def test_each_option_runs(ran, tmp_path, more):
    ran(tmp_path, *SHORT, *more)


def test_the_options_reach_the_learner():
    model = split_backbone(
        "small_cnn", n_classes=4, weights=None, codebook=Codebook(16, 16), image_size=32
    )
    settings = dict(
        replay_weight=3.0,
        replay_steps=3,
        fused=True,
        selection_rule="reference",
        clamp_gradients=0.1,
    )
    method = dict(freeze_codebook=True, direct_weight=0.5, codebook_weight=2.0)
    strategy = build_strategy(
        "crumb", model, LearningSettings(**settings), 8, 0, method=method
    )
    plugins = {type(plugin): plugin for plugin in strategy.plugins}
    crumb = plugins[CRUMBPlugin]
    assert (crumb.replay_weight, crumb.replay_steps, crumb.fused) == (3.0, 3, True)
    assert (crumb.direct_weight, crumb.codebook_weight) == (0.5, 2.0)
    assert (
        isinstance(strategy.storage_policy.rule, ReferenceRule)
        and not model.codebook.blocks.requires_grad
    )
    assert plugins[ClampGradients].limit == 0.1


def test_a_frozen_codebook_stays_and_quantized_maps_are_what_is_evaluated(
    ran, tmp_path
):
    weights, losses = {}, {}
    for name, flags in (
        ("plain", ("--learning-rate", "0.02")),
        ("frozen", ("--method.freeze-codebook", "true", "--learning-rate", "0.02")),
        ("none", ("--method.freeze-codebook", "true", "--learning-rate", "0")),
        ("quantized", ("--evaluate-quantized", "true", "--learning-rate", "0.02")),
    ):
        ran(tmp_path / name, "--mem-size", "6", *SHORT, *flags)
        weights[name] = weights_of(tmp_path / name)
        metrics = (tmp_path / name / "metrics.csv").read_text().splitlines()
        losses[name] = [line for line in metrics if line.startswith("Loss_Exp/eval")]
    frozen, none, plain = (
        weights[name]["codebook.blocks"] for name in ("frozen", "none", "plain")
    )
    assert torch.equal(frozen, none) and not torch.equal(frozen, plain)
    assert all(
        torch.equal(value, weights["plain"][key])
        for key, value in weights["quantized"].items()
    )
    assert losses["plain"] and losses["quantized"] != losses["plain"]


def test_the_reference_preset_on_a_squeezenet(ran, tmp_path):
    ran(
        tmp_path,
        "--preset",
        "reference",
        "--backbone",
        "squeezenet1_1",
        "--image-size",
        "64",
        *SHORT,
    )
    settings = yaml.safe_load((tmp_path / "config.yaml").read_text())
    expected = dict(
        replay_weight=5.0, clamp_gradients=10.0, relu_logits=True, head_kernel=3
    )
    expected["selection_rule"] = "reference"
    assert {name: settings[name] for name in expected} == expected


def test_several_runs_with_a_summary_and_finished_ones_kept(
    done, refused, tiny, tmp_path, monkeypatch
):
    replace, held, first = os.replace, {}, tmp_path / "run0"
    monkeypatch.setattr(
        os,
        "replace",
        lambda *paths: held.update({paths[1].name: in_use(first)}) or replace(*paths),
    )
    several = (*tiny, "--strategy", "finetune", *SHORT, "--output", tmp_path, "--runs")

    def summary_of(runs):
        out = done(*several, runs)
        return json.loads((tmp_path / "summary.json").read_text()), out

    summary, out = summary_of("0")
    assert (
        summary["final_accuracy_std"] is None
        and held["result.json"]
        and not held["summary.json"]
    )
    assert (
        f"\nfinetune, 1 run: final accuracy {summary['final_accuracy_mean']:.2f} %\n"
        in out
    )
    summary, out = summary_of("0-1")
    finals = [
        json.loads((tmp_path / f"run{k}" / "result.json").read_text())["final_accuracy"]
        for k in (0, 1)
    ]
    assert summary["runs"] == [0, 1] and summary[
        "final_accuracy_mean"
    ] == pytest.approx(sum(finals) / 2)
    assert summary["final_accuracy_std"] == pytest.approx(
        abs(finals[0] - finals[1]) / 2**0.5
    )
    assert "2 runs: final accuracy" in out and out.count("already finished") == 1
    refused("holds a finished run with ", *several, "0-1", "--epochs", "2")
    refused(
        "runs is '0,5-3', where 5-3 is an empty range; write 3-5", *several, "0,5-3"
    )


def test_config_file_and_print_config(done, tiny, tmp_path):
    settings = yaml.safe_load(done(*tiny, "--print_config"))
    assert settings["backbone"] == "small_cnn" and settings["replay_weight"] is None
    settings["output"] = str(tmp_path / "out")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    done("run", "--config", tmp_path / "mine.yaml", "--run", "2")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["run"] == 2


def evaluated(batches):
    plugin = PredictionsPlugin()
    plugin.labels, plugin.answers = [9], [9]
    plugin.before_eval(None)  # only the latest evaluation counts
    for labels, logits in batches:
        plugin.after_eval_iteration(
            SimpleNamespace(mb_y=torch.tensor(labels), mb_output=torch.tensor(logits))
        )
    return plugin


def test_predictions_are_read_by_row_and_damaged_ones_refused(tmp_path):
    plugin = evaluated([([1, 0], [[0.0, 2.0], [0.0, 1.0]]), ([1], [[3.0, 1.0]])])
    plugin.write(tmp_path, np.array([7, 2, 5]))
    assert [path.name for path in tmp_path.iterdir()] == [PREDICTIONS]
    read = {
        name: values.tolist() for name, values in read_predictions(tmp_path).items()
    }
    shares = [torch.tensor(gap).sigmoid().item() for gap in (1.0, 2.0, 2.0)]
    assert read.pop("confidence") == pytest.approx(shares)
    assert read == {"row": [2, 5, 7], "label": [0, 1, 1], "answer": [1, 0, 1]}
    loaded = PredictionsPlugin()
    loaded.load_state_dict(plugin.state_dict())
    assert (
        loaded.confidence == pytest.approx(plugin.confidence)
        and loaded.answers == plugin.answers
    )
    whole = (tmp_path / PREDICTIONS).read_bytes()
    (tmp_path / PREDICTIONS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=r"is damaged .*run it again with --overwrite true"
    ):
        read_predictions(tmp_path)
    (tmp_path / PREDICTIONS).unlink()
    with pytest.raises(
        ValueError,
        match=r"there are no predictions in .*; give the folder of a finished run",
    ):
        read_predictions(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row": np.array([7, -2, 5], np.int32)}, "row holds -2"),
        ({"label": np.array([-1, 0, 1], np.int32)}, "label holds -1"),
        ({"answer": np.array([0, 1, -9], np.int32)}, "answer holds -9"),
        ({"answer": np.array([0, 1], np.int32)}, r"answer is int32 \(2,\), not int32"),
        ({"label": np.array([[0, 1, 1]], np.int32)}, r"label is int32 \(1, 3\)"),
        ({"row": np.int32(7)}, r"row is int32 \(\)"),
        ({"row": np.array([1.0, 2.0, 3.0])}, "row is float64"),
        ({"confidence": np.array([0.5, np.nan, 0.5], np.float32)}, "holds nan"),
        ({"confidence": np.array([0.5, 1.5, 0.5], np.float32)}, "holds 1.5"),
        ({"confidence": np.array([0.5, -0.5, 0.5], np.float32)}, "holds -0.5"),
        ({"confidence": np.array([1, 0, 1], np.int32)}, "confidence is int32"),
        ({"row": np.array([None, None, None])}, "allow_pickle"),
    ],
)
def test_predictions_of_no_run_are_refused(tmp_path, changes, words):
    whole = {
        "row": np.array([7, 2, 5], np.int32),
        "label": np.array([0, 1, 1], np.int32),
        "answer": np.array([0, 1, 0], np.int32),
        "confidence": np.array([0.5, 1.0, 0.75], np.float32),
    }
    np.savez_compressed(tmp_path / PREDICTIONS, **whole)
    assert read_predictions(tmp_path)["row"].tolist() == [2, 5, 7]
    np.savez_compressed(tmp_path / PREDICTIONS, **{**whole, **changes})
    with pytest.raises(ValueError, match=rf"is damaged \(.*{words}.*run it again"):
        read_predictions(tmp_path)


def test_mean_and_deviation():
    # Deviations from 77: -7, 0, 7; variance 98 / 2.
    assert mean_text([70, 77, 84]) == "77.0 +- 7.0"
    assert mean_text([70, 77, 84], "+.2f", "±") == "+77.00 ± 7.00"
    assert (
        mean_text([-1.25, 2.5], "+.1f")
        == f"+0.6 +- {statistics.stdev([-1.25, 2.5]):.1f}"
    )
    assert (mean_text([70.04]), mean_text([])) == ("70.0", "")


def test_a_long_path_is_shown_by_its_last_name():
    assert (
        cell("/home/user/robot/clips_a/", 12)
        == cell("/home/user/robot/clips_a", 12)
        == "clips_a"
    )
    assert (
        cell(["cup", "duck"]) == "cup, duck"
        and cell(None) == "none"
        and cell("x" * 20, 8) == "xxxxx..."
    )


def test_names_are_those_of_the_learner():
    assert tuple(CLOSED_FORMS) == TEACHABLE and LEARNER == run_file.LEARNER


@pytest.mark.parametrize(("strategy", "lines"), [("rda", 2), ("ncm", 2), ("er", 1)])
def test_what_can_be_done_with_a_run(tmp_path, strategy, lines):
    folder = tmp_path / "my run"
    folder.mkdir()
    assert usage_of(folder, strategy) == []  # --keep-learner false
    (folder / LEARNER).touch()
    found = usage_of(folder, strategy)
    assert len(found) == lines and f"crumb predict '{folder}' photo.jpg" in found[0]
    if lines == 2:
        assert all(
            part in found[1]
            for part in (f"'{folder / LEARNER}'", "crumb teach", "crumb serve")
        )


PAPER = [
    name for name, benchmark in BENCHMARKS.items() if "reference" in benchmark.options
]


def results(done, output, *arguments):
    fast = (
        "--weights",
        "none",
        "--backbone",
        "small_cnn",
        "--image-size",
        "16",
        "--batch-size",
        "32",
    )
    rest = (
        "--first-epochs",
        "1",
        "--threads",
        "1",
        "--progress",
        "false",
        "--checkpoint",
        "false",
    )
    done("run", *arguments, *fast, *rest, "--output", output)
    return json.loads((output / "result.json").read_text())


@pytest.mark.parametrize(
    ("name", "reference"),
    [*((name, "true") for name in PAPER), ("core50", "false"), ("cifar100", "false")],
)
def test_every_benchmark_runs_with_and_without_the_reference_stream(
    done, tmp_path, name, reference
):
    root = write_tiny(name, tmp_path / "data")
    arguments = (
        "--benchmark",
        name,
        "--dataset-root",
        root,
        "--strategy",
        "ncm",
        "--reference-stream",
        reference,
    )
    result = results(
        done, tmp_path / "run", *arguments, "--classes-per-experience", "1"
    )
    table = BENCHMARKS[name].table(root, 0, reference == "true")
    assert result["benchmark"] == name and len(result["accuracy_after"]) == 2
    assert result["frame_table_sha256"] == table.content_hash()
    assert sorted(result["classes_order"]) == sorted(table.classes)


def test_videos_need_no_preparation(done, tmp_path):
    pytest.importorskip("av")
    for name in ("cup", "dice"):
        for item in ("a", "b"):
            write_video(tmp_path / "clips" / name / item / "kitchen.mp4", seconds=2)
    arguments = (
        "--benchmark",
        "clip_folder",
        "--dataset-root",
        tmp_path / "clips",
        "--strategy",
        "finetune",
    )
    lengths = {}
    for fps in (None, "2"):
        output = tmp_path / f"fps{fps}"
        results(done, output, *arguments, *(("--fps", fps) if fps else ()))
        lengths[fps] = len(list((tmp_path / "clips" / ".crumb_frames").rglob("*.png")))
    assert lengths == {None: 4 * 2, "2": 4 * 2 + 4 * 4}


def test_the_whole_demo_on_a_few_images(monkeypatch, done, refused, clips, tmp_path):
    few = dict(
        objects_per_class=2, sessions=2, held_out_sessions=(1,), frames_per_clip=1
    )
    monkeypatch.setattr(demo, "ToyShapesFrames", partial(ToyShapesFrames, **few))
    monkeypatch.setattr(demo, "BENCHMARK", "clip_folder")
    monkeypatch.setattr(
        demo, "RunSettings", partial(demo.RunSettings, dataset_root=str(clips))
    )
    monkeypatch.setattr(demo, "STRATEGIES", ("crumb", "rda"))
    arguments = ("demo", "--threads", "1", "--progress", "false", "--output", tmp_path)
    out = done(*arguments)
    assert (tmp_path / "report.png").stat().st_size > 10_000 and "rda" in out
    results = {name: tmp_path / name / "result.json" for name in ("crumb", "rda")}
    times = {name: path.stat().st_mtime_ns for name, path in results.items()}
    (tmp_path / "rda" / "result.json").unlink()  # as if it had been cut off there
    out = done(*arguments)
    assert "\nrda" in out and "training a small network" not in out
    assert (
        results["crumb"].stat().st_mtime_ns == times["crumb"]
        and results["rda"].exists()
    )
    refused("holds a finished run with run=0, not 3", *arguments, "--seed", "3")
