"""A frame table written by hand is the table that it spells, or one line says what is wrong."""

import csv
import io

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks_toybox_ilab.tables.csv import COLUMNS
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

ROWS = [
    [f"{name}/{clip}/{frame}.png", name, "o1", clip, str(frame), split]
    for name in ("cup", "mug")
    for clip, split in (("s1", "train"), ("s2", "test"))
    for frame in range(2)
]
ODD = ["", "-1", "1.5", "9" * 5000, "../x.png", "/etc/x", "a\x00b", "a\nb", '"', "=1+1", "\u202e", "train ", "cup", "0"]


@st.composite
def tables(draw):
    """The bytes of a table of which cells or rows were changed, perhaps cut or with odd bytes."""
    rows = [list(row) for row in [COLUMNS, *ROWS]]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from(rows))
        kind = draw(st.sampled_from(["cell", "cell", "cell", "short", "long", "twice", "gone"]))
        if kind == "cell" and row:
            row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(ODD) | st.text(max_size=5))
        elif kind == "short":
            del row[-1:]
        elif kind == "long":
            row.append("x")
        elif kind == "twice":
            rows.append(list(row))
        elif len(rows) > 1:
            rows = [one for one in rows if one is not row]
    text = io.StringIO()
    csv.writer(text, lineterminator=draw(st.sampled_from(["\n", "\r\n"]))).writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place:]
    return content


def check_table(folder, content):
    path = folder / "table.csv"
    path.write_bytes(content)
    try:
        table = FrameTable.from_csv(path, folder)
    except FrameTableError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 20_000 and str(path) in text
        return
    table.to_csv(folder / "again.csv")
    again = FrameTable.from_csv(folder / "again.csv", folder)
    assert list(again) == list(table) and again.classes == table.classes


@settings(max_examples=100, phases=[Phase.generate])
@given(content=tables())
def test_100_crafted_tables(tmp_path_factory, content):
    check_table(tmp_path_factory.mktemp("csv"), content)
