"""``crumb demo``: pretrain on rendered shapes, learn others, and compare methods."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks_toybox_ilab.datasets.toy_shapes import (
    PRETRAINING_CLASSES,
    ToyShapesFrames,
)
from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.runs import pretrain, run
from crumb_avalanche.runs.demo_settings import DemoSettings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.run_folder import RESULT, check_finished
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.file_metadata import format_of
from crumb_avalanche.system.process import set_up_process
from crumb_avalanche.system.tensor_file import write_tensors
from crumb_avalanche.training.pretraining import FORMAT

SIDE = 64  # of the images, in pixels
FRAMES_PER_CLIP = 12  # of the pretraining shapes
EPOCHS = 5  # of the first experience, and of joint training
LEARNING_RATE = 3e-3  # of AdamW, which trains the network
BENCHMARK = "toy_shapes"
NETWORK = "crumb-demo-network-1"  # format of the file of the network
STRATEGIES = ("crumb", "image_replay", "finetune", "offline", "rda")


def demonstrate(settings: DemoSettings) -> list[Path]:
    """Pretrain a network and run all strategies of the demo on toy shapes.

    Steps that the folder ``settings.output`` already holds are skipped.

    Returns:
        The folders of the runs.

    Raises:
        FileExistsError: the folder holds a file of another program.
    """
    folder = Path(settings.output)
    pretrained_file = folder / "pretrained.safetensors"
    network_file = folder / "network.safetensors"
    _check_format(pretrained_file, FORMAT)
    _check_format(network_file, NETWORK)
    if not pretrained_file.exists() or settings.overwrite:
        _pretrain(settings, network_file, pretrained_file)
    print(
        "\n3. streaming ten other shapes, two classes at a time; after the first two, "
        "every clip is seen once"
    )
    shared_settings = RunSettings(
        benchmark=BENCHMARK,
        backbone="small_cnn",
        image_size=SIDE,
        pretrained=str(pretrained_file),
        codebook_search="distance",
        # Batches of one clip are alike: three replay batches of equal weight keep a
        # short stream balanced.
        replay_steps=3,
        replay_weight=1.0,
        first_epochs=EPOCHS,
        feature_cache=str(folder / "feature_cache"),
        run=settings.seed,
        threads=settings.threads,
        overwrite=settings.overwrite,
        progress=settings.progress,
    )
    run_folders = []
    for strategy in STRATEGIES:
        run_folder = folder / strategy
        run_settings = replace(
            shared_settings, strategy=strategy, output=str(run_folder)
        )
        plan = RunPlan.of(run_settings)
        if (run_folder / RESULT).exists() and not settings.overwrite:
            check_finished(run_folder, plan)
        else:
            print(f"\n{strategy}")
            run.run_once(plan, verbose=False)
        run_folders.append(run_folder)
    return run_folders


def _check_format(path: Path, format_name: str) -> None:
    """Raise FileExistsError for a file that the demo did not write.

    It is known by the format in its metadata.
    """
    if path.exists() and format_of(path) != format_name:
        raise FileExistsError(
            f"{path} exists and is not of a demo, so it stays as it is: choose another "
            "--output"
        )


def _pretrain(
    settings: DemoSettings, network_file: Path, pretrained_file: Path
) -> None:
    """Train a network on shapes, then plastic layers and codebook as CRUMB does.

    Args:
        settings: of the demo; threads, seed and whether to show bars are taken.
        network_file: is written after the first step.
        pretrained_file: is written after the second step.
    """
    set_up_process(settings.threads, settings.seed)
    images = shapes(
        pixel_transform(SIDE),
        progress=settings.progress,
        frames_per_clip=FRAMES_PER_CLIP,
    )
    print(
        f"\n1. training a small network on {len(images)} images of "
        f"{len(PRETRAINING_CLASSES)} rendered shapes"
    )
    network = train_network(images, progress=settings.progress)
    write_tensors(network_file, network.state_dict(), {"format": NETWORK})
    print(
        "\n2. CRUMB pretraining of its plastic layers and a codebook of 256 memory "
        "blocks"
    )
    pretrain_settings = PretrainSettings(
        data="rendered shapes",
        output=str(pretrained_file),
        weights=str(network_file),
        backbone="small_cnn",
        image_size=SIDE,
        codebook_init="kmeans",
        codebook_search="distance",
        epochs=4,
        batch_size=64,
        threads=settings.threads,
        seed=settings.seed,
        progress=settings.progress,
    )
    pretrain.pretrain_on(images, pretrain.with_defaults(pretrain_settings))


def shapes(
    transform: PixelTransform, progress: bool, frames_per_clip: int = 15
) -> TensorDataset:
    """Draw the frames of the pretraining shapes.

    Args:
        transform: makes a ``(3, 64, 64)`` uint8 tensor of an image.
        progress: whether to show a bar.
        frames_per_clip: number of frames of each clip.

    Returns:
        ``(N, 3, 64, 64)`` uint8 and labels, which are also a list ``targets``, as image
        data sets of torchvision have it.
    """
    table = ToyShapesFrames(
        classes=PRETRAINING_CLASSES, frames_per_clip=frames_per_clip, size=SIDE
    )
    frames = []
    with progress_bar(len(table), "drawing shapes", show=progress) as bar:
        for row in range(len(table)):
            frames.append(transform(table.read(row)))
            bar.update(1)
    images = TensorDataset(torch.stack(frames), torch.tensor(table.labels))
    images.targets = table.labels.tolist()
    return images


def train_network(
    images: TensorDataset, epochs: int = 5, progress: bool = True
) -> SmallCNN:
    """Train a network from scratch on shuffled images; its leading layers are F later.

    Args:
        images: of ``shapes``: ``(3, 64, 64)`` uint8 with a label each.
        epochs: passes over the images.
        progress: whether to show a bar with the loss.

    Returns:
        The trained network, in evaluation mode.
    """
    network = SmallCNN(len(PRETRAINING_CLASSES)).to(memory_format=torch.channels_last)
    loader = DataLoader(images, batch_size=64, shuffle=True)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=epochs * len(loader)
    )
    mean = torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1)
    std = torch.tensor(IMAGENET_STD).view(1, 3, 1, 1)
    with progress_bar(epochs * len(images), "training", show=progress) as bar:
        for _ in range(epochs):
            for pixels, labels in loader:
                normalised = (pixels.float() / 255 - mean) / std
                normalised = normalised.contiguous(memory_format=torch.channels_last)
                loss = nn.functional.cross_entropy(network(normalised), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update(len(labels))
                bar.set_postfix_str(f"loss {float(loss.detach()):.2f}", refresh=False)
    return network.eval()
