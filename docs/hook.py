"""Hook of MkDocs: adds the pages that are made from code and recorded runs, and fills in tables."""

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from site_parts import commands, equations, figures, links, notebooks, reference
from site_parts.csv_tables import ROOT
from site_parts.result_tables import TABLES

PICTURE = re.compile(r'(<img alt="[^"]+" src="([^"]+\.(?:png|jpg|webp))"[^>]*>)')
MARK = re.compile(r"^<!-- build: (\w+)((?: \w+)*) -->$", re.MULTILINE)


def on_files(files: Files, config) -> Files:
    """Add pages, and the files that pages link to."""
    made = {**commands.pages(), **notebooks.pages_with_outputs(), **reference.pages()}
    for path, shown in links.PAGES.items():
        if (ROOT / path).exists():
            made[shown] = links.moved(
                (ROOT / path).read_text(encoding="utf-8"), path, shown, lambda _: None
            )
    for shown, text in made.items():
        files.append(File.generated(config, shown, content=text))
    sources = [
        *links.PAGES,
        *[f"docs/{page.src_uri}" for page in files.documentation_pages()],
    ]
    for path in sources:
        if (ROOT / path).exists():
            links.moved(
                (ROOT / path).read_text(encoding="utf-8"),
                path,
                path,
                lambda used: add(files, used, config),
            )
    return files


def add(files: Files, path: str, config) -> None:
    """Add a file of the repository to the site, if it is none of its own."""
    shown = links.site_path(path)
    if files.get_file_from_path(shown) is None:
        files.append(File.generated(config, shown, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Fill in tables, rewrite links to files outside docs/, and rank the page in the search."""
    found = {"Guide": 4, "API": 0.2}  # what people ask about is in the guide
    page.meta.setdefault(
        "search",
        {"boost": found.get(page.ancestors[-1].title if page.ancestors else "", 1)},
    )
    text = MARK.sub(lambda match: made_text(match[1], match[2].split()), markdown)
    if page.file.generated_by:
        return text
    path = page.file.src_uri
    return links.moved(text, f"docs/{path}", path, lambda _: None)


def on_page_content(page_html: str, page, config, files) -> str:
    """Convert equations, keep short code in one line, and let pictures load when seen and open at their full size."""
    linked = PICTURE.sub(r'<a class="picture" href="\2">\1</a>', page_html)
    linked = re.sub(r"(<img [^>]*?)( ?/?>)", r'\1 loading="lazy"\2', linked)
    whole = re.sub(
        r"<code>([^<\n]{1,24})</code>", r'<code class="whole">\1</code>', linked
    )
    return equations.with_mathml(whole)


def made_text(kind: str, arguments: list[str]) -> str:
    """Return what stands in the place of a mark ``<!-- build: KIND ARGUMENT ... -->``."""
    made = {"figure": figures.figure, **TABLES}
    return made[kind](*arguments)
