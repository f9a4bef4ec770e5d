"""Find damage in image files that decoders do not report.

A copy or a download that was interrupted leaves holes: parts of the file that are
zeros. Decoders of JPEG, WebP, AVIF, HEIF, JPEG 2000 and of some TIFF files read them as
pixels, since these formats have no checksums. Entropy coding leaves few zeros in a
row, so that more of them tell a hole. Which codes zeros stand for is in the tables of
a JPEG; in WebP only the number of its blocks limits them, and nothing in lossless WebP.
"""

import io
import math
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from PIL import Image

# Bytes of zeros in a row. The longest run that encoders wrote, also of flat images of
# 16 megapixels, has 16; data of cameras beside the pixels of AVIF and HEIF have longer
# ones.
_MOST_ZEROS = {"JPEG2000": 64, "AVIF": 256, "HEIF": 256}
# 78 bits a block of 16 x 16 pixels, of a fast encoder.
_ZEROS_OF_WEBP_BLOCK = 10
_ZEROS_OF_ANY_WEBP = 64  # besides those of its blocks
_MOST_ZEROS_OF_LZW = 64
# A flat gradient of a few thousand pixels may leave a hundred.
_MOST_ZEROS_OF_JPEG = 256
_LONG_RUNS = re.compile(rb"\0{%d,}" % _MOST_ZEROS_OF_JPEG)
_LONGEST_GAP = 64  # between two segments of a JPEG, where nothing should stand

_CODESTREAM = b"\xff\x4f\xff\x51"  # begins the pixels of JPEG 2000
# Items of an AVIF or HEIF file that are no pixels: Exif, and XMP by its MIME type.
_METADATA = (b"Exif", b"mime")

# Where in a file its signature stands, and what it may be. The file of an image that
# Pillow has decoded may hold pixels instead.
_SIGNATURES: dict[str | None, tuple[int, tuple[bytes, ...]]] = {
    "WEBP": (0, (b"RIFF",)),
    "AVIF": (4, (b"ftyp",)),
    "HEIF": (4, (b"ftyp",)),
    "JPEG2000": (0, (_CODESTREAM, b"\0\0\0\x0cjP  ")),
}
_LOSSY_WEBP = b"VP8 "
_HEADER_OF_RIFF = 12
# tags of TIFF
_STRIP_OFFSETS = 273
_STRIP_SIZES = 279
_TILE_OFFSETS = 324
_TILE_SIZES = 325
_COMPRESSION = 259
_JPEG_TABLES = 347
# values of the tag of compression
_LZW = 5
_JPEG = 7
_DEFLATE = (8, 32946)

# markers of JPEG
_START_OF_SCAN = 0xDA
_HUFFMAN_TABLES = 0xC4
_END = 0xD9
_RESTARTS = range(0xD0, 0xD8)
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, of Huffman codes
# The first marker after the pixels of a scan; 0 and the restarts belong to it.
_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")
_SIXTEEN_ZEROS = 0xF0  # symbol of AC coefficients: further ones of the block follow


class DamagedError(OSError):
    """An image file has a part that was never written, although it can be decoded."""


def check_whole(image: Image.Image, file: BinaryIO) -> None:
    """Raise if the compressed pixels of an opened image have a hole.

    A hole is a long run of zero bytes, which an interrupted copy leaves and decoders
    take for pixels. Pixels that are stored without compression are not checked: zeros
    are black there.

    Args:
        image: The opened image; it need not be decoded.
        file: Its file, at the beginning.

    Raises:
        DamagedError: If there is a hole.
        OSError: If the file cannot be read.
    """
    if image.format in ("JPEG", "MPO"):
        _check_jpeg_file(image, file.read())
    elif image.format == "TIFF":
        _check_tiff_page(image, file)
    elif image.format in _SIGNATURES:  # WebP, AVIF, HEIF and JPEG 2000
        content = file.read()
        # The file of an image that was decoded before may hold pixels instead.
        position, signature = _SIGNATURES[image.format]
        if content.startswith(signature, position):
            _check_zeros_of_format(image, content)


def _check_zeros_of_format(image: Image.Image, content: bytes) -> None:
    """Raise if an image file has more zeros in a row than encoders write."""
    if image.format == "WEBP":
        blocks = math.ceil(image.width / 16) * math.ceil(image.height / 16)
        most_zeros = _ZEROS_OF_WEBP_BLOCK * blocks + _ZEROS_OF_ANY_WEBP
        for start, end in _lossy_chunks_of_webp(content):
            _check_zeros(content[start:end], most_zeros)
    elif image.format in ("AVIF", "HEIF"):
        for start, end in _pixels_of_iso_media(content):
            _check_zeros(content[start:end], _MOST_ZEROS[image.format])
    elif image.format == "JPEG2000":
        # A codestream is alone, or in a box of a file that has others beside it, such
        # as colour profiles.
        codestreams: Iterable[tuple[int, int]] = [(0, len(content))]
        if not content.startswith(_CODESTREAM):
            codestreams = _boxes_of_iso_media(content, b"jp2c")
        for start, end in codestreams:
            _check_zeros(content[start:end], _MOST_ZEROS[image.format])


def _check_zeros(content: bytes, length: int) -> None:
    """Raise if `length` bytes in a row of an image's content are zeros."""
    if bytes(length) in content:
        raise _hole_error(length)


def _hole_error(count: int) -> DamagedError:
    """Return the error for an image file with a hole of at least `count` bytes."""
    return DamagedError(
        f"it is damaged: at least {count} bytes of its pixels are zeros, which an "
        "interrupted copy leaves; copy it again from its source"
    )


def _lossy_chunks_of_webp(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the lossy pixels of a WebP file, in bytes."""
    position = _HEADER_OF_RIFF
    while position + 8 <= len(content):  # a chunk begins with its name and size
        name, size = struct.unpack_from("<4sI", content, position)
        start = position + 8
        end = start + size
        if name == _LOSSY_WEBP:
            yield start, end
        position = end + size % 2  # chunks begin at even positions


def _boxes_of_iso_media(content: bytes, box_name: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the content of each box of one name begins and ends in an image file.

    In bytes, without the 8 of the size and the name with which a box begins.

    Args:
        content: The file, AVIF, HEIF or JPEG 2000: boxes one after another (ISO/IEC
            14496-12). Or the content of a box that holds others.
        box_name: Name of the boxes, 4 letters such as `b"mdat"`.
    """
    position = 0
    while position + 8 <= len(content):
        size, name = struct.unpack_from(">I4s", content, position)
        if size == 1 and position + 16 <= len(content):  # the size follows, in 64 bits
            size = struct.unpack_from(">Q", content, position + 8)[0]
        if size < 8:  # 0 is up to the end of the file; no box is smaller than its head
            size = len(content) - position
        if name == box_name:
            yield position + 8, position + size
        position += size


def _pixels_of_iso_media(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where parts of an AVIF or HEIF file with pixels begin and end, in bytes.

    They are the boxes of media data without the metadata that lie in them too: Exif
    may have thousands of zeros, as room for more.
    """
    metadata: list[tuple[int, int]] = []
    # What breaks the structure of a file is for its decoder to judge.
    with suppress(struct.error, EOFError, IndexError):
        for start, end in _boxes_of_iso_media(content, b"meta"):
            metadata += _metadata_of_iso_media(content[start + 4 : end])
    metadata.sort()
    for start, end in _boxes_of_iso_media(content, b"mdat"):
        first_index = bisect_left(metadata, (start, 0))
        after_last_index = bisect_left(metadata, (end, 0))
        for metadata_start, metadata_end in metadata[first_index:after_last_index]:
            yield start, metadata_start
            start = metadata_end
        yield start, end


def _metadata_of_iso_media(meta: bytes) -> list[tuple[int, int]]:
    """Return where Exif and XMP of an AVIF or HEIF file begin and end in the file.

    Args:
        meta: Content of its box `meta` after version and flags.

    Raises:
        struct.error: If the box of an item's type is cut.
        IndexError: If the box of all of them is empty.
        EOFError: If the list of the items' places is cut.
    """
    metadata_items = set()
    for start, end in _boxes_of_iso_media(meta, b"iinf"):
        entries_start = start + (6 if meta[start] == 0 else 8)
        entries = meta[entries_start:end]
        for entry_start, entry_end in _boxes_of_iso_media(entries, b"infe"):
            entry = entries[entry_start:entry_end]
            # version, number of the item, and its type
            form = ">B3xH2x4s" if entry[:1] == b"\2" else ">B3xI2x4s"
            _, item_number, item_type = struct.unpack_from(form, entry)
            if item_type in _METADATA:
                metadata_items.add(item_number)
    extents = []
    for start, end in _boxes_of_iso_media(meta, b"iloc"):
        iloc = io.BytesIO(meta[start:end])
        for item_number, first, after_last in _extents_of_items(iloc):
            if item_number in metadata_items:
                extents.append((first, after_last))
    return extents


def _extents_of_items(iloc: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each part of the items in an AVIF or HEIF file.

    Args:
        iloc: Content of its box `iloc` (ISO/IEC 14496-12, 8.11.3).

    Raises:
        EOFError: If it is cut.
    """
    version = _read_number(iloc, 1)
    _read_number(iloc, 3)  # flags
    sizes = _read_number(iloc, 2)  # of numbers in bytes, 4 bits each
    offset_size = sizes >> 12
    length_size = sizes >> 8 & 15
    base_size = sizes >> 4 & 15
    index_size = sizes & 15 if version else 0
    if not length_size:  # an item has no end of its own
        return
    number_size = 2 if version < 2 else 4
    for _ in range(_read_number(iloc, number_size)):
        item_number = _read_number(iloc, number_size)
        # 0: places count from the beginning of the file
        method = _read_number(iloc, 2) if version else 0
        _read_number(iloc, 2)  # which file it is in
        base = _read_number(iloc, base_size)
        for _ in range(_read_number(iloc, 2)):
            _read_number(iloc, index_size)
            first = base + _read_number(iloc, offset_size)
            length = _read_number(iloc, length_size)
            if method == 0:
                yield item_number, first, first + length


def _read_number(file: BinaryIO, size: int) -> int:
    """Read a number of `size` bytes, the largest first.

    Raises:
        EOFError: If the file has fewer.
    """
    digits = file.read(size)
    if len(digits) < size:
        raise EOFError("the list of items is cut")
    return int.from_bytes(digits, "big")


# TIFF


def _check_tiff_page(image: Image.Image, file: BinaryIO) -> None:
    """Raise if a strip or tile of the page of a TIFF file that is read has a hole.

    Those of LZW, JPEG and Deflate are checked; libtiff does not look at the checksums
    of Deflate once all pixels are there.

    Args:
        image: The opened image, at the page that is read.
        file: Its file.
    """
    tags = image.tag_v2  # type: ignore[attr-defined]
    compression = tags.get(_COMPRESSION)
    if compression not in (_LZW, _JPEG, *_DEFLATE):
        return
    offsets = tags.get(_STRIP_OFFSETS, tags.get(_TILE_OFFSETS, ()))
    sizes = tags.get(_STRIP_SIZES, tags.get(_TILE_SIZES, ()))
    for offset, size in zip(offsets, sizes):
        file.seek(offset)
        content = file.read(size)
        if compression == _LZW:
            _check_zeros(content, _MOST_ZEROS_OF_LZW)
        elif compression == _JPEG:
            # Both begin with a marker of 2 bytes; the tables end with one, too.
            _check_jpeg_scans(tags.get(_JPEG_TABLES, b"")[:-2] + content[2:])
        elif not _is_whole_deflate(content):
            raise DamagedError(
                "it is damaged: a checksum of its pixels is wrong; copy it again from "
                "its source"
            )


def _is_whole_deflate(content: bytes) -> bool:
    """Whether bytes are a whole zlib stream with the right checksum."""
    inflater = zlib.decompressobj()
    try:
        while content and not inflater.eof:
            inflater.decompress(content, 1 << 20)
            content = inflater.unconsumed_tail
        inflater.flush()
    except zlib.error:
        return False
    return inflater.eof


# JPEG


@dataclass(frozen=True)
class _ZeroCode:
    """The code of a Huffman table that consists of zeros: its symbol and its bits."""

    symbol: int
    bits: int


@dataclass
class _Scan:
    """A scan of a JPEG file, with what tells whether zeros may stand in it.

    Attributes:
        dc_codes, ac_codes: For each component, the code of zeros in its table of DC
            and of AC coefficients; None without a table.
        blocks: For each component, the number of its blocks in an MCU.
        first, last: The coefficients in zigzag order; 0 is DC.
        refines: Whether it adds a bit to coefficients of an earlier scan.
        content: Its entropy-coded bytes.
    """

    dc_codes: list[_ZeroCode | None]
    ac_codes: list[_ZeroCode | None]
    blocks: list[int]
    first: int
    last: int
    refines: bool
    content: bytes


@dataclass
class _FrameHeader:
    """What a JPEG file says of all its scans.

    Attributes:
        width, height: Of the image in pixels.
        mcu_width, mcu_height: Of an MCU (minimum coded unit) in pixels.
        blocks: Number of blocks in an MCU, by number of the component.
    """

    width: int = 0
    height: int = 0
    mcu_width: int = 8
    mcu_height: int = 8
    blocks: dict[int, int] = field(default_factory=dict)

    @property
    def mcus(self) -> int:
        """Number of MCUs."""
        columns = math.ceil(self.width / self.mcu_width)
        rows = math.ceil(self.height / self.mcu_height)
        return columns * rows


def _check_jpeg_file(image: Image.Image, content: bytes) -> None:
    """Raise if a quantization table or the pixels of a JPEG file have a hole."""
    quantization_tables = getattr(image, "quantization", {})
    if any(0 in table for table in quantization_tables.values()):
        raise DamagedError(
            "it is damaged: a quantization table holds zeros; copy it again from its "
            "source"
        )
    _check_jpeg_scans(content)


def _check_jpeg_scans(content: bytes) -> None:
    """Raise if the pixels of a JPEG file have more zeros than its scans may write."""
    if bytes(_MOST_ZEROS_OF_JPEG) not in content:
        return
    header = _FrameHeader()  # is filled in with the first scan
    # What breaks the structure of a JPEG is for its decoder to judge.
    with suppress(struct.error, IndexError):
        for scan in _scans_of_jpeg(content, header):
            long_runs = _LONG_RUNS.findall(scan.content)
            longest = max(map(len, long_runs), default=0)  # bytes
            if longest and 8 * longest > _most_zero_bits(scan, header):
                raise _hole_error(longest)


def _scans_of_jpeg(content: bytes, header: _FrameHeader) -> Iterator[_Scan]:
    """Yield the scans of the first image of a JPEG file.

    Args:
        content: The file.
        header: Empty; size and components of the image are written into it before
            the first scan is yielded.

    Raises:
        DamagedError: If there is a hole between two segments.
    """
    # The code of each Huffman table that consists of zeros, by the table's class
    # (0: DC, 16: AC) plus its number.
    codes: dict[int, _ZeroCode | None] = {}
    position = 2  # after the marker of the beginning
    while position + 4 <= len(content):
        if content.startswith(bytes(_LONGEST_GAP), position):
            raise _hole_error(_LONGEST_GAP)
        if content[position] != 0xFF:  # decoders skip what stands between segments
            position += 1
            continue
        marker = content[position + 1]
        if marker == 0xFF:  # a byte that fills
            position += 1
            continue
        if marker in _RESTARTS:  # stray
            position += 2
            continue
        if marker == _END:
            return
        length = struct.unpack_from(">H", content, position + 2)[0]
        segment = content[position + 4 : position + 2 + length]
        position += 2 + length
        if marker == _HUFFMAN_TABLES:
            codes.update(_zero_codes(segment))
        elif marker in _FRAMES:
            _fill_frame_header(segment, header)
        elif marker == _START_OF_SCAN:
            following = _NEXT_MARKER.search(content, position)
            end = len(content) if following is None else following.start()
            yield _read_scan(segment, codes, header, content[position:end])
            position = end


def _fill_frame_header(segment: bytes, header: _FrameHeader) -> None:
    """Fill in size and components of a JPEG from its start-of-frame segment (SOF).

    Args:
        segment: The segment without marker and length.
        header: Size and components are written into it.
    """
    # After a byte that is skipped: two numbers of 16 bits, and one byte.
    header.height, header.width, count = struct.unpack_from(">xHHB", segment)
    blocks = {}  # of an MCU, by number of the component
    widest = 1  # component of an MCU, in blocks
    highest = 1
    for component in range(count):
        # `sampling` holds the columns and the rows of blocks of an MCU, 4 bits each.
        number, sampling = struct.unpack_from("BB", segment, 6 + 3 * component)
        columns = sampling >> 4
        rows = sampling & 15
        blocks[number] = columns * rows
        widest = max(widest, columns)
        highest = max(highest, rows)
    header.blocks = blocks
    header.mcu_width = 8 * widest
    header.mcu_height = 8 * highest


def _zero_codes(segment: bytes) -> Iterable[tuple[int, _ZeroCode | None]]:
    """Yield the code whose bits are all 0 of each Huffman table in a segment (DHT).

    A JPEG gives codes to symbols in ascending order, so this code is that of the first
    symbol, and as short as any.

    Yields:
        Class (0: DC, 16: AC) plus number of the table, and the code, or None if the
        table is empty.
    """
    position = 0
    while position + 17 <= len(segment):  # a table begins with 1 byte and 16 counts
        table = segment[position]
        counts = segment[position + 1 : position + 17]  # of codes with 1 to 16 bits
        symbols = segment[position + 17 : position + 17 + sum(counts)]
        code = None
        if symbols:
            fewest_bits = 1 + next(i for i, count in enumerate(counts) if count)
            code = _ZeroCode(symbols[0], fewest_bits)
        yield table, code
        position += 17 + sum(counts)


def _read_scan(
    segment: bytes,
    codes: dict[int, _ZeroCode | None],
    header: _FrameHeader,
    content: bytes,
) -> _Scan:
    """Read a scan of a JPEG from its header (SOS segment).

    Args:
        segment: The header without marker and length.
        codes: The code that consists of zeros of each Huffman table, by the table's
            class (0: DC, 16: AC) plus its number.
        header: Size and components of the image of the file.
        content: Entropy-coded bytes after the header.
    """
    count = segment[0]  # of components, each of 2 bytes that follow
    # First and last coefficient in zigzag order, and which of their bits are stored.
    first, last, bits = struct.unpack_from("BBB", segment, 1 + 2 * count)
    scan = _Scan(
        dc_codes=[],
        ac_codes=[],
        blocks=[],
        first=first,
        last=last,
        refines=bool(bits >> 4),
        content=content,
    )
    for component in range(count):
        # `tables` holds the numbers of the DC and of the AC table, 4 bits each.
        number, tables = struct.unpack_from("BB", segment, 1 + 2 * component)
        scan.dc_codes.append(codes.get(tables >> 4))
        scan.ac_codes.append(codes.get(16 + (tables & 15)))
        scan.blocks.append(header.blocks.get(number, 1))
    return scan


def _most_zero_bits(scan: _Scan, header: _FrameHeader) -> float:
    """Return how many bits of zeros may follow each other in a scan of a JPEG.

    Zero, unless the codes that consist of zeros say "no difference to the block before"
    and "no further coefficient", as optimised tables may write a flat area; then as
    many as all blocks of the image have.

    Args:
        scan: Its codes of zeros, blocks and range of coefficients.
        header: Number of MCUs (minimum coded units) of the image.
    """
    if scan.first == 0 and scan.refines:  # one bit a block, without any code
        return header.mcus * sum(scan.blocks)
    ends_blocks = all(map(_ends_blocks, scan.ac_codes))
    if scan.refines:  # corrections of any number of coefficients stand between codes
        return math.inf if ends_blocks else 0
    bits_of_mcu = 0.0
    if scan.first == 0:
        if not all(map(_repeats_brightness, scan.dc_codes)):
            return 0
        bits_of_mcu += _bits_of_mcu(scan.dc_codes, scan.blocks)
    if scan.last > 0:
        if not ends_blocks:
            return 0
        bits_of_mcu += _bits_of_mcu(scan.ac_codes, scan.blocks)
    return bits_of_mcu * header.mcus


def _repeats_brightness(code: _ZeroCode | None) -> bool:
    """Whether a code of DC coefficients says that a block is as bright as the last."""
    return code is not None and code.symbol == 0


def _ends_blocks(code: _ZeroCode | None) -> bool:
    """Whether a code of AC coefficients ends a block, or a run of blocks."""
    if code is None or code.symbol == _SIXTEEN_ZEROS:
        return False
    size_of_coefficient = code.symbol & 15  # in bits; without one, the block is over
    return size_of_coefficient == 0


def _bits_of_mcu(codes: Iterable[_ZeroCode | None], blocks: Iterable[int]) -> float:
    """Return the bits of an MCU (minimum coded unit) of a JPEG whose codes are zeros.

    Symbol 16 r of progressive AC coefficients ends at least 2^r blocks, and r more bits
    follow it: a block then takes (bits of the code + r) / 2^r bits.

    Args:
        codes: Code of zeros of each component.
        blocks: Number of blocks of each component in the MCU.
    """
    bits = 0.0
    for code, count in zip(codes, blocks):
        if code is not None:
            run = code.symbol >> 4
            bits += count * (code.bits + run) / 2**run
    return bits
