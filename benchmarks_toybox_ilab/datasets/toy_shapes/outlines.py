"""The outlines of the toy shapes: functions from random numbers to polygons.

Each function draws one category. It takes `uniform`, where `uniform(low, high)`
returns a random number for the object, and returns a list of `Part`. Coordinates have
any scale (x to the right, y down, as in an image): `outline` centres the drawing and
scales it to the square from -1 to 1. Proportions, optional pieces and the numbers of
teeth, rungs and points vary within a category; the features that make it recognisable
do not.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

FILL = "fill"
HOLE = "hole"
DETAIL = "detail"
Uniform = Callable[[float, float], float]


class Part(NamedTuple):
    """One polygon.

    Attributes:
        role: `FILL` adds to the object, `HOLE` cuts, `DETAIL` is painted on top.
        points: `(N, 2)` float64.
    """

    role: str
    points: np.ndarray


def _part(role, points) -> Part:
    return Part(role, np.asarray(points, dtype=float))


filled, cut_out, painted = (partial(_part, role) for role in (FILL, HOLE, DETAIL))


def arc(cx, cy, rx, ry, start=0.0, stop=360.0, steps=32) -> np.ndarray:
    """Return points on an ellipse, `(steps, 2)`.

    Angles are in degrees, clockwise in the image, from the right.
    """
    angle = np.radians(
        np.linspace(start, stop, steps, endpoint=abs(stop - start) < 360)
    )
    return np.stack([cx + rx * np.cos(angle), cy + ry * np.sin(angle)], axis=1)


def box(left, top, right, bottom) -> list[tuple[float, float]]:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def mirrored(right_half) -> np.ndarray:
    """Close a right-hand profile (top to bottom) with its mirror image at x = 0."""
    right = np.asarray(right_half, dtype=float)
    return np.concatenate([right, right[::-1] * (-1, 1)])


def ribbon(path, width, end_width=None) -> np.ndarray:
    """Return a line along a path as a polygon, which scales and tilts with the object.

    Args:
        path: `(N, 2)` points.
        width: of the line, at its end `end_width` if that is given.
    """
    path = np.asarray(path, dtype=float)
    tangent = np.gradient(path, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], axis=1)
    if end_width is None:
        end_width = width
    widths = np.linspace(width, end_width, len(path))
    side = normal * widths[:, None] / 2
    return np.concatenate([path + side, (path - side)[::-1]])


def _arrow(uniform: Uniform) -> list[Part]:
    """Draw an arrow to the right."""
    shaft = uniform(0.12, 0.28)
    head = uniform(0.45, 0.7)
    barb = uniform(0.55, 0.95)
    neck = 1 - barb
    tail = -1.0 + uniform(-0.1, 0.1)
    sweep = uniform(-0.02, 0.22)  # how far the barbs point backwards
    notch = uniform(-0.05, 0.15)
    upper = [(1, 0), (neck - sweep, -head), (neck, -shaft), (tail, -shaft)]
    return [
        filled(upper + [(tail + notch, 0)] + [(x, -y) for x, y in reversed(upper[1:])])
    ]


def _bottle(uniform: Uniform) -> list[Part]:
    """Draw a bottle with a cap and a label."""
    neck = uniform(0.1, 0.17)
    body = uniform(0.3, 0.46)
    length = uniform(0.4, 0.7)
    slope = uniform(0.12, 0.4)
    top = -1.0
    shoulder = -1.0 + length
    base = uniform(0.85, 1.1)
    bulge = body * uniform(0.85, 1.0)
    bend = [
        (neck, shoulder),
        (body * 0.8, shoulder + slope * 0.6),
        (body, shoulder + slope),
    ]
    rim = neck * uniform(1.2, 1.5)
    label = sorted((shoulder + slope + uniform(0.1, 0.25), base - uniform(0.15, 0.35)))
    return [
        filled(mirrored([(neck, top), *bend, (bulge, base)])),
        filled(box(-rim, top - 0.05, rim, top + uniform(0.08, 0.16))),
        painted(box(-body * 0.97, label[0], body * 0.97, label[1])),
    ]


def _chair(uniform: Uniform) -> list[Part]:
    """Draw a chair from the side."""
    thick = uniform(0.12, 0.19)
    lean = uniform(0.0, 0.22)
    depth = uniform(0.75, 1.05)
    back = -depth / 2
    seat = uniform(0.0, 0.15)
    splay = uniform(0.0, 0.14)
    legs = uniform(0.75, 0.95)
    shapes = [
        filled(ribbon([(back - lean, -1), (back, seat)], thick)),
        filled(box(back - thick / 2, seat - thick / 2, depth / 2, seat + thick * 0.7)),
        filled(ribbon([(back, seat), (back - splay, legs)], thick)),
        filled(
            ribbon(
                [(depth / 2 - thick / 2, seat), (depth / 2 - thick / 2 + splay, legs)],
                thick,
            )
        ),
    ]
    if uniform(0, 1) < 0.5:
        rung = seat + (legs - seat) * uniform(0.5, 0.7)
        shapes.append(
            filled(
                box(back, rung - thick * 0.3, depth / 2 - thick / 2, rung + thick * 0.3)
            )
        )
    return shapes


def _crescent(uniform: Uniform) -> list[Part]:
    """Draw a crescent."""
    # The inner arc passes through the two tips of the outer one and has its own centre.
    tip = uniform(50, 80)
    bite = uniform(0.15, 0.6)
    outer = arc(0, 0, 1, 1, tip, 360 - tip, 40)
    x = np.cos(np.radians(tip))
    y = np.sin(np.radians(tip))
    centre = x + bite * y
    radius = np.hypot(x - centre, y)
    inner = np.degrees(np.arctan2(y, x - centre))
    return [
        filled(
            np.concatenate(
                [outer, arc(centre, 0, radius, radius, 360 - inner, inner, 30)]
            )
        )
    ]


def _cross(uniform: Uniform) -> list[Part]:
    """Draw a cross."""
    root = uniform(0.17, 0.34)
    flare = uniform(0.9, 1.45)
    long = uniform(1.0, 1.35)
    tip = root * flare
    arms = []
    for turn, reach in enumerate((1.0, long, 1.0, 1.0)):
        angle = np.radians(90 * turn)
        spin = np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
        arms.append(np.array([(root, -root), (reach, -tip), (reach, tip)]) @ spin)
    return [filled(np.concatenate(arms))]


def _fish(uniform: Uniform) -> list[Part]:
    """Draw a fish."""
    height = uniform(0.36, 0.6)
    tail = uniform(0.3, 0.52)
    fork = uniform(0.0, 0.2)
    narrow = uniform(0.05, 0.1)
    x = np.linspace(0, 1, 16)
    side = height * np.sin(np.pi * x ** uniform(0.75, 0.95)) + narrow * x
    upper = np.stack([-1 + 1.45 * x, -side], axis=1)
    end = uniform(0.92, 1.05)
    fin = uniform(0.12, 0.3)
    return [
        filled(np.concatenate([upper, (upper * (1, -1))[::-1]])),
        filled([(0.32, 0), (end, -tail), (end - fork, 0), (end, tail)]),
        filled([(-0.55, -height * 0.75), (-0.1, -height - fin), (0.2, -height * 0.6)]),
        painted(arc(-0.68, -height * 0.22, 0.09, 0.09, steps=12)),
        painted(ribbon(arc(-0.78, 0, 0.4, height * 0.75, -45, 45, 8), 0.06)),
    ]


def _gear(uniform: Uniform) -> list[Part]:
    """Draw a gear."""
    teeth = int(uniform(7, 13))
    root = uniform(0.68, 0.8)
    hole = uniform(0.18, 0.42)
    width = uniform(0.42, 0.56)
    taper = uniform(0.6, 0.95)
    pitch = 360 / teeth
    points = []
    for tooth in range(teeth):
        for radius, share in (
            (root, -width),
            (1, -width * taper),
            (1, width * taper),
            (root, width),
        ):
            angle = np.radians(pitch * (tooth + share / 2))
            points.append((radius * np.cos(angle), radius * np.sin(angle)))
    return [filled(points), cut_out(arc(0, 0, hole, hole, steps=24))]


def _hammer(uniform: Uniform) -> list[Part]:
    """Draw a hammer."""
    grip = uniform(0.1, 0.16)
    length = uniform(1.5, 1.8)
    head = uniform(0.16, 0.25)
    face = uniform(0.42, 0.6)
    claw = uniform(0.45, 0.75)
    droop = uniform(0.0, 0.35)
    top = -1.0
    hold = -1.0 + length * 0.62
    return [
        filled(
            [
                (-grip * 0.8, top),
                (grip * 0.8, top),
                (grip * uniform(0.9, 1.3), top + length),
                (-grip * 1.1, top + length),
            ]
        ),
        filled(box(-face, top - head, 0.15, top + head)),
        filled(box(-face - 0.08, top - head * 1.25, -face + 0.12, top + head * 1.25)),
        filled(
            [
                (0.1, top - head),
                (claw, top - head * 0.4 + droop),
                (claw + 0.04, top + droop),
                (0.1, top + head),
            ]
        ),
        painted(box(-grip * 1.3, hold, grip * 1.3, top + length)),
    ]


def _heart(uniform: Uniform) -> list[Part]:
    """Draw a heart."""
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = np.sin(t) ** 3 * uniform(0.9, 1.15)
    y = (
        -(
            13 * np.cos(t)
            - uniform(4.0, 6.0) * np.cos(2 * t)
            - 2 * np.cos(3 * t)
            - np.cos(4 * t)
        )
        / 16
    )
    points = np.stack([x, y * uniform(0.9, 1.1)], axis=1)
    shapes = [filled(points)]
    if uniform(0, 1) < 0.4:
        shapes.append(painted(points * uniform(0.4, 0.62) - (0, 0.04)))
    return shapes


def _house(uniform: Uniform) -> list[Part]:
    """Draw a house."""
    half = uniform(0.6, 0.85)
    eaves = uniform(0.05, 0.22)
    roof = uniform(0.5, 0.9)
    floor = uniform(0.85, 1.2)
    ridge = uniform(-0.2, 0.2)
    door = uniform(0.12, 0.2)
    side = uniform(-0.3, 0.3)
    shapes = [
        filled(box(-half, 0, half, floor)),
        filled([(-half - eaves, 0.02), (ridge, -roof), (half + eaves, 0.02)]),
        painted(box(side - door, floor - uniform(0.45, 0.6), side + door, floor)),
    ]
    if uniform(0, 1) < 0.7:
        at = uniform(0.3, 0.45)
        shapes.append(
            filled(box(at, -roof * uniform(0.9, 1.1), at + uniform(0.14, 0.22), 0))
        )
    for x in (-half * 0.62, half * 0.62):
        if abs(x - side) > door + 0.17:
            shapes.append(painted(box(x - 0.13, 0.2, x + 0.13, 0.46)))
    return shapes


def _key(uniform: Uniform) -> list[Part]:
    """Draw a key."""
    bow = uniform(0.34, 0.46)
    squash = uniform(0.85, 1.2)
    shaft = uniform(0.07, 0.11)
    rim = uniform(0.45, 0.62)
    teeth = int(uniform(2, 4))
    bits = []
    for tooth in range(teeth):
        left = 0.93 - (tooth + 1) * uniform(0.2, 0.24)
        bits.append(filled(box(left, 0, left + 0.13, shaft + uniform(0.18, 0.34))))
    return [
        filled(arc(-0.6, 0, bow, bow * squash, steps=28)),
        cut_out(
            arc(-0.6 - uniform(0.0, 0.06), 0, bow * rim, bow * squash * rim, steps=20)
        ),
        filled(box(-0.6 + bow * 0.9, -shaft, 1.0, shaft)),
        *bits,
    ]


def _ladder(uniform: Uniform) -> list[Part]:
    """Draw a ladder."""
    rungs = int(uniform(4, 7.99))
    half = uniform(0.3, 0.42)
    rail = uniform(0.1, 0.15)
    taper = uniform(0.65, 1.0)
    thick = uniform(0.08, 0.12)
    shapes = [
        filled(ribbon([(s * half * taper, -1), (s * half, 1)], rail)) for s in (-1, 1)
    ]
    for y in np.linspace(-0.85, 0.85, rungs):
        width = half * (taper + (1 - taper) * (y + 1) / 2)
        shapes.append(filled(box(-width, y - thick / 2, width, y + thick / 2)))
    return shapes


def _leaf(uniform: Uniform) -> list[Part]:
    """Draw a leaf with its veins."""
    width = uniform(0.36, 0.58)
    peak = uniform(0.7, 1.2)
    bend = uniform(-0.25, 0.25)
    x = np.linspace(0, 1, 20)
    side = width * np.sin(np.pi * x**peak)
    if uniform(0, 1) < 0.5:
        side[1:-1:2] *= uniform(0.75, 0.88)  # a serrated edge
    middle = np.stack([1.5 * x - 0.9, bend * np.sin(np.pi * x)], axis=1)
    stem = np.array([(-1.25, -bend * 0.5), (-1.05, -bend * 0.2), (-0.85, 0)])
    shapes = [
        filled(
            np.concatenate(
                [
                    middle - np.stack([0 * x, side], 1),
                    (middle + np.stack([0 * x, side], 1))[::-1],
                ]
            )
        ),
        filled(ribbon(stem, 0.09)),
        painted(ribbon(middle[:-2], 0.07, 0.03)),
    ]
    for at in (5, 9, 13):
        for s in (-1, 1):
            end = middle[at] + (0.24, s * side[at + 1] * 0.75)
            shapes.append(painted(ribbon([middle[at], end], 0.05)))
    return shapes


def _lightning(uniform: Uniform) -> list[Part]:
    """Draw a flash of lightning."""
    top = uniform(0.28, 0.42)
    mid = uniform(0.2, 0.36)
    drop = uniform(-0.12, 0.08)
    lean = uniform(0.1, 0.3)
    right = [
        (lean - top * 0.6, -1),
        (lean + top, -1),
        (0.12 + drop, -0.22),
        (mid + 0.28, -0.3),
    ]
    left = [(-lean - 0.2, 1), (-0.08, 0.14 + drop), (-mid - 0.22, 0.24)]
    return [filled(right + left)]


def _mug(uniform: Uniform) -> list[Part]:
    """Draw a mug with its handle."""
    top = uniform(0.5, 0.68)
    taper = uniform(0.75, 1.1)
    height = uniform(0.6, 0.82)
    handle = uniform(0.3, 0.44)
    base = top * taper
    thick = uniform(0.09, 0.15)
    low = uniform(0.3, 0.5)
    middle = uniform(-0.12, 0.12)
    edge = (top + base) / 2 - 0.06
    lip = uniform(0.06, 0.13)
    return [
        filled(arc(edge, middle, handle + thick, low + thick, -90, 90, 20)),
        cut_out(arc(edge, middle, handle, low, -90, 90, 18)),
        filled([(-top, -height), (top, -height), (base, height), (-base, height)]),
        filled(arc(0, height, base, lip, 0, 180, 12)),
        filled(arc(0, -height, top, lip * 1.3, steps=20)),
        painted(arc(0, -height, top * 0.86, lip, steps=20)),
    ]


def _ring(uniform: Uniform) -> list[Part]:
    """Draw a ring."""
    # the power ranges from a rounded square to a circle
    squash = uniform(0.8, 1.0)
    hole = uniform(0.5, 0.75)
    power = uniform(0.65, 1.0)
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    unit = np.stack([np.cos(t), np.sin(t)], 1)
    outer = np.sign(unit) * np.abs(unit) ** power * (1, squash)
    shift = (uniform(-0.06, 0.06), uniform(-0.06, 0.06))
    return [filled(outer), cut_out(outer * hole + shift)]


def _spiral(uniform: Uniform) -> list[Part]:
    """Draw a spiral."""
    turns = uniform(1.9, 2.9)
    width = uniform(0.15, 0.2)
    growth = uniform(0.8, 1.05)
    side = 1 if uniform(0, 1) < 0.5 else -1
    t = np.linspace(0.06, 1, 60)
    angle = 2 * np.pi * turns * t + uniform(0, 6.28)
    path = np.stack([np.cos(angle), side * np.sin(angle)], 1) * (t[:, None] ** growth)
    return [filled(ribbon(path, width * uniform(0.7, 1.0), width))]


def _star(uniform: Uniform) -> list[Part]:
    """Draw a star."""
    tips = int(uniform(5, 8.99))
    inner = uniform(0.36, 0.55)
    angle = np.pi * np.arange(2 * tips) / tips - np.pi / 2
    radius = np.where(np.arange(2 * tips) % 2 == 0, 1.0, inner)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]
    shapes = [filled(points)]
    if uniform(0, 1) < 0.35:
        shapes.append(painted(points * uniform(0.4, 0.6)))
    return shapes


def _tree(uniform: Uniform) -> list[Part]:
    """Draw a tree."""
    trunk = uniform(0.09, 0.17)
    foot = uniform(0.9, 1.1)
    shapes = [
        filled([(-trunk, 0.2), (trunk, 0.2), (trunk * 1.3, foot), (-trunk * 1.3, foot)])
    ]
    if uniform(0, 1) < 0.5:  # a conifer: tiers of triangles
        tiers = int(uniform(2, 4.99))
        width = uniform(0.55, 0.75)
        step = 1.5 / (tiers + 1)
        for tier in range(tiers):
            half = width * (0.5 + 0.5 * (tier + 1) / tiers)
            y = -1 + tier * step
            shapes.append(filled([(0, y), (half, y + 2 * step), (-half, y + 2 * step)]))
    else:  # a broad tree: a crown of round tufts
        crown = uniform(0.34, 0.44)
        tufts = int(uniform(5, 8))
        shapes.append(filled(arc(0, -0.35, 0.45, 0.42, steps=20)))
        for tuft in range(tufts):
            a = 2 * np.pi * tuft / tufts
            radius = crown * uniform(0.75, 1.0)
            shapes.append(
                filled(
                    arc(
                        0.42 * np.cos(a),
                        -0.35 + 0.36 * np.sin(a),
                        radius,
                        radius,
                        steps=16,
                    )
                )
            )
    shapes.append(
        painted(
            [(-trunk, 0.62), (trunk, 0.62), (trunk * 1.3, foot), (-trunk * 1.3, foot)]
        )
    )
    return shapes


def _umbrella(uniform: Uniform) -> list[Part]:
    """Draw an umbrella: a dome with a scalloped hem, a pole with a hook, a tip, ribs.

    The middle of the hem is at (0, 0), and y points down.
    """
    height = uniform(0.65, 0.95)
    pole = uniform(0.07, 0.11)
    scallops = int(uniform(3, 6))
    hook_radius = uniform(0.15, 0.24)
    hook_side = 1 if uniform(0, 1) < 0.5 else -1  # -1 is left
    pole_end = uniform(0.75, 0.95)
    dome = arc(0, 0, 1, height, 180, 360, 28)
    radius = 1 / scallops
    hem = []
    for i in range(scallops):
        x = 1 - radius * (2 * i + 1)
        scallop = arc(x, 0, radius, radius * uniform(0.4, 0.7), 0, -180, 9)
        hem.append(scallop[1:-1])  # neighbours share their ends
    hook = arc(hook_radius, pole_end, hook_radius, hook_radius, 180, 0, 12)
    straight = [(0, -0.2), (0, pole_end - 0.2)]
    pole_line = np.concatenate([straight, hook]) * (hook_side, 1)
    tip = box(-pole * 0.6, -height - 0.14, pole * 0.6, -height + 0.1)
    shapes = [
        filled(np.concatenate([dome, *hem])),
        filled(ribbon(pole_line, pole)),
        filled(tip),
    ]
    for i in range(1, scallops):
        x = 1 - 2 * radius * i
        rib = [(x * 0.1, -height * 0.95), (x * 0.8, -height * 0.45), (x, 0)]
        shapes.append(painted(ribbon(rib, 0.05)))
    return shapes


_DRAWN = (
    _arrow, _bottle, _chair, _crescent, _cross, _fish, _gear, _hammer, _heart, _house,
    _key, _ladder, _leaf, _lightning, _mug, _ring, _spiral, _star, _tree, _umbrella,
)  # fmt: skip
OUTLINES: dict[str, Callable[[Uniform], list[Part]]] = {
    draw.__name__[1:]: draw for draw in _DRAWN
}


def outline(class_name: str, uniform: Uniform) -> list[Part]:
    """Draw the polygons of one object.

    They are centred, and the longer side of their bounding box goes from -1 to 1.
    """
    shapes = OUTLINES[class_name](uniform)
    everything = np.concatenate([points for role, points in shapes if role == FILL])
    low = everything.min(axis=0)
    high = everything.max(axis=0)
    return [
        Part(role, (points - (low + high) / 2) * (2 / (high - low).max()))
        for role, points in shapes
    ]
