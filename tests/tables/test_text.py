"""Text from files: what of it is seen, what a terminal gets, and cells of a spreadsheet."""

import io
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.text import (
    ListedError,
    SafeStream,
    from_spreadsheet_cell,
    is_seen,
    printable,
    spreadsheet_cell,
)

HOSTILE = st.text(
    st.sampled_from("a=+-@'\t\r\n\x1b[]\x07\x9b\u202e\u2066\u200b\u200d\ufeff\u00ad\u3164\udcffé") | st.characters()
)
SEEN = ["mug", "tea cup", "Straße", "カップ", "a\u00a0b", "葛\U000e0100城", "1\ufe0f\u20e3", "❤\ufe0f", "\u0600١"]
# Joiners where writing needs them: emoji, Persian, Hindi, Bengali, Malayalam.
SEEN += ["👩\u200d🚀", "👨🏽\u200d🚀", "❤\ufe0f\u200d🔥"]
SEEN += ["می\u200cخواهم", "क\u094d\u200dष", "র\u200d\u09cdয", "ന\u0d4d\u200d"]
UNSEEN = ["cup\x1b[2J", "a\nb", "a\rb", "a\x9bb", "\u202egpj", "cup\u200d", "c\u200cup", "c\u200bup", "\ufeffcup"]
UNSEEN += [
    "c\u00adup",
    "cup\ufe0f",
    "\u3164",
    "a\u2028b",
    "\u2800",
    "a\udcff",
    "\u2066a\u2069",
    "a\uffff",
    "\U000e0041",
]


@pytest.mark.parametrize("text", SEEN)
def test_writing_of_many_scripts_stays_as_it_is(text):
    assert printable(text) == text and all(is_seen(text, place) for place in range(len(text)))


@pytest.mark.parametrize("text", UNSEEN, ids=ascii)
def test_what_is_not_seen_becomes_an_escape(text):
    assert printable(text) == text.encode("unicode_escape").decode()


@given(HOSTILE)
def test_a_printed_text_is_one_line_of_seen_characters(text):
    shown = printable(text)
    assert not shown or shown.splitlines() == [shown]
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cs", "Zl", "Zp"}


@given(HOSTILE)
def test_a_cell_of_a_spreadsheet_is_no_formula_and_reads_back(text):
    cell = spreadsheet_cell(text)
    assert from_spreadsheet_cell(cell) == text
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r") and cell:
        float(cell)


def test_rows_for_a_spreadsheet():
    rows = [["=1+1", "+x", "-x", "@x", "\tx", "\rx", "'=x", "x", "-1.5", "+3", -1.5, None]]
    assert csv_text(rows) == "'=1+1,'+x,'-x,'@x,'\tx,\"'\rx\",''=x,x,-1.5,+3,-1.5,\n"


def test_a_listed_error_has_a_line_for_each_item():
    assert str(ListedError("two\nfiles", ["a\x1b", "b\nc"])) == "two\\nfiles:\n  a\\x1b\n  b\\nc"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_stream_escapes_what_it_is_given(encoding):
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding, newline=""))
    print("a\x1b[2Jé\udcff\tb\r", file=stream)
    stream.writelines(["c\u202e\n"])
    stream.flush()
    letter = "é" if encoding == "utf-8" else r"\xe9"
    assert raw.getvalue().decode(encoding) == f"a\\x1b[2J{letter}\\udcff\tb\\r\nc\\u202e\n"


def test_the_traceback_of_an_error_that_ends_the_program_is_escaped():
    code = "from benchmarks_toybox_ilab.tables.text import safe_output\n"
    code += "with safe_output(): raise RuntimeError(chr(27) + '[2J')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "RuntimeError: \\x1b[2J" in done.stderr and "\x1b" not in done.stderr
