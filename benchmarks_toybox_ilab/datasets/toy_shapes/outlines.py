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
    """Return a polygon of a toy shape; the roles are those of `Part`."""
    return Part(role, np.asarray(points, dtype=float))


# `filled` adds to the silhouette of the object, `cut_out` takes from it, and `painted`
# draws on it in another colour.
filled, cut_out, painted = (partial(_part, role) for role in (FILL, HOLE, DETAIL))


def arc(cx, cy, rx, ry, start=0.0, stop=360.0, steps=32) -> np.ndarray:
    """Return points on an ellipse of a toy shape, `(steps, 2)`.

    Angles are in degrees, clockwise in the image, from the right.
    """
    angle = np.radians(
        np.linspace(start, stop, steps, endpoint=abs(stop - start) < 360)
    )
    return np.stack([cx + rx * np.cos(angle), cy + ry * np.sin(angle)], axis=1)


def box(left, top, right, bottom) -> list[tuple[float, float]]:
    """Return the corners of a rectangle of a toy shape."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def mirrored(right_half) -> np.ndarray:
    """Close the right-hand profile of a toy shape with its mirror image at x = 0.

    Args:
        right_half: `(N, 2)` points from top to bottom.

    Returns:
        `(2 N, 2)` points.
    """
    right = np.asarray(right_half, dtype=float)
    return np.concatenate([right, right[::-1] * (-1, 1)])


def ribbon(path, width, end_width=None) -> np.ndarray:
    """Return a thick line as a polygon, which scales and tilts with the toy shape.

    Args:
        path: `(N, 2)` points that the line goes along.
        width: Of the line.
        end_width: Of the line at its end; None is `width`.

    Returns:
        `(2 N, 2)` corners: along one side of the path, and back along the other.
    """
    path = np.asarray(path, dtype=float)
    tangent = np.gradient(path, axis=0)  # from one point to the next
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)  # of length 1
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], axis=1)  # a quarter turn of it
    if end_width is None:
        end_width = width
    widths = np.linspace(width, end_width, len(path))
    side = normal * widths[:, None] / 2
    return np.concatenate([path + side, (path - side)[::-1]])


def _arrow(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of an arrow to the right, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    shaft = uniform(0.12, 0.28)  # half its thickness
    head = uniform(0.45, 0.7)  # half its height
    barb = uniform(0.55, 0.95)  # length of the head
    neck = 1 - barb  # where head and shaft meet
    tail = -1.0 + uniform(-0.1, 0.1)
    sweep = uniform(-0.02, 0.22)  # how far the barbs point backwards
    notch = uniform(-0.05, 0.15)  # depth of the cut in the tail
    upper = [(1, 0), (neck - sweep, -head), (neck, -shaft), (tail, -shaft)]
    lower = [(x, -y) for x, y in reversed(upper[1:])]
    return [filled([*upper, (tail + notch, 0), *lower])]


def _bottle(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a bottle, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    neck = uniform(0.1, 0.17)  # half its width
    body = uniform(0.3, 0.46)  # half its width
    length = uniform(0.4, 0.7)  # of the neck
    slope = uniform(0.12, 0.4)  # height of the shoulder
    top = -1.0
    shoulder = -1.0 + length  # where it begins
    base = uniform(0.85, 1.1)  # where the bottle stands
    bulge = body * uniform(0.85, 1.0)  # half the width at the base
    bend = [
        (neck, shoulder),
        (body * 0.8, shoulder + slope * 0.6),
        (body, shoulder + slope),
    ]
    rim = neck * uniform(1.2, 1.5)  # half the width of the cap
    # top and bottom of the label
    label = sorted((shoulder + slope + uniform(0.1, 0.25), base - uniform(0.15, 0.35)))
    cap = box(-rim, top - 0.05, rim, top + uniform(0.08, 0.16))
    return [
        filled(mirrored([(neck, top), *bend, (bulge, base)])),
        filled(cap),
        painted(box(-body * 0.97, label[0], body * 0.97, label[1])),
    ]


def _chair(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a chair from the side, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    thick = uniform(0.12, 0.19)  # width of legs and back
    lean = uniform(0.0, 0.22)  # how far the back leans backwards
    depth = uniform(0.75, 1.05)  # of the seat
    back = -depth / 2  # x of the hind leg
    front = depth / 2 - thick / 2  # x of the front leg
    seat = uniform(0.0, 0.15)  # its y
    splay = uniform(0.0, 0.14)  # how far the feet stand apart from the seat
    feet = uniform(0.75, 0.95)  # their y
    seat_board = box(back - thick / 2, seat - thick / 2, depth / 2, seat + thick * 0.7)
    shapes = [
        filled(ribbon([(back - lean, -1), (back, seat)], thick)),  # the back
        filled(seat_board),
        filled(ribbon([(back, seat), (back - splay, feet)], thick)),  # hind leg
        filled(ribbon([(front, seat), (front + splay, feet)], thick)),  # front leg
    ]
    has_rung = uniform(0, 1) < 0.5
    if has_rung:
        rung = seat + (feet - seat) * uniform(0.5, 0.7)
        half = thick * 0.3  # its thickness
        shapes.append(filled(box(back, rung - half, front, rung + half)))
    return shapes


def _crescent(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a crescent, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    # The inner arc passes through the two tips of the outer one and has its own centre.
    tip = uniform(50, 80)  # degrees
    bite = uniform(0.15, 0.6)  # from the line of the tips to the inner arc's centre
    outer_arc = arc(0, 0, 1, 1, start=tip, stop=360 - tip, steps=40)
    x = np.cos(np.radians(tip))  # of the lower tip; the upper one is at -y
    y = np.sin(np.radians(tip))
    centre = x + bite * y  # of the inner arc, on the axis
    radius = np.hypot(x - centre, y)
    angle = np.degrees(np.arctan2(y, x - centre))  # of a tip seen from there
    inner_arc = arc(centre, 0, radius, radius, start=360 - angle, stop=angle, steps=30)
    return [filled(np.concatenate([outer_arc, inner_arc]))]


def _cross(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a cross, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    root = uniform(0.17, 0.34)  # half the width of an arm at the centre
    flare = uniform(0.9, 1.45)  # width of an arm at its end by that at the centre
    longest = uniform(1.0, 1.35)  # length of the lower arm
    tip = root * flare  # half the width of an arm at its end
    arms = []
    # To the right, down, to the left, up.
    for turn, length in enumerate((1.0, longest, 1.0, 1.0)):
        angle = np.radians(90 * turn)
        rotation = np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
        arm = np.array([(root, -root), (length, -tip), (length, tip)])
        arms.append(arm @ rotation)
    return [filled(np.concatenate(arms))]


def _fish(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a fish, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    height = uniform(0.36, 0.6)  # half that of the body
    tail = uniform(0.3, 0.52)  # half its height
    fork = uniform(0.0, 0.2)  # depth of the cut in the tail
    narrow = uniform(0.05, 0.1)  # half the height where the tail begins
    x = np.linspace(0, 1, 16)  # from mouth to tail
    # Half the height of the body: an arch, and the beginning of the tail.
    side = height * np.sin(np.pi * x ** uniform(0.75, 0.95)) + narrow * x
    upper = np.stack([-1 + 1.45 * x, -side], axis=1)
    lower = (upper * (1, -1))[::-1]
    end = uniform(0.92, 1.05)  # x of the tips of the tail
    fin = uniform(0.12, 0.3)  # its height
    back_fin = [(-0.55, -height * 0.75), (-0.1, -height - fin), (0.2, -height * 0.6)]
    eye = arc(-0.68, -height * 0.22, 0.09, 0.09, steps=12)
    gill = arc(-0.78, 0, 0.4, height * 0.75, start=-45, stop=45, steps=8)
    return [
        filled(np.concatenate([upper, lower])),
        filled([(0.32, 0), (end, -tail), (end - fork, 0), (end, tail)]),
        filled(back_fin),
        painted(eye),
        painted(ribbon(gill, 0.06)),
    ]


def _gear(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a gear, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    teeth = int(uniform(7, 13))
    root = uniform(0.68, 0.8)  # radius between teeth; at their tips it is 1
    hole = uniform(0.18, 0.42)  # its radius
    width = uniform(0.42, 0.56)  # of a tooth at its root, in units of the pitch
    taper = uniform(0.6, 0.95)  # width of a tooth at its tip by that at its root
    pitch = 360 / teeth  # degrees from one tooth to the next
    # Radius, and offset from the middle of the tooth in half pitches.
    corners_of_tooth = (
        (root, -width),
        (1, -width * taper),
        (1, width * taper),
        (root, width),
    )
    points = []
    for tooth in range(teeth):
        for radius, offset in corners_of_tooth:
            angle = np.radians(pitch * (tooth + offset / 2))
            points.append((radius * np.cos(angle), radius * np.sin(angle)))
    return [filled(points), cut_out(arc(0, 0, hole, hole, steps=24))]


def _hammer(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a hammer, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    grip = uniform(0.1, 0.16)  # half the width of the handle
    length = uniform(1.5, 1.8)  # of the handle
    head = uniform(0.16, 0.25)  # half its height
    face = uniform(0.42, 0.6)  # how far the head goes to the left
    claw = uniform(0.45, 0.75)  # and to the right
    droop = uniform(0.0, 0.35)  # how far the claw points down
    top = -1.0  # of the handle, at the middle of the head
    hold = -1.0 + length * 0.62  # where the painted part of the handle begins
    handle = [
        (-grip * 0.8, top),
        (grip * 0.8, top),
        (grip * uniform(0.9, 1.3), top + length),
        (-grip * 1.1, top + length),
    ]
    end = head * 1.25  # half the height of the end that strikes
    striking_end = box(-face - 0.08, top - end, -face + 0.12, top + end)
    claws = [
        (0.1, top - head),
        (claw, top - head * 0.4 + droop),
        (claw + 0.04, top + droop),
        (0.1, top + head),
    ]
    return [
        filled(handle),
        filled(box(-face, top - head, 0.15, top + head)),
        filled(striking_end),
        filled(claws),
        painted(box(-grip * 1.3, hold, grip * 1.3, top + length)),
    ]


def _heart(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a heart, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    # The heart curve x = 16 sin^3 t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t, where
    # 5 varies, divided by 16; y is negative, because it goes down here.
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
    has_inner_heart = uniform(0, 1) < 0.4
    if has_inner_heart:
        shapes.append(painted(points * uniform(0.4, 0.62) - (0, 0.04)))
    return shapes


def _house(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a house, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    half = uniform(0.6, 0.85)  # half its width
    eaves = uniform(0.05, 0.22)  # how far the roof goes beyond the walls
    roof = uniform(0.5, 0.9)  # its height above the walls, which begin at 0
    floor = uniform(0.85, 1.2)  # lower edge of the walls
    ridge = uniform(-0.2, 0.2)  # its place from left to right
    door = uniform(0.12, 0.2)  # half its width
    side = uniform(-0.3, 0.3)  # the middle of the door
    shapes = [
        filled(box(-half, 0, half, floor)),  # walls
        filled([(-half - eaves, 0.02), (ridge, -roof), (half + eaves, 0.02)]),  # roof
        painted(box(side - door, floor - uniform(0.45, 0.6), side + door, floor)),
    ]
    has_chimney = uniform(0, 1) < 0.7
    if has_chimney:
        left = uniform(0.3, 0.45)
        top = -roof * uniform(0.9, 1.1)
        shapes.append(filled(box(left, top, left + uniform(0.14, 0.22), 0)))
    # A window each, unless the door is there.
    for x in (-half * 0.62, half * 0.62):
        if abs(x - side) > door + 0.17:
            shapes.append(painted(box(x - 0.13, 0.2, x + 0.13, 0.46)))
    return shapes


def _key(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a key, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    bow = uniform(0.34, 0.46)  # half the width of the ring that is held
    squash = uniform(0.85, 1.2)  # its height by its width
    shaft = uniform(0.07, 0.11)  # half its thickness
    rim = uniform(0.45, 0.62)  # size of the hole by that of the ring
    teeth = int(uniform(2, 4))
    tooth_parts = []
    for tooth in range(teeth):
        left = 0.93 - (tooth + 1) * uniform(0.2, 0.24)
        bottom = shaft + uniform(0.18, 0.34)
        tooth_parts.append(filled(box(left, 0, left + 0.13, bottom)))
    hole = -0.6 - uniform(0.0, 0.06)  # its middle
    return [
        filled(arc(-0.6, 0, bow, bow * squash, steps=28)),
        cut_out(arc(hole, 0, bow * rim, bow * squash * rim, steps=20)),
        filled(box(-0.6 + bow * 0.9, -shaft, 1.0, shaft)),  # to the right of the ring
        *tooth_parts,
    ]


def _ladder(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a ladder, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    rungs = int(uniform(4, 7.99))
    half = uniform(0.3, 0.42)  # half the width at the feet
    rail = uniform(0.1, 0.15)  # thickness of the two rails
    taper = uniform(0.65, 1.0)  # width at the top by that at the feet
    thick = uniform(0.08, 0.12)  # of the rungs
    shapes = []
    for side in (-1, 1):
        rail_line = [(side * half * taper, -1), (side * half, 1)]
        shapes.append(filled(ribbon(rail_line, rail)))
    for y in np.linspace(-0.85, 0.85, rungs):  # from the top down
        depth = (y + 1) / 2  # 0 at the top, 1 at the feet
        half_rung = half * (
            taper + (1 - taper) * depth
        )  # up to the middle of the rails
        shapes.append(filled(box(-half_rung, y - thick / 2, half_rung, y + thick / 2)))
    return shapes


def _leaf(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a leaf with its veins, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    width = uniform(0.36, 0.58)  # half that of the leaf
    peak = uniform(0.7, 1.2)  # below 1 the leaf is widest near its stem
    bend = uniform(-0.25, 0.25)  # how far its middle line curves up or down
    x = np.linspace(0, 1, 20)  # from stem to tip
    side = width * np.sin(np.pi * x**peak)  # half the width at each x
    is_serrated = uniform(0, 1) < 0.5
    if is_serrated:
        side[1:-1:2] *= uniform(0.75, 0.88)
    middle = np.stack([1.5 * x - 0.9, bend * np.sin(np.pi * x)], axis=1)
    to_edge = np.stack([0 * x, side], 1)
    edge = np.concatenate([middle - to_edge, (middle + to_edge)[::-1]])
    stem = np.array([(-1.25, -bend * 0.5), (-1.05, -bend * 0.2), (-0.85, 0)])
    shapes = [
        filled(edge),
        filled(ribbon(stem, 0.09)),
        painted(ribbon(middle[:-2], 0.07, end_width=0.03)),  # the middle vein
    ]
    for index in (5, 9, 13):  # of the points where veins begin
        for direction in (-1, 1):
            end = middle[index] + (0.24, direction * side[index + 1] * 0.75)
            shapes.append(painted(ribbon([middle[index], end], 0.05)))
    return shapes


def _lightning(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a flash of lightning, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    top = uniform(0.28, 0.42)  # about half the width of the upper end
    mid = uniform(0.2, 0.36)  # how far the corners in the middle go outwards
    drop = uniform(-0.12, 0.08)  # shift of the inner corners
    lean = uniform(0.1, 0.3)  # of the upper end to the right
    right = [
        (lean - top * 0.6, -1),
        (lean + top, -1),
        (0.12 + drop, -0.22),
        (mid + 0.28, -0.3),
    ]
    left = [(-lean - 0.2, 1), (-0.08, 0.14 + drop), (-mid - 0.22, 0.24)]
    return [filled(right + left)]


def _mug(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a mug with its handle, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    top = uniform(0.5, 0.68)  # half its width
    taper = uniform(0.75, 1.1)  # width of the base by that of the top
    height = uniform(0.6, 0.82)  # half that of the mug
    handle = uniform(0.3, 0.44)  # width of its hole
    base = top * taper  # half its width
    thick = uniform(0.09, 0.15)  # of the handle
    tall = uniform(0.3, 0.5)  # half the height of the handle's hole
    middle = uniform(-0.12, 0.12)  # of the handle, from top to bottom
    edge = (top + base) / 2 - 0.06  # where the handle begins
    lip = uniform(0.06, 0.13)  # half the height of the ellipses at top and base
    return [
        filled(
            arc(
                edge, middle, handle + thick, tall + thick, start=-90, stop=90, steps=20
            )
        ),
        cut_out(arc(edge, middle, handle, tall, start=-90, stop=90, steps=18)),
        filled([(-top, -height), (top, -height), (base, height), (-base, height)]),
        filled(arc(0, height, base, lip, start=0, stop=180, steps=12)),
        filled(arc(0, -height, top, lip * 1.3, steps=20)),
        painted(arc(0, -height, top * 0.86, lip, steps=20)),
    ]


def _ring(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a ring, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    squash = uniform(0.8, 1.0)  # its height by its width
    hole = uniform(0.5, 0.75)  # size of the hole by that of the ring
    power = uniform(0.65, 1.0)  # from a rounded square to a circle
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.stack([np.cos(t), np.sin(t)], 1)
    # A superellipse: both coordinates to a power, with their signs.
    outer = np.sign(circle) * np.abs(circle) ** power * (1, squash)
    shift = (uniform(-0.06, 0.06), uniform(-0.06, 0.06))
    return [filled(outer), cut_out(outer * hole + shift)]


def _spiral(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a spiral, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    turns = uniform(1.9, 2.9)
    width = uniform(0.15, 0.2)  # of the line at its outer end
    growth = uniform(0.8, 1.05)  # the radius is t to this power
    side = 1 if uniform(0, 1) < 0.5 else -1  # 1 turns clockwise
    t = np.linspace(0.06, 1, 60)
    angle = 2 * np.pi * turns * t + uniform(0, 6.28)
    path = np.stack([np.cos(angle), side * np.sin(angle)], 1) * (t[:, None] ** growth)
    return [filled(ribbon(path, width * uniform(0.7, 1.0), width))]


def _star(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a star, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    tips = int(uniform(5, 8.99))
    inner = uniform(0.36, 0.55)  # radius between tips, where it is 1
    number = np.arange(2 * tips)  # of the corner: even ones are tips, the first is up
    angle = np.pi * number / tips - np.pi / 2
    radius = np.where(number % 2 == 0, 1.0, inner)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]
    shapes = [filled(points)]
    has_inner_star = uniform(0, 1) < 0.35
    if has_inner_star:
        shapes.append(painted(points * uniform(0.4, 0.6)))
    return shapes


def _tree(uniform: Uniform) -> list[Part]:
    """Draw the toy shape of a tree, of random proportions.

    Coordinates have any scale, x to the right and y down; `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    trunk = uniform(0.09, 0.17)  # half its width
    foot = uniform(0.9, 1.1)  # y of the ground
    shapes = [
        filled([(-trunk, 0.2), (trunk, 0.2), (trunk * 1.3, foot), (-trunk * 1.3, foot)])
    ]
    is_conifer = uniform(0, 1) < 0.5
    if is_conifer:  # tiers of triangles
        tiers = int(uniform(2, 4.99))
        width = uniform(0.55, 0.75)  # half that of the lowest tier
        step = 1.5 / (tiers + 1)  # from the top of one tier to that of the next
        for tier in range(tiers):
            half = width * (0.5 + 0.5 * (tier + 1) / tiers)
            y = -1 + tier * step
            shapes.append(filled([(0, y), (half, y + 2 * step), (-half, y + 2 * step)]))
    else:  # a broad tree: a crown of round tufts
        crown = uniform(0.34, 0.44)  # largest radius of a tuft
        tufts = int(uniform(5, 8))
        shapes.append(filled(arc(0, -0.35, 0.45, 0.42, steps=20)))
        for tuft in range(tufts):
            angle = 2 * np.pi * tuft / tufts
            radius = crown * uniform(0.75, 1.0)
            x = 0.42 * np.cos(angle)
            y = -0.35 + 0.36 * np.sin(angle)
            shapes.append(filled(arc(x, y, radius, radius, steps=16)))
    # The lower part of the trunk has a colour of its own.
    shapes.append(
        painted(
            [(-trunk, 0.62), (trunk, 0.62), (trunk * 1.3, foot), (-trunk * 1.3, foot)]
        )
    )
    return shapes


def _umbrella(uniform: Uniform) -> list[Part]:
    """Draw an umbrella: a dome with a scalloped hem, a pole with a hook, a tip, ribs.

    Coordinates have any scale, x to the right and y down, with the middle of the hem at
    (0, 0); `outline` scales the drawing.

    Args:
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    height = uniform(0.65, 0.95)  # of the dome
    pole_width = uniform(0.07, 0.11)
    scallops = int(uniform(3, 6))  # arcs of the hem
    hook_radius = uniform(0.15, 0.24)
    hook_side = 1 if uniform(0, 1) < 0.5 else -1  # -1 is left
    pole_end = uniform(0.75, 0.95)  # y where the hook begins
    dome = arc(0, 0, 1, height, start=180, stop=360, steps=28)
    radius = 1 / scallops
    hem = []  # from right to left, which closes the outline of the dome
    for i in range(scallops):
        x = 1 - radius * (2 * i + 1)
        depth = radius * uniform(0.4, 0.7)
        scallop = arc(x, 0, radius, depth, start=0, stop=-180, steps=9)
        hem.append(scallop[1:-1])  # neighbours share their ends
    hook = arc(
        hook_radius, pole_end, hook_radius, hook_radius, start=180, stop=0, steps=12
    )
    # From above the ends of the scallops, so that the pole reaches into the dome (under
    # three deep scallops it may begin 0.04 below it), to a point before the hook, whose
    # own first point is (0, pole_end).
    straight = [(0, -0.2), (0, pole_end - 0.2)]
    pole_line = np.concatenate([straight, hook]) * (hook_side, 1)
    tip = box(-pole_width * 0.6, -height - 0.14, pole_width * 0.6, -height + 0.1)
    shapes = [
        filled(np.concatenate([dome, *hem])),
        filled(ribbon(pole_line, pole_width)),
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
    """Draw the polygons of a toy object of a class.

    They are centred, and the longer side of their bounding box goes from -1 to 1.

    Args:
        class_name: A key of `OUTLINES`, such as "bottle".
        uniform: `uniform(low, high)` returns a random number for the object.
    """
    shapes = OUTLINES[class_name](uniform)
    filled_points = np.concatenate([points for role, points in shapes if role == FILL])
    low = filled_points.min(axis=0)
    high = filled_points.max(axis=0)
    centre = (low + high) / 2
    scale = 2 / (high - low).max()
    return [Part(role, (points - centre) * scale) for role, points in shapes]
