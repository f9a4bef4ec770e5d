"""Links of Markdown pages to files of the repository, which the site has elsewhere."""

import posixpath
import re
from collections.abc import Callable

from site_parts.csv_tables import ROOT

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
# Files outside docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "experiments/README.md": "scripts.md",
}
# Files of which the site makes pages: a link to the file leads to the page there.
MADE_OF = {
    "crumb_avalanche/__init__.pyi": "api/index.md",
    "crumb_avalanche/cli/settings.py": "cli/index.md",
    "crumb_avalanche/runs/settings.py": "cli/run.md",
    "docs/notebooks/compare_strategies.py": "notebooks/compare_strategies.md",
    "docs/notebooks/repeat_a_table.py": "notebooks/repeat_a_table.md",
    "docs/notebooks/teach_from_clips.py": "notebooks/teach_from_clips.md",
}
FOLDER = "repository"  # of the site, for all other files


def site_path(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    if path in PAGES:
        return PAGES[path]
    if path in MADE_OF:
        return MADE_OF[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{FOLDER}/{path}"


def moved(text: str, source: str, shown: str, used: Callable[[str], object]) -> str:
    """Rewrite the links of a page of the repository for its path in the site; call ``used`` with each linked file."""

    def replace(match: re.Match) -> str:
        if re.match(r"[a-z]+:", match[2]):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if not (ROOT / path).is_file():
            return match[0]
        used(path)
        target = posixpath.relpath(site_path(path), posixpath.dirname(shown) or ".")
        return f"{match[1]}{target}{match[3] or ''}{match[4]}"

    return LINK.sub(replace, text)
