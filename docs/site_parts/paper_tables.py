"""Tables of the paper beside ours, made from ``docs/results/table*.csv``, and that of all claims."""

import re

from site_parts import csv_tables

LEVEL = 2.0  # points
TESTED = ["95 % interval", "p (Holm)", "verdict", "as in S4"]


def p_text(value: str) -> str:
    """Format a p-value: two decimals, or four if it is below 0.01; empty text stays empty."""
    if not value:
        return ""
    p = float(value)
    return "<0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.0095 else f"{p:.2f}"


def points(value: str) -> str:
    """Format a difference in percentage points with its sign; empty text stays empty."""
    return f"{float(value):+.1f}" if value else ""


def tested(line: dict[str, str]) -> list[str]:
    """Return the cells of the test of a row's effect."""
    if not line["effect"]:
        return [""] * len(TESTED)
    interval = (
        f"{points(line['effect_low'])} to {points(line['effect_high'])}"
        if line["effect_low"]
        else ""
    )
    return [
        interval,
        p_text(line["p_holm"]),
        line["verdict"],
        p_text(line["s4_p_holm"]),
    ]


def of_paper(line: dict[str, str]) -> str:
    """Return the paper's accuracy, with a star where it says p < 0.01."""
    star = "*" if line["paper_differs_p01"] == "True" else ""
    data_set = " (CIFAR-100)" if line["paper_dataset"] == "cifar100" else ""
    return f"{float(line['paper']):.1f}{star}{data_set}" if line["paper"] else ""


def ours(line: dict[str, str]) -> str:
    """Return our accuracy, mean ± standard deviation."""
    return f"{float(line['ours']):.1f} ± {float(line['std']):.1f}"


def read(name: str) -> list[dict[str, str]]:
    """Read the rows of a table that were run."""
    return [
        line
        for line in csv_tables.read(csv_tables.RECORDED / f"{name}.csv")
        if line["ours"]
    ]


def ablations(name: str) -> str:
    """Return a table of rows beside "Ours": ``table1`` by stream, or a ``table4`` by category."""
    rows, category = [], ""
    for line in read(name):
        if (
            not line["effect"] and line["row"] != "Ours"
        ):  # the same runs as "Ours" under another name
            continue
        stream = f"{csv_tables.DATA_SETS[line['benchmark']]}, {csv_tables.protocol_text(line['protocol'])}"
        its = line["category"] or stream
        new, category = its if its != category else "", its
        effects = (
            [points(line["paper_effect"]), points(line["effect"])]
            if line["effect"]
            else ["", ""]
        )
        rows.append(
            [
                new,
                line["row"],
                of_paper(line),
                ours(line),
                line["runs"],
                *effects,
                *tested(line),
            ]
        )
    header = [
        "stream" if name == "table1" else "category",
        "row",
        "paper",
        "here",
        "runs",
        "paper's effect",
        "effect here",
        *TESTED,
    ]
    return csv_tables.markdown(header, rows, left=2)


def codes_and_images(name: str) -> str:
    """Return a table of codes beside as many images (``table3``, ``table3_tiny_imagenet``, ``table3_cifar100``)."""
    lines = read(name)
    with_paper = any(line["paper"] for line in lines)
    rows, protocol = [], ""
    for codes, images in zip(lines[::2], lines[1::2]):
        number = codes["category"].removeprefix("n=")
        if with_paper:
            effects = [points(images["paper_effect"]), points(images["effect"])]
            cells = [
                of_paper(codes),
                ours(codes),
                of_paper(images),
                ours(images),
                *effects,
            ]
            new = codes["protocol"] if codes["protocol"] != protocol else ""
            protocol = codes["protocol"]
            rows.append(
                [
                    new.replace("_", "-").replace("iid", "i.i.d."),
                    number,
                    *cells,
                    *tested(images),
                ]
            )
        else:
            rows.append(
                [
                    number,
                    ours(codes),
                    ours(images),
                    points(images["effect"]),
                    *tested(images),
                ]
            )
    if not with_paper:
        return csv_tables.markdown(
            ["n", "codes", "images", "images minus codes", *TESTED], rows
        )
    paper = [
        "codes: paper",
        "here",
        "images: paper",
        "here",
        "images minus codes: paper",
        "here",
    ]
    return csv_tables.markdown(["protocol", "n", *paper, *TESTED], rows)


def claims(part: str) -> str:
    """Return a table of ``claims.csv``: a row for each claim, with what ``verdicts.csv`` says of its rows there.

    Args:
        part: ``paper`` for the claims of the paper, ``ours`` for those of this library.
    """
    verdicts = csv_tables.grouped(
        csv_tables.read(csv_tables.RECORDED / "verdicts.csv"), "family", "row"
    )
    rows = []
    for line in csv_tables.read(csv_tables.RECORDED / "claims.csv"):
        if line["part"] != part:
            continue
        found = (
            [verdicts[line["family"], row][0] for row in line["rows"].split("; ")]
            if line["family"]
            else []
        )
        here = (
            judged(found, line["expected"])
            if found
            else [line["here"], "", line["runs"], line["verdict"]]
        )
        cells = [re.sub(r"\{(\w+):(\d+):(\d+)\}", recorded_cell, cell) for cell in here]
        paper = [line["paper"]] if part == "paper" else []
        rows.append(
            [
                line["claim"],
                line["stream"],
                *paper,
                *cells,
                f"[`{line['script']}`]({line['page']})",
            ]
        )
    paper = ["paper"] if part == "paper" else []
    header = ["claim" if paper else "behind `recommended`", "stream", *paper]
    return csv_tables.markdown(
        [*header, "here", "95 % interval", "runs", "verdict", "command"], rows, left=2
    )


def recorded_cell(match: re.Match) -> str:
    """Return a cell of a CSV file of ``docs/results``, named as ``{file:row:column}``."""
    return csv_tables.rows_of(match[1])[int(match[2])][int(match[3])]


def judged(found: list[dict[str, str]], expected: str) -> list[str]:
    """Return difference, interval, runs and verdict of a claim that comparisons are ``lower``, ``higher`` or ``level``.

    It holds if all of them are; a difference is level if its interval lies within
    ``LEVEL`` points. It does not hold if one is shown to be otherwise.
    """
    effects = [float(line["effect"]) for line in found]
    ends = [
        float(line[end])
        for line in found
        for end in ("effect_low", "effect_high")
        if line[end]
    ]
    runs = sorted({len(line["effect_of_runs"].split()) for line in found})
    said = {line["verdict"] for line in found}
    if "not decided" in said:
        verdict = "not decided"
    elif said == {expected} or (expected == "level" and max(map(abs, ends)) <= LEVEL):
        verdict = "**holds**"
    elif said & {"lower", "higher"} - {expected}:
        verdict = "**does not hold**"
    else:
        verdict = "not shown"
    shown = [
        f"{value:+.1f}"
        for some in (effects, ends)
        for value in ([min(some), max(some)] if some else [])
    ]
    ranges = [" to ".join(dict.fromkeys(shown[:2])), " to ".join(shown[2:])]
    return [*ranges, " to ".join(dict.fromkeys(map(str, (runs[0], runs[-1])))), verdict]
