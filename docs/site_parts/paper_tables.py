"""Tables of the paper beside ours, made from ``docs/results/table*.csv``, and that of all claims."""

import re
from collections.abc import Mapping, Sequence

from site_parts import csv_tables
from site_parts.csv_tables import Line

from crumb_avalanche.report.paired import LEVEL_POINTS

AT_LEAST = "at least "  # points that a claim of size expects
# Head of the first column of claims that the paper does not make, by part.
COMPARED_WITH = {
    "ours": "behind `recommended`",
    "codes": "lower than the paper's recipe with better codes",
}
TESTED = ["95 % interval", "p (Holm)", "verdict", "as in S4"]


def p_text(value: str) -> str:
    """Format a p-value: two decimals, or four if it is below 0.01; empty text stays empty."""
    if not value:
        return ""
    p = float(value)
    if p < 1e-4:
        return "<0.0001"
    if p < 0.0095:
        return f"{p:.4f}"
    return f"{p:.2f}"


def points(value: str) -> str:
    """Format a difference in percentage points with its sign; empty text stays empty."""
    return f"{float(value):+.1f}" if value else ""


def tested(line: Line) -> list[str]:
    """Return the cells of the test of a row's effect."""
    if not line["effect"]:
        return [""] * len(TESTED)
    interval = ""
    if line["effect_low"]:
        interval = f"{points(line['effect_low'])} to {points(line['effect_high'])}"
    p = p_text(line["p_holm"])
    return [interval, p, line["verdict"], p_text(line["s4_p_holm"])]


def of_paper(line: Line) -> str:
    """Return the paper's accuracy, with a star where it says p < 0.01."""
    if not line["paper"]:
        return ""
    text = f"{float(line['paper']):.1f}"
    if line["paper_differs_p01"] == "True":
        text += "*"
    if line["paper_dataset"] == "cifar100":
        text += " (CIFAR-100)"
    return text


def ours(line: Line) -> str:
    """Return our accuracy, mean ± standard deviation."""
    return f"{float(line['ours']):.1f} ± {float(line['std']):.1f}"


def read(name: str) -> csv_tables.Lines:
    """Read the rows of a table that were run."""
    lines = csv_tables.read(csv_tables.RECORDED / f"{name}.csv")
    return [line for line in lines if line["ours"]]


def replay_weights(name: str) -> dict[tuple[str, str], str]:
    """Return the factor of the replay loss with which the runs of each row and protocol were recorded."""
    weights = {}
    for line in csv_tables.read(csv_tables.RUNS / f"{name}_runs.csv"):
        settings = dict(text.split("=", 1) for text in line["settings"].split(" "))
        weight = float(settings["replay_weight"])
        weights[line["row"], line["protocol"]] = f"{weight:g}"
    return weights


def ablations(name: str) -> str:
    """Return a table of rows beside "Ours": a ``table1`` by stream, or a ``table4`` by category."""
    weights = replay_weights(name)
    rows = []
    last_category = ""
    for line in read(name):
        # The same runs as "Ours" under another name.
        if not line["effect"] and line["row"] != "Ours":
            continue
        data_set = csv_tables.DATA_SETS[line["benchmark"]]
        stream = f"{data_set}, {csv_tables.protocol_text(line['protocol'])}"
        category = line["category"] or stream
        cells = [
            category if category != last_category else "",
            line["row"],
            of_paper(line),
            ours(line),
            line["runs"],
            weights[line["row"], line["protocol"]],
        ]
        last_category = category
        if line["effect"]:
            cells += [points(line["paper_effect"]), points(line["effect"])]
        else:
            cells += ["", ""]
        rows.append([*cells, *tested(line)])
    first = "stream" if name.startswith("table1") else "category"
    header = [first, "row", "paper", "here", "runs", "replay weight"]
    header += ["paper's effect", "effect here"]
    return csv_tables.markdown([*header, *TESTED], rows, left=2)


def deviations(name: str) -> str:
    """Return a table of changed settings beside preset ``paper``."""
    rows = []
    for line in read(name):
        cells = [line["row"], ours(line), line["runs"], points(line["effect"])]
        rows.append([*cells, *tested(line)])
    header = ["change", "accuracy", "runs", "effect", *TESTED]
    return csv_tables.markdown(header, rows)


def codes_and_images(name: str) -> str:
    """Return a table of codes beside as many images (``table3``, ``table3_tiny_imagenet``, ``table3_cifar100``)."""
    lines = read(name)
    weights = replay_weights(name)
    # Lines of codes and of images alternate.
    codes = lines[::2]
    images = lines[1::2]
    if any(line["paper"] for line in lines):
        return _codes_and_images_with_paper(codes, images, weights)
    rows = []
    for code_line, image_line in zip(codes, images):
        weight = weights[code_line["row"], code_line["protocol"]]
        cells = [memories(code_line), weight, ours(code_line), ours(image_line)]
        rows.append([*cells, points(image_line["effect"]), *tested(image_line)])
    header = ["n", "replay weight", "codes", "images", "images minus codes", *TESTED]
    return csv_tables.markdown(header, rows)


def _codes_and_images_with_paper(
    codes: Sequence[Line],
    images: Sequence[Line],
    weights: Mapping[tuple[str, str], str],
) -> str:
    """Return the table of codes beside as many images where the paper has them too.

    Args:
        codes: lines of codes.
        images: lines of as many images.
        weights: see ``replay_weights``.
    """
    rows = []
    last_protocol = ""
    for code_line, image_line in zip(codes, images):
        protocol = csv_tables.protocol_text(code_line["protocol"])
        rows.append(
            [
                protocol if protocol != last_protocol else "",
                memories(code_line),
                weights[code_line["row"], code_line["protocol"]],
                of_paper(code_line),
                ours(code_line),
                of_paper(image_line),
                ours(image_line),
                points(image_line["paper_effect"]),
                points(image_line["effect"]),
                *tested(image_line),
            ]
        )
        last_protocol = protocol
    header = [
        "protocol",
        "n",
        "replay weight",
        "codes: paper",
        "here",
        "images: paper",
        "here",
        "images minus codes: paper",
        "here",
        *TESTED,
    ]
    return csv_tables.markdown(header, rows)


def memories(line: Line) -> str:
    """Return the number of memories of a row."""
    return line["category"].removeprefix("n=")


def claims(part: str) -> str:
    """Return a table of ``claims.csv``: a row for each claim, with what ``verdicts.csv`` says of its rows there.

    Args:
        part: ``paper`` for the claims of the paper, else one of ``COMPARED_WITH``.
    """
    verdicts = csv_tables.grouped(
        csv_tables.read(csv_tables.RECORDED / "verdicts.csv"), "family", "row"
    )
    of_the_paper = part == "paper"
    rows = []
    for line in csv_tables.read(csv_tables.RECORDED / "claims.csv"):
        if line["part"] != part:
            continue
        if line["family"]:
            names = line["rows"].split("; ")
            comparisons = [verdicts[line["family"], name][0] for name in names]
            here = judged(comparisons, line["expected"])
        else:
            here = [line["here"], "", line["runs"], line["verdict"]]
        cells = [line["claim"], line["stream"]]
        if of_the_paper:
            cells.append(line["paper"])
        for cell in here:
            cells.append(re.sub(r"\{(\w+):(\d+):(\d+)\}", recorded_cell, cell))
        rows.append([*cells, f"[`{line['script']}`]({line['page']})"])
    header = ["claim", "stream", "paper"]
    if not of_the_paper:
        header = [COMPARED_WITH[part], "stream"]
    header += ["here", "95 % interval", "runs", "verdict", "command"]
    return csv_tables.markdown(header, rows, left=2)


def recorded_cell(match: re.Match) -> str:
    """Return a cell of a CSV file of ``docs/results``, named as ``{file:row:column}``."""
    file, row, column = match.groups()
    return csv_tables.rows_of(file)[int(row)][int(column)]


def judged(comparisons: Sequence[Line], expected: str) -> list[str]:
    """Return difference, interval, runs and verdict of a claim.

    It holds if all comparisons are as expected; a difference is level if its interval
    lies within ``LEVEL_POINTS``. It does not hold if one is shown to be otherwise.

    Args:
        comparisons: lines of ``verdicts.csv``.
        expected: ``lower``, ``higher`` or ``level``, or ``at least POINTS``: the
            intervals lie above that difference; below it, the claim does not hold.
    """
    effects = [float(line["effect"]) for line in comparisons]
    ends = []
    for line in comparisons:
        ends += [float(line[end]) for end in ("effect_low", "effect_high") if line[end]]
    runs = [len(line["effect_of_runs"].split()) for line in comparisons]
    return [
        range_text(effects),
        f"{min(ends):+.1f} to {max(ends):+.1f}" if ends else "",
        span(str(min(runs)), str(max(runs))),
        _verdict(comparisons, expected, ends),
    ]


def _verdict(comparisons: Sequence[Line], expected: str, ends: list[float]) -> str:
    """Return whether a claim holds, from the ends of the intervals."""
    verdicts = {line["verdict"] for line in comparisons}
    if "not decided" in verdicts:
        return "not decided"
    if expected.startswith(AT_LEAST):
        least = float(expected.removeprefix(AT_LEAST))
        if min(ends) >= least:
            return "**holds**"
        if max(ends) < least:
            return "**does not hold**"
        return "not shown"
    is_level = expected == "level" and max(map(abs, ends)) <= LEVEL_POINTS
    if verdicts == {expected} or is_level:
        return "**holds**"
    if verdicts & {"lower", "higher"} - {expected}:
        return "**does not hold**"
    return "not shown"


def range_text(values: Sequence[float]) -> str:
    """Format the range of differences, or the only one."""
    return span(f"{min(values):+.1f}", f"{max(values):+.1f}")


def span(low: str, high: str) -> str:
    """Return ``LOW to HIGH``, or one of them if they read alike."""
    return low if low == high else f"{low} to {high}"
