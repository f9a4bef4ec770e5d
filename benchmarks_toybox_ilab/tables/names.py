"""Names of classes: their rule, and which ones to ask about.

These are near twins of other names, and splits of a data set.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.text import is_seen, printable

_SPLIT = re.compile(
    r"(train|training|val|valid|validation|test|testing|eval|evaluation|dev|holdout)"
    r"([ _-]*(set|data|split|images))?"
)
# joiners, selectors and the like
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]")
LONGEST_NAME = 200
NAME_RULE = (
    f"a class name is text of 1 to {LONGEST_NAME} characters without slashes, line "
    "breaks, control characters, marks of direction and invisible characters"
)
INSIST = "pass new_class=True (--new-class true)"


class DoubtfulNameError(FrameTableError):
    """A name that is probably not meant as a class of its own.

    The message says how to insist.

    Attributes:
        near: The name that it is nearly the same as; None for the name of a split.
    """

    def __init__(self, text: str, near: str | None = None):
        super().__init__(text)
        self.near = near


def check_name(name: object, is_folder: bool = False) -> str:
    """Return the name of a class without outer spaces and in Unicode form NFC.

    So names that look the same are the same.

    Args:
        name: To check.
        is_folder: Whether it is that of a folder, which the error says to rename.

    Raises:
        FrameTableError: If it is not text, is blank, has more than 200 characters, or
            contains a slash, a backslash, a character that is not seen (`is_seen`),
            such as a line break.
    """
    if not isinstance(name, str):
        raise FrameTableError(
            f"a class name is {name!r} ({type(name).__name__}); {NAME_RULE}."
        )
    problem = problem_of_name(name)
    name = normal_name(name) or name  # a blank one is refused as it came
    if problem:
        quoted = f"'{printable(name[:40])}'"
        if len(name) > 40:
            quoted += "..."
        cure = "Choose another name"
        if is_folder:
            cure += ", or rename the folder"
        raise FrameTableError(f"class name {quoted} {problem}; {NAME_RULE}. {cure}.")
    return name


def normal_name(name: str) -> str:
    """Return a name of a class without outer spaces and in Unicode form NFC."""
    return unicodedata.normalize("NFC", name).strip()


def problem_of_name(name: str) -> str:
    """Say which part of the rule a class name breaks; empty if it breaks none.

    Args:
        name: As it came.
    """
    name = unicodedata.normalize("NFC", name)
    for position, char in enumerate(name):
        if char in "/\\" or not is_seen(name, position):
            return f"contains {char!a}"
    name = name.strip()
    if not name:
        return "is blank"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters"
    return ""


def near_key(name: str) -> str:
    """Return what nearly the same names of classes share.

    They differ in case, spaces, width, accents' form or invisible characters alone.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    visible = _UNSEEN.sub("", unicodedata.normalize("NFKC", folded))
    return " ".join(visible.split())


def check_near(names: Iterable[str], known: Iterable[str] = ()) -> None:
    """Raise DoubtfulNameError if a new name is nearly that of another class.

    Args:
        names: Names, of which those that are known are not checked.
        known: Names of known classes.
    """
    known = list(known)
    # Nearly the same names, such as "cup" and "Cup", have one key.
    name_of = {near_key(name): name for name in known}
    for name in names:
        if name in known:
            continue
        # An earlier name with this key; the name itself where there is none.
        near = name_of.setdefault(near_key(name), name)
        if near != name:
            raise DoubtfulNameError(
                f"{name!r} is nearly the name of class {near!r}: give that name for "
                f"the same class; if it is another one, {INSIST}",
                near,  # which a caller may take instead
            )


def check_not_splits(root: object, folders: Mapping[str, Sequence[str]]) -> None:
    """Raise DoubtfulNameError if folders look like the splits of a data set.

    They do if two are named as splits are (`train`, `valid`, `test` ...), if the only
    one is, or if each of them holds two such folders.

    Args:
        root: Path of the folder, for the message.
        folders: Names of the class folders, and of the folders in each.
    """
    splits = _names_of_splits(folders)
    # An only folder `train` may be a class, unless folders of classes are in it.
    is_only_folder = len(splits) == 1 and len(folders) == 1
    holds_classes = is_only_folder and len(folders[splits[0]]) > 1
    if len(splits) > 1 or holds_classes:
        raise DoubtfulNameError(
            f"{root} looks like the splits of a data set, not like classes: "
            f"{', '.join(splits)}. Give one of them, such as {root}/{splits[0]}; if "
            f"these are classes, {INSIST}"
        )
    splits_of_each = [_names_of_splits(inner) for inner in folders.values()]
    if splits_of_each and all(len(splits) > 1 for splits in splits_of_each):
        splits = splits_of_each[0]
        raise DoubtfulNameError(
            f"each class folder of {root} holds the splits of a data set: "
            f"{', '.join(splits)}. Give a folder with the files of one split, laid "
            f"out as {root}/{splits[0]}/CLASS; if all are meant, {INSIST}"
        )


def _names_of_splits(folders: Iterable[str]) -> list[str]:
    """Return those names of folders that splits of data sets have, such as train."""
    return [name for name in folders if _SPLIT.fullmatch(name.casefold())]
