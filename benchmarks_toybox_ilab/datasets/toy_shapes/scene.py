"""Draw a frame of the toy shapes: the object, its motion and light, and the image.

All randomness is seeded by a hash of names and numbers, so nothing is stored and each
frame can be drawn alone.
"""

import colorsys
import hashlib
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.datasets.toy_shapes.outlines import (
    DETAIL,
    HOLE,
    OUTLINES,
    Part,
    Uniform,
    outline,
)

CLASSES: tuple[str, ...] = tuple(sorted(OUTLINES))

# version: increase it if a path gives other pixels; part of the reader's repr and of
# cache keys
DRAWING = 1
# of a path without suffixes
SIZE = 64
FRAMES_PER_CLIP = 15
OVERSAMPLING = 2
LUMA = (0.299, 0.587, 0.114)
LUMAS_OF_GROUND = (0.06, 0.94)
LEAST_CONTRAST = 0.26  # of object and background, in luma
NARROWEST_RANGE = 0.08  # of luma, from which a background is drawn
GOLDEN_RATIO = 0.618
SHADOW_SHIFT = 0.03  # in units of the image's side
SHADOW_OPACITY = 110  # of 255
DOTS_ON_EDGES = 0.5  # largest probability of a dot at an edge
DOTS_ANYWHERE = 0.02  # and that anywhere

Colour = tuple[int, int, int]


def _uniform_of_key(*key: object) -> Uniform:
    """Return `uniform(low, high)`, which draws the random numbers of a toy or a clip.

    They are seeded by the key's SHA-256, and the same on every machine and in all
    versions of Python.
    """
    name = "/".join(map(str, ("toy_shapes", *key)))
    digest = hashlib.sha256(name.encode()).digest()
    draw = random.Random(int.from_bytes(digest[:8], "big")).random
    return lambda low, high: low + (high - low) * draw()


def _colour_of_luma(hue: float, saturation: float, luma: float) -> Colour:
    """Return the RGB of a toy shape's hue and saturation with exactly this luma.

    So that contrast is known.

    Args:
        hue: In turns of the colour wheel.
        saturation, luma: From 0 to 1.

    Returns:
        Three whole numbers, 0 to 255.
    """
    pure = colorsys.hsv_to_rgb(hue % 1.0, 1.0, 1.0)
    pure_luma = sum(weight * channel for weight, channel in zip(LUMA, pure))
    if luma < pure_luma:  # mixed with black
        rgb = [channel * luma / pure_luma for channel in pure]
    else:  # mixed with white
        white = (luma - pure_luma) / (1 - pure_luma)  # its share
        rgb = [channel + (1 - channel) * white for channel in pure]
    # With less saturation, mixed with the grey of this luma.
    red, green, blue = (
        round(255 * (luma + saturation * (channel - luma))) for channel in rgb
    )
    return red, green, blue


@dataclass(frozen=True)
class _Toy:
    """A toy object.

    Attributes:
        parts: The polygons of its outline and its details.
        pattern: Polygons `(N, 2)` that are printed on it, in object coordinates.
        body, print, detail: Colours of the object, its pattern and its details.
        luma: That of the body, from 0 to 1.
    """

    parts: list[Part]
    pattern: list[np.ndarray]
    body: Colour
    print: Colour
    detail: Colour
    luma: float


@dataclass(frozen=True)
class _Patch:
    """A polygon on the background of a toy clip."""

    points: np.ndarray  # (N, 2), in units of the image (0..1)
    colour: Colour


@dataclass(frozen=True)
class _Clip:
    """A toy clip: the background, motion and light.

    Attributes:
        ground: Colour of the background.
        clutter: What lies on it.
        curves: Motion and light as functions of time t from 0 to 1. "turn", "yaw" and
            "pitch" are the object's angles in radians; "scale" is half its size, "x"
            and "y" its place, "pan_x" and "pan_y" the shift of the background, all in
            units of the image's side; "light" is a gain, and "slope" its change from
            the middle to the lighter side.
        cast: `(3,)` gain of each channel.
        shade: Direction of the shading, radians.
    """

    ground: Colour
    clutter: list[_Patch]
    curves: dict[str, Callable[[float], float]]
    cast: np.ndarray
    shade: float


def _rotation(angle: float) -> np.ndarray:
    """Return the `(2, 2)` matrix that turns points of a toy shape, by radians."""
    cos = math.cos(angle)
    sin = math.sin(angle)
    return np.array([[cos, sin], [-sin, cos]])


def _corner_angles(corners: int) -> np.ndarray:
    """Return the angles of the corners of a round toy shape, in radians."""
    return np.linspace(0, 2 * math.pi, corners, endpoint=False)


def _pattern_polygons(uniform: Uniform) -> list[np.ndarray]:
    """Return the polygons of stripes, dots or checks of a toy object, or no pattern.

    Only the part inside the object's outline is visible.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.

    Returns:
        Corners `(N, 2)` of each polygon; the object goes from -1 to 1.
    """
    kind = int(uniform(0, 4))  # 0: none, 1: stripes, 2: dots, 3: checks
    pitch = uniform(0.32, 0.6)  # from one stripe, dot or check to the next
    rotation = _rotation(uniform(0, math.pi))
    cells = np.arange(-1.4, 1.4, pitch)  # where columns and rows begin
    shape = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])  # in a cell
    if kind == 0:
        return []
    if kind == 1:
        width = pitch * uniform(0.3, 0.6)
        return [(shape * (width, 3.0) + (x, -1.5)) @ rotation for x in cells]
    are_dots = kind == 2
    if are_dots:
        angles = _corner_angles(10)
        points = np.stack([np.cos(angles), np.sin(angles)], 1)
        shape = points * uniform(0.22, 0.36) + 0.5
    polygons = []
    for column, x in enumerate(cells):
        for row, y in enumerate(cells):
            is_dark_check = (column + row) % 2 == 1
            if are_dots or is_dark_check:
                polygons.append((shape * pitch + (x, y)) @ rotation)
    return polygons


@lru_cache(maxsize=256)
def _toy(class_name: str, object_index: int) -> _Toy:
    """Draw the outline, pattern and colours of a toy object from its random numbers.

    Pattern and details are darker than a bright body and brighter than a dark one.

    Args:
        class_name: One of `CLASSES`.
        object_index: Number of the object in its class, from 0.
    """
    # Draws random numbers that are the same on every machine.
    uniform = _uniform_of_key("object", class_name, object_index)
    # Golden-ratio steps spread hue and luma over the objects of a class, equally in
    # every class.
    hue = object_index * GOLDEN_RATIO + uniform(-0.06, 0.06)
    luma_step = (object_index * GOLDEN_RATIO * 3 + 0.5) % 1.0
    luma = 0.3 + 0.4 * luma_step + uniform(-0.04, 0.04)
    contrast = 0.11 if luma > 0.5 else -0.11  # of the pattern to the body, in luma
    return _Toy(
        parts=outline(class_name, uniform),
        pattern=_pattern_polygons(uniform),
        body=_colour_of_luma(hue, uniform(0.45, 0.9), luma),
        print=_colour_of_luma(
            hue + uniform(-0.35, 0.35), uniform(0.4, 0.9), luma + contrast
        ),
        detail=_colour_of_luma(
            hue + uniform(0.3, 0.7), uniform(0.2, 0.7), luma + 2.2 * contrast
        ),
        luma=luma,
    )


def _smooth_curve(
    uniform: Uniform, middle: float, travel: float, wobble: float
) -> Callable[[float], float]:
    """Return how a property of a toy clip changes with time t from 0 to 1, smoothly.

    Args:
        uniform: `uniform(low, high)` returns a random number for the clip.
        middle: Value in the middle of the clip, without the wave.
        travel: Most that a linear part adds at the end, or takes away.
        wobble: Largest height of a slow wave, which is added.
    """
    slope = uniform(-travel, travel)
    height = uniform(0, wobble)  # of the wave
    phase = uniform(0, 2 * math.pi)  # of the wave
    cycles = uniform(0.4, 0.9)  # of the wave in the clip

    def curve(t: float) -> float:
        wave = height * math.sin(phase + 2 * math.pi * cycles * t)
        return middle + slope * (2 * t - 1) + wave

    return curve


@lru_cache(maxsize=1024)
def _clip(class_name: str, object_index: int, session_index: int) -> _Clip:
    """Draw background, motion and light of a toy clip from its random numbers.

    Args:
        class_name: One of `CLASSES`.
        object_index, session_index: Number of the object in its class and of its clip,
            from 0.
    """
    luma = _toy(class_name, object_index).luma  # brightness of the object, 0 to 1
    uniform = _uniform_of_key("clip", class_name, object_index, session_index)
    # The background is clearly darker or brighter than the object; otherwise some
    # objects would be invisible.
    darkest, brightest = LUMAS_OF_GROUND
    darker = (darkest, luma - LEAST_CONTRAST)
    brighter = (luma + LEAST_CONTRAST, brightest)
    luma_ranges = []  # wide enough ones, of which one is drawn
    for low, high in (darker, brighter):
        if high - low > NARROWEST_RANGE:
            luma_ranges.append((low, high))
    low, high = luma_ranges[int(uniform(0, len(luma_ranges)))]
    ground = uniform(low, high)  # luma
    n_patches = int(uniform(9, 16))
    clutter = [_background_patch(uniform, ground, low, high) for _ in range(n_patches)]
    # Angles in radians, lengths and places in units of the image's side, light as gain;
    # each with its value in the middle, its linear change and the height of its wave.
    curves = {
        "turn": _smooth_curve(uniform, uniform(-0.6, 0.6), 0.6, 0.25),
        "yaw": _smooth_curve(uniform, uniform(-0.45, 0.45), 0.35, 0.25),
        "pitch": _smooth_curve(uniform, uniform(-0.4, 0.4), 0.25, 0.2),
        "scale": _smooth_curve(uniform, uniform(0.29, 0.37), 0.04, 0.03),
        "x": _smooth_curve(uniform, 0.5, 0.09, 0.05),
        "y": _smooth_curve(uniform, 0.5, 0.09, 0.05),
        "pan_x": _smooth_curve(uniform, 0.0, 0.08, 0.03),
        "pan_y": _smooth_curve(uniform, 0.0, 0.08, 0.03),
        "light": _smooth_curve(uniform, uniform(0.65, 1.05), 0.08, 0.05),
        "slope": _smooth_curve(uniform, uniform(0.05, 0.3), 0.05, 0.02),
    }
    # The colour of the light, as a gain of red, green and blue.
    cast = np.array([uniform(0.86, 1.12), uniform(0.9, 1.08), uniform(0.86, 1.12)])
    return _Clip(
        ground=_colour_of_luma(uniform(0, 1), uniform(0.1, 0.7), ground),
        clutter=clutter,
        curves=curves,
        cast=cast,
        shade=uniform(0, 2 * math.pi),
    )


def _background_patch(
    uniform: Uniform, ground: float, low: float, high: float
) -> _Patch:
    """Return a random polygon on the background of a toy clip.

    Args:
        uniform: `uniform(low, high)` returns a random number for the clip; the order of
            the draws matters.
        ground: Luma of the background, 0 to 1.
        low, high: Range of the luma of the polygon.

    Returns:
        Its corners in units of the image (0 to 1), and its colour.
    """
    corners = int(uniform(3, 8))
    stretch = uniform(0.25, 1.0)  # height by width before it is turned
    size = uniform(0.06, 0.32)  # half its width
    angles = _corner_angles(corners) + uniform(0, 2 * math.pi)
    points = np.stack([np.cos(angles), np.sin(angles) * stretch], 1) * size
    points = points @ _rotation(uniform(0, math.pi))
    luma = min(max(ground + uniform(-0.18, 0.18), low), high)
    points = points + np.array([uniform(-0.2, 1.2), uniform(-0.2, 1.2)])
    return _Patch(points, _colour_of_luma(uniform(0, 1), uniform(0.2, 0.9), luma))


def _projected(points: np.ndarray, pose: dict[str, float], pixels: int) -> np.ndarray:
    """Convert coordinates of a toy object to pixels of the image.

    Yaw and pitch in mild perspective, then rotate, scale and shift.

    Args:
        points: `(N, 2)`, x to the right and y down; the object goes from -1 to 1.
        pose: The object in this frame: "yaw", "pitch" and "turn" in radians, "scale"
            (half its size), "x" and "y" (its middle) in units of the image's side.
        pixels: Side of the image.

    Returns:
        `(N, 2)` float64, in pixels from the upper left corner.
    """
    yaw = pose["yaw"]
    pitch = pose["pitch"]
    x = points[:, 0] * math.cos(yaw)
    y = points[:, 1] * math.cos(pitch)
    depth = points[:, 0] * math.sin(yaw) + points[:, 1] * math.sin(pitch)
    scale = pose["scale"] / (1 + 0.3 * depth)  # what is farther is smaller
    cos = math.cos(pose["turn"])
    sin = math.sin(pose["turn"])
    turned_x = cos * x - sin * y
    turned_y = sin * x + cos * y
    across = pose["x"] + scale * turned_x
    down = pose["y"] + scale * turned_y
    return np.stack([across, down], axis=1) * pixels


def _corners_in_pixels(
    polygons: Sequence[np.ndarray], to_pixels: Callable[[np.ndarray], np.ndarray]
) -> Iterator[list[int]]:
    """Yield the corners x, y, x, y, ... of each polygon of a toy scene in whole pixels.

    So Pillow takes them. Points of all polygons are converted at once, in half the
    time. They are rounded here because Pillow truncates, which would show differences
    in the last bit between machines.

    Args:
        polygons: Points `(N, 2)` of each polygon, in any coordinates.
        to_pixels: Converts `(N, 2)` points to pixels of the image.
    """
    points = np.concatenate([np.empty((0, 2)), *polygons])
    numbers = iter(np.rint(to_pixels(points)).astype(int).ravel().tolist())
    # Each polygon takes its numbers off the iterator: two for each of its points.
    for polygon in polygons:
        yield list(islice(numbers, polygon.size))


def _lit_image(image: Image.Image, clip: _Clip, pose: dict[str, float]) -> Image.Image:
    """Return a toy scene with brightness, colour cast and shading from side to side.

    In integers, to be the same on every machine.

    Args:
        image: The scene without light, square RGB.
        clip: The direction of its shading (radians) and its colour cast (a gain of each
            channel) are applied.
        pose: The light in this frame: "light" is the gain in the middle, "slope" its
            change from there to the lighter side.
    """
    line = np.linspace(-1, 1, image.width)
    across = math.cos(clip.shade) * line[None, :]
    down = math.sin(clip.shade) * line[:, None]
    shading = pose["slope"] * (across + down)  # (H, W)
    gain = pose["light"] * (1 + shading)[..., None] * clip.cast  # (H, W, 3)
    # A product with it is divided by 128 by a shift of 7 bits.
    gain_in_128ths = np.rint(np.clip(gain, 0, 1.99) * 128).astype(np.uint16)
    pixels = np.minimum((np.asarray(image) * gain_in_128ths) >> 7, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def render(
    class_name: str,
    object_index: int,
    session_index: int,
    frame_index: int,
    size: int = SIZE,
    frames_per_clip: int = FRAMES_PER_CLIP,
) -> Image.Image:
    """Draw one frame of the toy shapes.

    The same arguments give the same image in every process and on every machine.

    Args:
        class_name: One of `CLASSES`.
        object_index, session_index: Number of the object in its class and of its clip,
            from 0; there is no limit.
        frame_index: Position in the clip, 0 to `frames_per_clip` - 1.
        size: Side of the RGB image in pixels, 16 or more.
        frames_per_clip: Number of frames of the clip; more frames mean smaller steps.

    Raises:
        ValueError: If the class is unknown or the frame is not in the clip.
    """
    check_classes([class_name])
    if not 0 <= frame_index < frames_per_clip:
        raise ValueError(
            f"frame_index is {frame_index}, but a clip of {frames_per_clip} frames "
            f"ends at {frames_per_clip - 1}."
        )
    toy = _toy(class_name, object_index)
    clip = _clip(class_name, object_index, session_index)
    time = frame_index / max(frames_per_clip - 1, 1)  # 0 to 1 in the clip
    pose = {name: curve(time) for name, curve in clip.curves.items()}
    # Drawn larger and reduced at the end, which smooths the edges of the polygons.
    pixels = size * OVERSAMPLING
    scene = _background_image(clip, pose, pixels)
    surface = Image.new("RGB", scene.size, toy.body)
    mask = Image.new("L", scene.size)
    _draw_toy(toy, pose, surface, mask)
    # The shadow lies on the side away from the light.
    shift = SHADOW_SHIFT * pixels
    shadow = (
        round(shift * -math.cos(clip.shade)),
        round(shift * -math.sin(clip.shade)),
    )
    # Opacity of the shadow by each of 256 levels of the mask: none outside the object.
    opacity = [0] * 128 + [SHADOW_OPACITY] * 128
    scene.paste((0, 0, 0), shadow, mask.point(opacity))
    scene.paste(surface, (0, 0), mask)
    return _lit_image(scene.reduce(OVERSAMPLING), clip, pose)


def _background_image(clip: _Clip, pose: dict[str, float], pixels: int) -> Image.Image:
    """Draw the background of a toy clip, which moves, as RGB.

    Args:
        clip: The colour of its background and the polygons on it are drawn.
        pose: "pan_x" and "pan_y" are the shift of the background in this frame, in
            units of the image's side.
        pixels: Side of the image.
    """
    scene = Image.new("RGB", (pixels, pixels), clip.ground)
    draw = ImageDraw.Draw(scene)
    pan = np.array([pose["pan_x"], pose["pan_y"]])
    outlines = [patch.points for patch in clip.clutter]
    polygons = _corners_in_pixels(outlines, lambda points: (points + pan) * pixels)
    for corners, patch in zip(polygons, clip.clutter):
        draw.polygon(corners, fill=patch.colour)
    return scene


def _draw_toy(
    toy: _Toy, pose: dict[str, float], surface: Image.Image, mask: Image.Image
) -> None:
    """Draw pattern and details of a toy on its surface, and its outline on a mask.

    Args:
        toy: The object.
        pose: Its place in this frame: "yaw", "pitch" and "turn" in radians, "scale"
            (half its size), "x" and "y" (its middle) in units of the image's side.
        surface: RGB image that is drawn on.
        mask: Black image of the same size that is drawn on: white is the object.
    """
    on_surface = ImageDraw.Draw(surface)
    on_mask = ImageDraw.Draw(mask)
    outlines = [part.points for part in toy.parts]
    corners_of_all = _corners_in_pixels(
        [*toy.pattern, *outlines], lambda points: _projected(points, pose, mask.width)
    )
    polygons = list(corners_of_all)  # of x, y, x, y, ... in pixels
    pattern_polygons = polygons[: len(toy.pattern)]
    part_polygons = polygons[len(toy.pattern) :]
    for corners in pattern_polygons:
        on_surface.polygon(corners, fill=toy.print)
    for part, corners in zip(toy.parts, part_polygons, strict=True):
        if part.role == DETAIL:
            on_surface.polygon(corners, fill=toy.detail)
        elif part.role == HOLE:
            on_mask.polygon(corners, fill=0)
        else:
            on_mask.polygon(corners, fill=255)


def check_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes of toy shapes as a tuple.

    Raises:
        ValueError: Unless each is known and unique; lists the known names.
    """
    if isinstance(names, str):
        raise ValueError(
            f"classes is the single string {names!r}; give a sequence of names, e.g. "
            f"[{names!r}]."
        )
    problem = ""
    unknown = [name for name in names if name not in OUTLINES]
    if unknown:
        problem = f"does not know {unknown}"
    elif not names or len(set(names)) < len(names):
        problem = f"cannot use {list(names)}: one name or more, each only once"
    if problem:
        raise ValueError(f"toy_shapes {problem}; choose from {', '.join(CLASSES)}.")
    return tuple(names)


def as_dots(image: Image.Image, seed_text: str) -> Image.Image:
    """Draw a frame of the toy shapes as white dots on black, dense where edges are.

    Args:
        image: The frame.
        seed_text: Its path; it seeds the dots, alike on every machine.

    Returns:
        An RGB image of the same size.
    """
    brightness = np.asarray(image.convert("L"), dtype=np.float64) / 255
    # Differences to the pixel above and to the one on the left, `(H, W)`.
    edges = np.abs(np.diff(brightness, axis=0, prepend=brightness[:1]))
    edges += np.abs(np.diff(brightness, axis=1, prepend=brightness[:, :1]))
    probability = np.clip(2 * edges, 0, DOTS_ON_EDGES) + DOTS_ANYWHERE
    seed = zlib.crc32(seed_text.encode())
    dots = np.random.default_rng(seed).random(probability.shape) < probability
    return Image.fromarray((255 * dots).astype(np.uint8)).convert("RGB")
