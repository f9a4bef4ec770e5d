"""Small images as data URIs, so that a page needs no other file."""

import base64
import io

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from crumb_avalanche.learner.thumbnails import small_jpeg

SIDE = 192  # pixels of the longer side of a thumbnail
HEAT_SIDE = 28  # pixels of the longer side of a heat map, which the browser enlarges
STRONGEST = 0.65  # opacity of a heat map where the evidence is strongest
SPEAKS_FOR, SPEAKS_AGAINST = (213, 94, 0), (0, 114, 178)  # orange and blue, distinct for every kind of colour vision


def thumbnail(image: Image.Image, side: int = SIDE) -> Markup:
    """Encode an image as ``small_jpeg`` does."""
    return _uri(small_jpeg(image, side), "jpeg")


def heat_map(shares: Tensor, shape: tuple[int, int]) -> Markup:
    """Encode the evidence of ``Learner.explain`` as PNG to lay over a thumbnail.

    Args:
        shares: ``(H, W)``; orange where positive, blue where negative, transparent where 0.
        shape: width and height of the image, whose proportions the map gets.
    """
    width, height = (max(1, round(HEAT_SIDE * side / max(shape))) for side in shape)
    small = torch.nn.functional.adaptive_avg_pool2d(shares[None].float(), (height, width))[0]
    strength = small.abs() / small.abs().max().clamp_min(1e-12)
    pixels = torch.tensor([SPEAKS_AGAINST, SPEAKS_FOR], dtype=torch.uint8)[(small > 0).long()]
    alpha = (255 * STRONGEST * strength).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(torch.cat([pixels, alpha[:, :, None]], 2).numpy(), "RGBA").save(file, "PNG", optimize=True)
    return _uri(file.getvalue(), "png")


def _uri(data: bytes, kind: str) -> Markup:
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
