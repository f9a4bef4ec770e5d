"""How pretrained layers with batch norms are trained: head, statistics, images."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import CentredLinear, undamped
from crumb_avalanche.models.networks import NETWORKS
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.split_backbone import split_backbone

SIDE = 64


def pixels(count=6):
    random = torch.Generator().manual_seed(0)
    shape = (count, 3, SIDE, SIDE)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A weight file of a MobileNetV2."""
    path = tmp_path_factory.mktemp("weights") / "mobilenet_v2.pth"
    torch.manual_seed(0)
    torch.save(NETWORKS["mobilenet_v2"]().state_dict(), path)
    return path


def model_of(weights, **settings):
    return split_backbone(
        "mobilenet_v2", weights, n_classes=3, image_size=SIDE, **settings
    )


@pytest.fixture
def model(weights):
    return model_of(weights)


# the head


def test_a_new_head_is_linear():
    head = CentredLinear(4, 3)
    plain = nn.Linear(4, 3)
    head.load_state_dict(plain.state_dict())
    inputs = torch.randn(5, 4)
    assert torch.equal(head(inputs), plain(inputs))


def test_a_head_centres_its_inputs():
    head = CentredLinear(4, 4)
    with torch.no_grad():
        head.weight.copy_(torch.eye(4))
        head.bias.zero_()
    inputs = torch.randn(50, 4) * 3 + 7
    head.centre(inputs)
    centred = head(inputs)
    torch.testing.assert_close(centred.mean(0), torch.zeros(4), atol=1e-3, rtol=0)
    distance = centred.square().sum(1).mean().sqrt()
    assert distance.item() == pytest.approx(CentredLinear.DISTANCE, rel=1e-4)


def test_equal_inputs_centre_nothing():
    head = CentredLinear(4, 3)
    head.centre(torch.full((5, 4), 2.0))
    assert not head.mean.any()
    assert head.scale == 1


def test_layers_below_learn_a_hundredth():
    head = CentredLinear(4, 3)
    inputs = torch.randn(5, 4, requires_grad=True)
    head(inputs).sum().backward()
    expected = head.weight.sum(0).expand(5, 4) * CentredLinear.DAMPING
    torch.testing.assert_close(inputs.grad, expected)


def test_measured_gradients_are_whole():
    head = CentredLinear(4, 3)
    inputs = torch.randn(5, 4, requires_grad=True)
    with undamped(head):
        head(inputs).sum().backward()
    torch.testing.assert_close(inputs.grad, head.weight.sum(0).expand(5, 4))
    assert head.DAMPING == CentredLinear.DAMPING


def test_a_reset_head_centres(model):
    model.reset_head(7)
    head = model.plastic_layers.head
    assert isinstance(head, CentredLinear)
    assert head.out_features == 7


def test_a_reset_head_centres_as_the_old_one(model):
    # Given a model that was calibrated
    calibrate(model, [(image, 0) for image in pixels()])
    old = model.plastic_layers.head
    # When it gets a new head
    model.reset_head(7)
    # Then the head takes off the mean that was measured
    head = model.plastic_layers.head
    assert head is not old
    assert torch.equal(head.mean, old.mean)
    assert head.scale == old.scale != 1


def test_calibration_centres_the_head(model):
    images = pixels()
    calibrate(model, [(image, 0) for image in images])
    assert model.feature_scale == 1
    assert model.plastic_layers.head.mean.any()


def test_a_saved_head_is_centred(model, weights):
    calibrate(model, [(image, 0) for image in pixels()])
    loaded = model_of(weights)
    loaded.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(loaded.eval()(pixels()), model.eval()(pixels()))


# batch norms


def test_statistics_stay_in_training(model):
    calibrate(model, [(image, 0) for image in pixels()])
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.train()(pixels())
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]), name


def test_dropout_stays_in_training(model):
    assert model.train().plastic_layers.dropout.training


# images


def test_small_images_are_enlarged(model):
    assert model.map_shape == (64, 8, 8)  # as of 128 pixels
    assert model.extract(pixels()).shape[1:] == (64, 8, 8)


def test_larger_images_stay(weights):
    large = split_backbone("mobilenet_v2", weights, n_classes=3, image_size=160)
    assert large.map_shape == (64, 10, 10)


# codes


def test_rows_are_chosen_by_distance(model):
    assert model.codebook.search == "distance"


def test_28_memories_take_the_bytes_of_an_image(model):
    channels, height, width = model.map_shape
    codes = channels // model.codebook.codebook_dim * height * width
    assert 28 * codes >= 3 * model.input_side**2


# what is left as it is


@pytest.mark.parametrize(
    "settings", [{"fine_tuning": False}, {"cut_layer": 0}], ids=["paper", "no F"]
)
def test_the_paper_trains_as_before(weights, settings):
    model = model_of(weights, **settings)
    assert type(model.plastic_layers.head) is nn.Linear
    assert not model.fixed_statistics
    assert model.input_side == SIDE
    assert model.codebook is None or model.codebook.is_paper


def test_layers_that_saved_weights_fit(model):
    """A file of a fine-tuned model is read into a network without weights."""
    loaded = model_of(None, fine_tuning=True)
    loaded.load_state_dict(model.state_dict())
    assert loaded.fixed_statistics
    assert loaded.input_side == model.input_side


def test_random_weights_are_trained_as_before():
    model = model_of(None)
    assert type(model.plastic_layers.head) is nn.Linear
    assert not model.fixed_statistics
    assert model.codebook.is_paper


# networks of a user


def split_network(**settings):
    """A network with a batch norm behind the cut, in training."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return split_at(network, "1", n_classes=3, image_size=16, **settings).train()


def batch_norm_of(model):
    (layer,) = (part for part in model.modules() if isinstance(part, nn.BatchNorm2d))
    return layer


def test_a_head_without_biases_is_centred():
    # Given a network whose last layer has no biases
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10, bias=False),
    )
    # When it is split for fine-tuning
    model = split_at(network, "0", n_classes=3, image_size=16, fine_tuning=True)
    # Then the new head has none
    head = model.plastic_layers.get_submodule(model.head)
    assert isinstance(head, CentredLinear)
    assert head.bias is None


@pytest.mark.parametrize("fine_tuning", [False, True])
def test_a_split_network_is_fine_tuned(fine_tuning):
    # Given a network that is split for fine-tuning, or for training
    model = split_network(fine_tuning=fine_tuning)
    # When a batch passes it in training
    model(torch.ones(4, 3, 16, 16))
    # Then the statistics stay and the head centres, or neither
    has_first_statistics = not batch_norm_of(model).running_mean.any()
    head = model.plastic_layers.get_submodule(model.head)
    assert has_first_statistics == fine_tuning
    assert isinstance(head, CentredLinear) == fine_tuning


def test_a_split_network_is_trained_by_default():
    assert not split_network().fixed_statistics
