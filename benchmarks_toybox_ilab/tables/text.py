"""Text from files, made safe for a terminal, a page and a spreadsheet.

Such as names and metadata.
"""

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO
from unicodedata import category, combining

# Characters that show nothing although their category does not say so: fillers, and the
# blank of Braille.
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
# Characters of category Cf that are seen: signs that enclose Arabic, Syriac and Kaithi
# numbers.
_SIGNS = (
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
)
_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# str.isprintable takes them for seen.
_DOUBTFUL = re.compile(f"[{_BLANK}]|{_SELECTORS.pattern}")
_JOINERS = "\u200c\u200d"
_KEYCAP = "\u20e3"
_VIRAMA = 9  # a combining class
_UNSEEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_WORDS = re.compile(r"- [A-Za-z][A-Za-z ,]*")  # of a list: nothing in them is computed
_CURSOR = re.compile(r"(\n|\x1b\[A)+")  # what tqdm writes to go from one bar to another


def is_seen(text: str, index: int) -> bool:
    """Whether the character at an index of a text is drawn, or changes its neighbours.

    Control characters, unpaired surrogates, marks of direction and zero-width
    characters are not seen. A joiner between two characters beyond ASCII or after a
    virama is (Persian, Hindi, emoji), and so is a variation selector after one.
    """
    char = text[index]
    previous = text[max(index - 1, 0) : index]
    following = text[index + 1 : index + 2]
    is_after_ascii = previous <= "\x7f"  # or begins the text
    if char in _JOINERS:  # zero-width joiner and non-joiner
        if is_after_ascii or {previous, following} & {*_JOINERS, *_BLANK}:
            return False
        return following > "\x7f" or combining(previous) == _VIRAMA
    if _SELECTORS.match(char):  # of a variant of the character before it
        return not is_after_ascii or following == _KEYCAP
    if char in _BLANK or _is_noncharacter(ord(char)):
        return False
    # Signs that enclose numbers are drawn, although their category (Cf) is not.
    return char in _SIGNS or category(char) not in _UNSEEN_CATEGORIES


def _is_noncharacter(code: int) -> bool:
    """Whether Unicode promises that a code will never be a character."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def printable(text: object, keep: str = "") -> str:
    r"""Return a text in which every character is seen.

    Others become escapes such as ``\x1b``, ``\n`` and ``\u202e``. What a terminal takes
    for a command, a page for another direction, or a reader for the end of a line is
    then plain text. See `is_seen`.

    Args:
        text: Any object; its `str` is taken.
        keep: Characters that stay.
    """
    text = str(text)
    # Quick, and true of nearly every text.
    if text.isprintable() and not _DOUBTFUL.search(text):
        return text
    safe = []
    for index, char in enumerate(text):
        if char in keep or is_seen(text, index):
            safe.append(char)
        else:
            safe.append(char.encode("unicode_escape").decode())
    return "".join(safe)


def spreadsheet_cell(value: object) -> object:
    """Put an apostrophe before the text of a CSV cell that begins as a formula does.

    Numbers such as -1.5 stay as they are.
    """
    if isinstance(value, str) and _is_formula(value):
        return f"'{value}"
    return value


def from_spreadsheet_cell(text: str) -> str:
    """Return the text that `spreadsheet_cell` put into a cell of a CSV file."""
    if text.startswith("'") and _is_formula(text[1:]):
        return text[1:]
    return text


def _is_formula(text: str) -> bool:
    """Whether the text, without apostrophes before it, begins as a formula does.

    Numbers and plain words are none.
    """
    if not _FORMULA.match(text) or _WORDS.fullmatch(text):
        return False
    try:
        for word in text.split(" "):
            float(word)
    except ValueError:
        return True  # not all of its words are numbers
    return False


def listed(names: Sequence[str], most: int = 20) -> str:
    """Join names with commas; of more than `most` the first, and how many more."""
    text = ", ".join(names[:most])
    if len(names) > most:
        return f"{text} and {len(names) - most} more"
    return text


class ListedError(ValueError):
    """Several things are wrong; the message lists them, one in a line.

    Args:
        title: What they have in common.
        items: Lines.
    """

    def __init__(self, title: str, items: Iterable[object]):
        lines = [f"  {printable(line)}" for line in items]
        super().__init__("\n".join([f"{printable(title)}:", *lines]))


class SafeStream:
    """A stream that writes text as `printable` returns it; line ends and tabs stay.

    Args:
        stream: Where the text goes, such as `sys.stderr`.
        bars: Whether progress bars, which return to the beginning of the line, are
            drawn on it.

    Attributes:
        error: Why the stream did not take a text, if so.
    """

    def __init__(self, stream: TextIO, bars: bool = False):
        self._stream = stream
        self._keep = "\r\n\t" if bars else "\n\t"
        self._bars = bars
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text to the terminal or file; return its number of characters.

        Characters that the stream's encoding lacks become escapes, too.
        """
        moves_cursor = self._bars and _CURSOR.fullmatch(text)
        safe = text
        if not moves_cursor:
            safe = printable(text, self._keep)
        encoding = self._stream.encoding or "utf-8"
        encoded = safe.encode(encoding, "backslashreplace")
        try:
            self._stream.write(encoded.decode(encoding))
        except OSError as error:
            self.error = error
            raise
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text to the terminal or file."""
        for line in lines:
            self.write(line)


@contextmanager
def safe_output() -> Iterator[None]:
    """Let all that a block prints go through `SafeStream`: to stdout and to stderr.

    This includes warnings, logs, progress bars and the messages of other libraries, and
    the traceback of an error that leaves the block and ends the program.
    """

    def print_error(*error: Any) -> None:  # its type, the error, its traceback
        with safe_output():
            traceback.print_exception(*error)

    stdout = sys.stdout
    stderr = sys.stderr
    if sys.stdout is not None:  # None where the shell closed it
        sys.stdout = SafeStream(sys.stdout)  # type: ignore[assignment]
    if sys.stderr is not None:
        sys.stderr = SafeStream(sys.stderr, bars=True)  # type: ignore[assignment]
    try:
        yield
    except Exception:
        # Python prints the traceback after the block, when the streams are as before.
        sys.excepthook = print_error
        raise
    finally:
        sys.stdout = stdout
        sys.stderr = stderr


def now() -> str:
    """Return the present date and time in UTC as text, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
