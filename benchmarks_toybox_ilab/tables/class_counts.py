"""Compare a tree of `<split>/<class>/<image>` with the expected number of images in each class."""

from collections import Counter
from collections.abc import Iterable

LISTED = 20  # classes that are reported one by one

_EXTENSIONS = (".png", ".jpg", ".jpeg")


def missing_images(paths: Iterable[str], classes: int, expected: dict[str, int | None]) -> list[str]:
    """List what is missing from a data set, one line per class.

    Args:
        paths: Files below root; files that are no image in `<folder>/<class>` are ignored.
        classes: Number of classes of the data set.
        expected: Number of images in each class, by folder; None accepts any number but 0.
    """
    found: dict[str, Counter[str]] = {folder: Counter() for folder in expected}
    for path in paths:
        folder, _, rest = path.partition("/")
        class_name, _, image = rest.partition("/")
        if folder in found and image and "/" not in image and image.lower().endswith(_EXTENSIONS):
            found[folder][class_name] += 1
    names = sorted(set().union(*found.values()))
    if not names:
        return [f"all {classes} classes are missing"]
    lines = [f"{classes - len(names)} of {classes} classes are missing altogether"] if len(names) < classes else []
    incomplete = {name: gaps for name in names if (gaps := _gaps(name, found, expected))}
    lines += [f"class {name}: {gaps}" for name, gaps in list(incomplete.items())[:LISTED]]
    if len(incomplete) > LISTED:
        lines.append(f"{len(incomplete) - LISTED} more classes are incomplete")
    return lines


def _gaps(name: str, found: dict[str, Counter[str]], expected: dict[str, int | None]) -> str:
    """What is missing from a class, in words; "" if nothing is."""
    gaps = []
    for folder, count in expected.items():
        present = found[folder][name]
        if count is None and not present:
            gaps.append(f"no images in {folder}")
        elif count is not None and present < count:
            gaps.append(f"{present} of {count} images in {folder}")
    return ", ".join(gaps)
