"""Draw a frame of the toy shapes: the object, the motion and light of its clip, and the image.

All randomness is seeded by a hash of names and numbers, so nothing is stored and each
frame can be drawn alone.
"""

import colorsys
import hashlib
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

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
SIZE, FRAMES_PER_CLIP = 64, 15  # of a path without suffixes
OVERSAMPLING = 2
LUMA = (0.299, 0.587, 0.114)
DOTS_ON_EDGES, DOTS_ANYWHERE = (
    0.5,
    0.02,
)  # largest probability of a dot at an edge, and that anywhere

Colour = tuple[int, int, int]


def _uniform(*key: object) -> Uniform:
    """Return `u(low, high)`, uniform random numbers seeded by the key's SHA-256, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, ("toy_shapes", *key))).encode()).digest()
    draw = random.Random(
        int.from_bytes(digest[:8], "big")
    ).random  # the same sequence in all Python versions
    return lambda low, high: low + (high - low) * draw()


def _colour(hue: float, saturation: float, luma: float) -> Colour:
    """RGB (0..255) of a hue (turns) and a saturation with exactly this luma (0..1), so that contrast is known."""
    rgb = colorsys.hsv_to_rgb(hue % 1.0, 1.0, 1.0)
    own = sum(weight * value for weight, value in zip(LUMA, rgb))
    if luma < own:
        rgb = [value * luma / own for value in rgb]
    else:
        rgb = [value + (1 - value) * (luma - own) / (1 - own) for value in rgb]
    return tuple(round(255 * (luma + saturation * (value - luma))) for value in rgb)


class _Thing(NamedTuple):
    """One object: its outline, its colours and the polygons of its pattern."""

    parts: list[Part]
    pattern: list[np.ndarray]
    body: Colour
    print: Colour
    detail: Colour
    luma: float


class _Clip(NamedTuple):
    """One session: the background, and motion and light as functions of time t from 0 to 1."""

    ground: Colour
    clutter: list[tuple[np.ndarray, Colour]]  # polygons in units of the image (0..1)
    curves: dict[str, Callable[[float], float]]
    cast: np.ndarray  # (3,) gain of each channel
    shade: float  # direction of the shading, radians


def _pattern(u: Uniform) -> list[np.ndarray]:
    """Stripes, dots, checks or no pattern, in object coordinates; only the part inside the outline is visible."""
    kind, pitch, angle = int(u(0, 4)), u(0.32, 0.6), u(0, math.pi)
    turn = np.array(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    )
    cells = np.arange(-1.4, 1.4, pitch)
    square = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    if kind == 0:
        return []
    if kind == 1:
        width = pitch * u(0.3, 0.6)
        return [(square * (width, 3.0) + (x, -1.5)) @ turn for x in cells]
    if kind == 2:
        angles = np.linspace(0, 2 * math.pi, 10, endpoint=False)
        square = np.stack([np.cos(angles), np.sin(angles)], 1) * u(0.22, 0.36) + 0.5
    grid = [
        (x, y)
        for i, x in enumerate(cells)
        for j, y in enumerate(cells)
        if kind == 2 or (i + j) % 2
    ]
    return [(square * pitch + corner) @ turn for corner in grid]


@lru_cache(maxsize=256)
def _thing(class_name: str, object_index: int) -> _Thing:
    u = _uniform("object", class_name, object_index)
    # Golden-ratio steps spread hue and luma over the objects of a class, equally in
    # every class.
    hue = object_index * 0.618 + u(-0.06, 0.06)
    luma = 0.3 + 0.4 * ((object_index * 0.618 * 3 + 0.5) % 1.0) + u(-0.04, 0.04)
    away = 0.11 if luma > 0.5 else -0.11
    return _Thing(
        parts=outline(class_name, u),
        pattern=_pattern(u),
        body=_colour(hue, u(0.45, 0.9), luma),
        print=_colour(hue + u(-0.35, 0.35), u(0.4, 0.9), luma + away),
        detail=_colour(hue + u(0.3, 0.7), u(0.2, 0.7), luma + 2.2 * away),
        luma=luma,
    )


def _curve(
    u: Uniform, middle: float, travel: float, wobble: float
) -> Callable[[float], float]:
    """A smooth function of t = 0..1 around `middle`: a linear part (at most `travel` each way) and one slow wave."""
    slope, height, phase, cycles = (
        u(-travel, travel),
        u(0, wobble),
        u(0, 2 * math.pi),
        u(0.4, 0.9),
    )
    return lambda t: (
        middle
        + slope * (2 * t - 1)
        + height * math.sin(phase + 2 * math.pi * cycles * t)
    )


@lru_cache(maxsize=1024)
def _clip(class_name: str, object_index: int, session_index: int) -> _Clip:
    luma = _thing(class_name, object_index).luma
    u = _uniform("clip", class_name, object_index, session_index)
    # The background is clearly darker or brighter than the object; otherwise some
    # objects would be invisible.
    sides = [
        (low, high)
        for low, high in ((0.06, luma - 0.26), (luma + 0.26, 0.94))
        if high - low > 0.08
    ]
    low, high = sides[int(u(0, len(sides)))]
    ground = u(low, high)
    clutter = []
    for _ in range(int(u(9, 16))):
        corners, stretch, size, spin = (
            int(u(3, 8)),
            u(0.25, 1.0),
            u(0.06, 0.32),
            u(0, 2 * math.pi),
        )
        angle = np.linspace(0, 2 * math.pi, corners, endpoint=False) + spin
        points = np.stack([np.cos(angle), np.sin(angle) * stretch], 1) * size
        tilt = u(0, math.pi)
        points = points @ np.array(
            [[math.cos(tilt), math.sin(tilt)], [-math.sin(tilt), math.cos(tilt)]]
        )
        tone = min(max(ground + u(-0.18, 0.18), low), high)
        clutter.append(
            (
                points + np.array([u(-0.2, 1.2), u(-0.2, 1.2)]),
                _colour(u(0, 1), u(0.2, 0.9), tone),
            )
        )
    curves = {
        "turn": _curve(u, u(-0.6, 0.6), 0.6, 0.25),
        "yaw": _curve(u, u(-0.45, 0.45), 0.35, 0.25),
        "pitch": _curve(u, u(-0.4, 0.4), 0.25, 0.2),
        "scale": _curve(u, u(0.29, 0.37), 0.04, 0.03),
        "x": _curve(u, 0.5, 0.09, 0.05),
        "y": _curve(u, 0.5, 0.09, 0.05),
        "pan_x": _curve(u, 0.0, 0.08, 0.03),
        "pan_y": _curve(u, 0.0, 0.08, 0.03),
        "light": _curve(u, u(0.65, 1.05), 0.08, 0.05),
        "slope": _curve(u, u(0.05, 0.3), 0.05, 0.02),
    }
    cast = np.array([u(0.86, 1.12), u(0.9, 1.08), u(0.86, 1.12)])
    return _Clip(
        _colour(u(0, 1), u(0.1, 0.7), ground), clutter, curves, cast, u(0, 2 * math.pi)
    )


def _placed(points: np.ndarray, at: dict[str, float], pixels: int) -> np.ndarray:
    """Object coordinates (N, 2) to pixels: yaw and pitch in mild perspective, then rotate, scale and shift."""
    x, y = points[:, 0] * math.cos(at["yaw"]), points[:, 1] * math.cos(at["pitch"])
    depth = points[:, 0] * math.sin(at["yaw"]) + points[:, 1] * math.sin(at["pitch"])
    grow = at["scale"] / (1 + 0.3 * depth)
    cos, sin = math.cos(at["turn"]), math.sin(at["turn"])
    return (
        np.stack(
            [
                at["x"] + grow * (cos * x - sin * y),
                at["y"] + grow * (sin * x + cos * y),
            ],
            axis=1,
        )
        * pixels
    )


def _corners(
    polygons: Sequence[np.ndarray], place: Callable[[np.ndarray], np.ndarray]
) -> Iterator[list[int]]:
    """The corners x, y, x, y, ... of each polygon (N, 2) in whole pixels; all are placed at once, in half the time.

    They are rounded here because Pillow truncates, which would show differences in the
    last bit between machines.
    """
    numbers = iter(
        np.rint(place(np.concatenate([np.empty((0, 2)), *polygons])))
        .astype(int)
        .ravel()
        .tolist()
    )
    return (list(islice(numbers, points.size)) for points in polygons)


def _lit(image: Image.Image, clip: _Clip, at: dict[str, float]) -> Image.Image:
    """Apply brightness, colour cast and shading from side to side, in integers to be the same on every machine."""
    line = np.linspace(-1, 1, image.width)
    slope = at["slope"] * (
        math.cos(clip.shade) * line[None, :] + math.sin(clip.shade) * line[:, None]
    )
    gain = np.rint(
        np.clip(at["light"] * (1 + slope)[..., None] * clip.cast, 0, 1.99) * 128
    ).astype(np.uint16)
    return Image.fromarray(
        np.minimum((np.asarray(image) * gain) >> 7, 255).astype(np.uint8)
    )


def render(
    class_name: str,
    object_index: int,
    session_index: int,
    frame_index: int,
    size: int = SIZE,
    frames_per_clip: int = FRAMES_PER_CLIP,
) -> Image.Image:
    """Draw one frame; the same arguments give the same image in every process and on every machine.

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
            f"frame_index is {frame_index}, but a clip of {frames_per_clip} frames ends at {frames_per_clip - 1}."
        )
    thing, clip = (
        _thing(class_name, object_index),
        _clip(class_name, object_index, session_index),
    )
    time = frame_index / max(frames_per_clip - 1, 1)
    at = {name: curve(time) for name, curve in clip.curves.items()}
    pixels = size * OVERSAMPLING
    scene = Image.new("RGB", (pixels, pixels), clip.ground)
    draw = ImageDraw.Draw(scene)
    pan = np.array([at["pan_x"], at["pan_y"]])
    shapes, colours = zip(*clip.clutter)
    for corners, colour in zip(
        _corners(shapes, lambda points: (points + pan) * pixels), colours
    ):
        draw.polygon(corners, fill=colour)
    mask, surface = Image.new("L", scene.size), Image.new("RGB", scene.size, thing.body)
    cut, draw = ImageDraw.Draw(mask), ImageDraw.Draw(surface)
    outlines = [points for _, points in thing.parts]
    placed = _corners(
        [*thing.pattern, *outlines], lambda points: _placed(points, at, pixels)
    )
    for corners in islice(placed, len(thing.pattern)):
        draw.polygon(corners, fill=thing.print)
    for (role, _), corners in zip(thing.parts, placed):
        if role == DETAIL:
            draw.polygon(corners, fill=thing.detail)
        else:
            cut.polygon(corners, fill=0 if role == HOLE else 255)
    shadow = tuple(
        round(0.03 * pixels * part)
        for part in (-math.cos(clip.shade), -math.sin(clip.shade))
    )
    scene.paste((0, 0, 0), shadow, mask.point([0] * 128 + [110] * 128))
    scene.paste(surface, (0, 0), mask)
    return _lit(scene.reduce(OVERSAMPLING), clip, at)


def check_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple; raise ValueError, listing the known names, unless each is known and unique."""
    if isinstance(names, str):
        raise ValueError(
            f"classes is the single string {names!r}; give a sequence of names, e.g. [{names!r}]."
        )
    unknown = [name for name in names if name not in OUTLINES]
    if unknown or not names or len(set(names)) < len(names):
        what = (
            f"does not know {unknown}"
            if unknown
            else f"cannot use {list(names)}: one name or more, each only once"
        )
        raise ValueError(f"toy_shapes {what}; choose from {', '.join(CLASSES)}.")
    return tuple(names)


def as_dots(image: Image.Image, name: str) -> Image.Image:
    """Draw white dots on black in RGB, dense where brightness changes; `name` seeds them, alike on every machine."""
    brightness = np.asarray(image.convert("L"), dtype=np.float64) / 255
    edges = np.abs(np.diff(brightness, axis=0, prepend=brightness[:1]))
    edges += np.abs(np.diff(brightness, axis=1, prepend=brightness[:, :1]))
    chance = np.clip(2 * edges, 0, DOTS_ON_EDGES) + DOTS_ANYWHERE
    drawn = (
        np.random.default_rng(zlib.crc32(name.encode())).random(chance.shape) < chance
    )
    return Image.fromarray((255 * drawn).astype(np.uint8)).convert("RGB")
