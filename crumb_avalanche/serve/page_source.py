"""The page of ``crumb serve`` as one HTML file, and the policy that guards it."""

import base64
import hashlib
import json
from pathlib import Path

PAGE = Path(__file__).parent / "page"


def page() -> tuple[str, str]:
    """Return the HTML of the page of ``crumb serve``, and its Content-Security-Policy.

    Style, script and texts are in the page, and the policy allows these alone.
    """
    html = _part_of_page("page.html")
    style = _part_of_page("page.css")
    # Read and written again: one line, and an error here if it is no JSON.
    texts = json.dumps(json.loads(_part_of_page("texts.json")), ensure_ascii=False)
    script = _part_of_page("page.js").replace("/* texts.json */", texts)
    policy = {
        "default-src": "'none'",
        "style-src": _source_hash(style),
        "script-src": _source_hash(script),
        "connect-src": "'self'",
        "img-src": "data: blob:",
        "media-src": "blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    html = html.replace("/* page.css */", style).replace("/* page.js */", script)
    return html, "; ".join(f"{name} {value}" for name, value in policy.items())


def _part_of_page(name: str) -> str:
    """Return the text of a file that the page is made of."""
    return (PAGE / name).read_text(encoding="utf-8").strip()


def _source_hash(text: str) -> str:
    """Return the hash of an inline style or script, as a policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
