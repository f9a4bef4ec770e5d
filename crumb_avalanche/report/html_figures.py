"""Figures as inline SVG in the colours and fonts of the page."""

import io
import re
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.report.curves import Curve, chance_of, draw_curves, draw_finals
from crumb_avalanche.report.palette import PAGE_COLOURS
from crumb_avalanche.report.pictures import STYLE

DROPPED = {"metadata", "style", "title"}
CROWDED = 8  # curves; with more, bands would cover each other


def curves_figure(curves: list[Curve]) -> Figure:
    """Draw the accuracy over all seen classes after each experience, a curve for each group."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, _height(curves)), layout="constrained")
        axes = figure.subplots()
        draw_curves(axes, curves, chance_of(curves), bands=len(curves) <= CROWDED)
        axes.set_title("")  # the page shows it as a caption
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def finals_figure(curves: list[Curve]) -> Figure:
    """Draw the final accuracy, a bar for each group."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, _height(curves)), layout="constrained")
        axes, chance = figure.subplots(), chance_of(curves)
        draw_finals(axes, curves, chance[-1] if chance else None)
        axes.set_ylim(max(len(curves), 4) - 0.4, -0.6)
        axes.set_title("")
    return figure


def _height(curves: list[Curve]) -> float:
    """Height of both figures in inches, so that they fit side by side."""
    return max(4.6, 1 + 0.4 * len(curves))


def inline_svg(figure: Figure, prefix: str, label: str, groups: list[int]) -> Markup:
    """Draw a figure as an ``svg`` element.

    Args:
        figure: what to draw.
        prefix: of all ids in it, which are unique on the page with it.
        label: what the figure shows, for screen readers.
        groups: for each curve, the page's number of its group of runs; elements of a curve get it as ``data-group``.
    """
    file = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in DROPPED:
                parent.remove(child)
    for node in root.iter():
        node.tag = _local(node.tag)
        node.text, node.tail = (node.text or "").strip(), (node.tail or "").strip()
        node.attrib = _for_page({_local(key): " ".join(text.split()) for key, text in node.items()}, prefix, groups)
    root.attrib = {"viewBox": root.get("viewBox"), "role": "img", "aria-label": printable(label)}
    return Markup(ElementTree.tostring(root, "unicode", short_empty_elements=False))


def _for_page(attributes: dict[str, str], prefix: str, groups: list[int]) -> dict[str, str]:
    """Attributes with ids prefixed, and with colours and fonts of the page."""
    colours = [f"{key}: {attributes.pop(key)}" for key in ("fill", "stroke") if key in attributes]
    if style := "; ".join([*colours, *filter(None, [attributes.get("style")])]):  # var() works in a style only
        style = re.sub(r"#[0-9a-f]{6}", lambda found: PAGE_COLOURS.get(found[0], found[0]), style)
        attributes["style"] = re.sub(r"font-family: [^;]*;? ?", "", style)
    if drawn := re.match(r"group-(\d+)-", attributes.get("id", "")):
        attributes["data-group"] = str(groups[int(drawn[1])])
    if "id" in attributes:
        attributes["id"] = prefix + attributes["id"]
    if "href" in attributes:
        attributes["href"] = attributes["href"].replace("#", f"#{prefix}", 1)
    return {key: text.replace("url(#", f"url(#{prefix}") for key, text in attributes.items()}


def _local(name: str) -> str:
    return name.rpartition("}")[2]
