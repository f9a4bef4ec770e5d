"""What lies in folders.

Files that are photos and videos, any tree as clips or one line, and text that files
hold.
"""

import io
import os
import subprocess
import sys
import unicodedata
import warnings
from collections import Counter
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.folders import (
    entries_of,
    files_below,
    ignored_files_in_words,
    kind_of,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.text import (
    ListedError,
    SafeStream,
    from_spreadsheet_cell,
    is_seen,
    printable,
    spreadsheet_cell,
)
from crumb_avalanche.images.sources import clips_of

PHOTO = BytesIO()
Image.new("RGB", (2, 2)).save(PHOTO, "PNG")
PHOTO = PHOTO.getvalue()


FORMATS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "TIFF",
    "WEBP",
    "AVIF",
    "PPM",
    "JPEG2000",
    "MPO",
    "QOI",
    "DDS",
)


@pytest.mark.parametrize("name", ["scan", "scan.scan_1"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("form", FORMATS)
def test_photos_without_a_known_extension(tmp_path, form, mode, name):
    try:
        Image.new(mode, (40, 30)).save(tmp_path / name, form)
    except (OSError, KeyError, ValueError):
        pytest.skip("a mode or format that this Pillow cannot write")
    assert kind_of(tmp_path / name) == "image"


@pytest.mark.parametrize(
    "content",
    [b"", b"import x from 'y';\n" * 90, b"P", b"RIFF\0\0\0\0WAVEfmt ", b"BM25\n"],
)
def test_other_content_is_ignored(tmp_path, content):
    (tmp_path / "a.ts").write_bytes(content)
    assert kind_of(tmp_path / "a.ts") is None
    assert entries_of(tmp_path).ignored == {".ts": 1}


@pytest.mark.parametrize(
    ("ignored", "words"),
    [
        (
            {".txt": 2, ".heic": 3, "": 1, ".dng": 0, "hidden or system": 4},
            "3 .heic (convert them to JPEG or PNG), 2 .txt, 1 without extension and 4 "
            "hidden or system",
        ),
        ({}, ""),
        ({".a\x1b[2J": 1}, "1 .a\\x1b[2J"),
    ],
)
def test_what_is_ignored_is_described(ignored, words):
    assert ignored_files_in_words(Counter(ignored)) == words


def test_many_kinds_of_ignored_files():
    ignored = Counter(f".{number}" for number in range(99))
    assert ignored_files_in_words(ignored).endswith(", 1 .7 and 91 others")


names = st.sampled_from(["cup", "mug", "tea cup", "Straße", "a.b", "x10", "x9"])
photos = st.dictionaries(
    st.sampled_from(["1.png", "10.JPG", "2.jfif", "3", "a.scan", "b.gif"]),
    st.just(PHOTO),
    max_size=2,
)
folders = st.dictionaries(
    st.sampled_from(
        [
            "labels.txt",
            "a.json",
            "b.heic",
            "c.dng",
            ".hidden.png",
            "Thumbs.db",
            "noise.xyz",
        ]
    ),
    st.just(b"?"),
    max_size=1,
)
clutter = st.dictionaries(
    st.sampled_from(
        [
            "@eaDir",
            "#recycle",
            ".Trashes",
            "__MACOSX",
            "$RECYCLE.BIN",
            "lost+found",
            ".thumbnails",
        ]
    ),
    st.just({"1.png": PHOTO}),
    max_size=1,
)


def merged(*trees):
    """Return one folder with the entries of several."""
    entries = {}
    for tree in trees:
        entries |= tree
    return entries


files = st.builds(merged, photos, folders, clutter)


def folder(inside):
    return st.builds(merged, st.dictionaries(names, inside, max_size=2), files)


trees = folder(folder(folder(files)))
OF_SYSTEMS = (".", "@", "#", "$", "_", "lost")  # beginnings of names


def write(root, tree):
    root.mkdir(exist_ok=True)
    for name, inside in tree.items():
        if isinstance(inside, dict):
            write(root / name, inside)
        else:
            (root / name).write_bytes(inside)


def clips_in(tree, path=""):
    """Return photos by folder, at any depth, without what systems make."""
    clips = {}
    photos = set()
    for name, inside in tree.items():
        if isinstance(inside, dict):
            if not name.startswith(OF_SYSTEMS):
                clips |= clips_in(inside, f"{path}{name}/")
        elif inside == PHOTO and name[0] != ".":
            photos.add(f"{path}{name}")
    if photos:
        clips[path.rstrip("/") or "."] = photos
    return clips


@contextmanager
def written(tree):
    """Write a tree; yield its folder."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder, "root")
        write(root, tree)
        yield root


def relative(path, root):
    return Path(path).relative_to(root).as_posix()


@settings(max_examples=100)
@given(trees)
def test_any_tree_ends_in_its_clips_or_in_one_line(tree):
    expected = clips_in(tree)
    with written(tree) as root:
        try:
            clips = list(clips_of(root))
        except ValueError as error:
            assert not expected
            assert "holds no photo and no video" in str(error)
            assert "\n" not in str(error)
            return
        listed = {}
        for clip in clips:
            path = relative(clip.path, root)
            listed[path] = {relative(file, root) for file in clip.files}
            label = None if "." in expected else path.split("/")[0]
            assert clip.label == label
        assert listed == expected


@settings(max_examples=100)
@given(trees)
def test_any_tree_ends_in_a_table_or_in_one_line(tree):
    with written(tree) as root:
        try:
            table = ClipFolderFrames(root, held_out=0)
        except FrameTableError as error:
            assert "\n" not in str(error)
            assert str(root) in str(error)
            return
        photos = set().union(*clips_in(tree).values())
        assert sorted(table.path) == sorted(photos)
        for row in table:
            folders = row.path.split("/")[:-1]
            assert row.class_name == folders[0]
            assert row.object_name in folders


HOSTILE = st.text(
    st.sampled_from(
        "a=+-@'\t\r\n\x1b[]\x07\x9b\u202e\u2066\u200b\u200d\ufeff\u00ad\u3164\udcffé"
    )
    | st.characters()
)
SEEN = [
    "mug",
    "tea cup",
    "Straße",
    "カップ",
    "a\u00a0b",
    "葛\U000e0100城",
    "1\ufe0f\u20e3",
    "❤\ufe0f",
    "\u0600١",
]
# Joiners where writing needs them: emoji, Persian, Hindi, Bengali, Malayalam.
SEEN += ["👩\u200d🚀", "👨🏽\u200d🚀", "❤\ufe0f\u200d🔥"]
SEEN += ["می\u200cخواهم", "क\u094d\u200dष", "র\u200d\u09cdয", "ന\u0d4d\u200d"]
UNSEEN = [
    "cup\x1b[2J",
    "a\nb",
    "a\rb",
    "a\x9bb",
    "\u202egpj",
    "cup\u200d",
    "c\u200cup",
    "c\u200bup",
    "\ufeffcup",
]
UNSEEN += ["c\u00adup", "cup\ufe0f", "\u3164", "a\u2028b", "\u2800"]
UNSEEN += ["a\udcff", "\u2066a\u2069", "a\uffff", "\U000e0041"]


@pytest.mark.parametrize("text", SEEN)
def test_writing_of_many_scripts_stays_as_it_is(text):
    assert printable(text) == text
    assert all(is_seen(text, index) for index in range(len(text)))


@pytest.mark.parametrize("text", UNSEEN, ids=ascii)
def test_what_is_not_seen_becomes_an_escape(text):
    assert printable(text) == text.encode("unicode_escape").decode()


@given(HOSTILE)
def test_a_printed_text_is_one_line_of_seen_characters(text):
    line = printable(text)
    categories = set(map(unicodedata.category, line))
    assert not line or line.splitlines() == [line]
    assert not categories & {"Cc", "Cs", "Zl", "Zp"}


@given(HOSTILE)
def test_a_cell_of_a_spreadsheet_is_no_formula_and_reads_back(text):
    cell = spreadsheet_cell(text)
    assert from_spreadsheet_cell(cell) == text
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r") and cell:
        float(cell)


def test_rows_for_a_spreadsheet():
    rows = [
        ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "'=x", "x", "-1.5", "+3", -1.5, None]
    ]
    assert csv_text(rows) == "'=1+1,'+x,'-x,'@x,'\tx,\"'\rx\",''=x,x,-1.5,+3,-1.5,\n"


def test_a_listed_error_has_a_line_for_each_item():
    assert (
        str(ListedError("two\nfiles", ["a\x1b", "b\nc"]))
        == "two\\nfiles:\n  a\\x1b\n  b\\nc"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_stream_escapes_what_it_is_given(encoding):
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding, newline=""))
    print("a\x1b[2Jé\udcff\tb\r", file=stream)
    stream.writelines(["c\u202e\n"])
    stream.flush()
    letter = "é" if encoding == "utf-8" else r"\xe9"
    assert (
        raw.getvalue().decode(encoding) == f"a\\x1b[2J{letter}\\udcff\tb\\r\nc\\u202e\n"
    )


def test_the_traceback_of_an_error_that_ends_the_program_is_escaped():
    code = "from benchmarks_toybox_ilab.tables.text import safe_output\n"
    code += "with safe_output(): raise RuntimeError(chr(27) + '[2J')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "RuntimeError: \\x1b[2J" in ended.stderr
    assert "\x1b" not in ended.stderr


@pytest.fixture
def linked(tmp_path):
    """Two folders with a file each; one links to the root and to the other folder."""
    for name in ("a/x.png", "b/y.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(PHOTO)
    (tmp_path / "a/back").symlink_to(tmp_path)
    (tmp_path / "a/other").symlink_to(tmp_path / "b")
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "names"),
    [("", ["a/other/y.png", "a/x.png"]), ("a", ["a/other/y.png", "a/x.png"])],
)
def test_links_to_folders_are_followed_once(linked, folder, names):
    assert list(files_below(linked, folder)) == names


def test_a_folder_that_cannot_be_listed(linked, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    (linked / "a/other").unlink()
    monkeypatch.setattr(os, "scandir", refuse)
    words = f"folder {linked / 'b'} cannot be listed .Permission denied.*Make it read"
    with pytest.raises(FrameTableError, match=words):
        list(files_below(linked))
