"""Image files written byte by byte, of kinds that Pillow reads and does not write, and a colour profile."""

import struct
import zlib
from pathlib import Path

import numpy as np

_PNG_KINDS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: colour type
P3 = (
    (0.5151, 0.2412, -0.0011),
    (0.292, 0.6922, 0.0419),
    (0.1571, 0.0666, 0.7841),
)  # XYZ of red, green, blue at D50


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
    """Write `(H, W, C)` pixels as PNG with 1 to 16 bits per channel; `chunks` come before the pixels."""
    height, width, channels = pixels.shape
    if bits == 16:
        rows = [row.astype(">u2").tobytes() for row in pixels]
    else:
        rows = []
        for row in pixels:
            text = "".join(f"{value:0{bits}b}" for value in row.ravel())
            text += "0" * (-len(text) % 8)
            rows.append(
                bytes(
                    int(text[place : place + 8], 2) for place in range(0, len(text), 8)
                )
            )
    head = struct.pack(">IIBBBBB", width, height, bits, _PNG_KINDS[channels], 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    content = chunk(b"IHDR", head) + chunks + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


def write_tiff(
    path: Path,
    pixels: np.ndarray,
    order: str = "<",
    deflate: bool = False,
    tags: dict[int, int] | None = None,
) -> Path:
    """Write `(H, W, C)` pixels of 8 or 16 bits as TIFF with the byte order `<` or `>` and further tags."""
    height, width, channels = pixels.shape
    bits = 8 * pixels.dtype.itemsize
    data = pixels.astype(f"{order}u{bits // 8}").tobytes()
    data = zlib.compress(data) if deflate else data
    place = 8 + len(data) + len(data) % 2
    entries = {
        256: width,
        257: height,
        258: bits,
        259: 8 if deflate else 1,
        262: 2 if channels > 2 else 1,
        273: 8,
    }
    entries |= {277: channels, 278: height, 279: len(data), 284: 1}
    entries |= {338: 2} if channels in (2, 4) else {}
    entries |= tags or {}
    depths = struct.pack(f"{order}{channels}H", *[bits] * channels)
    fields = b""
    for tag, value in sorted(entries.items()):
        kind, count = ("H" if value < 1 << 16 and tag not in (273, 279) else "I"), 1
        packed = struct.pack(order + kind, value).ljust(4, b"\0")
        if tag == 258:
            count = channels
            packed = (
                depths.ljust(4, b"\0")
                if channels < 3
                else struct.pack(f"{order}I", place)
            )
        fields += (
            struct.pack(f"{order}HHI", tag, 3 if kind == "H" else 4, count) + packed
        )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(
        f"{order}I", place + len(depths)
    )
    body = data + b"\0" * (len(data) % 2) + depths
    path.write_bytes(
        head + body + struct.pack(f"{order}H", len(entries)) + fields + bytes(4)
    )
    return path


def colour_profile(
    primaries: tuple[tuple[float, float, float], ...] = P3, gamma: float = 2.2
) -> bytes:
    """An ICC profile of RGB with these primaries and a gamma."""

    def xyz(*values: float) -> bytes:
        return (
            b"XYZ "
            + bytes(4)
            + struct.pack(">3i", *(round(value * 65536) for value in values))
        )

    text = b"made for a test\0"
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    contents = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(79)
    }
    contents |= {b"wtpt": xyz(0.9642, 1, 0.8249), b"cprt": b"text" + bytes(8)}
    contents |= {
        name: xyz(*values)
        for name, values in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries)
    }
    contents |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body = struct.pack(">I", len(contents)), b""
    for name, content in contents.items():
        table += name + struct.pack(
            ">II", 132 + 12 * len(contents) + len(body), len(content)
        )
        body += content + bytes(-len(content) % 4)
    size = 132 + 12 * len(contents) + len(body)
    head = (
        struct.pack(
            ">I4sI4s4s4s", size, bytes(4), 0x02100000, b"mntr", b"RGB ", b"XYZ "
        )
        + bytes(12)
        + b"acsp"
    )
    head += bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + body
