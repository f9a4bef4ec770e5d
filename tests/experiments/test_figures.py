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
from fig4_shape_bias import HEADER, bars_of, lines_of, picture, pretrained_network
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
from crumb_avalanche.runs import pretrain
from crumb_avalanche.runs.model import build_model
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.pretraining import save_pretrained


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def maps():
    """Maps of three images ``(3, 8, 4, 5)`` without zeros."""
    return torch.rand(3, 8, 4, 5, generator=seeded(0)) + 0.1


def order_of(before, after):
    """The location before of each location after, of maps ``(C, H, W)``."""
    before = before.flatten(1)
    after = after.flatten(1)
    is_same = (after[:, :, None] == before[:, None, :]).all(0)  # (after, before)
    return is_same.nonzero()[:, 1].tolist()


def test_a_seed_gives_the_same_spatial_perturbation(maps):
    moved = spatial_perturbation(maps, seeded(1))
    assert torch.equal(moved, spatial_perturbation(maps, seeded(1)))


@pytest.mark.parametrize("image", range(3))
def test_a_spatial_perturbation_shuffles_the_locations(maps, image):
    moved = spatial_perturbation(maps, seeded(1))
    order = order_of(maps[image], moved[image])
    assert sorted(order) == list(range(20)), "every vector is there once"
    assert order != list(range(20))


def test_a_spatial_perturbation_shuffles_each_image_in_another_order(maps):
    moved = spatial_perturbation(maps, seeded(1))
    assert order_of(maps[0], moved[0]) != order_of(maps[1], moved[1])


def test_a_feature_perturbation_removes_half_of_the_features(maps):
    perturbed = feature_perturbation(maps, seeded(1))
    is_removed = (perturbed == 0).flatten(2).all(2)  # (B, C)
    assert is_removed.sum(1).tolist() == [4, 4, 4]
    assert not torch.equal(is_removed[0], is_removed[1])
    assert torch.equal(perturbed[~is_removed], maps[~is_removed])


@pytest.mark.parametrize(
    ("among", "answers"), [(None, [0, 1]), ([1, 2], [1, 1]), ([2], [2, 2])]
)
def test_answers_among_some_classes(among, answers):
    logits = np.array([[3.0, 2, 1], [1, 3, 2]])
    labels = np.array([0, 1])
    assert columns(logits, labels, among)["answer"].tolist() == answers


def answers_right(right, images=200):
    """Columns of images of class 0, of which the first are answered right."""
    rows = np.arange(images)
    answers = np.where(rows < right, 0, 1)
    return {"row": rows, "label": np.zeros(images, int), "answer": answers}


def test_drops_of_batches():
    drops = drops_of(answers_right(200), answers_right(150))
    assert drops.shape == (2,)
    assert drops.mean() == pytest.approx(0.25)


def test_other_images_of_fewer_batches_have_fewer_drops():
    drops = drops_of(answers_right(200), answers_right(30, images=30))
    assert drops.shape == (1,)


@pytest.fixture(scope="module")
def runs_with_drops():
    """Two runs, of which one fails the first-task filter and has a batch without a
    drop.
    """
    first = RunDrops(
        number=0,
        crumb={"spatial": np.array([0.5, 0.4])},
        control={"spatial": np.array([0.3, 0.3])},
    )
    second = RunDrops(
        number=1,
        crumb={"spatial": np.array([0.2, np.nan])},
        control={"spatial": np.array([0.3, 0.9])},
        passed=False,
    )
    return [first, second]


def test_advantage_by_hand(runs_with_drops):
    advantage = advantage_of(runs_with_drops, "spatial")
    assert advantage.runs == 2
    assert advantage.mean == pytest.approx((-0.15 + 0.1) / 2)
    # The standard deviation is 0.25 / sqrt 2; the error divides it by sqrt 2 again.
    assert advantage.error == pytest.approx(0.125)
    assert advantage.crumb == pytest.approx(1.1 / 3)
    assert advantage.control == pytest.approx(0.3)


def test_the_papers_test_of_an_advantage_leaves_out_batches_without_drop(
    runs_with_drops,
):
    advantage = advantage_of(runs_with_drops, "spatial")
    crumb = np.array([0.5, 0.4, 0.2])
    control = np.array([0.3, 0.3, 0.3])
    assert advantage.s4 == wilcoxon_test(crumb, control)
    assert advantage.s4.pairs == 3


def test_runs_of_one_split_are_units_of_an_advantage(runs_with_drops):
    advantage = advantage_of(runs_with_drops, "spatial")
    assert advantage.over_runs.units == pytest.approx((-0.15, 0.1))


def test_no_drops_have_no_advantage(runs_with_drops):
    assert advantage_of(runs_with_drops, "style") is None
    assert advantage_of([], "spatial") is None


@pytest.fixture(scope="module")
def bars(runs_with_drops):
    return bars_of("a stream", runs_with_drops)


def test_a_bar_has_filtered_runs_beside_all(bars):
    spatial, feature, _ = bars
    assert spatial.filtered.runs == 1
    assert feature.all_runs is None


def test_a_line_of_a_bar(bars):
    line = dict(zip(HEADER, lines_of(bars)[0]))
    assert line["the paper"] == "-"
    assert line["advantage"] == "-0.0250"
    assert line["standard error"] == "0.1250"
    assert line["verdict"] == "not decided"
    assert line["drop, CRUMB"] == "0.3667"
    assert line["drop, control"] == "0.3000"
    assert line["runs"] == "2"
    assert line["filtered: advantage"] == "-0.1500"
    assert line["runs kept"] == "1"
    assert line["pairs in S4"] == "3"


def test_lines_of_perturbations_without_drops_are_empty(bars):
    _, feature, style = lines_of(bars)
    assert feature[2:] == ["+"] + [""] * 15
    assert style[3:] == [""] * 15


def test_a_picture_of_bars_is_drawn(bars):
    assert picture(bars, "A title").axes[0].containers


def write_noise(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_bears_and_clocks(folder):
    """Four images of noise for each of two classes."""
    for number in range(0, 8, 2):
        write_noise(folder / "bear" / f"{number}.png", seed=number)
        write_noise(folder / "clock" / f"{number + 1}.png", seed=number + 1)
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The folder of two networks pretrained on bears and clocks, CRUMB's and its
    control.
    """
    folder = tmp_path_factory.mktemp("pretrained")
    images = write_bears_and_clocks(folder / "images")
    for name, codebook_weight in (("crumb", 1.0), ("control", 0.0)):
        settings = PretrainSettings(
            data=str(images),
            output=str(folder / f"{name}.safetensors"),
            codebook_weight=codebook_weight,
            codebook_dim=8,
            weights="none",
            backbone="small_cnn",
            image_size=32,
            epochs=1,
            threads=1,
            progress=False,
        )
        pretrain.main(settings)
    return folder


def shape_bias_of(pretrained, images, output):
    """Call the script with these networks and the same images in the same style."""
    options = ["--pretraining-only", "--output", output]
    options += ["--pretrained", pretrained / "crumb.safetensors"]
    options += ["--control-pretrained", pretrained / "control.safetensors"]
    options += ["--style-root", images, "--test-root", images]
    return called("fig4_shape_bias", *options)


@pytest.mark.slow
def test_pretrained_networks_have_no_drop_on_the_same_images(pretrained, tmp_path):
    process = shape_bias_of(pretrained, pretrained / "images", tmp_path)
    assert process.returncode == 0, process.stderr
    with open(tmp_path / "fig4.csv") as file:
        rows = {row["perturbation"]: row for row in csv.DictReader(file)}
    assert {row["condition"] for row in rows.values()} == {"pretraining"}
    assert rows["style"]["runs"] == "1"
    assert float(rows["style"]["drop, CRUMB"]) == 0


@pytest.mark.slow
def test_pretrained_networks_of_fewer_classes_are_refused(pretrained, tmp_path):
    images = write_bears_and_clocks(tmp_path / "images")
    write_noise(images / "worm" / "1.png", seed=9)
    process = shape_bias_of(pretrained, images, tmp_path / "out")
    assert process.returncode == 1
    assert "has 3 classes, but" in process.stderr
    assert "was made with 2" in process.stderr


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
    rebuilt = pretrained_network(file)
    assert rebuilt.codebook.settings == model.codebook.settings
    assert rebuilt.map_shape == model.map_shape
    same_weights(rebuilt, model)


@pytest.fixture
def model_of_unit_blocks():
    """A model with maps of two groups of three channels, whose blocks are zero and the
    three unit vectors.
    """
    codebook = Codebook(4, 3)
    codebook.blocks.data = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
    plastic_layers.add_module("flatten", nn.Flatten())
    plastic_layers.add_module("head", nn.Linear(6, 2))
    return SplitModel(
        nn.Conv2d(3, 6, 1), plastic_layers, "head", codebook, image_size=4
    )


def block_of(values):
    """The unit vector nearest to a slice of a map, -1 where all values are zero."""
    if not values.any():
        return -1
    return 1 + int(values.argmax())


def test_usage_against_a_loop(model_of_unit_blocks):
    maps = torch.rand(5, 6, 3, 2, generator=seeded(0))
    maps[maps < 0.5] = 0
    counts = [0, 0, 0, 0]
    zeros = 0
    first_codes = np.zeros((5, 3, 2), int)
    for image, row, column in np.ndindex(first_codes.shape):
        features = maps[image, :, row, column]
        first_codes[image, row, column] = block_of(features[:3])
        for block in (block_of(features[:3]), block_of(features[3:])):
            if block == -1:
                zeros += 1
            else:
                counts[block] += 1

    usage = usage_of(model_of_unit_blocks, iter(maps.split(2)))

    assert usage.counts.tolist() == counts
    assert usage.zeros == zeros
    assert (usage.codes == first_codes).all()
    assert usage.shares.tolist() == (np.array(counts) / sum(counts)).tolist()


def test_statistics_of_usage_before_and_after():
    codes = np.zeros((3, 1, 1))
    before = Usage(np.array([5, 5, 0]), 10, codes)
    after = Usage(np.array([0, 4, 4]), 0, codes)
    statistics = {name: values for name, *values in summary(before, after)}
    assert statistics["slices that are all zero, %"] == ["50.00", "0.00"]
    assert statistics["blocks never used"] == ["1", "1"]
    assert statistics["as varied as so many equal blocks"] == ["2.0", "2.0"]


@pytest.fixture
def run_folder(ran, tmp_path):
    """The folder of a run, and its final accuracy."""
    result, _ = ran(tmp_path)
    return tmp_path, result["final_accuracy"]


def settings_of_folder(folder):
    return RunSettings(**yaml.safe_load((folder / "config.yaml").read_text()))


def test_a_rebuilt_run_has_its_accuracy(run_folder):
    folder, final_accuracy = run_folder
    run = rebuild(settings_of_folder(folder))
    answers = logits_of(run.after, run.batches())[PLAIN].argmax(1)
    accuracy = 100 * (answers == run.table.labels[run.rows]).mean()
    assert accuracy == pytest.approx(final_accuracy)


def test_a_run_without_its_learner_cannot_be_rebuilt(run_folder):
    folder, _ = run_folder
    (folder / "learner.safetensors").unlink()
    words = r"has no learner.safetensors; run it again with --keep-learner"
    with pytest.raises(ValueError, match=words):
        rebuild(settings_of_folder(folder))


def test_batches_hold_each_image_once():
    batches = fixed_batches(2250)
    assert batches.shape == (22, 100)
    assert len(np.unique(batches)) == 2200
    assert batches.max() < 2250


def test_batches_are_the_same_in_every_call():
    np.testing.assert_array_equal(fixed_batches(2250), fixed_batches(2250))


def test_batches_are_random():
    first = np.sort(fixed_batches(2250)[0])
    assert not np.array_equal(first, np.arange(100))


def test_few_images_are_one_batch():
    assert fixed_batches(30).shape == (1, 30)


def test_t_test_by_hand():
    # Differences 1, 2, 0, 3: mean 1.5, variance 5/3, t = 1.5 / sqrt(5/12) = 2.324 at 3
    # degrees of freedom, where the distribution function is 1/2 + (u / (1 + u^2) + atan
    # u) / pi with u = t / sqrt 3, u^2 = 1.8.
    u = math.sqrt(1.8)
    p = 2 * (0.5 - (u / 2.8 + math.atan(u)) / math.pi)
    test = paired_t_test(np.array([1, 2, 3, 4]), np.array([2, 4, 3, 7]))
    assert test.pairs == 4
    assert test.difference == 1.5
    assert test.p == pytest.approx(p)
    assert test.p == pytest.approx(0.1027, abs=1e-4)


def test_wilcoxon_by_hand():
    # The negative difference has rank 3; of the 32 signs of five ranks 5 have a sum up
    # to 3, on either side.
    test = wilcoxon_test(np.zeros(5), np.array([1, 2, -3, 4, 5]))
    assert test.p == pytest.approx(10 / 32)
    assert test.difference == pytest.approx(1.8)


@pytest.mark.parametrize("test", [paired_t_test, wilcoxon_test])
def test_equal_pairs_do_not_differ(test):
    values = np.array([1.0, 2.0])
    assert test(values, values) == Comparison(2, 0.0, 1.0)


@pytest.mark.parametrize("test", [paired_t_test, wilcoxon_test])
def test_no_pairs_have_no_p_value(test):
    assert test(np.array([]), np.array([])) == Comparison(0, 0.0, None)


def test_a_t_test_of_equal_differences_is_certain():
    values = np.array([1.0, 2.0])
    assert paired_t_test(values, values + 3) == Comparison(2, 3.0, 0.0)


def test_a_t_test_of_one_pair_has_no_p_value():
    assert paired_t_test(np.array([1.0]), np.array([1.0])).p is None


def test_relative_drops_by_hand():
    drops = relative_drops(np.array([80.0, 50.0, 0.0]), np.array([60.0, 60.0, 0.0]))
    np.testing.assert_allclose(drops, [0.25, -0.2, np.nan])


def test_holm_by_hand():
    corrected = holm([0.01, 0.04, 0.03, None])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, None])


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [([0.5, 0.9], [1.0, 1.0]), ([], []), ([None], [None])],
    ids=["at most 1", "no values", "no value of a test"],
)
def test_holm_at_its_limits(p_values, corrected):
    assert holm(p_values) == corrected


@pytest.mark.parametrize(
    ("accuracies", "indices", "cut"),
    [
        ([85, 79.9, 80], (0, 2), 80),
        ([70, 50], (0,), 60),
        ([41, 30, 59], (0, 2), 40),
        ([10, 20], (), None),
        ([], (), None),
    ],
    ids=["80 %", "60 %", "40 %", "all fail", "no runs"],
)
def test_the_first_task_filter_lowers_its_cut_until_a_run_passes(
    accuracies, indices, cut
):
    assert first_task_filter(accuracies) == (indices, cut)


def test_an_interval_by_hand():
    reference = dict.fromkeys(range(5), 50.0)
    accuracies = {run: 51.0 + run for run in range(6)}
    comparison = paired(reference, accuracies, dict.fromkeys(range(6), "a"))
    assert comparison.differences == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}
    assert comparison.units == (1, 2, 3, 4, 5)
    assert comparison.mean == 3
    # Standard deviation sqrt(2.5), so standard error sqrt(0.5); t with four degrees of
    # freedom: 2.776.
    expected = (3 - 1.963, 3 + 1.963)
    assert comparison.interval == pytest.approx(expected, abs=1e-3)
    assert comparison.p == pytest.approx(0.0132, abs=1e-4)  # t = 3 / sqrt(0.5) = 4.243


def test_an_interval_of_one_value_has_no_width():
    _, half_width = interval([1.0])
    assert math.isnan(half_width)


# Accuracies of two methods in four runs.
REFERENCE = {0: 10.0, 1: 10.0, 2: 10.0, 3: 10.0}
COMPARED = {0: 11.0, 1: 14.0, 2: 13.0, 3: 12.0}


def test_runs_that_share_a_split_are_one_unit():
    comparison = paired(REFERENCE, COMPARED, {0: "a", 1: "b", 2: "a", 3: "b"})
    assert comparison.units == (2, 3)
    assert list(comparison.differences.values()) == [1, 4, 3, 2]
    assert comparison.mean == 2.5
    expected = (2.5 - 12.706 * 0.5, 2.5 + 12.706 * 0.5)
    assert comparison.interval == pytest.approx(expected, abs=1e-3)


def test_runs_of_a_fixed_test_set_are_units():
    comparison = paired(REFERENCE, COMPARED, dict.fromkeys(range(4), "a"))
    assert comparison.units == (1, 4, 3, 2)


def test_other_runs_are_not_paired():
    assert paired({0: 1.0}, {1: 2.0}, {0: "", 1: ""}) is None


def test_one_run_decides_nothing():
    comparison = paired({0: 1.0}, {0: 2.0}, {0: ""})
    assert comparison.mean == 1
    assert comparison.interval is None
    assert comparison.p is None
    assert comparison.verdict(None) == "not decided"


HIGHER = (5.0, 5.1, 5.2, 5.3, 5.4)
LOWER = (-5.0, -5.1, -5.2, -5.3, -5.4)


@pytest.mark.parametrize(
    ("units", "p", "verdict"),
    [
        (HIGHER[:4], 1e-5, "not decided"),
        (HIGHER, 1e-5, "higher"),
        (HIGHER, 0.05, "not shown"),
        (LOWER, 1e-5, "lower"),
    ],
    ids=["four units", "higher", "p of 0.05", "lower"],
)
def test_verdicts(units, p, verdict):
    assert Paired({}, units).verdict(p) == verdict


@pytest.mark.parametrize(("difference", "p"), [(0.0, 1), (2.0, 0)])
def test_units_without_variance(difference, p):
    assert Paired({}, (difference,) * 5).p == p


def test_the_published_table_is_that_of_the_recorded_runs(tmp_path):
    process = called("verdicts", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    published = (verdicts.TABLES / "verdicts.csv").read_text()
    assert (tmp_path / "verdicts.csv").read_text() == published


def test_published_rows_of_fewer_than_five_units_are_not_decided():
    with open(verdicts.TABLES / "verdicts.csv") as file:
        rows = list(csv.DictReader(file))
    verdicts_of_few = {row["verdict"] for row in rows if int(row["units"]) < 5}
    assert verdicts_of_few == {"not decided"}


def test_runs_of_different_images_are_not_paired():
    finals = {0: 1.0, 1: 2.0}
    with pytest.raises(ValueError, match=r"run 1: .* saw different images"):
        paired(finals, finals, {0: "a", 1: "b"}, {0: "a", 1: "c"})


def test_unknown_images_are_paired():
    finals = {0: 1.0, 1: 2.0}
    comparison = paired(finals, finals, {0: "a", 1: "b"}, {0: "", 1: "b"})
    assert comparison is not None
    assert comparison.mean == 0


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
