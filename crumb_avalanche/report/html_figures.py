"""Pictures as part of an HTML page: SVG without a request, in the page's own colours and fonts."""

import io
import re
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from crumb_avalanche.report.curves import Curve, chance_of, draw_curves, draw_finals
from crumb_avalanche.report.html_elements import escaped
from crumb_avalanche.report.pictures import STYLE

# Colours that belong to the paper the picture is drawn on follow the page, in light and in dark.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#262626": "currentColor",
    "#595959": "var(--faint)",
    "#e6e6e6": "var(--rule)",
    "#ffffff": "var(--panel)",
    "#0072b2": "var(--blue)",  # too dark on a dark page
}
DROPPED = {"metadata", "style", "title"}
CROWDED = 8  # curves; the bands of more would cover each other


def curves_figure(curves: list[Curve]) -> Figure:
    """Accuracy over all seen classes after each experience, a curve for each group."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, _height(curves)), layout="constrained")
        axes = figure.subplots()
        draw_curves(axes, curves, chance_of(curves), bands=len(curves) <= CROWDED)
        axes.set_title("")  # the page has it
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def finals_figure(curves: list[Curve]) -> Figure:
    """Final accuracy, a bar for each group."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, _height(curves)), layout="constrained")
        axes, chance = figure.subplots(), chance_of(curves)
        draw_finals(axes, curves, chance[-1] if chance else None)
        axes.set_ylim(max(len(curves), 4) - 0.4, -0.6)
        axes.set_title("")
    return figure


def _height(curves: list[Curve]) -> float:
    """Of both pictures, in inches, so that they stand side by side."""
    return max(4.6, 1 + 0.4 * len(curves))


def inline_svg(figure: Figure, prefix: str, label: str, groups: list[int]) -> str:
    """A figure as an ``svg`` element.

    Args:
        figure: what to draw.
        prefix: of all ids in it, so that they are its own on the page.
        label: what it shows, for those who do not see it.
        groups: the page's number of each curve; what is drawn of one is marked with it (``data-group``).
    """
    file = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    box = root.get("viewBox")
    content = "".join(_markup(child, prefix, groups) for child in root)
    return f'<svg viewBox="{escaped(box)}" role="img" aria-label="{escaped(label)}">{content}</svg>'


def _markup(node: ElementTree.Element, prefix: str, groups: list[int]) -> str:
    """A node and all below it without namespaces, ids prefixed, colours replaced, everything escaped again."""
    name = _local(node.tag)
    if name in DROPPED:
        return ""
    text, attributes = "", {_local(key): " ".join(value.split()) for key, value in node.attrib.items()}
    for key in [key for key in ("fill", "stroke") if key in attributes]:  # a page's colours work in a style only
        attributes["style"] = f"{key}: {attributes.pop(key)}; " + attributes.get("style", "")
    for key, value in attributes.items():
        if key == "id":
            if drawn := re.match(r"group-(\d+)-", value):
                text += f' data-group="{groups[int(drawn[1])]}"'
            value = prefix + value
        elif key == "href":
            value = value.replace("#", f"#{prefix}", 1)
        elif key == "style":
            value = re.sub(r"#[0-9a-f]{6}", lambda found: PAGE_COLOURS.get(found[0], found[0]), value)
            value = re.sub(r"font-family: [^;]*;? ?", "", value)
        value = re.sub(r"url\(#", f"url(#{prefix}", value)
        text += f' {key}="{escaped(value)}"'
    children = "".join(_markup(child, prefix, groups) + escaped((child.tail or "").strip()) for child in node)
    return f"<{name}{text}>{escaped((node.text or '').strip())}{children}</{name}>"


def _local(name: str) -> str:
    return name.rpartition("}")[2]
