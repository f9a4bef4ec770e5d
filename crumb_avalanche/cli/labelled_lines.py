"""Texts behind labels, as ``crumb backbones`` and ``crumb strategies`` print them."""

import textwrap

WIDTH = 80


def labelled(label: str, text: str, label_width: int) -> list[str]:
    """Return lines of at most ``WIDTH`` columns: a text behind a label.

    Args:
        label: stands in the first line.
        text: is broken into lines.
        label_width: columns before the text.
    """
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {label}".ljust(label_width),
        subsequent_indent=" " * label_width,
    )
