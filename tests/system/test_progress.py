"""Progress in a file is a line now and then, not a bar drawn over itself; numbers of things in words."""

import io

from crumb_avalanche.system import progress
from crumb_avalanche.system.progress import counted, progress_bar


def printed(monkeypatch, seconds, **options):
    file, clock = io.StringIO(), iter(range(0, 1000, seconds))
    monkeypatch.setattr(progress.sys, "stderr", file)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress_bar(40, "training", **options) as bar:
        for _ in range(4):
            bar.update(10)
    return file.getvalue()


def test_a_line_every_few_seconds_and_one_at_the_end(monkeypatch):
    lines = printed(monkeypatch, 6).splitlines()
    assert lines[-1].startswith("training: 40/40 images, ") and lines[-1].endswith(" images/s")
    assert 2 <= len(lines) <= 4 and "\r" not in "".join(lines)
    assert len(printed(monkeypatch, 1).splitlines()) == 1 and not printed(monkeypatch, 6, show=False)
    assert printed(monkeypatch, 60).splitlines()[0] == "training: 10/40 images, 12.0 s each"
    scaled = printed(monkeypatch, 2, unit="B", initial=20, scale=True)  # what was done before is no part of the rate
    assert scaled == "training: 50.0/40.0B, 3.75B/s\ntraining: 60.0/40.0B, 3.33B/s\n"


def test_a_new_text_is_a_line_if_wanted(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", file)
    with progress_bar(3, "sweep", " runs") as bar:
        for text, refresh in (("run0", True), ("run0", True), ("run1", False), ("run2", True), ("", True)):
            bar.set_postfix_str(text, refresh=refresh)
        assert [line.rpartition(", ")[2] for line in file.getvalue().splitlines()] == ["run0", "run2"]


def test_one_is_no_plural():
    cases = [(0, "image"), (1, "image"), (1234, "image"), (2, "class"), (2, "memory")]
    assert [counted(*case) for case in cases] == ["0 images", "1 image", "1,234 images", "2 classes", "2 memories"]
