"""CRUMB pretraining of plastic layers and codebook (paper, "Initializing the codebook matrix and CNN")."""

import json
import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from crumb_avalanche.split_model import SplitModel
from crumb_avalanche.weights import WeightsError, read_metadata, read_weights, save_safetensors

FORMAT = "crumb-pretrained-1"


@dataclass(frozen=True)
class PretrainingSettings:
    """Settings of ``pretrain``; the losses are eq. 3 with alpha = beta = 1."""

    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    direct_weight: float = 1.0
    codebook_weight: float = 1.0
    seed: int = 0


def pretrain(
    model: SplitModel, maps: Dataset, settings: PretrainingSettings, progress: bool = True
) -> list[dict[str, float]]:
    """Train plastic layers and codebook on shuffled, labelled images; F stays as it is.

    Args:
        model: with an initialised codebook and a head for all classes; trained in place.
        maps: items ``(image or raw feature map, label)``; maps, as a ``FeatureCache`` gives them, pass F only once.
        settings: see ``PretrainingSettings``.
        progress: show a bar with images/s.

    Returns:
        For each epoch ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` on the training images, accuracies in
        percent and measured while learning.

    Raises:
        RuntimeError: the loss became NaN or infinite.
    """
    device = model.pixel_mean.device
    loader = DataLoader(maps, settings.batch_size, shuffle=True, generator=torch.Generator().manual_seed(settings.seed))
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    criterion = nn.CrossEntropyLoss()
    history = []
    model.train()
    for epoch in range(settings.epochs):
        totals = torch.zeros(3)
        with tqdm(total=len(maps), unit=" images", desc=f"epoch {epoch + 1}", disable=not progress) as bar:
            for images, labels in loader:
                labels = labels.to(device)
                feature_map = model.features(images.to(device))
                direct = model.classify(feature_map)
                quantized = model.classify(model.codebook.decode(model.encode(feature_map)))
                loss = settings.direct_weight * criterion(direct, labels)
                loss = loss + settings.codebook_weight * criterion(quantized, labels)
                if not torch.isfinite(loss):
                    raise RuntimeError(
                        f"the pretraining loss became {loss.item()} in epoch {epoch + 1}; lower --learning-rate"
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right = [float((logits.argmax(1) == labels).sum()) for logits in (direct, quantized)]
                totals += torch.tensor([float(loss.detach()) * len(labels), *right])
                bar.update(len(labels))
        loss_mean, direct_mean, quantized_mean = (totals / len(maps)).tolist()
        history.append(
            {"loss": loss_mean, "direct_accuracy": 100 * direct_mean, "codebook_accuracy": 100 * quantized_mean}
        )
    model.eval()
    return history


def save_pretrained(path: str | os.PathLike, model: SplitModel, made_with: dict) -> None:
    """Write the whole split model (F too, so that the file needs no other) and how it was made.

    Args:
        path: a ``.safetensors`` file; written whole or not at all.
        model: pretrained.
        made_with: plain values; at least ``backbone``, ``classes``, ``head_kernel``, ``codebook_size``,
            ``codebook_dim``.
    """
    save_safetensors(path, model.state_dict(), {"format": FORMAT, "made_with": json.dumps(made_with)})


def read_pretrained(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """The state dict and the settings that ``save_pretrained`` wrote.

    Raises:
        WeightsError: no such file, damaged, or of another format.
    """
    metadata = read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path} was not written by crumb pretrain (its format is {metadata.get('format')!r}, not {FORMAT!r}); "
            "plain network weights go to --weights"
        )
    return read_weights(path), json.loads(metadata["made_with"])
