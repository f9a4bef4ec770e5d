"""Figures 4 and 5: perturbations, drops and advantages of the shape bias by hand, its
networks, and use of blocks.
"""

import csv
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import verdicts
import yaml
from called_script import called
from fig3_curves import curve_of
from fig4_shape_bias import bars_of, lines_of, picture, pretrained_network
from fig5_memory_blocks import Usage, summary, usage_of
from PIL import Image
from support.findings import Cell, Finding
from support.rebuilt_run import rebuild
from support.shape_bias import (
    PLAIN,
    RunDrops,
    advantage_of,
    columns,
    drops_of,
    feature_perturbation,
    logits_of,
    spatial_perturbation,
)
from support.statistics import (
    Comparison,
    first_task_filter,
    fixed_batches,
    holm,
    paired_t_test,
    relative_drops,
    wilcoxon_test,
)
from torch import nn
from watched import same_weights

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.paired import Paired, interval, paired
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.session import build_model
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.pretraining import save_pretrained


def test_perturbations_shuffle_locations_or_remove_half_of_the_features():
    maps = torch.rand(3, 8, 4, 5, generator=torch.Generator().manual_seed(0)) + 0.1
    moved, again = (
        spatial_perturbation(maps, torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert torch.equal(moved, again)
    orders = []
    for old, new in zip(maps.flatten(2), moved.flatten(2)):
        orders.append(
            [
                next(i for i in range(20) if torch.equal(old[:, i], new[:, j]))
                for j in range(20)
            ]
        )
        assert sorted(orders[-1]) == list(range(20)) != orders[-1], (
            "every vector is there once"
        )
    assert orders[0] != orders[1], "each image has an order of its own"
    after = feature_perturbation(maps, torch.Generator().manual_seed(1))
    gone = (after == 0).flatten(2).all(2)
    assert gone.sum(1).tolist() == [4, 4, 4] and not torch.equal(gone[0], gone[1])
    remaining = ~gone[:, :, None, None].expand_as(maps)
    assert torch.equal(after[remaining], maps[remaining])


def test_answers_and_drops_of_batches():
    logits, labels = np.array([[3.0, 2, 1], [1, 3, 2]]), np.array([0, 1])
    for among, answers in ((None, [0, 1]), ([1, 2], [1, 1]), ([2], [2, 2])):
        assert columns(logits, labels, among)["answer"].tolist() == answers
    plain = {
        "row": np.arange(200),
        "label": np.zeros(200, int),
        "answer": np.zeros(200, int),
    }
    perturbed = {**plain, "answer": np.where(np.arange(200) < 150, 0, 1)}
    drops = drops_of(plain, perturbed)
    assert drops.shape == (2,) and drops.mean() == pytest.approx(0.25)
    first_images = {name: values[:30] for name, values in perturbed.items()}
    assert drops_of(plain, first_images).shape == (1,), "other images, fewer batches"


def test_advantage_by_hand():
    runs = [
        RunDrops(
            0, {"spatial": np.array([0.5, 0.4])}, {"spatial": np.array([0.3, 0.3])}
        ),
        RunDrops(
            1,
            {"spatial": np.array([0.2, np.nan])},
            {"spatial": np.array([0.3, 0.9])},
            passed=False,
        ),
    ]
    advantages = advantage_of(runs, "spatial")
    assert advantages.mean == pytest.approx((-0.15 + 0.1) / 2) and advantages.runs == 2
    assert advantages.error == pytest.approx(
        0.125
    )  # deviation 0.25 / sqrt 2, by sqrt 2
    assert (
        advantages.s4
        == wilcoxon_test(np.array([0.5, 0.4, 0.2]), np.array([0.3, 0.3, 0.3]))
        and advantages.s4.pairs == 3
    )
    assert advantages.over_runs.units == pytest.approx((-0.15, 0.1)), (
        "one split, so the run is the unit"
    )
    assert (advantages.crumb, advantages.control) == (
        pytest.approx(1.1 / 3),
        pytest.approx(0.3),
    )
    assert advantage_of(runs, "style") is None and advantage_of([], "spatial") is None
    bars = bars_of("a stream", runs)
    assert bars[0].filtered.runs == 1 and bars[1].all_runs is None
    spatial, feature, style = lines_of(bars)
    assert spatial[2:5] == ["-", "-0.0250", "0.1250"] and spatial[7:14] == [
        *("not decided", "0.3667", "0.3000", "2", "-0.1500", "1", "3")
    ]
    assert feature[2:] == ["+"] + [""] * 15 and style[3:] == [""] * 15
    assert picture(bars, "A title").axes[0].containers


def noise(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.mark.slow
def test_pretrained_networks(tmp_path):
    from crumb_avalanche.runs import pretrain
    from crumb_avalanche.runs.pretrain_settings import PretrainSettings

    for number in range(8):
        noise(
            tmp_path / "images" / ("bear", "clock")[number % 2] / f"{number}.png",
            number,
        )
    common = dict(
        data=str(tmp_path / "images"),
        weights="none",
        backbone="small_cnn",
        image_size=32,
        epochs=1,
    )
    for name, weight in (("crumb", 1.0), ("control", 0.0)):
        settings = dict(
            output=str(tmp_path / f"{name}.safetensors"),
            codebook_weight=weight,
            codebook_dim=8,
        )
        pretrain.main(PretrainSettings(**settings, **common, threads=1, progress=False))
    options = [
        "--pretraining-only",
        "--output",
        tmp_path / "out",
        "--pretrained",
        tmp_path / "crumb.safetensors",
    ]
    options += [
        "--control-pretrained",
        tmp_path / "control.safetensors",
        "--style-root",
        tmp_path / "images",
    ]
    options += ["--test-root", tmp_path / "images"]
    process = called("fig4_shape_bias", *options)
    assert process.returncode == 0, process.stderr
    with open(tmp_path / "out" / "fig4.csv") as file:
        rows = {row["perturbation"]: row for row in csv.DictReader(file)}
    assert {row["condition"] for row in rows.values()} == {"pretraining"}
    style = rows["style"]  # the same images in the same style: no drop
    assert style["runs"] == "1"
    assert float(style["drop, CRUMB"]) == 0
    noise(tmp_path / "images" / "worm" / "1.png", 9)
    process = called("fig4_shape_bias", *options)
    assert (
        process.returncode == 1
        and "has 3 classes, but" in process.stderr
        and "was made with 2" in process.stderr
    )


def test_a_pretrained_network_is_rebuilt_as_it_was(tmp_path):
    made_with = PretrainSettings(
        data="images",
        weights="none",
        backbone="small_cnn",
        cut_layer=8,
        image_size=32,
        codebook_dim=8,
        codebook_search="distance",
        codebook_tables=2,
        codebook_grouping="correlated",
        codebook_filter=True,
    )
    model = build_model(made_with, 3, codebook=True)
    file = tmp_path / "pretrained.safetensors"
    save_pretrained(file, model, {**vars(made_with), "classes": 3})
    again = pretrained_network(file)
    assert again.codebook.settings == model.codebook.settings
    assert again.map_shape == model.map_shape
    same_weights(again, model)


def test_usage_against_a_loop():
    plastic = nn.Sequential()
    for name, layer in (
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("head", nn.Linear(6, 2)),
    ):
        plastic.add_module(name, layer)
    codebook = Codebook(4, 3)
    codebook.blocks.data = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    model = SplitModel(nn.Conv2d(3, 6, 1), plastic, "head", codebook, image_size=4)
    maps = torch.rand(5, 6, 3, 2, generator=torch.Generator().manual_seed(0))
    maps[maps < 0.5] = 0
    counts, zeros, codes = [0] * 4, 0, np.zeros((5, 3, 2), int)
    for number, image in enumerate(maps):
        for row in range(3):
            for column in range(2):
                for piece in (image[:3, row, column], image[3:, row, column]):
                    zeros += not piece.any()
                    counts[1 + int(piece.argmax())] += bool(piece.any())
                first = image[:3, row, column]
                codes[number, row, column] = (
                    1 + int(first.argmax()) if first.any() else -1
                )
    usage = usage_of(model, iter(maps.split(2)))
    assert (
        usage.counts.tolist() == counts
        and usage.zeros == zeros
        and (usage.codes == codes).all()
    )
    assert usage.shares.tolist() == (np.array(counts) / sum(counts)).tolist()


def test_summary():
    codes = np.zeros((3, 1, 1))
    before, after = (
        Usage(np.array([5, 5, 0]), 10, codes),
        Usage(np.array([0, 4, 4]), 0, codes),
    )
    rows = dict((name, values) for name, *values in summary(before, after))
    assert rows["slices that are all zero, %"] == ["50.00", "0.00"]
    assert rows["blocks never used"] == ["1", "1"] and rows[
        "as varied as so many equal blocks"
    ] == ["2.0", "2.0"]


def test_a_rebuilt_run_has_its_accuracy_and_needs_its_model(ran, tmp_path):
    result, _ = ran(tmp_path)
    settings = RunSettings(**yaml.safe_load((tmp_path / "config.yaml").read_text()))
    run = rebuild(settings)
    answers = logits_of(run.after, run.batches())[PLAIN].argmax(1)
    accuracy = 100 * (answers == run.table.labels[run.rows]).mean()
    assert accuracy == pytest.approx(result["final_accuracy"])
    (tmp_path / "learner.safetensors").unlink()
    with pytest.raises(
        ValueError,
        match=r"has no learner.safetensors; run it again with --keep-learner",
    ):
        rebuild(settings)


def test_batches_are_the_same_in_every_call_and_hold_each_image_once():
    batches = fixed_batches(2250)
    assert (
        batches.shape == (22, 100)
        and len(np.unique(batches)) == 2200
        and batches.max() < 2250
    )
    np.testing.assert_array_equal(batches, fixed_batches(2250))
    assert not np.array_equal(np.sort(batches[0]), np.arange(100)), (
        "images in order are no random batch"
    )
    assert fixed_batches(30).shape == (1, 30)


def test_t_test_by_hand():
    # Differences 1, 2, 0, 3: mean 1.5, variance 5/3, t = 1.5 / sqrt(5/12) = 2.324 at 3
    # degrees of freedom, where the distribution function is 1/2 + (u / (1 + u^2) + atan
    # u) / pi with u = t / sqrt 3, u^2 = 1.8.
    u = math.sqrt(1.8)
    p = 2 * (0.5 - (u / 2.8 + math.atan(u)) / math.pi)
    test = paired_t_test(np.array([1, 2, 3, 4]), np.array([2, 4, 3, 7]))
    assert (test.pairs, test.difference, test.p) == (
        4,
        1.5,
        pytest.approx(p),
    ) and p == pytest.approx(0.1027, abs=1e-4)


def test_wilcoxon_by_hand():
    # The negative difference has rank 3; of the 32 signs of five ranks 5 have a sum up
    # to 3, on either side.
    test = wilcoxon_test(np.zeros(5), np.array([1, 2, -3, 4, 5]))
    assert test.p == pytest.approx(10 / 32) and test.difference == pytest.approx(1.8)


def test_tests_without_variance_or_pairs():
    ours = np.array([1.0, 2.0])
    assert (
        paired_t_test(ours, ours)
        == wilcoxon_test(ours, ours)
        == Comparison(2, 0.0, 1.0)
    )
    assert paired_t_test(ours, ours + 3) == Comparison(2, 3.0, 0.0)
    assert paired_t_test(ours[:1], ours[:1]).p is None
    assert (
        paired_t_test(ours[:0], ours[:0])
        == wilcoxon_test(ours[:0], ours[:0])
        == Comparison(0, 0.0, None)
    )


def test_relative_drops_and_holm_by_hand():
    drops = relative_drops(np.array([80.0, 50.0, 0.0]), np.array([60.0, 60.0, 0.0]))
    np.testing.assert_allclose(drops, [0.25, -0.2, np.nan])
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([None]) == [None]


def test_first_task_filter():
    assert first_task_filter([85, 79.9, 80]) == ((0, 2), 80) and first_task_filter(
        [70, 50]
    ) == ((0,), 60)
    assert first_task_filter([41, 30, 59]) == ((0, 2), 40)
    assert first_task_filter([10, 20]) == first_task_filter([]) == ((), None)


def test_an_interval_by_hand():
    comparison = paired(
        dict.fromkeys(range(5), 50.0),
        {run: 51.0 + run for run in range(6)},
        dict.fromkeys(range(6), "one"),
    )
    assert comparison.differences == {
        0: 1,
        1: 2,
        2: 3,
        3: 4,
        4: 5,
    } and comparison.units == (
        1,
        2,
        3,
        4,
        5,
    )
    # Standard deviation sqrt(2.5), so standard error sqrt(0.5); t with four degrees of
    # freedom: 2.776.
    assert comparison.mean == 3 and comparison.interval == pytest.approx(
        (3 - 1.963, 3 + 1.963), abs=1e-3
    )
    assert comparison.p == pytest.approx(0.0132, abs=1e-4)  # t = 3 / sqrt(0.5) = 4.243
    assert math.isnan(interval([1.0])[1])


def test_runs_that_share_a_split_are_one_unit():
    ours, theirs = dict.fromkeys(range(4), 10.0), {0: 11.0, 1: 14.0, 2: 13.0, 3: 12.0}
    comparison = paired(ours, theirs, {0: "a", 1: "b", 2: "a", 3: "b"})
    assert comparison.units == (2, 3) and list(comparison.differences.values()) == [
        1,
        4,
        3,
        2,
    ]
    assert comparison.mean == 2.5 and comparison.interval == pytest.approx(
        (2.5 - 12.706 * 0.5, 2.5 + 12.706 * 0.5), abs=1e-3
    )
    assert paired(ours, theirs, dict.fromkeys(range(4), "a")).units == (1, 4, 3, 2), (
        "a fixed test set"
    )


def test_verdicts():
    assert paired({0: 1.0}, {1: 2.0}, {0: "", 1: ""}) is None
    comparison = paired({0: 1.0}, {0: 2.0}, {0: ""})
    assert (
        comparison.mean,
        comparison.interval,
        comparison.p,
        comparison.verdict(None),
    ) == (
        1,
        None,
        None,
        "not decided",
    )
    five = (5.0, 5.1, 5.2, 5.3, 5.4)
    assert Paired({}, five[:4]).verdict(1e-5) == "not decided"
    assert (
        Paired({}, five).verdict(1e-5) == "higher"
        and Paired({}, five).verdict(0.05) == "not shown"
    )
    assert Paired({}, tuple(-value for value in five)).verdict(1e-5) == "lower"
    assert Paired({}, (0.0,) * 5).p == 1 and Paired({}, (2.0,) * 5).p == 0, (
        "no variance"
    )


def test_the_published_table_is_that_of_the_recorded_runs(tmp_path):
    process = called("verdicts", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    published = (verdicts.TABLES / "verdicts.csv").read_text()
    assert (tmp_path / "verdicts.csv").read_text() == published
    fewer = [
        line
        for line in csv.DictReader(published.splitlines())
        if int(line["units"]) < 5
    ]
    assert fewer and all(line["verdict"] == "not decided" for line in fewer)


def test_runs_of_different_images_are_not_paired():
    first = {0: "a", 1: "b"}
    finals = {0: 1.0, 1: 2.0}
    with pytest.raises(ValueError, match=r"run 1: .* saw different images"):
        paired(finals, finals, first, {0: "a", 1: "c"})


def test_unknown_images_are_paired():
    finals = {0: 1.0, 1: 2.0}
    comparison = paired(finals, finals, {0: "a", 1: "b"}, {0: "", 1: "b"})
    assert comparison is not None and comparison.mean == 0


@dataclass
class RunOfSplit:
    """What a figure reads of a run."""

    number: int
    split: str
    accuracy_after: tuple[float, ...]

    @property
    def final(self):
        return self.accuracy_after[-1]


@pytest.mark.parametrize(
    ("splits", "units"), [("aab", [2.0, 8.0]), ("aaa", [1.0, 3.0, 8.0])]
)
def test_figures_show_units(splits, units):
    finals = (1.0, 3.0, 8.0)
    runs = []
    for number, (split, final) in enumerate(zip(splits, finals)):
        runs.append(RunOfSplit(number, split, (final,)))
    finding = Finding(Cell("x", "x", "x", None), tuple(runs))
    assert finding.units == units
    assert curve_of(finding) == {1: units}
