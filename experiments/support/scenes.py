"""Objects of ETH-80, cut out and pasted on photos."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

SIDE = 256  # pixels of a scene
CENTRE = 64  # pixel of an image of ETH-80
TAUGHT = 8  # views of an object that are taught
SHOWN = 6  # views of a held-out object that are asked in each way
KNOWN_SHOWN = 2  # further views of a taught object that are asked in each way
HELD_OUT = 2  # objects of each class
EMPTY = 60  # photos without an object that are asked
PHOTOS_OF_OBJECT = 3  # photos of its own
SIZES = (1, 0.5, 0.33)  # of the largest height
# New photos of a view of a held-out object: new, each size, and one for both lights.
PHOTOS_OF_VIEW = 2 + len(SIZES)
LARGEST = 0.9  # of the height of the scene
DARK = 0.45  # of the light
WARM = (1.15, 0.95, 0.7)  # factors of red, green and blue
BLUE = (40, 60, 190)  # ground of a made view


class View(NamedTuple):
    """An image of ETH-80, and the object on it, with alpha."""

    whole: Image.Image
    cut: Image.Image


class Asked(NamedTuple):
    """A question: the way of asking, the class (empty without an object), the image."""

    way: str
    name: str
    image: Image.Image


def view_of(path: Path) -> View | None:
    """Read a view of an object; None if it does not part from the blue ground."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    excess = _blueness(pixels)
    # Pixels near the upper, the lower and the left edge show the ground.
    border = [excess[:4].ravel(), excess[-4:].ravel(), excess[:, :4].T.ravel()]
    ground = np.median(np.concatenate(border))
    mask = _largest_central_part(excess < 0.55 * ground)
    if mask is None:
        return None
    edges = [mask[0], mask[-1], mask[:, 0], mask[:, -1]]
    # The largest share of an edge that the object touches: there it is cut off.
    touches = max(edge.mean() for edge in edges)
    has_usual_size = 0.03 < mask.mean() < 0.75
    if not has_usual_size or touches > 0.05 or np.median(excess[mask]) > 0.3 * ground:
        return None
    rows, columns = np.nonzero(mask)
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    with_alpha = Image.fromarray(np.dstack([pixels, mask.astype(np.uint8) * 255]))
    cut = with_alpha.crop(tuple(int(edge) for edge in box))
    return View(Image.fromarray(pixels), cut)


def _blueness(pixels: np.ndarray) -> np.ndarray:
    """How blue each pixel ``(H, W)`` is, by its brightness."""
    smooth = ndimage.gaussian_filter(pixels.astype(np.float32), (0.6, 0.6, 0))
    red, green, blue = np.moveaxis(smooth, 2, 0)
    return (blue - (red + green) / 2) / ((red + green + blue) / 3 + 12)


def _largest_central_part(mask: np.ndarray) -> np.ndarray | None:
    """The largest connected part of a mask, near its centre, without holes."""
    components, count = ndimage.label(ndimage.binary_opening(mask))
    if not count:
        return None
    rows, columns = np.indices(components.shape)
    centred = np.exp(-(((rows - CENTRE) / 45) ** 2) - ((columns - CENTRE) / 45) ** 2)
    sizes = ndimage.sum(centred, components, range(1, count + 1))
    component = components == 1 + int(np.argmax(sizes))
    return ndimage.binary_fill_holes(ndimage.binary_closing(component))


Objects = dict[str, dict[str, list[View]]]  # views by class and object


def cut_outs(root: Path) -> Objects:
    """Read the views of ETH-80 that can be cut out, by class and object."""
    objects: Objects = {}
    for folder in sorted(root.iterdir()):
        if not folder.is_dir():
            continue
        views = []
        for file in sorted(folder.iterdir()):
            view = view_of(file)
            if view is not None:
                views.append(view)
        name = folder.name.rstrip("0123456789")
        objects.setdefault(name, {})[folder.name] = views
    return objects


def half_of(folders: Sequence[Path], development: bool) -> list[Path]:
    """The photos of folders for choosing settings, or those for reporting."""
    files: list[Path] = []
    for folder in folders:
        for path in Path(folder).rglob("*"):
            is_of_half = zlib.crc32(path.name.encode()) % 2 == int(development)
            if path.is_file() and is_of_half:
                files.append(path)
    return sorted(files)


@dataclass(frozen=True)
class TaughtObject:
    """An object that is taught.

    Attributes:
        name: its class.
        views: in an order that is drawn.
        photos: photos of its own.
    """

    name: str
    views: list[View]
    photos: list[Image.Image]


class Scenes:
    """Images of one split.

    Args:
        objects: the views of each object that can be cut out, by class and object.
        photos: files of photos.
        split: seeds what is held out and drawn.
    """

    def __init__(self, objects: Objects, photos: Sequence[Path], split: int):
        self.draws = np.random.default_rng(split)
        self._n_photos = len(photos)
        # Of each class.
        self._n_objects = [len(views_of_object) for views_of_object in objects.values()]
        self._photos = iter(self.draws.permutation(np.array(photos, dtype=object)))
        self.taught: list[TaughtObject] = []
        taught: list[tuple[str, list[View]]] = []
        self.held_out: list[tuple[str, list[View]]] = []
        for name, views_of in objects.items():
            order = self.draws.permutation(sorted(views_of))
            for number, key in enumerate(order):
                views = views_of[key]
                drawn = [views[index] for index in self.draws.permutation(len(views))]
                target = self.held_out if number < HELD_OUT else taught
                target.append((name, drawn))
        for name, views in taught:
            own_photos = [self.photo() for _ in range(PHOTOS_OF_OBJECT)]
            self.taught.append(TaughtObject(name, views, own_photos))
        self.table = self.photo()

    @property
    def photos_needed(self) -> int:
        """Number of photos that a split takes at most: of objects, table, questions."""
        n_taught = max(0, sum(self._n_objects) - HELD_OUT * len(self._n_objects))
        n_held_out = HELD_OUT * len(self._n_objects)
        of_questions = n_held_out * SHOWN * PHOTOS_OF_VIEW
        return n_taught * PHOTOS_OF_OBJECT + 1 + of_questions + EMPTY

    def photo(self) -> Image.Image:
        """Return a photo that was not drawn before.

        Raises:
            ValueError: all photos were drawn.
        """
        path = next(self._photos, None)
        if path is None:
            raise ValueError(
                f"there are {self._n_photos} photos for this use (names of files "
                f"divide them into two halves), and a split takes {self.photos_needed}"
                "; give more with --photos"
            )
        with Image.open(path) as image:
            return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)

    def shown(
        self, view: View, photo: Image.Image, height: float | None = None
    ) -> Image.Image:
        """Paste an object about the middle of a photo.

        Args:
            view: of the object.
            photo: of `SIDE` pixels.
            height: share of the height of the photo; drawn between 0.4 and 0.9 if None.

        Returns:
            The image, whose ``info["box"]`` is the box of the object.
        """
        share = self.draws.uniform(0.4, 0.9) if height is None else height
        width, length = view.cut.size
        factor = min(share * SIDE / length, 0.95 * SIDE / width)
        size = max(1, round(width * factor)), max(1, round(length * factor))
        shift_x, shift_y = self.draws.uniform(-0.08, 0.08, 2)
        left = round(SIDE * (0.5 + shift_x) - size[0] / 2)
        top = round(SIDE * (0.5 + shift_y) - size[1] / 2)
        image = photo.copy()
        resized = view.cut.resize(size, Image.Resampling.LANCZOS)
        image.paste(resized, (left, top), resized)  # its alpha is the mask
        image.info["box"] = (left, top, left + size[0], top + size[1])
        return image

    def lessons(self, stream: str) -> Iterator[tuple[str, list[Image.Image]]]:
        """Yield class and images of each lesson, in an order that is drawn."""
        for index in self.draws.permutation(len(self.taught)):
            target = self.taught[index]
            views = target.views[:TAUGHT]
            if stream == "plain":
                yield target.name, [view.whole for view in views]
                continue
            photos = self._photos_of(stream, target)
            images = []
            for number, view in enumerate(views):
                images.append(self.shown(view, photos[number % len(photos)]))
            yield target.name, images

    def _photos_of(self, stream: str, target: TaughtObject) -> list[Image.Image]:
        """The photos that an object is taught on."""
        if stream == "table":
            return [self.table]
        return target.photos[:1] if stream == "own" else target.photos

    def asked(self, stream: str) -> Iterator[Asked]:
        """Yield the questions after a stream."""
        if stream == "plain":
            yield from self._asked_as_they_are()
            return
        for target in self.taught:
            yield from self._asked_of_taught(target)
        for name, views in self.held_out:
            for view in views[:SHOWN]:
                yield from self._asked_of_held_out(name, view)
        for _ in range(EMPTY):
            yield Asked("empty", "", self.photo())

    def _asked_as_they_are(self) -> Iterator[Asked]:
        """Yield images of ETH-80 as they are."""
        for target in self.taught:
            for view in target.views[TAUGHT : TAUGHT + KNOWN_SHOWN]:
                yield Asked("same", target.name, view.whole)
        for name, views in self.held_out:
            for view in views:
                yield Asked("new", name, view.whole)

    def _asked_of_taught(self, target: TaughtObject) -> Iterator[Asked]:
        """Yield further views of a taught object, on its own and on another's photo."""
        backgrounds = [
            other.photos[0] for other in self.taught if other.name != target.name
        ]
        for view in target.views[TAUGHT : TAUGHT + KNOWN_SHOWN]:
            yield Asked("same", target.name, self.shown(view, target.photos[0]))
            photo = backgrounds[self.draws.integers(len(backgrounds))]
            yield Asked("other", target.name, self.shown(view, photo))

    def _asked_of_held_out(self, name: str, view: View) -> Iterator[Asked]:
        """Yield a view of a held-out object on new photos, in sizes and light."""
        yield Asked("new", name, self.shown(view, self.photo()))
        for size in SIZES:
            image = self.shown(view, self.photo(), LARGEST * size)
            yield Asked(f"size {size}", name, image)
        image = self.shown(view, self.photo())
        yield Asked("dark", name, lit(image, DARK))
        yield Asked("warm", name, lit(image, WARM))


def lit(image: Image.Image, factor: float | tuple[float, ...]) -> Image.Image:
    """Return an image in other light, with the box of its object."""
    pixels = np.asarray(image, dtype=np.float32) * factor
    changed = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    changed.info.update(image.info)
    return changed


SHAPES = {"cup": ("rectangle", (190, 50, 40)), "pear": ("ellipse", (70, 160, 60))}


def write_made_objects(root: Path, objects: int = 3, views: int = 16) -> None:
    """Write views of coloured shapes on a blue ground, in the layout of ETH-80."""
    for name, (shape, colour) in SHAPES.items():
        for number in range(objects):
            folder = root / f"{name}{number}"
            folder.mkdir(parents=True, exist_ok=True)
            fill = tuple(value + 5 * number for value in colour)
            for view in range(views):
                image = Image.new("RGB", (128, 128), BLUE)
                draw = getattr(ImageDraw.Draw(image), shape)
                draw((30 + view, 34, 94 + view, 90), fill=fill)
                image.save(folder / f"{view:03d}.png")


def write_made_photos(root: Path, count: int = 400) -> None:
    """Write photos of smooth colours."""
    draws = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        colours = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).save(root / f"{number}.png")
