"""Write the tables and figures of all pages, from the recorded runs and the code.

    python docs/write_pages.py

Below each mark ``<!-- build: NAME ARGUMENT ... -->`` of a page comes its table or its figure. The pictures of figures
are written to docs/figures.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from site_parts import figures, marks


def main() -> None:
    """Write all pages and pictures."""
    for page in marks.pages():
        text = marks.written(page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
    marks.PICTURES.mkdir(exist_ok=True)
    for name in figures.FIGURES:
        path = marks.PICTURES / f"{name}.svg"
        path.write_text(figures.picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
