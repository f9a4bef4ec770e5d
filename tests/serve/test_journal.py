"""The file of the answers that were given over MQTT, and a disk that fails."""

import sqlite3
from functools import partial

import pytest

from crumb_avalanche.serve.journal import Journal, JournalEntry, JournalError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers"


def test_what_was_begun_is_read_again(path):
    entry = Journal(path).note_begun("event a", lesson=3)
    assert Journal(path).find("event a") == entry


class FullDisk(sqlite3.Connection):
    """A database that has no room for a table."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.execute("PRAGMA max_page_count = 1")


def test_a_full_disk_at_the_start(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullDisk))
    with pytest.raises(JournalError, match=r"\(database or disk is full\); make room"):
        Journal(path)


def test_a_file_that_cannot_be_opened(path):
    path.mkdir()
    words = r"answers .* cannot be .*\(unable to open database file\); make room"
    with pytest.raises(JournalError, match=words):
        Journal(path)


def test_a_file_that_another_program_locks(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0))
    other_program = sqlite3.connect(path)
    other_program.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalError, match=r"\(database is locked\).*end other prog"):
        Journal(path)


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\xff"])
def test_a_file_that_is_no_journal(path, content):
    path.write_bytes(content * 100)
    words = r"answers is not a journal.*\(file is not a database\).*move it away"
    with pytest.raises(JournalError, match=words):
        Journal(path)


def test_a_table_with_other_columns(path):
    sqlite3.connect(path).execute("CREATE TABLE answers (question, answer)")
    with pytest.raises(JournalError, match=r"not a journal.*columns are question, ans"):
        Journal(path)


def test_a_journal_with_a_damaged_page(path):
    journal = Journal(path)
    for number in range(100):
        text = "x" * 1000
        journal.note_answer(JournalEntry(f"{number}", "", 0, "topic", text, "made"))
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    with pytest.raises(JournalError, match=r"damaged \(.*malformed.*move it away"):
        Journal(path)


def test_a_disk_that_fails_later(path):
    journal = Journal(path)
    sqlite3.connect(path).execute("DROP TABLE answers")
    with pytest.raises(JournalError, match=r"cannot be read or written \(no such"):
        journal.find("event a")
