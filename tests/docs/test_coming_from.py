"""The snippets of docs/coming_from.md, run one after the other."""

import pytest
from page_commands import ROOT, blocks

pytest.importorskip("sklearn")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_snippets_learn():
    names: dict = {}
    for code in blocks((ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8"), "python"):
        exec(compile(code, "coming_from.md", "exec"), names)
    assert names["here"].score(names["features"], names["labels"]) > 0.9
    assert (names["model"].predict(names["features"]) == names["labels"]).mean() > 0.9
    assert names["pipeline"].classes_.tolist() == ["cup", "dog"]
