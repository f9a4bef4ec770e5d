"""Hook of MkDocs: adds the pages that are made from code, and draws the figures of the others."""

import re
import sys
from functools import partial
from pathlib import Path

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from site_parts import commands, equations, links, marks, notebooks, reference
from site_parts.csv_tables import ROOT

PICTURE = re.compile(r'(<img alt="[^"]+" src="([^"]+\.(?:png|jpg|webp))"[^>]*>)')

# Of sections in the search: what people ask about is in the guide.
BOOST = {"Guide": 4, "API": 0.2}


def on_files(files: Files, config) -> Files:
    """Add pages, and the files that pages link to."""
    built = {**commands.pages(), **notebooks.pages_with_outputs(), **reference.pages()}
    sources = [path for path in links.PAGES if (ROOT / path).exists()]
    for path in sources:
        site_path = links.PAGES[path]
        built[site_path] = links.moved(text_of(path), path, site_path, used=ignore)
    for site_path, content in built.items():
        files.append(File.generated(config, site_path, content=content))
    for page in files.documentation_pages():
        path = f"docs/{page.src_uri}"
        if (ROOT / path).exists():
            sources.append(path)
    for path in sources:
        links.moved(text_of(path), path, path, used=partial(add, files, config))
    return files


def text_of(path: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def ignore(path: str) -> None:
    """Do nothing with a linked file."""


def add(files: Files, config, path: str) -> None:
    """Add a file of the repository to the site, if it is none of its own."""
    site_path = links.site_path(path)
    if files.get_file_from_path(site_path) is None:
        files.append(File.generated(config, site_path, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Draw figures, rewrite links to files outside docs/, and rank the page in the search."""
    section = page.ancestors[-1].title if page.ancestors else ""
    page.meta.setdefault("search", {"boost": BOOST.get(section, 1)})
    text = marks.shown(markdown)
    if page.file.generated_by:
        return text
    path = page.file.src_uri
    return links.moved(text, f"docs/{path}", path, used=ignore)


def on_page_content(page_html: str, page, config, files) -> str:
    """Convert equations, keep short code in one line, and let pictures load when seen and open at their full size."""
    linked = PICTURE.sub(r'<a class="picture" href="\2">\1</a>', page_html)
    linked = re.sub(r"(<img [^>]*?)( ?/?>)", r'\1 loading="lazy"\2', linked)
    in_one_line = re.sub(
        r"<code>([^<\n]{1,24})</code>", r'<code class="whole">\1</code>', linked
    )
    return equations.with_mathml(in_one_line)
