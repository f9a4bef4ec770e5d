"""Layout of the HTML pages: they make no request and are readable without their script."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarks_toybox_ilab.tables.text import printable

MARK = '<meta name="generator" content="crumb-avalanche">'  # in every page


@cache
def environment() -> Environment:
    """The templates, with everything escaped that is not ``Markup`` and characters that are not seen as escapes.

    ``page.html`` also finds the style, the script and its hash: its policy lets only this script run.
    """
    templates = Environment(
        loader=PackageLoader("crumb_avalanche.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
    )
    style, script = (Markup(templates.loader.get_source(templates, f"page.{kind}")[0]) for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    templates.globals.update(style=style, script=script, script_hash=f"sha256-{digest}")
    return templates


def is_page(path: Path) -> bool:
    """Whether a file is a page that ``render`` made."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)


def render(template: str, **values: object) -> str:
    """Render a template of a page in ASCII, which reads the same in every encoding."""
    page = environment().get_template(template).render(**values)
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")
