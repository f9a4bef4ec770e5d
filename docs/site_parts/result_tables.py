"""Tables of recorded runs, made from the CSV files of the repository, so that each number is stored once.

    python docs/site_parts/result_tables.py readme

prints a table: the one of the README, which a test compares with the runs, or another
of ``TABLES`` with its arguments.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from site_parts import paper_tables, recorded_tables
from site_parts.csv_tables import (
    DOCS,
    LABELS,
    RECORDED,
    ROOT,
    RUNS,
    Lines,
    floats,
    grouped,
    markdown,
    marked,
    mean_of,
    mean_text,
    protocol_text,
    read,
    rows_of,
)
from support.statistics import interval

PROJECTIONS = {
    "ranpac": "(640 projections)"
}  # what the budget buys on ETH-80, the only table with this row
RECOMMENDED_ROWS, README_ROWS = LABELS["recommended"], LABELS["readme"]
NAMES = {"crumb, tuned": "tuned"}  # of these rows in docs/results/method_times.csv
STRATEGY = {"recommended": "rda"}  # of rows of recommended_eth80.csv
EPOCHS = {"offline": 10}  # of methods that see an image more than once


def method_label(name: str) -> str:
    """Format a method's name, such as ``ewc at 1e-3``."""
    method, _, rest = name.partition(" ")
    return f"`{method}` {rest or PROJECTIONS.get(name, '')}".strip()


def megabytes(lines: Sequence[dict[str, str]]) -> str:
    """Format the largest memory of runs."""
    most = max(floats(lines, "memory_bytes"))
    return (
        ""
        if most == 0
        else f"{most / 1e6:.0f} MB"
        if most >= 1e8
        else f"{most / 1e6:.2f} MB"
    )


def recommended_lines(benchmark: str) -> dict[str, Lines]:
    """Return the lines of a ``recommended_*.csv`` by row."""
    groups = grouped(read(DOCS / f"recommended_{benchmark}.csv"), "row")
    return {row: lines for (row,), lines in groups.items()}


def recommended(small: str = "") -> str:
    """Return the table of the recommended preset, its parts and its rivals; ``small``: at a second, smaller budget."""
    streams = ("eth80", "cifar100", "tiny_imagenet", "sign_digits", "toy_dots")
    benchmarks = {name: recommended_lines(name + small) for name in streams}
    known = [
        row
        for row in RECOMMENDED_ROWS
        if any(row in lines for lines in benchmarks.values())
    ]
    others = [
        row
        for lines in benchmarks.values()
        for row in lines
        if row not in RECOMMENDED_ROWS
    ]
    header, rows = (
        ["method"],
        [
            [RECOMMENDED_ROWS.get(row, f"`{row}`")]
            for row in dict.fromkeys(known + others)
        ],
    )
    for name, lines in benchmarks.items():
        with_bytes = bool(small) or name in ("eth80", "cifar100", "tiny_imagenet")
        header += [marked(name), *(["kept"] if with_bytes else [])]
        for row, cells in zip(dict.fromkeys(known + others), rows):
            found = lines.get(row, [])
            cells += [
                mean_of(found),
                *([megabytes(found) if found else ""] if with_bytes else []),
            ]
    return markdown(header, rows)


def method_times() -> dict[str, dict[str, float]]:
    """Return the milliseconds of each part of a stream image, by the rows of the README's table.

    F is the same for all, so its fastest pass counts for each: other programs add to
    it.
    """
    lines = {line["preset"]: line for line in read(RECORDED / "method_times.csv")}
    parts = {
        name: {part: float(line[part]) for part in list(line)[2:]}
        for name, line in lines.items()
    }
    passes = {name: EPOCHS.get(name, 1) for name in parts}
    fastest = min(parts[name]["F"] / passes[name] for name in parts)
    parts = {
        name: {**times, "F": fastest * passes[name]} for name, times in parts.items()
    }
    return {
        row: parts[name]
        for row in README_ROWS
        if (name := NAMES.get(row, row)) in parts
    }


def images_per_second() -> dict[str, str]:
    """Format the images/s of each row of the README's table, by those of streaming LDA."""
    times = {row: sum(parts.values()) for row, parts in method_times().items()}
    _, (_, share, *_), *_ = rows_of(
        "cost_of_replay"
    )  # time of CRUMB by that of REMIND, ETH-80
    times["remind, one image at a time"] = times["paper"] / (
        float(share.removesuffix(" %")) / 100
    )
    return {row: f"{times['slda'] / time:.2f}" for row, time in times.items()}


def methods_side_by_side() -> str:
    """Return the table of images/s, and of where an image's time goes."""
    speeds = images_per_second()
    rows = []
    for row, parts in method_times().items():
        total = sum(parts.values())
        learning = sum(parts[name] for name in ("search", "P", "replay"))
        others = total - parts["F"] - learning
        shares = [
            f"{100 * time / total:.0f} %" for time in (parts["F"], learning, others)
        ]
        rows.append([README_ROWS[row], speeds[row], *shares])
    return markdown(
        [
            "method",
            "images/s, by those of streaming LDA",
            "F",
            "learning and replay",
            "the rest",
        ],
        rows,
    )


def readme() -> str:
    """Return the table of the README: ETH-80, class-instance, at the bytes of 15 raw images."""
    lines, speeds, rows = recommended_lines("eth80"), images_per_second(), []
    for row, label in README_ROWS.items():
        if row in lines:
            groups = grouped(lines[row], "frame_table").values()
            mean, half = interval(
                [statistics.fmean(floats(group, "accuracy")) for group in groups]
            )
            accuracy = f"{statistics.fmean(floats(lines[row], 'accuracy')):.1f}"
            cells = [accuracy, f"{mean - half:.1f} to {mean + half:.1f}"]
            rows.append(
                [
                    label,
                    *cells,
                    megabytes(lines[row]) or "all images",
                    speeds.get(row, ""),
                ]
            )
    return markdown(
        ["method", "accuracy, %", "95 % interval", "kept", "images/s"], rows
    )


def competitors(benchmark: str) -> str:
    """Return the table of all methods on a benchmark."""
    groups = grouped(read(DOCS / f"competitors_{benchmark}.csv"), "method", "protocol")
    recorded = read(DOCS / "competitors_rates.csv")
    rates = {
        line["method"]: line["learning_rates"]
        for line in recorded
        if line["benchmark"] == benchmark
    }
    protocols = [
        name
        for name in ("class_instance", "class_iid")
        if any(key[1] == name for key in groups)
    ]
    rows: dict[str, tuple[float, list[str]]] = {}
    for name in dict.fromkeys(method for method, _ in groups):
        of_method = [groups.get((name, protocol), []) for protocol in protocols]
        finals = [floats(lines, "final_accuracy") for lines in of_method]
        lines = [line for lines in of_method for line in lines]
        counts = "/".join(dict.fromkeys(str(len(some)) for some in finals))
        kept = f"{int(max(floats(lines, 'most_memory_bytes'))):,}"
        seconds = f"{max(floats(lines, 'mean_train_seconds')):.0f}"
        cells = [
            method_label(name),
            *map(mean_text, finals),
            counts,
            kept,
            seconds,
            rates.get(name, ""),
        ]
        rows[name] = max(statistics.fmean(some) for some in finals if some), cells
    best_first = [cells for _, cells in sorted(rows.values(), key=lambda row: -row[0])]
    header = [
        "method",
        *map(protocol_text, protocols),
        "runs",
        "bytes kept",
        "seconds",
        "learning rates",
    ]
    return markdown(header, best_first)


def real_images(benchmark: str) -> str:
    """Return the table of CRUMB, its bounds and image replay, with the preset ``paper``."""
    return {"eth80": _real_eth80, "cifar100": _real_cifar100}[benchmark]()


def _real_eth80() -> str:
    rows = []
    for *key, label in LABELS["real_eth80"]:
        lines = read(RUNS / "eth80_runs.csv")
        found = [
            line
            for line in lines
            if [line["strategy"], line["pretrained"].partition(".")[0]] == key
        ]
        cells = [label, f"{int(float(found[0]['memory_bytes'])):,} B"]
        for protocol in ("class_instance", "class_iid"):
            its = [line for line in found if line["protocol"] in (protocol, "either")]
            cells.append(mean_text(floats(its, "final_accuracy")))
        rows.append(cells)
    return markdown(["strategy", "memory", "class-instance", "class-i.i.d."], rows)


def _real_cifar100() -> str:
    paper = {
        line["method_or_row"]: line["value"]
        for line in read(ROOT / "experiments" / "support" / "paper_values.csv")
        if (line["table"], line["dataset"], line["protocol"])
        == ("table1", "cifar100", "class_iid")
    }
    groups = grouped(read(RUNS / "cifar100_runs.csv"), "strategy")
    rows = []
    for name, (label, memory, its_name) in LABELS["real_cifar100"].items():
        curves = [
            list(map(float, line["accuracy_after"].split())) for line in groups[(name,)]
        ]
        after = [
            f"{statistics.fmean(curve[number - 1] for curve in curves):.1f}"
            if len(curves[0]) == 20
            else ""
            for number in (1, 5, 10, 15)
        ]
        final = mean_text(floats(groups[(name,)], "final_accuracy"))
        rows.append([label, f"{memory:,} B", *after, final, paper.get(its_name, "-")])
    return markdown(
        ["strategy", "memory", "1", "5", "10", "15", "all 20", "paper, final"], rows
    )


def tuned() -> str:
    """Return the table of the preset ``tuned`` beside the paper's and nearest class means."""
    earlier = grouped(read(RUNS / "recommended_eth80_version_0_1.csv"), "row")
    dots = recommended_lines("toy_dots")
    crumb = grouped(read(RUNS / "cifar100_runs.csv"), "strategy")["crumb",]
    means = grouped(read(DOCS / "competitors_cifar100.csv"), "method")["ncm",]
    found: dict[tuple[str, str], list[float]] = {
        ("eth80", "tuned"): floats(
            recommended_lines("eth80")["crumb, tuned"], "accuracy"
        ),
        ("eth80", "paper"): floats(earlier["paper",], "accuracy"),
        ("eth80", "ncm"): floats(earlier["ncm",], "accuracy"),
        ("cifar100", "tuned"): floats(
            recommended_lines("cifar100")["crumb, tuned"], "accuracy"
        ),
        ("cifar100", "paper"): floats(crumb, "final_accuracy"),
        ("cifar100", "ncm"): floats(means, "final_accuracy"),
        ("toy_dots", "tuned"): floats(dots["crumb, tuned"], "accuracy"),
        ("toy_dots", "ncm"): floats(dots["ncm"], "accuracy"),
    }
    for (stream, method), lines in grouped(
        read(RECORDED / "tuned.csv"), "stream", "method"
    ).items():
        found[stream, method] = floats(lines, "accuracy")
    rows = []
    for stream in dict.fromkeys(stream for stream, _ in found):
        cells = [marked(stream, "tuned")]
        for method in ("tuned", "paper", "ncm"):
            values = found.get((stream, method), [])
            runs = (
                f" ({'run 0' if len(values) == 1 else f'{len(values)} runs'})"
                if values
                else ""
            )
            cells.append(mean_text(values) + runs)
        rows.append(cells)
    return markdown(
        [
            "stream",
            "`--preset tuned`",
            "`--preset paper`",
            "nearest class mean (`ncm`)",
        ],
        rows,
    )


def methods() -> str:
    """Return the table of strategies, with what each reaches on ETH-80, class-instance."""
    from crumb_avalanche.methods.registry import STRATEGIES

    reached = {
        STRATEGY.get(row, row): floats(lines, "accuracy")
        for row, lines in recommended_lines("eth80").items()
    }
    for (name, protocol), lines in grouped(
        read(DOCS / "competitors_eth80.csv"), "method", "protocol"
    ).items():
        if (
            protocol == "class_instance" and name != "rda"
        ):  # its row there is of an earlier version
            reached[name] = floats(lines, "final_accuracy")
    rows = []
    for name, entry in STRATEGIES.items():
        rows.append(
            [
                f"`{name}`",
                entry.summary,
                entry.source,
                entry.stores,
                mean_text(reached.get(name, [])),
            ]
        )
    return markdown(
        ["method", "what it does", "source", "stores", "ETH-80, %"], rows, left=4
    )


def data_sets() -> str:
    """Return the table of data sets, with what a stream of each has and where its files come from."""
    from benchmarks_toybox_ilab.catalog import BENCHMARKS

    rows = []
    for name, one in BENCHMARKS.items():
        counts = [
            f"{one.files.counts[key]:,}" if key in one.files.counts else ""
            for key in ("classes", "train", "test")
        ]
        step = (
            "a session"
            if one.classes_per_experience is None
            else str(one.classes_per_experience)
        )
        source = one.files.source.replace("|", "\\|")
        rows.append(
            [
                f"`{name}`",
                one.files.title,
                *counts,
                step,
                str(one.budget_images),
                source,
            ]
        )
    header = [
        "name",
        "data set",
        "classes",
        "training images",
        "test images",
        "classes in an experience",
    ]
    return markdown([*header, "memory in images", "source"], rows, left=2)


def backbones() -> str:
    """Return the table of built-in backbones, with where they are cut and what they expect of an image."""
    from crumb_avalanche.models.backbone_names import preprocessing_of
    from crumb_avalanche.models.backbones import BACKBONES

    rows = []
    for name, one in BACKBONES.items():
        images = preprocessing_of(name)
        spread = [
            ", ".join(f"{value:g}" for value in values)
            for values in (images.mean, images.std)
        ]
        rows.append(
            [f"`{name}`", str(one.cut), str(images.size), images.interpolation, *spread]
        )
    return markdown(
        ["backbone", "layers in F", "pixels", "resized by", "mean", "deviation"], rows
    )


FUNCTIONS = (
    *(
        recommended,
        readme,
        methods,
        data_sets,
        backbones,
        methods_side_by_side,
        competitors,
        real_images,
        tuned,
    ),
    *(paper_tables.ablations, paper_tables.claims, paper_tables.codes_and_images),
    *(recorded_tables.task_incremental, recorded_tables.feature_cache),
    *(
        recorded_tables.recorded,
        recorded_tables.scenes,
        recorded_tables.open_scenes,
        recorded_tables.crumb_as_expert,
    ),
    *(recorded_tables.bytes_dial, recorded_tables.rival_settings),
    recorded_tables.test_or_development,
)
TABLES: dict[str, Callable[..., str]] = {
    function.__name__: function for function in FUNCTIONS
}
TABLES["small_budgets"] = partial(recommended, "_small")


if __name__ == "__main__":
    print(TABLES[sys.argv[1]](*sys.argv[2:]), end="")
