"""Measure what codes keep of feature maps, in how many bytes, and how fast.

    python experiments/bench_codes.py --images ETH80 --weights squeezenet1_0=FILE.npz
    python experiments/bench_codes.py --images ETH80 --networks timm:vit_tiny_patch16_224

Of each network, 240 photos below --images pass F, in a random order: a codebook is
fitted to the maps of 160, and its error is measured on the other 80. Rows are settings
of `Codebook`:

  map bytes     of the codes of one map
  table bytes   of the tables, the order of channels and the filter
  error         squared error of the maps, in units of their energy: 1 says as little as
                zeros, more than 1 harms
  time          of encoding, in units of that of the paper's codes

Networks without --weights NAME=FILE have random weights, which suffice for bytes and
time alone. Writes codes.csv to --output.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from support.bench import bench_parser, fastest, photos
from support.common_options import run_script
from torch.utils.data import Dataset

from crumb_avalanche import Codebook, CodeBuffer, split_backbone
from crumb_avalanche.models.calibration import calibrate, measure_codes
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table

FITTED = 160  # images
MEASURED = 80
TIMED = 16  # maps
NETWORKS = ("squeezenet1_0", "mobilenet_v2", "efficientnet_lite0", "resnet18")
BY_DISTANCE = dict(search="distance", init="kmeans")
CORRELATED = dict(BY_DISTANCE, grouping="correlated", filtered=True)
# Settings of a codebook, and how it is initialised, by the name of the row.
CODES: dict[str, dict[str, Any]] = {
    "paper": dict(init="matched"),
    "spherical": dict(init="spherical"),
    "k-means, by direction": dict(init="kmeans"),
    "k-means, by distance": BY_DISTANCE,
    "and filtered": dict(BY_DISTANCE, filtered=True),
    "and correlated groups": CORRELATED,
    "and two tables": dict(CORRELATED, tables=2),
    "and three tables": dict(CORRELATED, tables=3),
}
HEADER = ["network", "codes", "map bytes", "table bytes", "error", "time"]


@dataclass(frozen=True)
class Row:
    """What the codes of a network are worth.

    Attributes:
        network: its name.
        codes: name of the settings.
        map_bytes, table_bytes: of one map's codes, and of all else.
        error: in units of the energy of the maps.
        seconds: of encoding.
        paper_seconds: of encoding as the paper does.
    """

    network: str
    codes: str
    map_bytes: int
    table_bytes: int
    error: float
    seconds: float
    paper_seconds: float

    @property
    def cells(self) -> list[str]:
        """The row as text."""
        return [
            self.network,
            self.codes,
            str(self.map_bytes),
            str(self.table_bytes),
            f"{self.error:.3f}",
            f"{self.seconds / self.paper_seconds:.2f}",
        ]


class Photos(Dataset):
    """Photos as ``uint8`` images of the size that a network takes."""

    def __init__(self, paths: list[Path], model: SplitModel):
        self.paths = paths
        self.side = model.image_size
        self.filter = Image.Resampling[model.interpolation.upper()]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            resized = image.convert("RGB").resize((self.side, self.side), self.filter)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1), 0


class Maps(Dataset):
    """Maps that F gave, in the place of images."""

    def __init__(self, maps: torch.Tensor):
        self.maps = maps

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.maps[index], 0


def maps_of(model: SplitModel, photos_of_model: Photos) -> torch.Tensor:
    """Pass all photos through F: ``(N, C, H, W)``."""
    batches = []
    for start in range(0, len(photos_of_model), 8):
        stop = min(start + 8, len(photos_of_model))
        images = [photos_of_model[index][0] for index in range(start, stop)]
        batches.append(model.extract(torch.stack(images)))
    return torch.cat(batches)


def seconds_of_search(
    model: SplitModel, maps: torch.Tensor, options: argparse.Namespace
) -> float:
    """Return the seconds in which the codebook of a model encodes maps."""
    encode = partial(model.codebook.encode, model.features(maps))
    # Finer than the clock of whole processes.
    clock = time.process_time if options.cpu_time else time.perf_counter
    return fastest({"encode": encode}, options.repeats, clock)["encode"]


def rows_of(
    network: str, paths: list[Path], options: argparse.Namespace
) -> Iterator[Row]:
    """Measure all codes of a network; each row as soon as it is there.

    Two thirds of the photos initialise the codebooks, the others are encoded.

    Args:
        network: name of the backbone.
        paths: photos.
        options: the command line's.
    """
    weights = dict(option.split("=", 1) for option in options.weights).get(network)
    arguments = dict(name=network, weights=weights, n_classes=8)
    base = split_backbone(codebook=None, **arguments)
    maps = maps_of(base, Photos(paths, base))
    initial = Maps(maps[: len(maps) * 2 // 3])
    held_out = Maps(maps[len(initial) :])
    paper_seconds = 0.0
    for name, settings in CODES.items():
        codebook_settings = dict(settings)
        init = codebook_settings.pop("init")
        model = split_backbone(codebook=True, **arguments)
        length = options.codebook_dim or model.codebook.codebook_dim
        codebook = Codebook(256, length, **codebook_settings)
        codebook = codebook.for_channels(maps.shape[1])
        model.codebook = codebook
        calibrate(model, initial, init, measured_images=len(initial))
        error = measure_codes(model, held_out, most=len(held_out))
        seconds = seconds_of_search(model, held_out.maps[:TIMED], options)
        if name == "paper":
            paper_seconds = seconds
        yield Row(
            network=network,
            codes=name,
            map_bytes=CodeBuffer.item_bytes(model),
            table_bytes=codebook.blocks.nbytes + codebook.buffer_bytes,
            error=error,
            seconds=seconds,
            paper_seconds=paper_seconds,
        )


def photo_paths(options: argparse.Namespace) -> list[Path]:
    """Return the photos to measure, in a random order."""
    root = Path(options.images)
    if options.quick:
        root = photos(Path(options.output) / "photos", 2, 2, 15, 64)
    paths = sorted(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
    if len(paths) < 3:
        raise ValueError(f"{root} has {len(paths)} .jpg and .png files; give a folder")
    order = np.random.default_rng(0).permutation(len(paths))
    return [paths[index] for index in order[: FITTED + MEASURED]]


def main() -> None:
    parser = bench_parser(__doc__, threads=1, json=False)
    add = parser.add_argument
    add("--images", default=".", help="folder of photos")
    add("--networks", nargs="+", default=list(NETWORKS), help="backbones")
    add(
        "--weights",
        nargs="*",
        default=[],
        metavar="NAME=FILE",
        help="weights of networks, as crumb run takes them",
    )
    add("--codebook-dim", type=int, help="length of a row; default that of the network")
    add("--output", default="runs/codes", help="folder of the table")
    add("--quick", action="store_true", help="a small network on made-up photos")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    paths = photo_paths(options)
    networks = ["small_cnn"] if options.quick else options.networks
    rows = []
    for network in networks:
        for row in rows_of(network, paths, options):
            print("  ".join(row.cells), flush=True)
            rows.append(row.cells)
    write_csv(Path(options.output) / "codes.csv", [HEADER, *rows])
    print(format_table(HEADER, rows))


if __name__ == "__main__":
    run_script(main)
