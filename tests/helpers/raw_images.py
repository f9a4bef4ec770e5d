"""Image files written byte by byte, of kinds that Pillow reads and does not write, and
a colour profile.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

_PNG_KINDS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: colour type
# XYZ of red, green, blue at D50.
P3 = (
    (0.5151, 0.2412, -0.0011),
    (0.292, 0.6922, 0.0419),
    (0.1571, 0.0666, 0.7841),
)


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return (
        struct.pack(">I", len(data))
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
    )


def write_png(
    path: Path, pixels: np.ndarray, bits: int = 16, chunks: bytes = b""
) -> Path:
    """Write `(H, W, C)` pixels as PNG with 1 to 16 bits per channel.

    `chunks` come before the pixels.
    """
    height, width, channels = pixels.shape
    kind = _PNG_KINDS[channels]
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    rows = b"".join(b"\0" + _packed_row(row, bits) for row in pixels)
    content = (
        chunk(b"IHDR", head)
        + chunks
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


def _packed_row(row: np.ndarray, bits: int) -> bytes:
    """Pack the values of a row, each into so many bits."""
    if bits == 16:
        return row.astype(">u2").tobytes()
    digits = "".join(f"{value:0{bits}b}" for value in row.ravel())
    digits += "0" * (-len(digits) % 8)
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


# Of TIFF: types of values, and the tags that are written.
_SHORT = 3
_LONG = 4
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_STRIP_OFFSET = 273
_CHANNELS = 277
_ROWS_OF_STRIP = 278
_STRIP_SIZE = 279
_PLANAR = 284
_ALPHA = 338


def write_tiff(
    path: Path,
    pixels: np.ndarray,
    order: str = "<",
    deflate: bool = False,
    tags: dict[int, int] | None = None,
) -> Path:
    """Write `(H, W, C)` pixels of 8 or 16 bits as TIFF.

    Args:
        path: The file.
        pixels: The pixels.
        order: Byte order, `<` or `>`.
        deflate: Whether they are compressed.
        tags: Further tags, which replace the usual ones.
    """
    height, width, channels = pixels.shape
    bits = 8 * pixels.dtype.itemsize
    data = pixels.astype(f"{order}u{bits // 8}").tobytes()
    if deflate:
        data = zlib.compress(data)
    values = {
        _WIDTH: width,
        _HEIGHT: height,
        _BITS: bits,
        _COMPRESSION: 8 if deflate else 1,
        _PHOTOMETRIC: 2 if channels > 2 else 1,
        _STRIP_OFFSET: 8,
        _CHANNELS: channels,
        _ROWS_OF_STRIP: height,
        _STRIP_SIZE: len(data),
        _PLANAR: 1,
    }
    if channels in (2, 4):
        values[_ALPHA] = 2
    values |= tags or {}
    padding = b"\0" * (len(data) % 2)
    depths = struct.pack(f"{order}{channels}H", *[bits] * channels)
    depths_offset = 8 + len(data) + len(padding)
    fields = b""
    for tag, value in sorted(values.items()):
        if tag == _BITS:
            packed = depths.ljust(4, b"\0")
            if channels > 2:  # they do not fit
                packed = struct.pack(f"{order}I", depths_offset)
            fields += struct.pack(f"{order}HHI", tag, _SHORT, channels) + packed
        elif value >= 1 << 16 or tag in (_STRIP_OFFSET, _STRIP_SIZE):
            fields += struct.pack(f"{order}HHII", tag, _LONG, 1, value)
        else:
            fields += struct.pack(f"{order}HHIHxx", tag, _SHORT, 1, value)
    signature = b"II*\0" if order == "<" else b"MM\0*"
    directory = struct.pack(f"{order}I", depths_offset + len(depths))
    count = struct.pack(f"{order}H", len(values))
    path.write_bytes(
        signature + directory + data + padding + depths + count + fields + bytes(4)
    )
    return path


def colour_profile(
    primaries: tuple[tuple[float, float, float], ...] = P3, gamma: float = 2.2
) -> bytes:
    """An ICC profile of RGB with these primaries and a gamma."""

    def xyz(*values: float) -> bytes:
        numbers = [round(value * 65536) for value in values]
        return b"XYZ " + bytes(4) + struct.pack(">3i", *numbers)

    text = b"made for a test\0"
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    red, green, blue = primaries
    contents = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(79),
        b"wtpt": xyz(0.9642, 1, 0.8249),
        b"cprt": b"text" + bytes(8),
        b"rXYZ": xyz(*red),
        b"gXYZ": xyz(*green),
        b"bXYZ": xyz(*blue),
        b"rTRC": curve,
        b"gTRC": curve,
        b"bTRC": curve,
    }
    table = struct.pack(">I", len(contents))
    start = 132 + 12 * len(contents)  # of what the table points to
    body = b""
    for name, content in contents.items():
        table += name + struct.pack(">II", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = struct.pack(
        ">I4sI4s4s4s",
        start + len(body),
        bytes(4),
        0x02100000,
        b"mntr",
        b"RGB ",
        b"XYZ ",
    )
    head += bytes(12) + b"acsp" + bytes(28)
    head += struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + body
