"""What was answered over MQTT, in a file, so that a stop loses and repeats nothing."""

import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MOST_ANSWERS = 10_000  # of which is known that they were given
TABLE = """CREATE TABLE IF NOT EXISTS answers
(key TEXT PRIMARY KEY, source TEXT, lesson INT, topic TEXT, text TEXT, state TEXT)"""


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
        ValueError: the file is damaged, or something else.
    """

    def __init__(self, path: Path):
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(TABLE)
            check_result = self._database.execute("PRAGMA quick_check").fetchone()[0]
            self.unsent()  # raises if the table has other columns
        except sqlite3.DatabaseError as error:
            check_result = str(error)
        if check_result != "ok":
            raise ValueError(
                f"{path} is not a journal of answers, or is damaged ({check_result}); "
                "move it away, and answers that were under way may be given again"
            )

    def find(self, key: str) -> JournalEntry | None:
        """Return the journal's entry of a message; ``None`` if it has none."""
        row = self._database.execute(
            "SELECT key, source, lesson, topic, text, state FROM answers WHERE key = ?",
            (key,),
        ).fetchone()
        return None if row is None else JournalEntry(*row)

    def unsent(self) -> list[JournalEntry]:
        """Return the journal's answers that may not have arrived."""
        rows = self._database.execute(
            "SELECT key, source, lesson, topic, text, state FROM answers "
            "WHERE state = 'made' ORDER BY rowid"
        )
        return [JournalEntry(*row) for row in rows]

    def note_begun(self, key: str, lesson: int = 0) -> JournalEntry:
        """Note that the change of a message begins; ``lesson`` is taken back by it."""
        source = f"mqtt {secrets.token_hex(8)}"
        return self._write(JournalEntry(key, source, lesson, "", "", "begun"))

    def note_answer(self, key: str, topic: str, text: str) -> JournalEntry:
        """Note the answer to a message, which is not sent yet."""
        return self._write(JournalEntry(key, "", 0, topic, text, "made"))

    def _write(self, entry: JournalEntry) -> JournalEntry:
        """Write an entry to the journal in the place of one of the same message."""
        row = tuple(vars(entry).values())  # in the order of the columns
        self._database.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row
        )
        return entry

    def note_sent(self, key: str) -> None:
        """Note that an answer arrived, and drop the journal's oldest entries."""
        self._database.execute(
            "UPDATE answers SET state = 'sent', text = '' WHERE key = ?", (key,)
        )
        self._database.execute(
            "DELETE FROM answers WHERE rowid <= (SELECT MAX(rowid) FROM answers) - ?",
            (MOST_ANSWERS,),
        )

    def drop_keys(self, prefix: str) -> None:
        """Drop the journal's entries whose keys begin so, but for answers under way."""
        self._database.execute(
            "DELETE FROM answers WHERE state != 'made' AND substr(key, 1, ?) = ?",
            (len(prefix), prefix),
        )
