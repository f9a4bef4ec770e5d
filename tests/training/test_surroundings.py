"""What a user's script has around a strategy.

Autocast, converted models, wrappers, images, types, other hosts.
"""

import copy
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import (
    DataAttribute,
    as_classification_dataset,
    make_avalanche_dataset,
)
from avalanche.distributed import DistributedHelper
from avalanche.evaluation.metrics import loss_metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import (
    Cumulative,
    FromScratchTraining,
    GDumb,
    JointTraining,
    Naive,
)
from host_benchmarks import (
    N_CLASSES,
    OURS,
    STORING,
    coloured_images,
    host_benchmark,
    host_model,
    our_strategy,
)
from small_models import CLASSES, SIZE, coloured, make_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, TensorDataset
from watched import DIRECT, Losses, built, make, same_weights, train

from benchmarks_toybox_ilab import ToyShapesFrames, imagenet_transform, make_benchmark
from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer
from crumb_avalanche.models import search
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.stateful import strategy_state

EXACT = dict(rtol=0, atol=0)


@pytest.mark.parametrize("name", OURS)
def test_a_data_set_without_targets(name):
    # Given an Avalanche data set that does not say the class of each image
    images = make_avalanche_dataset(TensorDataset(*coloured_images().tensors))
    benchmark = benchmark_from_datasets(train=[images], test=[images])
    # When a strategy is trained on it
    # Then the error says what to do
    with pytest.raises(ValueError, match=r"without targets.*as_classification_dataset"):
        our_strategy(name).train(benchmark.train_stream[0])


def test_maps_codes_and_calibration_ignore_autocast(
    make_model, make_stream, pixels, monkeypatch
):
    # Given two equal models of which one is calibrated
    monkeypatch.setattr(search, "_suits_faiss", lambda vectors: False)
    images = make_stream().train_stream[0].dataset
    plain = make_model()
    within = make_model()
    for model in (plain, within):
        model.codebook.blocks.data.zero_()
    calibrate(plain, images)
    # When the other one is calibrated and used within autocast
    with torch.autocast("cpu", torch.bfloat16):
        calibrate(within, images)
        maps = within.features(pixels)
        codes = within.encode(within.features(pixels))
        logits = within.eval()(pixels)
    # Then weights, maps and codes are the same
    same_weights(plain, within, **EXACT)
    assert torch.equal(maps, plain.features(pixels))
    assert torch.equal(codes, plain.encode(maps))
    # And P computes as autocast says
    assert not torch.equal(logits, plain.eval()(pixels))


AUTOCASTS = [(name, "fp32", torch.bfloat16) for name in OURS]
AUTOCASTS += [(name, "bf16", torch.bfloat16) for name in OURS]
AUTOCASTS += [("CRUMBStrategy", "fp32", torch.float16)]


def losses_of(name, model):
    """The losses of evaluations before and after two trainings of a strategy."""
    first = host_benchmark("nc").train_stream[0]
    evaluator = EvaluationPlugin(loss_metrics(experience=True), loggers=[])
    strategy = our_strategy(name, model, evaluator=evaluator, train_epochs=6)
    for _ in range(2):  # an evaluation before training casts without gradients
        strategy.eval(first)
        strategy.train(first, eval_streams=[])
    return [values for _, values in evaluator.get_all_metrics().values()]


@pytest.mark.parametrize("name, precision, dtype", AUTOCASTS)
@pytest.mark.filterwarnings("ignore:this CPU has no instructions for bf16")
def test_a_training_within_autocast(name, precision, dtype):
    """Torch keeps cast weights until the outermost autocast ends: they go stale."""
    # Given the losses of a training without autocast, which are halved
    expected = losses_of(name, host_model())
    assert expected[0][-1] < 0.5 * expected[0][0]
    # When an equal model is trained within autocast
    model = host_model().set_precision(precision)
    with torch.autocast("cpu", dtype):
        losses = losses_of(name, model)
    # Then its losses are close
    torch.testing.assert_close(losses, expected, rtol=0, atol=0.05)


@pytest.mark.slow  # the compiler takes seconds to import
@pytest.mark.parametrize("name", OURS)
def test_a_compiled_model_is_refused(name):
    model = host_model()
    model.compile()
    with pytest.raises(ValueError, match=r"model\.compile\(\).*compile its parts"):
        our_strategy(name, model).train(host_benchmark("nc").train_stream[0])


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["feature_extractor", "plastic_layers"])
def test_compiled_layers_give_the_same_weights(layers):
    # Given two equal models, one with a compiled part
    plain = host_model()
    compiled = host_model()
    getattr(compiled, layers).compile(backend="eager")
    # When both are trained
    for model in (plain, compiled):
        strategy = our_strategy("CRUMBStrategy", model)
        strategy.train(host_benchmark("nc").train_stream)
    # Then they are equal
    same_weights(plain, compiled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mem_size", [1, N_CLASSES - 1])
@pytest.mark.parametrize("kind", ["nc", "class_incremental"])
@pytest.mark.parametrize("name", STORING)
def test_too_few_memories_for_the_announced_classes(name, kind, mem_size):
    strategy = our_strategy(name, buffer=CodeBuffer(mem_size))
    before = copy.deepcopy(strategy.model.state_dict())
    words = (
        f"mem_size={mem_size} cannot hold a memory of each of the 6 classes that come "
        "in all; raise mem_size .* to at least 6"
    )
    with pytest.raises(ValueError, match=words):
        strategy.train(host_benchmark(kind).train_stream[0])
    for key, value in strategy.model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", STORING)
def test_the_first_class_without_room_changes_nothing(name):
    # Given a strategy that learned four classes
    buffer = CodeBuffer(N_CLASSES - 1)
    strategy = our_strategy(name, buffer=buffer)
    first, second, third = host_benchmark("from_datasets").train_stream
    strategy.train(first)
    strategy.train(second)
    before = copy.deepcopy(strategy_state(strategy))
    rows = buffer.rows.clone()
    # When two come of which one has no room
    words = "mem_size=5 cannot hold a memory of each of the 6 classes seen so far"
    with pytest.raises(ValueError, match=words):
        strategy.train(third)
    # Then it is as before
    after = strategy_state(strategy)
    assert torch.equal(buffer.rows, rows)
    assert after["plugins"] == before["plugins"]
    assert after["clock"] == before["clock"]
    for key, value in before["model"].items():
        assert torch.equal(after["model"][key], value)


def test_an_ema_of_the_model_follows_calibration():
    """A copy that was made before the first experience has its scale, too."""
    # Given a model that is not calibrated, and its average
    torch.manual_seed(0)
    model = split_backbone("small_cnn", None, n_classes=6, image_size=16, codebook=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0))

    class Average(SupervisedPlugin):
        def after_update(self, strategy, **kwargs):
            average.update_parameters(strategy.model)

    # When the model is trained
    strategy = our_strategy("CRUMBStrategy", model, plugins=[Average()])
    strategy.train(host_benchmark("nc").train_stream)
    # Then both are calibrated
    images = coloured_images().tensors[0]
    assert float(model.feature_scale) != 1
    assert torch.equal(average.eval()(images), model.eval()(images))


def test_a_model_stays_float32(model):
    words = r"weights of a SplitModel stay float32.*set_precision\('bf16'\)"
    with pytest.raises(TypeError, match=words):
        model.half()


def test_layers_of_16_bits_are_refused(model, make_stream):
    # Given a model whose P is of 16 bits
    model.plastic_layers.half()
    # When it is trained
    # Then the error says what to do
    words = r"plastic_layers.conv.weight is torch.*call .float\(\)"
    with pytest.raises(TypeError, match=words):
        train(model, make_stream(), CodeBuffer(7))
    # And that helps
    model.float()
    train(model, make_stream(), CodeBuffer(7))


def test_a_wrapped_model_says_what_to_give(model, make_stream):
    wrapped = nn.DataParallel(model)
    with pytest.raises(TypeError, match="give the model inside it"):
        train(wrapped, make_stream(), CodeBuffer(7))


def test_a_wrapped_model_of_naive_says_what_to_give(model, make_stream):
    wrapped = nn.DataParallel(model)
    with pytest.raises(TypeError, match="give the model inside it"):
        strategy, _ = in_host(Naive, wrapped, CodeBuffer(7))
        strategy.train(make_stream().train_stream[0])


def labelled_stream(dtype):
    """Two experiences of two classes each, whose labels are of a type."""
    images, labels = coloured().tensors
    datasets = []
    for is_shown in (labels < 2, labels >= 2):
        targets = labels[is_shown].to(dtype)
        dataset = make_avalanche_dataset(
            TensorDataset(images[is_shown], targets),
            data_attributes=[DataAttribute(targets, "targets")],
        )
        datasets.append(dataset)
    return benchmark_from_datasets(train=datasets, test=datasets)


def test_labels_may_be_of_16_bits(make_model):
    # Given two equal models
    models = {torch.int64: make_model(), torch.int16: make_model()}
    # When they learn the same images with labels of 64 and 16 bits
    for dtype, model in models.items():
        stream = labelled_stream(dtype)
        train(model, stream, CodeBuffer(7)).eval(stream.test_stream)
    # Then they are equal
    same_weights(*models.values(), **EXACT)


def test_labels_may_not_be_fractions(model):
    words = r"the labels of a batch are torch.float32 of shape"
    with pytest.raises(TypeError, match=words):
        train(model, labelled_stream(torch.float32), CodeBuffer(7))


def in_host(host, model, buffer, **arguments):
    """A strategy of Avalanche with CRUMB and its mask, and the losses of its steps."""
    seen = SeenClassesPlugin()
    losses = Losses(lambda strategy: 0)
    codebook_weight = 1.0 if isinstance(buffer, CodeBuffer) else 0.0
    plugin = CRUMBPlugin(
        buffer, codebook_weight=codebook_weight, direct_weight=1, seen=seen
    )
    arguments["criterion"] = nn.CrossEntropyLoss()
    strategy = make(host, model, seen, plugin, losses, **arguments)
    return strategy, losses


@pytest.mark.parametrize("host", [Cumulative, JointTraining])
def test_strategies_that_train_on_all_experiences_take_the_plugin(
    host, model, make_stream
):
    # Given a strategy that trains on all experiences
    buffer = CodeBuffer(8)
    strategy, losses = in_host(host, model, buffer)
    # When it learns a stream, at once or one experience after the other
    stream = make_stream().train_stream
    if host is JointTraining:
        strategy.train(stream)
    else:
        for experience in stream:
            strategy.train(experience)
    # Then no class that it trains on is masked, and each has two memories
    assert max(losses.losses) < 20
    assert [buffer.slots.count(label) for label in range(4)] == [2] * 4


RESETTING = [(GDumb, {"mem_size": 20}), (FromScratchTraining, {})]


@pytest.mark.parametrize("host, arguments", RESETTING)
def test_a_model_put_back_cannot_have_codes(host, arguments, model, make_stream):
    strategy, _ = in_host(host, model, CodeBuffer(8), **arguments)
    words = r"puts the model back to its first weights .* or give it an ImageBuffer"
    with pytest.raises(ValueError, match=words):
        strategy.train(make_stream().train_stream[0])


@pytest.mark.parametrize("host, arguments", RESETTING)
def test_a_model_put_back_may_have_images(host, arguments, model, make_stream):
    strategy, losses = in_host(host, model, ImageBuffer(8), **arguments)
    for experience in make_stream().train_stream:
        strategy.train(experience)
    assert max(losses.losses) < 20


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_training_needs_gradients(model, make_stream, context):
    words = r"has no gradient: call train outside of torch\.no_grad"
    with context(), pytest.raises(ValueError, match=words):
        train(model, make_stream(), CodeBuffer(7))


def test_training_needs_weights(model, make_stream):
    with pytest.raises(ValueError, match="leave requires_grad of some weights"):
        train(model.requires_grad_(False), make_stream(), CodeBuffer(7))


@pytest.fixture
def trained(make_model, make_stream):
    """A model that was trained, and evaluated, with torch's own defaults."""
    model = make_model()
    stream = make_stream()
    train(model, stream, CodeBuffer(7)).eval(stream.test_stream)
    return model


@contextmanager
def torch_defaults(set_default, default):
    """Set a default of torch, and restore it on exit."""
    set_default(default)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("set_default", "default"),
    [
        pytest.param(torch.set_default_device, "meta", id="device"),
        pytest.param(torch.set_default_dtype, torch.float64, id="dtype"),
    ],
)
def test_defaults_of_torch_do_not_matter(
    set_default, default, trained, model, make_stream
):
    stream = make_stream()
    with torch_defaults(set_default, default):
        train(model, stream, CodeBuffer(7)).eval(stream.test_stream)
    same_weights(trained, model, **EXACT)


def test_an_evaluation_in_inference_mode_does_not_matter(trained, model, make_stream):
    stream = make_stream()
    strategy = train(model, stream, CodeBuffer(7))
    with torch.inference_mode():
        strategy.eval(stream.test_stream)
    same_weights(trained, model, **EXACT)


def test_training_in_several_processes_is_refused(model, make_stream, monkeypatch):
    # Given a process that is one of two
    world_size = property(lambda helper: 2)
    monkeypatch.setattr(type(DistributedHelper), "world_size", world_size)
    before = model.plastic_layers.head.weight.clone()
    strategy, _ = in_host(Naive, model, CodeBuffer(7))
    # When it trains
    # Then the error says what to do, and nothing is learned
    words = r"one of 2 processes.*train in one process, without torchrun"
    with pytest.raises(RuntimeError, match=words):
        strategy.train(make_stream().train_stream[0])
    assert torch.equal(model.plastic_layers.head.weight, before)


class Pixels(Dataset):
    """Twelve random images of two classes, passed through a transform.

    Each has a black and a white pixel.
    """

    def __init__(self, transform):
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (12, 3, 16, 16), generator=generator)
        self.images = images.byte()
        self.images[:, :, 0, 0] = 0
        self.images[:, :, 0, 1] = 255
        self.targets = 6 * [0, 1]
        self.transform = transform

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        return self.transform(image), self.targets[index]


def times_255(image):
    return image * 255


def stored_pixels(dataset, model):
    """Train on a data set once, and return the stored pixels in its order."""
    buffer = ImageBuffer(12)
    strategy = make(CRUMBStrategy, model, storage_policy=buffer, **DIRECT)
    images = as_classification_dataset(dataset)
    benchmark = benchmark_from_datasets(train=[images], test=[images])
    strategy.train(benchmark.train_stream[0])
    return buffer.rows


def test_pixels_of_a_normalisation_that_is_set():
    # Given images of 0 to 255, and a model with their normalisation
    dataset = Pixels(times_255)
    model = make_model(codebook=False)
    model.set_normalization([0.0], [1 / 255])
    # When it stores them
    rows = stored_pixels(dataset, model)
    # Then pixels and features are theirs
    assert torch.equal(rows, dataset.images)
    features = model.features(rows)
    expected = model.features(dataset.images.float())
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-3)


def test_pixels_out_of_range_are_an_error():
    model = make_model(codebook=False)
    words = r"pixels would be from .* not 0 to 255.*mean \[0.485.*set_normalization"
    with pytest.raises(ValueError, match=words):
        stored_pixels(Pixels(times_255), model)


ROW = 3  # of the table; in the first experience


def damaged_stream(value=None):
    """A stream, with a value put into one of its images unless it is ``None``."""
    table = ToyShapesFrames(
        classes=CLASSES,
        objects_per_class=2,
        sessions=2,
        frames_per_clip=5,
        size=SIZE,
        held_out_sessions=(1,),
    )
    to_tensor = imagenet_transform(SIZE)
    damaged = table.read(ROW)

    def transform(image):
        pixels = to_tensor(image)
        if value is not None and np.array_equal(image, damaged):
            pixels[0, 3, 3] = value
        return pixels

    return make_benchmark(table, "class_instance", 0, 2, transform, transform)


DAMAGED = (
    r"1 of \d+ images have feature maps .*\(number \d+ of its batch\).*finite and "
    r"at most 1e\+12"
)


@pytest.mark.parametrize(
    "name, value", [("slda", "nan"), ("crumb", 3e38), ("er", "inf")]
)
def test_nothing_is_accumulated_of_a_batch_with_a_damaged_image(name, value, model):
    # Given a stream with a damaged image, and batches of an experience
    stream = damaged_stream(float(value))
    strategy = built(name, model, 8, {"batch_size": 21})
    # When it is learned
    # Then the error names the image
    with pytest.raises(BadFeaturesError, match=DAMAGED):
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
    # And nothing is stored
    if hasattr(strategy, "statistics"):
        assert not strategy.statistics.image_counts.any()
    else:
        assert len(strategy.storage_policy) == 0
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    # And the undamaged image can be learned
    strategy.train(damaged_stream().train_stream[0], eval_streams=[])
    # And an evaluation names the image, too
    with pytest.raises(BadFeaturesError, match=DAMAGED):
        strategy.eval(stream.train_stream[0])
