"""Perturbations, drops and advantages of the shape bias by hand, and its networks."""

import csv

import numpy as np
import pytest
import torch
from called_script import called
from fig4_shape_bias import bars_of, lines_of, picture
from PIL import Image
from support.shape_bias import (
    RunDrops,
    advantage_of,
    columns,
    drops_of,
    feature_perturbation,
    spatial_perturbation,
)
from support.statistics import wilcoxon_test


def test_perturbations_shuffle_locations_or_remove_half_of_the_features():
    maps = torch.rand(3, 8, 4, 5, generator=torch.Generator().manual_seed(0)) + 0.1
    moved, again = (spatial_perturbation(maps, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(moved, again)
    orders = []
    for old, new in zip(maps.flatten(2), moved.flatten(2)):
        orders.append([next(i for i in range(20) if torch.equal(old[:, i], new[:, j])) for j in range(20)])
        assert sorted(orders[-1]) == list(range(20)) != orders[-1], "every vector is there once"
    assert orders[0] != orders[1], "each image has an order of its own"
    after = feature_perturbation(maps, torch.Generator().manual_seed(1))
    gone = (after == 0).flatten(2).all(2)
    assert gone.sum(1).tolist() == [4, 4, 4] and not torch.equal(gone[0], gone[1])
    kept = ~gone[:, :, None, None].expand_as(maps)
    assert torch.equal(after[kept], maps[kept])


def test_answers_and_drops_of_batches():
    logits, labels = np.array([[3.0, 2, 1], [1, 3, 2]]), np.array([0, 1])
    for among, answers in ((None, [0, 1]), ([1, 2], [1, 1]), ([2], [2, 2])):
        assert columns(logits, labels, among)["answer"].tolist() == answers
    plain = {"row": np.arange(200), "label": np.zeros(200, int), "answer": np.zeros(200, int)}
    perturbed = {**plain, "answer": np.where(np.arange(200) < 150, 0, 1)}
    drops = drops_of(plain, perturbed)
    assert drops.shape == (2,) and drops.mean() == pytest.approx(0.25)
    some = {name: values[:30] for name, values in perturbed.items()}
    assert drops_of(plain, some).shape == (1,), "other images, fewer batches"


def test_advantage_by_hand():
    runs = [
        RunDrops(0, {"spatial": np.array([0.5, 0.4])}, {"spatial": np.array([0.3, 0.3])}),
        RunDrops(1, {"spatial": np.array([0.2, np.nan])}, {"spatial": np.array([0.3, 0.9])}, kept=False),
    ]
    found = advantage_of(runs, "spatial")
    assert found.mean == pytest.approx((-0.15 + 0.1) / 2) and found.runs == 2
    assert found.error == pytest.approx(0.125)  # deviation 0.25 / sqrt 2, by sqrt 2
    assert found.s4 == wilcoxon_test(np.array([0.5, 0.4, 0.2]), np.array([0.3, 0.3, 0.3])) and found.s4.pairs == 3
    assert found.over_runs.units == pytest.approx((-0.15, 0.1)), "one split, so the run is the unit"
    assert (found.crumb, found.control) == (pytest.approx(1.1 / 3), pytest.approx(0.3))
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
    from crumb_avalanche.runs.command_settings import PretrainSettings

    for number in range(8):
        noise(tmp_path / "images" / ("bear", "clock")[number % 2] / f"{number}.png", number)
    common = dict(data=str(tmp_path / "images"), weights="none", backbone="small_cnn", image_size=32, epochs=1)
    for name, weight in (("crumb", 1.0), ("control", 0.0)):
        own = dict(output=str(tmp_path / f"{name}.safetensors"), codebook_weight=weight, codebook_dim=8)
        pretrain.main(PretrainSettings(**own, **common, threads=1, progress=False))
    options = ["--pretraining-only", "--output", tmp_path / "out", "--pretrained", tmp_path / "crumb.safetensors"]
    options += ["--control-pretrained", tmp_path / "control.safetensors", "--style-root", tmp_path / "images"]
    options += ["--test-root", tmp_path / "images"]
    done = called("fig4_shape_bias", *options)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "out" / "fig4.csv") as file:
        rows = {row["perturbation"]: row for row in csv.DictReader(file)}
    assert {row["condition"] for row in rows.values()} == {"pretraining"}
    if rows["style"]["runs"]:  # the same images in the same style: no drop
        assert float(rows["style"]["drop, CRUMB"]) == 0
    noise(tmp_path / "images" / "worm" / "1.png", 9)
    done = called("fig4_shape_bias", *options)
    assert done.returncode == 1 and "has 3 classes, but" in done.stderr and "was made with 2" in done.stderr
