"""Equations as MathML, which browsers show without a script."""

import html
import re

# What pymdownx.arithmatex makes of $...$ and $$...$$.
MARKED = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)


def with_mathml(page: str) -> str:
    """Replace the LaTeX equations of a page of HTML by MathML."""

    def replace(match: re.Match) -> str:
        from latex2mathml.converter import convert

        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2]).strip(), display=display)

    return MARKED.sub(replace, page)
