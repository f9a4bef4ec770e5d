"""What a user's script has around a strategy.

Autocast, converted models, wrappers, images, types, other hosts.
"""

import copy

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
    monkeypatch.setattr(search, "_suits_faiss", lambda vectors: False)
    plain, other, images = (
        make_model(),
        make_model(),
        make_stream().train_stream[0].dataset,
    )
    for model in (plain, other):
        model.codebook.blocks.data.zero_()
    calibrate(plain, images)
    with torch.autocast("cpu", torch.bfloat16):
        calibrate(other, images)
        maps, codes = other.features(pixels), other.encode(other.features(pixels))
        logits = other.eval()(pixels)
    same_weights(plain, other, **EXACT)
    assert torch.equal(maps, plain.features(pixels)) and torch.equal(
        codes, plain.encode(maps)
    )
    assert not torch.equal(
        logits, plain.eval()(pixels)
    )  # P is what autocast was asked for


AUTOCASTS = [(name, "fp32", torch.bfloat16) for name in OURS]
AUTOCASTS += [(name, "bf16", torch.bfloat16) for name in OURS]
AUTOCASTS += [("CRUMBStrategy", "fp32", torch.float16)]


@pytest.mark.parametrize("name, precision, dtype", AUTOCASTS)
@pytest.mark.filterwarnings("ignore:this CPU has no instructions for bf16")
def test_a_training_within_autocast(name, precision, dtype):
    """Torch keeps cast weights until the outermost autocast ends: they go stale."""

    def losses(model):
        first = host_benchmark("nc").train_stream[0]
        evaluator = EvaluationPlugin(loss_metrics(experience=True), loggers=[])
        strategy = our_strategy(name, model, evaluator=evaluator, train_epochs=6)
        for _ in range(2):  # an evaluation before training casts without gradients
            strategy.eval(first)
            strategy.train(first, eval_streams=[])
        return [values for _, values in evaluator.get_all_metrics().values()]

    expected = losses(host_model())
    with torch.autocast("cpu", dtype):
        within = losses(host_model().set_precision(precision))
    torch.testing.assert_close(within, expected, rtol=0, atol=0.05)
    assert expected[0][-1] < 0.5 * expected[0][0]  # something was learned


@pytest.mark.slow  # the compiler takes seconds to import
@pytest.mark.parametrize("name", OURS)
def test_a_compiled_model_is_refused(name):
    model = host_model()
    model.compile()
    with pytest.raises(ValueError, match=r"model\.compile\(\).*compile its parts"):
        our_strategy(name, model).train(host_benchmark("nc").train_stream[0])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["feature_extractor", "plastic_layers"])
def test_compiled_parts_give_the_same_weights(part):
    models = [host_model(), host_model()]
    getattr(models[1], part).compile(backend="eager")
    for model in models:
        strategy = our_strategy("CRUMBStrategy", model)
        strategy.train(host_benchmark("nc").train_stream)
    same_weights(*models, rtol=1e-5, atol=1e-6)


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
    buffer = CodeBuffer(N_CLASSES - 1)
    strategy = our_strategy(name, buffer=buffer)
    first, second, third = host_benchmark("from_datasets").train_stream
    strategy.train(first)
    strategy.train(second)
    state = copy.deepcopy(strategy_state(strategy))
    rows = buffer.rows.clone()
    words = "mem_size=5 cannot hold a memory of each of the 6 classes seen so far"
    with pytest.raises(ValueError, match=words):
        strategy.train(third)
    after = strategy_state(strategy)
    assert torch.equal(buffer.rows, rows)
    assert after["plugins"] == state["plugins"]
    assert after["clock"] == state["clock"]
    for key, value in state["model"].items():
        assert torch.equal(after["model"][key], value)


def test_an_ema_of_the_model_follows_calibration():
    """A copy that was made before the first experience has the scale of it, too."""
    torch.manual_seed(0)
    model = split_backbone("small_cnn", None, n_classes=6, image_size=16, codebook=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0))

    class Average(SupervisedPlugin):
        def after_update(self, strategy, **kwargs):
            average.update_parameters(strategy.model)

    strategy = our_strategy("CRUMBStrategy", model, plugins=[Average()])
    strategy.train(host_benchmark("nc").train_stream)
    images = coloured_images().tensors[0]
    assert float(model.feature_scale) != 1
    assert torch.equal(average.eval()(images), model.eval()(images))


def test_a_model_stays_float32(make_model, make_stream):
    with pytest.raises(
        TypeError,
        match=r"weights of a SplitModel stay float32.*set_precision\('bf16'\)",
    ):
        make_model().half()
    model = make_model()
    model.plastic_layers.half()
    with pytest.raises(
        TypeError, match=r"plastic_layers.conv.weight is torch.*call .float\(\)"
    ):
        train(model, make_stream(), CodeBuffer(7))
    model.float()
    train(model, make_stream(), CodeBuffer(7))


def test_a_wrapped_model_says_what_to_give(make_model, make_stream):
    wrapped = nn.DataParallel(make_model())
    with pytest.raises(TypeError, match="give the model inside it"):
        train(wrapped, make_stream(), CodeBuffer(7))
    with pytest.raises(TypeError, match="give the model inside it"):
        in_host(Naive, wrapped, CodeBuffer(7))[0].train(make_stream().train_stream[0])


def labelled_stream(dtype):
    images, labels = coloured().tensors
    events = []
    for chosen in (labels < 2, labels >= 2):
        data = TensorDataset(images[chosen], labels[chosen].to(dtype))
        events.append(
            make_avalanche_dataset(
                data, data_attributes=[DataAttribute(data.tensors[1], "targets")]
            )
        )
    return benchmark_from_datasets(train=events, test=events)


def test_labels_may_be_of_16_bits(make_model):
    plain, short = make_model(), make_model()
    stream = labelled_stream(torch.int64)
    train(plain, stream, CodeBuffer(7)).eval(stream.test_stream)
    stream = labelled_stream(torch.int16)
    train(short, stream, CodeBuffer(7)).eval(stream.test_stream)
    same_weights(plain, short, **EXACT)


def test_labels_may_not_be_fractions(model):
    words = r"the labels of a batch are torch.float32 of shape"
    with pytest.raises(TypeError, match=words):
        train(model, labelled_stream(torch.float32), CodeBuffer(7))


def in_host(host, model, buffer, **arguments):
    """A strategy of Avalanche with CRUMB and its mask, and the losses of its steps."""
    seen, losses = SeenClassesPlugin(), Losses(lambda strategy: 0)
    plugin = CRUMBPlugin(
        buffer,
        codebook_weight=float(isinstance(buffer, CodeBuffer)),
        direct_weight=1,
        seen=seen,
    )
    return make(
        host, model, seen, plugin, losses, criterion=nn.CrossEntropyLoss(), **arguments
    ), losses


@pytest.mark.parametrize("host", [Cumulative, JointTraining])
def test_strategies_that_train_on_all_experiences_take_the_plugin(
    host, model, make_stream
):
    strategy, losses = in_host(host, model, CodeBuffer(8))
    stream = make_stream().train_stream
    for part in [stream] if host is JointTraining else stream:
        strategy.train(part)
    assert max(losses.losses) < 20  # no class that is trained on was masked
    slots = strategy.plugins[1].storage_policy.slots
    assert list(map(slots.count, range(4))) == [2] * 4


RESETTING = [(GDumb, {"mem_size": 20}), (FromScratchTraining, {})]


@pytest.mark.parametrize("host, more", RESETTING)
def test_a_model_put_back_cannot_have_codes(host, more, model, make_stream):
    strategy, _ = in_host(host, model, CodeBuffer(8), **more)
    words = r"puts the model back to its first weights .* or give it an ImageBuffer"
    with pytest.raises(ValueError, match=words):
        strategy.train(make_stream().train_stream[0])


@pytest.mark.parametrize("host, more", RESETTING)
def test_a_model_put_back_may_have_images(host, more, model, make_stream):
    strategy, losses = in_host(host, model, ImageBuffer(8), **more)
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


@pytest.mark.parametrize("case", ["device", "dtype", "inference mode"])
def test_defaults_of_torch_and_an_evaluation_in_inference_mode_do_not_matter(
    case, make_model, make_stream
):
    models = [make_model(), make_model()]
    streams = [make_stream(), make_stream()]
    train(models[0], streams[0], CodeBuffer(7)).eval(streams[0].test_stream)
    if case == "device":
        torch.set_default_device("meta")
    if case == "dtype":
        torch.set_default_dtype(torch.float64)
    try:
        strategy = train(models[1], streams[1], CodeBuffer(7))
        with torch.inference_mode(case == "inference mode"):
            strategy.eval(streams[1].test_stream)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    same_weights(*models, **EXACT)


def test_one_of_several_processes_is_refused(model, make_stream, monkeypatch):
    monkeypatch.setattr(
        type(DistributedHelper), "world_size", property(lambda helper: 2)
    )
    before = model.plastic_layers.head.weight.clone()
    with pytest.raises(
        RuntimeError,
        match=r"one of 2 processes.*train in one process, without torchrun",
    ):
        in_host(Naive, model, CodeBuffer(7))[0].train(make_stream().train_stream[0])
    assert torch.equal(model.plastic_layers.head.weight, before)


class Pixels(Dataset):
    """Twelve random images of two classes, black and white pixels among them, passed
    through a transform.
    """

    def __init__(self, transform=None):
        self.images = torch.randint(
            0, 256, (12, 3, 16, 16), generator=torch.Generator().manual_seed(0)
        ).byte()
        self.images[:, :, 0, 0], self.images[:, :, 0, 1] = 0, 255
        self.targets = [number % 2 for number in range(12)]
        self.transform = transform

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        return (
            image if self.transform is None else self.transform(image)
        ), self.targets[index]


def stored(transform, told=None):
    """Train on the images once and return the pixels that are stored, in the order of
    the stream.
    """
    pixels = Pixels(transform)
    dataset = as_classification_dataset(pixels)
    model, buffer = make_model(codebook=False), ImageBuffer(12)
    if told:
        model.set_normalization(*told)
    strategy = make(CRUMBStrategy, model, storage_policy=buffer, **DIRECT)
    strategy.train(
        benchmark_from_datasets(train=[dataset], test=[dataset]).train_stream[0]
    )
    return model, buffer.rows, pixels.images


def test_the_normalisation_is_told_and_a_pixel_out_of_range_is_an_error():
    scaled = lambda image: image * 255  # noqa: E731
    model, rows, pixels = stored(scaled, told=([0.0], [1 / 255]))
    assert torch.equal(rows, pixels)
    torch.testing.assert_close(
        model.features(rows), model.features(pixels.float()), rtol=1e-3, atol=1e-3
    )
    with pytest.raises(
        ValueError,
        match=r"pixels would be from .* not 0 to 255.*mean \[0.485.*set_normalization",
    ):
        stored(scaled)


ROW = 3  # of the table; in the first experience


def damaged_stream(value=None):
    """The usual stream, with a value put into one of its images."""
    table = ToyShapesFrames(
        classes=CLASSES,
        objects_per_class=2,
        sessions=2,
        frames_per_clip=5,
        size=SIZE,
        held_out_sessions=(1,),
    )
    usual, damaged = imagenet_transform(SIZE), table.read(ROW)

    def transform(image):
        pixels = usual(image)
        if value is not None and np.array_equal(image, damaged):
            pixels[0, 3, 3] = value
        return pixels

    return make_benchmark(table, "class_instance", 0, 2, transform, transform)


@pytest.mark.parametrize(
    "name, value", [("slda", "nan"), ("crumb", 3e38), ("er", "inf")]
)
def test_nothing_is_accumulated_of_a_batch_with_a_damaged_image(name, value, model):
    stream = damaged_stream(float(value))
    strategy = built(
        name, model, 8, {"batch_size": 21}
    )  # the first batch is the experience
    words = (
        r"1 of \d+ images have feature maps .*\(number \d+ of its batch\).*finite and "
        r"at most 1e\+12"
    )
    with pytest.raises(BadFeaturesError, match=words):
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
    if hasattr(strategy, "statistics"):
        assert not strategy.statistics.image_counts.any()
    else:
        assert len(strategy.storage_policy) == 0
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    strategy.train(damaged_stream().train_stream[0], eval_streams=[])
    with pytest.raises(BadFeaturesError, match=words):
        strategy.eval(stream.train_stream[0])
