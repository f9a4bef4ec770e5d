"""Names of classes: their rule, and which ones to ask about, near twins of other names and splits of a data set."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.text import is_seen, printable

_SPLIT = re.compile(
    r"(train|training|val|valid|validation|test|testing|eval|evaluation|dev|holdout)"
    r"([ _-]*(set|data|split|images))?"
)
_UNSEEN = re.compile(
    "[\u00ad\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)  # joiners, selectors and the like
LONGEST_NAME = 200
INSIST = "pass new_class=True (--new-class true)"


class DoubtfulNameError(FrameTableError):
    """A name that is probably not meant as a class of its own; the message says how to insist.

    Attributes:
        near: The name that it is nearly the same as; None for the name of a split.
    """

    def __init__(self, text: str, near: str | None = None):
        super().__init__(text)
        self.near = near


def check_name(name: object) -> str:
    """Return a class name without outer spaces and in Unicode form NFC, so that names that look the same are the same.

    Raises:
        FrameTableError: If it is not text, is blank, has more than 200 characters, or
            contains a slash, a backslash, a character that is not seen (`is_seen`),
            such as a line break.
    """
    rule = (
        f"a class name is text of 1 to {LONGEST_NAME} characters without slashes, line breaks, control characters, "
        "marks of direction and invisible characters"
    )
    if not isinstance(name, str):
        raise FrameTableError(
            f"a class name is {name!r} ({type(name).__name__}); {rule}."
        )
    name = unicodedata.normalize("NFC", name)
    bad = [
        char
        for place, char in enumerate(name)
        if char in "/\\" or not is_seen(name, place)
    ]
    name = name.strip()
    if bad or not 0 < len(name) <= LONGEST_NAME:
        wrong = (
            f"contains {bad[0]!a}"
            if bad
            else f"has {len(name)} characters"
            if name
            else "is blank"
        )
        shown = f"'{printable(name[:40])}'" + ("..." if len(name) > 40 else "")
        raise FrameTableError(
            f"class name {shown} {wrong}; {rule}. Choose another name, or rename the folder."
        )
    return name


def near_key(name: str) -> str:
    """Return what names share that differ in case, spaces, width, accents' form or invisible characters alone."""
    folded = unicodedata.normalize(
        "NFKC", unicodedata.normalize("NFKC", name).casefold()
    )
    return " ".join("".join(char for char in folded if not _UNSEEN.match(char)).split())


def check_near(names: Iterable[str], known: Iterable[str] = ()) -> None:
    """Raise DoubtfulNameError if a name that is not known is nearly that of another or of a known class."""
    known = list(known)
    found = {near_key(name): name for name in known}
    for name in (name for name in names if name not in known):
        near = found.setdefault(near_key(name), name)
        if near != name:
            raise DoubtfulNameError(
                f"{name!r} is nearly the name of class {near!r}: give that name for the same class; if it is another "
                f"one, {INSIST}",
                near,
            )


def check_not_splits(root: object, folders: Mapping[str, Sequence[str]]) -> None:
    """Raise DoubtfulNameError if folders look like the splits of a data set.

    They do if two are named as splits are (`train`, `valid`, `test` ...), if the only
    one is, or if each of them holds two such folders.

    Args:
        root: Path of the folder, for the message.
        folders: Names of the class folders, and of the folders in each.
    """
    splits, inner = _splits(folders), [_splits(inside) for inside in folders.values()]
    if len(splits) > 1 or (
        splits and len(folders) == 1 and len(folders[splits[0]]) > 1
    ):
        raise DoubtfulNameError(
            f"{root} looks like the splits of a data set, not like classes: {', '.join(splits)}. Give one of them, "
            f"such as {root}/{splits[0]}; if these are classes, {INSIST}"
        )
    if inner and all(len(found) > 1 for found in inner):
        raise DoubtfulNameError(
            f"each class folder of {root} holds the splits of a data set: {', '.join(inner[0])}. Give a folder with "
            f"the files of one split, laid out as {root}/{inner[0][0]}/CLASS; if all are meant, {INSIST}"
        )


def _splits(names: Iterable[str]) -> list[str]:
    return [name for name in names if _SPLIT.fullmatch(name.casefold())]
