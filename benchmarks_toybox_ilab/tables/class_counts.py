"""What a tree of `<split>/<class>/<image>` lacks, by the number of images of each class."""

from collections import Counter
from collections.abc import Iterable

LISTED = 20  # classes that are reported one by one

_EXTENSIONS = (".png", ".jpg", ".jpeg")


def missing_images(paths: Iterable[str], classes: int, expected: dict[str, int | None]) -> list[str]:
    """What is lacking of a data set, class by class, a line each.

    Args:
        paths: Files below root; what is no image in `<folder>/<class>` is passed over.
        classes: Number of classes of the data set.
        expected: Number of images of each class, by folder; None where any number but 0 will do.
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
    lacking = {name: gaps for name in names if (gaps := _gaps(name, found, expected))}
    lines += [f"class {name}: {gaps}" for name, gaps in list(lacking.items())[:LISTED]]
    if len(lacking) > LISTED:
        lines.append(f"{len(lacking) - LISTED} more classes are incomplete")
    return lines


def _gaps(name: str, found: dict[str, Counter[str]], expected: dict[str, int | None]) -> str:
    """What a class lacks, in words: empty if nothing."""
    gaps = []
    for folder, count in expected.items():
        there = found[folder][name]
        if count is None and not there:
            gaps.append(f"no images in {folder}")
        elif count is not None and there < count:
            gaps.append(f"{there} of {count} images in {folder}")
    return ", ".join(gaps)
