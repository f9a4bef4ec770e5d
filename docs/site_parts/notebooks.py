"""Pages of the notebooks: their jupytext sources (the percent format) with the outputs of an execution."""

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from site_parts.csv_tables import DOCS, ROOT

NAMES = (
    "compare_strategies",
    "teach_from_clips",
    "repeat_a_table",
)  # in the order of the site
CELL = re.compile(r'^# %%( \[markdown\])?(?: alt="(.*)")?\n', re.MULTILINE)
PACKAGES = ("crumb_avalanche", "benchmarks_toybox_ilab")
CELL_SECONDS = 1800  # most for one cell, on a machine that does other work too


def cells(name: str) -> list[tuple[str, str, str]]:
    """Return kind (``markdown`` or ``code``), text, and what its picture shows, of each cell of a notebook."""
    _, *parts = CELL.split(
        (DOCS / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    )
    found = []
    for mark, alt, part in zip(parts[::3], parts[1::3], parts[2::3]):
        if mark:
            found.append(
                ("markdown", re.sub(r"^# ?", "", part.strip(), flags=re.MULTILINE), "")
            )
        else:
            found.append(("code", part.strip(), alt or ""))
    return found


def folder() -> Path | None:
    """Return where executed notebooks are kept: ``CRUMB_NOTEBOOKS``, or ``build/notebooks``; none if it is empty."""
    place = os.environ.get("CRUMB_NOTEBOOKS", str(ROOT / "build" / "notebooks"))
    return Path(place) if place else None


def state(name: str) -> str:
    """Hash a notebook and the packages that it uses."""
    digest = hashlib.sha256((DOCS / "notebooks" / f"{name}.py").read_bytes())
    for path in sorted(
        path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def executed(name: str, place: Path) -> Any:
    """Return a notebook with its outputs; it is executed where ``place`` does not hold it in its present state.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    path, now = place / f"{name}.ipynb", state(name)
    if path.exists():
        kept = nbformat.read(path, as_version=4)
        if kept.metadata.get("state") == now:
            return kept
    place.mkdir(parents=True, exist_ok=True)
    notebook = jupytext.read(DOCS / "notebooks" / f"{name}.py")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": place}},
    )
    client.execute(env=environment)
    notebook.metadata["state"] = now
    nbformat.write(notebook, path)
    return notebook


def shown(
    outputs: list[Any], stem: str, alt: str
) -> tuple[list[str], dict[str, bytes]]:
    """Return the Markdown of a cell's outputs, and the pictures that it names."""
    parts, pictures, printed = [], {}, ""
    for output in outputs:
        data = output.get("data", {})
        if output.output_type == "stream":
            printed += output.text if output.name == "stdout" else ""
        elif "image/png" in data:
            name = f"{stem}_{len(pictures)}.png"
            pictures[name] = base64.b64decode(data["image/png"])
            parts.append(f"![{alt}]({name})")
        elif "text/plain" in data:
            parts.append(f"```{{.text .output}}\n{data['text/plain']}\n```")
    if printed:  # a kernel sends it in pieces
        parts.insert(0, f"```{{.text .output}}\n{printed.rstrip()}\n```")
    return parts, pictures


def page(name: str, notebook: Any = None) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook, and its pictures by name.

    Args:
        name: of ``NAMES``.
        notebook: the executed notebook; without one, the page has no outputs.
    """
    parts, pictures = [], {}
    for number, (kind, text, alt) in enumerate(cells(name)):
        parts.append(f"```python\n{text}\n```" if kind == "code" else text)
        if notebook is not None and kind == "code":
            outputs, found = shown(
                notebook.cells[number].outputs, f"{name}_{number}", alt
            )
            parts += outputs
            pictures |= found
    note = f"As a notebook: `jupytext --to ipynb docs/notebooks/{name}.py`. A test runs it."
    return "\n\n".join([parts[0], note, *parts[1:], ""]), pictures


def pages() -> dict[str, str]:
    """Return the text of each page without outputs, by its path in the site."""
    return {f"notebooks/{name}.md": page(name)[0] for name in NAMES}


def pages_with_outputs() -> dict[str, str | bytes]:
    """Return pages and pictures, by their paths in the site; without a folder, the pages have no outputs."""
    place = folder()
    if place is None:
        return dict(pages())
    found: dict[str, str | bytes] = {}
    for name in NAMES:
        text, pictures = page(name, executed(name, place))
        found[f"notebooks/{name}.md"] = text
        found |= {f"notebooks/{picture}": data for picture, data in pictures.items()}
    return found
