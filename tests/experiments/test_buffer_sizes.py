"""The formula gives the paper's counts, and true bytes are those of buffer and codebook."""

import csv

import pytest
from buffer_sizes import formula, remind_formula, size_of
from called_script import called
from support.paper_numbers import read_paper_numbers

SQUEEZENET = (512, 13, 13)


@pytest.mark.parametrize(
    "images, length, memories",
    [(15, 16, 416.8), (30, 16, 834.3), (100, 16, 2782.7), (10_000, 16, 278_342), (15, 8, 208.6), (100, 32, 5563.8)],
)
def test_formula_by_hand(images, length, memories):
    by_hand = (images * 150_528 - 256 * length) / (86_528 / length)
    assert formula(images, SQUEEZENET, 256, length) == pytest.approx(by_hand)
    assert by_hand == pytest.approx(memories, abs=0.5)


def test_formula_of_remind():
    paper = read_paper_numbers()
    assert remind_formula(10_000, SQUEEZENET, paper) == pytest.approx(
        paper.find("s5", "imagenet", "", "remind", "n_x").value, abs=1
    )


def test_counts_and_bytes():
    from crumb_avalanche.models.backbones import split_backbone
    from crumb_avalanche.models.codebook import Codebook
    from crumb_avalanche.training.storage_policies import CodeBuffer

    model = split_backbone(weights=None, n_classes=10, codebook=Codebook(256, 16))
    paper = read_paper_numbers()
    for name in ("core50", "icub", "cifar100", "imagenet"):
        size = size_of(name, model, paper)
        assert size.difference == 0, name
        assert size.true_bytes == size.ours * (5408 + 2) + 4 * 256 * 16
        assert size.exact_bytes <= size.budget < size.exact_bytes + CodeBuffer.item_bytes(model)


def test_quick(tmp_path):
    done = called("buffer_sizes", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "buffer_sizes.csv") as file:
        (row,) = csv.DictReader(file)
    assert (row["paper"], row["ours"], row["budget"]) == ("417.0", "417", str(15 * 150_528))
    assert (tmp_path / "buffer_sizes.png").stat().st_size > 5000
