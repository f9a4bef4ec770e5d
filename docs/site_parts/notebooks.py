"""Pages of the notebooks: their jupytext sources (the percent format) with the outputs of an execution."""

import base64
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from site_parts.csv_tables import DOCS, ROOT

# In the order of the site.
NAMES = ("compare_strategies", "teach_from_clips", "repeat_a_table")
CELL = re.compile(
    r'^# %%(?P<markdown> \[markdown\])?(?: alt="(?P<alt>.*)")?\n', re.MULTILINE
)
PACKAGES = ("crumb_avalanche", "benchmarks_toybox_ilab")
CELL_SECONDS = 1800  # most for one cell, on a machine that does other work too


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook.

    Attributes:
        is_code: whether it is code; else it is Markdown.
        text: the code, or the Markdown.
        alt: what its picture shows.
    """

    is_code: bool
    text: str
    alt: str = ""


@dataclass
class Page:
    """Markdown of a page or a part of it, and the pictures that it names, by name."""

    parts: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)


def source(name: str) -> Path:
    """Return the path of a notebook's source."""
    return DOCS / "notebooks" / f"{name}.py"


def cells(name: str) -> list[Cell]:
    """Return the cells of a notebook."""
    text = source(name).read_text(encoding="utf-8")
    heads = list(CELL.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    notebook = []
    for head, end in zip(heads, ends):
        content = text[head.end() : end].strip()
        if head["markdown"]:
            content = re.sub(r"^# ?", "", content, flags=re.MULTILINE)
            notebook.append(Cell(False, content))
        else:
            notebook.append(Cell(True, content, head["alt"] or ""))
    return notebook


def kept_in() -> Path | None:
    """Return where executed notebooks are kept: ``CRUMB_NOTEBOOKS``, or ``build/notebooks``; none if it is empty."""
    folder = os.environ.get("CRUMB_NOTEBOOKS", str(ROOT / "build" / "notebooks"))
    return Path(folder) if folder else None


def state(name: str) -> str:
    """Hash a notebook and the packages that it uses."""
    paths: list[Path] = []
    for package in PACKAGES:
        paths += (ROOT / package).rglob("*.py")
    digest = hashlib.sha256(source(name).read_bytes())
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def executed(name: str, folder: Path) -> Any:
    """Return a notebook with its outputs; it is executed where ``folder`` does not hold it in its present state.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    path = folder / f"{name}.ipynb"
    now = state(name)
    if path.exists():
        before = nbformat.read(path, as_version=4)
        if before.metadata.get("state") == now:
            return before
    folder.mkdir(parents=True, exist_ok=True)
    notebook = jupytext.read(source(name))
    paths = [str(ROOT)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    )
    client.execute(env=environment)
    notebook.metadata["state"] = now
    nbformat.write(notebook, path)
    return notebook


def output_part(outputs: list[Any], stem: str, alt: str) -> Page:
    """Return the Markdown of a cell's outputs, what was printed first.

    Args:
        outputs: of the cell.
        stem: what the names of its pictures begin with.
        alt: what they show.
    """
    part = Page()
    printed = ""  # a kernel sends it in pieces
    for output in outputs:
        data = output.get("data", {})
        if output.output_type == "stream":
            if output.name == "stdout":
                printed += output.text
        elif "image/png" in data:
            name = f"{stem}_{len(part.pictures)}.png"
            part.pictures[name] = base64.b64decode(data["image/png"])
            part.parts.append(f"![{alt}]({name})")
        elif "text/plain" in data:
            part.parts.append(_output_block(data["text/plain"]))
    if printed:
        part.parts.insert(0, _output_block(printed.rstrip()))
    return part


def _output_block(text: str) -> str:
    """Return a text as a code block of output."""
    return f"```{{.text .output}}\n{text}\n```"


def page(name: str, notebook: Any = None) -> Page:
    """Return the page of a notebook.

    Args:
        name: of ``NAMES``.
        notebook: the executed notebook; without one, the page has no outputs.
    """
    result = Page()
    for number, cell in enumerate(cells(name)):
        result.parts.append(
            f"```python\n{cell.text}\n```" if cell.is_code else cell.text
        )
        if notebook is not None and cell.is_code:
            outputs = notebook.cells[number].outputs
            part = output_part(outputs, f"{name}_{number}", cell.alt)
            result.parts += part.parts
            result.pictures |= part.pictures
    note = f"As a notebook: `jupytext --to ipynb docs/notebooks/{name}.py`. A test runs it."
    result.parts.insert(1, note)
    return result


def text_of(page: Page) -> str:
    """Return the Markdown of a page."""
    return "\n\n".join([*page.parts, ""])


def pages() -> dict[str, str]:
    """Return the text of each page without outputs, by its path in the site."""
    return {f"notebooks/{name}.md": text_of(page(name)) for name in NAMES}


def pages_with_outputs() -> dict[str, str | bytes]:
    """Return pages and pictures, by their paths in the site; without a folder, the pages have no outputs."""
    folder = kept_in()
    if folder is None:
        return dict(pages())
    files: dict[str, str | bytes] = {}
    for name in NAMES:
        result = page(name, executed(name, folder))
        files[f"notebooks/{name}.md"] = text_of(result)
        for picture, data in result.pictures.items():
            files[f"notebooks/{picture}"] = data
    return files
