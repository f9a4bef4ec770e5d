"""What was answered over MQTT, in a file, so that a stop loses and repeats nothing."""

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

MOST_ANSWERS = 10_000  # of which is known that they were given
TABLE = """CREATE TABLE IF NOT EXISTS answers
(key TEXT PRIMARY KEY, source TEXT, lesson INT, topic TEXT, text TEXT, state TEXT)"""


class JournalError(OSError):
    """The journal cannot be read or written, or its file is damaged."""


@dataclass(frozen=True)
class JournalEntry:
    """A message that was taken, and its answer.

    Attributes:
        key: names the message among all that are not the same.
        source: of the lesson that the message makes, by which it is recognised.
        lesson: number of the lesson that the message takes back; 0 for none.
        topic: of the answer.
        text: of the answer; empty before it is made, and again once it has arrived.
        state: ``begun`` before a change, ``made`` when there is an answer, and ``sent``
            when the broker has it.
    """

    key: str
    source: str
    lesson: int
    topic: str
    text: str
    state: Literal["begun", "made", "sent"]


class Journal:
    """The last answers, and those of which it is not known whether they arrived.

    Args:
        path: a file of SQLite, made if absent.

    Raises:
        JournalError: by every method, when the file cannot be read or written, is
            damaged, or is something else.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(TABLE)
            self._check_content()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _check_content(self) -> None:
        """Raise ``sqlite3.DatabaseError`` if the file is damaged, or no journal."""
        check_result = self._database.execute("PRAGMA quick_check").fetchone()[0]
        if check_result != "ok":
            raise sqlite3.DatabaseError(check_result)
        table_info = self._database.execute("PRAGMA table_info(answers)")
        columns = [row[1] for row in table_info]  # the second value is the name
        if columns != [field.name for field in fields(JournalEntry)]:
            raise sqlite3.DatabaseError(f"its columns are {', '.join(columns)}")

    def _failure(self, error: sqlite3.Error) -> JournalError:
        """Return the error of the journal for one of SQLite.

        An operational one is of the disk, of permissions, or of another program, and
        leaves the content as it is.
        """
        if isinstance(error, sqlite3.OperationalError):
            return JournalError(
                f"{self._path} holds what was answered, and cannot be read or written "
                f"({error}); make room on its disk, let this program write the file "
                "and its folder, and end other programs that use it"
            )
        return JournalError(
            f"{self._path} is not a journal of answers, or is damaged ({error}); end "
            "crumb connect and move it away, and answers that were under way may be "
            "given again"
        )

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement of SQL and return its rows.

        Args:
            statement: with a question mark for each value.
            values: in the order of the question marks.

        Raises:
            JournalError: SQLite reports an error.
        """
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def find(self, key: str) -> JournalEntry | None:
        """Return the journal's entry of a message; ``None`` if it has none."""
        rows = self._execute(
            "SELECT key, source, lesson, topic, text, state FROM answers WHERE key = ?",
            (key,),
        )
        return JournalEntry(*rows[0]) if rows else None

    def unsent(self) -> list[JournalEntry]:
        """Return the journal's answers that may not have arrived."""
        rows = self._execute(
            "SELECT key, source, lesson, topic, text, state FROM answers "
            "WHERE state = 'made' ORDER BY rowid"
        )
        return [JournalEntry(*row) for row in rows]

    def note_begun(self, key: str, lesson: int = 0) -> JournalEntry:
        """Note that the change of a message begins; ``lesson`` is taken back by it."""
        source = f"mqtt {secrets.token_hex(8)}"
        entry = JournalEntry(key, source, lesson, "", "", "begun")
        self._write(entry)
        return entry

    def note_answer(self, entry: JournalEntry) -> None:
        """Note the answer to a message, which is not sent yet."""
        self._write(entry)

    def _write(self, entry: JournalEntry) -> None:
        """Write an entry to the journal in the place of one of the same message."""
        row = tuple(vars(entry).values())  # in the order of the columns
        self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)

    def note_sent(self, key: str) -> None:
        """Note that an answer arrived, and drop the journal's oldest entries."""
        self._execute(
            "UPDATE answers SET state = 'sent', text = '' WHERE key = ?", (key,)
        )
        self._execute(
            "DELETE FROM answers WHERE rowid <= (SELECT MAX(rowid) FROM answers) - ?",
            (MOST_ANSWERS,),
        )

    def drop_keys(self, prefix: str) -> None:
        """Drop the journal's entries whose keys begin so, but for answers under way."""
        self._execute(
            "DELETE FROM answers WHERE state != 'made' AND substr(key, 1, ?) = ?",
            (len(prefix), prefix),
        )
