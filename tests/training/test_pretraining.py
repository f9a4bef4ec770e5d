"""Pretraining trains P and the codebook but not F, resumes bit for bit, and its file is read as written."""

import re

import pytest
import torch
from small_models import coloured
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

from crumb_avalanche.models.weights import WeightsError, check_and_load, weights_hash
from crumb_avalanche.system.tensor_file import write_tensors
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder
from crumb_avalanche.training.pretraining import PretrainingSettings, pretrain, read_pretrained, save_pretrained


@pytest.fixture(scope="module")
def images():
    return coloured()


def learn(model, images, **settings):
    chosen = PretrainingSettings(**dict(batch_size=8, learning_rate=0.05) | settings)
    return pretrain(model, images, chosen, progress=False)


def test_the_loss_falls_and_f_does_not_change(model, images):
    before = {name: weights_hash(getattr(model, name)) for name in ("feature_extractor", "plastic_layers", "codebook")}
    model.fold_feature_scale(model.features(images.tensors[0]))
    maps = TensorDataset(model.extract(images.tensors[0]), images.tensors[1])  # train as images do
    history = learn(model, maps, epochs=8, learning_rate=0.01)
    assert len(history) == 8 and all(epoch.keys() == history[0].keys() for epoch in history)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["direct_accuracy"] > 80 and history[-1]["codebook_accuracy"] > 60
    assert weights_hash(model.feature_extractor) == before["feature_extractor"]
    assert weights_hash(model.plastic_layers) != before["plastic_layers"]
    assert weights_hash(model.codebook) != before["codebook"]
    assert not model.training
    with pytest.raises(RuntimeError, match=r"the pretraining loss became .* in epoch 1; lower --learning-rate"):
        learn(model, images, learning_rate=1e30)


@pytest.mark.parametrize("alpha, beta", [(0, 1), (0.5, 2)])
def test_one_step_equals_the_formula(make_model, images, alpha, beta):
    model, twin = make_model(), make_model()
    settings = dict(epochs=1, batch_size=40, momentum=0, weight_decay=0, direct_weight=alpha, codebook_weight=beta)
    history = learn(model, images, **settings)
    pixels, labels = images.tensors
    feature_map = twin.features(pixels)
    direct, quantized = twin.plastic_layers(feature_map), twin.plastic_layers(twin.codebook(feature_map))
    loss = alpha * cross_entropy(direct, labels) + beta * cross_entropy(quantized, labels)
    assert history[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    right = [100 * float((logits.argmax(1) == labels).float().mean()) for logits in (direct, quantized)]
    assert [history[0]["direct_accuracy"], history[0]["codebook_accuracy"]] == pytest.approx(right)
    loss.backward()
    for (name, now), then in zip(model.named_parameters(), twin.parameters()):
        if then.grad is not None:
            torch.testing.assert_close(now, then - 0.05 * then.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_saved_file_is_read_as_written(make_model, images, tmp_path):
    model, path = make_model(), tmp_path / "made" / "model.safetensors"
    model.fold_feature_scale(model.features(images.tensors[0]))
    learn(model, images, epochs=1)
    made_with = {"backbone": "tiny", "classes": 4, "head_kernel": 1, "codebook_size": 8, "codebook_dim": 4}
    save_pretrained(path, model, made_with)
    state, read = read_pretrained(path)
    assert read == made_with
    other = make_model(seed=1)
    check_and_load(other, state, str(path))
    assert weights_hash(other) == weights_hash(model)
    assert torch.equal(other.eval()(images.tensors[0]), model(images.tensors[0]))


def test_another_file_is_an_error(tmp_path, model):
    with pytest.raises(WeightsError, match="there is no file"):
        read_pretrained(tmp_path / "none.safetensors")
    path = tmp_path / "w.safetensors"
    for metadata, found in (({}, None), ({"format": "crumb-pretrained-0"}, "crumb-pretrained-0")):
        write_tensors(path, model.state_dict(), metadata)
        words = f"was not written by crumb pretrain (its format is {found!r}, not 'crumb-pretrained-1'); plain"
        with pytest.raises(WeightsError, match=re.escape(words)):
            read_pretrained(path)
    save_pretrained(path, model, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="is no complete"):
        read_pretrained(path)


class Interrupted(Exception):
    pass


class CutOff(Dataset):
    """The images, until so many were read."""

    def __init__(self, whole, reads):
        self.whole = whole
        self.reads = reads

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, row):
        self.reads -= 1
        if self.reads < 0:
            raise Interrupted
        return self.whole[row]


def with_dropout(make_model):
    model = make_model()
    model.plastic_layers.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    torch.manual_seed(5)
    return model


@pytest.mark.parametrize("reads", [39, 40, 100])
def test_an_interrupted_pretraining_ends_bit_identical(make_model, images, tmp_path, reads):
    settings = PretrainingSettings(epochs=4, batch_size=8, learning_rate=0.05)
    whole = with_dropout(make_model)
    history = pretrain(whole, images, settings, False)
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    with pytest.raises(Interrupted):
        pretrain(with_dropout(make_model), CutOff(images, reads), settings, False, checkpoints)
    torch.manual_seed(77)
    model = make_model(seed=3)  # replaced by the checkpoint
    model.plastic_layers.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    if reads < 40:  # there is no checkpoint
        model = with_dropout(make_model)
    rest = CutOff(images, 160 - reads // 40 * 40)
    assert pretrain(model, rest, settings, False, checkpoints) == history
    assert rest.reads == 0 and weights_hash(model) == weights_hash(whole)
    draws = torch.rand(3)
    again = make_model(seed=4)
    again.plastic_layers.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    assert pretrain(again, images, settings, False, checkpoints) == history  # nothing is left to do
    assert weights_hash(again) == weights_hash(whole) and torch.equal(torch.rand(3), draws)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "00000002.safetensors",
        "00000003.safetensors",
    ]
    checkpoints.clear()
    assert not checkpoints.folder.exists()


def test_other_settings_are_refused_by_name(make_model, images, tmp_path):
    kept = CheckpointFolder(tmp_path / "kept", {"weights": "none"})
    pretrain(make_model(), images, PretrainingSettings(epochs=3, batch_size=8), False, kept)

    def resume(made_with=None, images=images, **changes):
        settings = PretrainingSettings(**dict(epochs=3, batch_size=8) | changes)
        checkpoints = CheckpointFolder(kept.folder, {"weights": "none"} if made_with is None else made_with)
        return pretrain(make_model(), images, settings, False, checkpoints)

    assert len(resume()) == 3
    with pytest.raises(CheckpointError, match=r"made with learning_rate=0.001, not 0.5; resume with the same"):
        resume(learning_rate=0.5)
    with pytest.raises(
        CheckpointError, match=rf"{kept.folder} .* with weights='none', not 'other.npz'; .* remove that folder"
    ):
        resume({"weights": "other.npz"})
    with pytest.raises(CheckpointError, match="with weights='none', not None"):
        resume({})
    with pytest.raises(CheckpointError, match="with images=40, not 30"):
        resume(images=TensorDataset(*(tensor[:30] for tensor in images.tensors)))
