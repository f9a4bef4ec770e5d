r"""What a memory is: an image, its map, its codes, and what the codes keep of it.

    python experiments/memory_picture.py --weights WEIGHTS --output docs

Rendered shapes pass the frozen layers F of a network, and a codebook is fitted to the
maps of `--images` of them. The picture follows an image of another object: its pixels,
its map, its codes and the map that the codes rebuild, with their bytes. Its last panel
is put together from patches of the other images: at each location the one whose rebuilt
features are the most similar to the memory's. Writes `memory.png` and `memory.csv` to
--output. Nothing is trained, and the shapes are no test of anything.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.common_options import run_script
from torch import Tensor

from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesFrames
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.codebook_ranges import SEARCHES
from crumb_avalanche.models.initialisers import INITIALISERS
from crumb_avalanche.models.search import most_similar_rows
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.pictures import COLOURS, STYLE

SIDE = 224  # pixels of an image
PATCH = 32  # pixels; patches of neighbouring locations overlap by about half
BATCH = 16  # images that pass F at once
SHEETS = 5  # groups of codes that are drawn
SHIFT = 0.7  # of a sheet beside the next, in locations
TITLE = 12  # points; legible where the picture is 390 pixels wide
RESOLUTION = 150  # dots per inch


@dataclass(frozen=True)
class Memory:
    """What is drawn of one image.

    Attributes:
        image: `(SIDE, SIDE, 3)` uint8.
        features: its map, `(C, H, W)` float32.
        codes: `(G, H, W)` uint8.
        rebuilt: the map of the codes, `(C, H, W)` float32.
        patches: patches of other images, `(SIDE, SIDE, 3)` uint8.
    """

    image: np.ndarray
    features: Tensor
    codes: Tensor
    rebuilt: Tensor
    patches: np.ndarray

    @property
    def map_bytes(self) -> int:
        """Bytes of the map in float32."""
        return 4 * self.features.numel()

    @property
    def energy_kept(self) -> float:
        """Share of the map's energy in the rebuilt map, `1 - |Z - Z~|^2 / |Z|^2`."""
        error = (self.features - self.rebuilt).square().sum()
        return float(1 - error / self.features.square().sum())

    def as_csv(self) -> str:
        """Return the numbers of the picture."""
        return (
            "image bytes,map bytes,code bytes,share of energy kept\n"
            f"{self.image.nbytes},{self.map_bytes},{self.codes.numel()},"
            f"{self.energy_kept:.4f}\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--backbone", default="squeezenet1_0", help="network of F")
    add("--weights", default="torchvision", help="its weights, as for crumb run")
    add("--images", type=int, default=1500, help="number of the other images")
    add("--shape", default="umbrella", help="class of the image")
    add("--frame", type=int, default=1, help="which frame of this class")
    add("--codebook-init", default="kmeans", choices=sorted(INITIALISERS))
    add("--search", default="distance", choices=SEARCHES)
    add("--output", type=Path, default=Path("runs/memory_picture"), help="folder")
    add("--quick", action="store_true", help="40 images, an untrained network")
    options = parser.parse_args()
    weights = None if options.quick else options.weights
    n_images = 40 if options.quick else options.images
    model = split_backbone(
        options.backbone, weights, n_classes=2, codebook=None, image_size=SIDE
    ).eval()
    images = images_of(options.shape, options.frame, n_images)
    memory = memory_of_first(
        images, maps_of(model, images), options.codebook_init, options.search
    )
    with matplotlib.rc_context(STYLE):
        figure = picture(memory)
    options.output.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output / "memory.png") as file:
        figure.savefig(file, format="png", dpi=RESOLUTION, facecolor="white")
    with atomic_write(options.output / "memory.csv") as file:
        file.write(memory.as_csv().encode())
    print(memory.as_csv())
    return 0


def images_of(shape: str, frame: int, n_others: int) -> list[np.ndarray]:
    """Draw a frame of a class, and random frames of other objects.

    Args:
        shape: name of the class.
        frame: number of the frame among those of the class.
        n_others: number of the other frames.

    Returns:
        `1 + n_others` images, `(SIDE, SIDE, 3)` uint8, the wanted one first.
    """
    frames = ToyShapesFrames(size=SIDE)
    class_names = np.array(frames.class_name)
    object_names = np.array(frames.object_name)
    row = np.flatnonzero(class_names == shape)[frame]
    is_same = (class_names == shape) & (object_names == object_names[row])
    other_rows = np.random.default_rng(0).permutation(np.flatnonzero(~is_same))
    return read_images(frames, [int(row), *other_rows[:n_others].tolist()])


def read_images(frames: ToyShapesFrames, rows: Sequence[int]) -> list[np.ndarray]:
    """Draw frames of the rendered shapes, each `(SIDE, SIDE, 3)` uint8."""
    images = []
    with progress_bar(len(rows), "drawing shapes") as bar:
        for row in rows:
            images.append(np.asarray(frames.read(row)))
            bar.update(1)
    return images


@torch.no_grad()
def maps_of(model: SplitModel, images: Sequence[np.ndarray]) -> Tensor:
    """Return the maps of images, `(N, C, H, W)` float32."""
    maps = []
    with progress_bar(len(images), "maps") as bar:
        for start in range(0, len(images), BATCH):
            batch = np.stack(images[start : start + BATCH])
            pixels = torch.from_numpy(batch).permute(0, 3, 1, 2)
            maps.append(model.features(pixels).float())
            bar.update(len(batch))
    return torch.cat(maps)


def memory_of_first(
    images: Sequence[np.ndarray], maps: Tensor, codebook_init: str, search: str
) -> Memory:
    """Encode the first image with a codebook that is initialised from the others.

    Args:
        images: `N` images, each `(SIDE, SIDE, 3)` uint8.
        maps: their maps, `(N, C, H, W)` float32.
        codebook_init: key of `INITIALISERS`.
        search: as for `Codebook`.
    """
    codebook = Codebook(search=search)
    generator = torch.Generator().manual_seed(0)
    INITIALISERS[codebook_init](codebook, maps[1:], generator)
    with torch.no_grad():
        rebuilt, codes = codebook.quantize(maps)
    return Memory(
        image=images[0],
        features=maps[0],
        codes=codes[0],
        rebuilt=rebuilt[0],
        patches=from_patches(rebuilt[0], rebuilt[1:], images[1:]),
    )


def from_patches(
    rebuilt: Tensor, other_maps: Tensor, images: Sequence[np.ndarray]
) -> np.ndarray:
    """Put an image together from patches of other images with similar codes.

    Args:
        rebuilt: map of the codes of the image, `(C, H, W)`.
        other_maps: maps of the codes of the other images, `(N, C, H, W)`.
        images: the other images, each `(SIDE, SIDE, 3)` uint8.

    Returns:
        `(SIDE, SIDE, 3)` uint8. Patches fade into each other where they overlap.
    """
    _, height, width = rebuilt.shape
    corners = []
    for row in range(height):
        for column in range(width):
            corners.append((corner(row, height), corner(column, width)))
    patches = []
    for index in most_similar_locations(rebuilt, other_maps):
        number, location = divmod(index, height * width)
        top, left = corners[location]
        source = padded(images[number])
        patches.append(source[top : top + PATCH, left : left + PATCH])
    return blended(patches, corners)


def most_similar_locations(rebuilt: Tensor, other_maps: Tensor) -> list[int]:
    """Find the most similar features of other maps for each location of a map.

    Args:
        rebuilt: the map, `(C, H, W)`.
        other_maps: `(N, C, H, W)`.

    Returns:
        For each of the `H * W` locations, row by row, an index of the `N * H * W`
        locations of the other maps.
    """
    channels = len(rebuilt)
    features = rebuilt.permute(1, 2, 0).reshape(-1, channels)
    candidates = other_maps.permute(0, 2, 3, 1).reshape(-1, channels)
    directions = torch.nn.functional.normalize(candidates, dim=1)
    return most_similar_rows(features, directions).tolist()


def blended(
    patches: Sequence[np.ndarray], corners: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Average patches where they overlap, with weights that fall to their edges.

    Args:
        patches: each `(PATCH, PATCH, 3)`.
        corners: top and left of each in the padded image; see `corner`.

    Returns:
        `(SIDE, SIDE, 3)` uint8, without the padding.
    """
    fade = np.hanning(PATCH + 2)[1:-1]
    weight = np.outer(fade, fade)[..., np.newaxis]
    # A border of one patch on each side, for patches that begin outside of the image.
    canvas = np.zeros((SIDE + 2 * PATCH, SIDE + 2 * PATCH, 3))
    weights = np.full_like(canvas, np.finfo(float).tiny)
    for (top, left), patch in zip(corners, patches):
        canvas[top : top + PATCH, left : left + PATCH] += weight * patch
        weights[top : top + PATCH, left : left + PATCH] += weight
    inner = slice(PATCH, PATCH + SIDE)
    return (canvas / weights)[inner, inner].round().astype(np.uint8)


def corner(location: int, n_locations: int) -> int:
    """Return where the patch of a location begins along one side of a padded image."""
    centre = PATCH + (location + 0.5) * SIDE / n_locations
    return round(centre - PATCH / 2)


def padded(image: np.ndarray) -> np.ndarray:
    """Repeat the edge of an image for one patch on each side."""
    return np.pad(image, ((PATCH, PATCH), (PATCH, PATCH), (0, 0)), mode="edge")


def picture(memory: Memory) -> Figure:
    """Draw a memory in six panels."""
    channels, height, width = memory.features.shape
    colours = MapColours.fitted(memory.features)
    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 3)
    show(upper[0], memory.image, f"image\n{memory.image.nbytes:,} bytes")
    title = f"map {channels} x {height} x {width}\n{memory.map_bytes:,} bytes"
    show(upper[1], colours.of(memory.features), title)
    draw_codes(upper[2], memory.codes)
    title = f"map from codes\nkeeps {100 * memory.energy_kept:.0f} % of energy"
    show(lower[0], colours.of(memory.rebuilt), title)
    show(lower[1], memory.patches, "patches of other\nimages, similar codes")
    draw_bytes(lower[2], memory)
    return figure


@dataclass(frozen=True)
class MapColours:
    """Three principal components of a map, as red, green and blue.

    Attributes:
        components: `(C, 3)`.
        low: values that are black, `(3,)`.
        high: values that are white, `(3,)`.
    """

    components: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def fitted(cls, features: Tensor) -> "MapColours":
        """Fit the colours to a map, `(C, H, W)`."""
        by_location = features.flatten(1)
        centred = by_location - by_location.mean(dim=1, keepdim=True)
        components = torch.linalg.svd(centred, full_matrices=False).U[:, :3]
        values = by_location.T @ components
        return cls(
            components,
            low=values.quantile(0.02, dim=0),
            high=values.quantile(0.98, dim=0),
        )

    def of(self, features: Tensor) -> np.ndarray:
        """Return the colours of a map: `(H, W, 3)` in `[0, 1]`."""
        values = torch.einsum("chw,ck->hwk", features, self.components)
        return ((values - self.low) / (self.high - self.low)).clamp(0, 1).numpy()


def show(axes: Axes, pixels: np.ndarray, title: str) -> None:
    """Show pixels under a title."""
    axes.imshow(pixels)
    axes.set(xticks=[], yticks=[])
    axes.set_frame_on(False)
    axes.set_title(title, fontsize=TITLE)


def draw_codes(axes: Axes, codes: Tensor) -> None:
    """Draw the codes of the first groups as sheets, the first one on top."""
    groups, height, width = codes.shape
    for group in range(SHEETS):
        left = group * SHIFT
        right = left + width
        top = left + height
        # The later a group, the further behind.
        axes.imshow(
            codes[group],
            cmap="cividis",
            vmin=0,
            vmax=255,
            extent=(left, right, left, top),
            zorder=-group,
        )
        axes.plot(
            [left, right, right, left, left],
            [left, left, top, top, left],
            color="white",
            lw=1.2,
            zorder=-group,
        )
    end = SHEETS * SHIFT
    axes.set(xlim=(-0.2, width + end), ylim=(-0.2, height + end), xticks=[], yticks=[])
    axes.set_frame_on(False)
    title = f"codes {groups} x {height} x {width}\n{codes.numel():,} bytes"
    axes.set_title(title, fontsize=TITLE)


def draw_bytes(axes: Axes, memory: Memory) -> None:
    """Draw the bytes of the map, the image and the codes as areas."""
    draw_area(axes, 1.0, "map", COLOURS[5])
    side = (memory.image.nbytes / memory.map_bytes) ** 0.5
    draw_area(axes, side, "image", COLOURS[4])
    side = (memory.codes.numel() / memory.map_bytes) ** 0.5
    axes.fill([0, side, side, 0], [0, 0, side, side], color=COLOURS[0])
    axes.text(side + 0.03, side / 2, "codes", va="center", fontsize=TITLE)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    axes.set_frame_on(False)
    ratio = memory.image.nbytes / memory.codes.numel()
    axes.set_title(f"bytes as areas\nimage : codes = {ratio:.0f} : 1", fontsize=TITLE)


def draw_area(axes: Axes, side: float, name: str, colour: str) -> None:
    """Draw a square from the lower left corner, with its name inside its upper edge."""
    axes.fill([0, side, side, 0], [0, 0, side, side], color=colour)
    axes.text(0.05, side - 0.05, name, va="top", fontsize=TITLE)


if __name__ == "__main__":
    run_script(main)
