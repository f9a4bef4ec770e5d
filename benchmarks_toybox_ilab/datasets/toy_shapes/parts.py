"""Polygons with a role, and the curves that the outlines of the toy shapes consist of."""

from typing import NamedTuple

import numpy as np

FILL, HOLE, DETAIL = "fill", "hole", "detail"


class Part(NamedTuple):
    """One polygon: its role (`FILL` adds to the object, `HOLE` cuts, `DETAIL` is painted on top) and its points."""

    role: str
    points: np.ndarray  # float64 (N, 2)


def filled(points) -> Part:
    """A polygon that adds to the object."""
    return Part(FILL, np.asarray(points, dtype=float))


def cut_out(points) -> Part:
    """A polygon that is cut out of the object."""
    return Part(HOLE, np.asarray(points, dtype=float))


def painted(points) -> Part:
    """A polygon that is painted on the object."""
    return Part(DETAIL, np.asarray(points, dtype=float))


def arc(cx, cy, rx, ry, start=0.0, stop=360.0, steps=32) -> np.ndarray:
    """Points on an ellipse; angles in degrees, clockwise in the image, from the right."""
    angle = np.radians(np.linspace(start, stop, steps, endpoint=abs(stop - start) < 360))
    return np.stack([cx + rx * np.cos(angle), cy + ry * np.sin(angle)], axis=1)


def box(left, top, right, bottom) -> list[tuple[float, float]]:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def mirrored(right_half) -> np.ndarray:
    """Close a right-hand profile (top to bottom) with its mirror image at x = 0."""
    right = np.asarray(right_half, dtype=float)
    return np.concatenate([right, right[::-1] * (-1, 1)])


def ribbon(path, width, end_width=None) -> np.ndarray:
    """A line of a given width as a polygon, so that it scales and tilts with the object."""
    path = np.asarray(path, dtype=float)
    tangent = np.gradient(path, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    half = np.linspace(width, width if end_width is None else end_width, len(path))[:, None] / 2
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], axis=1) * half
    return np.concatenate([path + normal, (path - normal)[::-1]])
