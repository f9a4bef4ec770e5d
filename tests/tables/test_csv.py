import pytest

from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

HEADER = "class,object,session,im_num,im_path\n"


def test_an_index_file_of_the_published_code(tmp_path):
    """Columns in any order, pandas' index first, class numbers with names."""
    file = tmp_path / "core50_dirmap.csv"
    file.write_text(
        ",im_path,class,object,session,im_num\n0,s1/o1/C_01_01_010.png,1,1,1,10\n1,s3/o1/C_03_01_030.png,1,1,3,30\n"
    )
    table = FrameTable.from_dirmap(file, tmp_path, test_sessions=(3, 7, 10), class_names={1: "plug_adapter"})
    assert list(table) == [
        Frame("s1/o1/C_01_01_010.png", "plug_adapter", "1", "1", 10, "train"),
        Frame("s3/o1/C_03_01_030.png", "plug_adapter", "1", "3", 30, "test"),
    ]
    assert table.root == tmp_path and table.name == "core50_dirmap" and not table.padded
    assert FrameTable.from_dirmap(file, None, [3]).classes == ("1",)


def test_an_index_file_may_repeat_the_frames_of_a_short_clip(tmp_path):
    file = tmp_path / "toybox_dirmap.csv"
    file.write_text(HEADER + "1,1,1,1,a.png\n1,1,1,2,b.png\n1,1,1,3,a.png\n1,1,3,1,c.png\n")
    table = FrameTable.from_dirmap(file, None, test_sessions=[3])
    assert table.padded and table.frame == (1, 2, 3, 1) and table.path == ("a.png", "b.png", "a.png", "c.png")
    assert [table.path[row] for row in table.clips(table.rows("train"))[0]] == ["a.png", "b.png", "a.png"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class,object,session\n", "has no column im_num and no column im_path; an index file of the published code"),
        (HEADER + "1,1,1,1\n", "line 2 has 4 values, but the header 5"),
        (HEADER + "1,1,1,x,a.png\n", "line 2: frame is 'x'"),
        (HEADER + "2,1,1,1,a.png\n", "line 2: class 2 has no name; names were given for 1"),
        (HEADER + "1,1,1,1,a.png\n1,1,2,1,a.png\n", "row 1 (a.png) repeats the path of an earlier row; a padded table"),
    ],
)
def test_an_error_in_an_index_file_names_the_line(tmp_path, text, words):
    file = tmp_path / "dirmap.csv"
    file.write_text(text)
    with pytest.raises(FrameTableError) as raised:
        FrameTable.from_dirmap(file, None, [3], {1: "cup"})
    assert words in str(raised.value)
    with pytest.raises(FrameTableError, match=r"no frame table at .*nowhere\.csv"):
        FrameTable.from_dirmap(tmp_path / "nowhere.csv", None, [3])
