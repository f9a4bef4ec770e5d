"""On real images with real weights, where they are at hand (``CRUMB_TEST_DATA``).

And as recorded by ``golden.py``.
"""

import json
import statistics
import zipfile
from pathlib import Path

import golden
import pytest
import torch
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche import Codebook, CodeBuffer, split_backbone
from crumb_avalanche.cli import main
from crumb_avalanche.models.initialisers import MapStatistics, init_matched_
from crumb_avalanche.models.layers import REFERENCE_SCALE

ETH80 = TEST_DATA / "eth80" / "eth80_128.zip"
WEIGHTS = TEST_DATA / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"
real = pytest.mark.skipif(
    not (ETH80.exists() and WEIGHTS.exists()), reason=f"no ETH-80 in {TEST_DATA}"
)


@pytest.fixture(scope="module")
def images():
    """An image of six classes of ETH-80."""
    transform = pixel_transform()
    tensors = []
    with zipfile.ZipFile(ETH80) as archive:
        for name in ("apple", "car", "cow", "cup", "dog", "horse"):
            file = archive.open(f"eth80/{name}1/{name}1-066-063.jpg")
            tensors.append(transform(Image.open(file).convert("RGB")))
    return torch.stack(tensors)


@pytest.fixture
def network():
    """SqueezeNet with the weights of the paper's authors."""
    codebook = Codebook()
    model = split_backbone("squeezenet1_0", WEIGHTS, n_classes=8, codebook=codebook)
    return model.eval()


@real
def test_statistics_of_real_maps(images, network):
    """Like the reference's maps in sparsity, unlike them in scale (14)."""
    maps = network.features(images)
    assert maps.shape == (6, 512, 13, 13)
    measured = MapStatistics.measure(maps)
    assert not measured.signed
    assert 0.55 < measured.sparsity < 0.75
    assert measured.scale > 50  # which is why it is measured


@real
def test_folding_the_scale_leaves_the_answers(images, network):
    logits = network(images)
    factor = network.fold_feature_scale(network.features(images))
    scale = MapStatistics.measure(network.features(images)).scale
    assert scale == pytest.approx(REFERENCE_SCALE, rel=1e-3)
    bias = network.plastic_layers.head.bias.detach()
    unbiased = network(images) - bias
    torch.testing.assert_close(unbiased / factor, logits - bias, rtol=1e-3, atol=1e-3)


@real
def test_memories_of_real_images(images, network):
    network.fold_feature_scale(network.features(images))
    maps = network.features(images)
    init_matched_(network.codebook, maps, torch.Generator().manual_seed(0))
    assert CodeBuffer.item_bytes(network) == 5408
    assert 0 < (network.codebook(maps) - maps).norm() < maps.norm()


@pytest.fixture(scope="module")
def eth80(tmp_path_factory):
    """The images of ETH-80."""
    folder = tmp_path_factory.mktemp("eth80")
    with zipfile.ZipFile(ETH80) as archive:
        archive.extractall(folder)
    return folder / "eth80"


@pytest.fixture(scope="module")
def run_on_eth80(eth80, tmp_path_factory):
    """Run a strategy three times; return its folder."""
    cache = tmp_path_factory.mktemp("cache")

    def run(strategy):
        output = tmp_path_factory.mktemp(strategy) / "runs"
        options = {
            "--benchmark": "eth80",
            "--dataset-root": eth80,
            "--weights": WEIGHTS,
            "--strategy": strategy,
            "--runs": "0-2",
            "--output": output,
            "--feature-cache": cache,
        }
        arguments = [str(word) for pair in options.items() for word in pair]
        assert main(["run", *arguments]) == 0
        return output

    return run


def mean_accuracy(output):
    summary = json.loads((output / "summary.json").read_text())
    return statistics.fmean(summary["final_accuracy"])


@real
@pytest.mark.slow
def test_eth80_learns_without_forgetting(run_on_eth80):
    """Fine-tuning forgets, CRUMB at the bytes of 15 images does not."""
    finetune = mean_accuracy(run_on_eth80("finetune"))
    crumb = run_on_eth80("crumb")
    accuracy = mean_accuracy(crumb)
    assert finetune < 40
    assert accuracy >= 65
    assert accuracy - finetune >= 30
    ledger = json.loads((crumb / "run0" / "ledger.json").read_text())
    assert ledger["buffer_items"] == 417
    assert ledger["buffer_bytes"] == 417 * 5408
    sizes = {step["buffer_bytes"] for step in ledger["after_experience"]}
    assert sizes == {417 * 5408}


RECORDED = Path(__file__).parent / "data" / "golden_xeon.json"


OLD = {"accuracies": [50.0, 25.0], "answers_digest": "a", "bytes": 7}
NEW = {"accuracies": [50.0, 26.5], "answers_digest": "b", "bytes": 8}
BYTES = "bytes is 7 in the file and 8 now (+1)"


@pytest.mark.parametrize(
    ("old", "new", "same", "lines"),
    [
        (OLD, OLD, True, []),
        (
            OLD,
            NEW,
            True,
            [
                "accuracies 1 is 25.0 in the file and 26.5 now (+1.5)",
                "answers_digest is 'a' in the file and 'b' now",
                BYTES,
            ],
        ),
        (OLD, NEW, False, [BYTES]),
        ({"bytes": 7}, {}, True, ["bytes is only in the file"]),
    ],
)
def test_differences_are_found(old, new, same, lines):
    assert list(golden.differences(old, new, same=same)) == lines


@pytest.mark.slow
def test_accuracies_answers_and_bytes_are_as_recorded(capsys):
    code = golden.main(["compare", str(RECORDED), "--quick", "methods", "learners"])
    assert code == 0, capsys.readouterr().out
