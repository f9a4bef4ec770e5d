"""Tables of recorded runs, made from the CSV files of the repository, so that each number is stored once.

    python docs/site_parts/result_tables.py readme

prints a table: the one of the README, which a test compares with the runs, or another of ``TABLES`` with its arguments.
"""

import csv
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from scipy import stats

ROOT = Path(__file__).parents[2]
DOCS, RUNS = ROOT / "docs", ROOT / "experiments" / "results"

# Rows of docs/recommended_*.csv, in the order of the page, with their descriptions.
RECOMMENDED_ROWS = {
    "recommended": "**`recommended`**",
    "- all features, but their span": "in the span of the class means (`--method.span true --method.own 0.3`)",
    "version 0.1": "the preset of version 0.1: that, without cells, shrunk towards the mean variance",
    "srda": "Deep SRDA, features of `recommended` (`srda`)",
    "lr_rgda": "LR-RGDA, features of `recommended` (`lr_rgda`)",
    "fecam": "FeCAM, map's cells and head's input (`fecam`)",
    "klda": "KLDA, features of `recommended` (`klda`)",
    "acil": "ACIL, features of `recommended` (`acil`)",
    "ranpac_gcv": "RanPAC with chosen ridge, features of `recommended` (`ranpac_gcv`)",
    "slda": "streaming LDA (`slda`)",
    "ncm": "nearest class mean (`ncm`)",
    "crumb, tuned": "CRUMB, trained and read well (`--preset tuned`)",
    "paper": "CRUMB, the paper's recipe (`--preset paper`)",
    "crumb, k-means codebook": "the same with a k-means codebook",
    "reference": "CRUMB, the published code's recipe (`--preset reference`)",
    "remind": "REMIND (`remind`)",
    "map_replay": "raw maps instead of codes (`map_replay`)",
    "offline": "all classes at once, shuffled, ten epochs (`offline`)",
}
PROJECTIONS = {"ranpac": "(640 projections)"}  # what the budget buys on ETH-80, the only table with this row
# Rows of the README's table.
README_ROWS = {
    "recommended": "`--preset recommended`",
    "crumb, tuned": "CRUMB, `--preset tuned`",
    "paper": "CRUMB, `--preset paper`",
    "remind": "REMIND",
    "slda": "streaming LDA",
    "offline": "joint training, ten epochs",
}


def read(path: Path) -> list[dict[str, str]]:
    """Read a CSV file with a header."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def grouped(lines: Iterable[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Group lines by the values of columns, in order of arrival."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in names), []).append(line)
    return groups


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table, the first column to the left and the others to the right."""
    rule = [":--", *["--:"] * (len(header) - 1)]
    return "".join("| " + " | ".join(row) + " |\n" for row in [header, rule, *rows])


def mean_text(values: Sequence[float]) -> str:
    """Format mean and standard deviation (n - 1); a single value alone, none as empty text."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def floats(lines: Iterable[dict[str, str]], name: str) -> list[float]:
    """Return a column as numbers."""
    return [float(line[name]) for line in lines]


def interval_text(lines: Sequence[dict[str, str]]) -> str:
    """Format the 95 % interval of the mean accuracy by Student's t; runs on one split count as one unit."""
    splits = [statistics.fmean(floats(group, "accuracy")) for group in grouped(lines, "frame_table").values()]
    half = stats.t.ppf(0.975, len(splits) - 1) * statistics.stdev(splits) / len(splits) ** 0.5
    return f"{statistics.fmean(splits) - half:.1f} to {statistics.fmean(splits) + half:.1f}"


def method_label(name: str) -> str:
    """Format a method's name, such as ``ewc at 1e-3``."""
    method, _, rest = name.partition(" ")
    return f"`{method}` {rest or PROJECTIONS.get(name, '')}".strip()


def megabytes(lines: Sequence[dict[str, str]]) -> str:
    """Format the largest memory of runs."""
    most = max(floats(lines, "memory_bytes"))
    return "" if most == 0 else f"{most / 1e6:.0f} MB" if most >= 1e8 else f"{most / 1e6:.2f} MB"


def recommended_lines(benchmark: str) -> dict[str, list[dict[str, str]]]:
    """Return the lines of a ``recommended_*.csv`` by row."""
    groups = grouped(read(DOCS / f"recommended_{benchmark}.csv"), "row")
    return {row: lines for (row,), lines in groups.items()}


def recommended() -> str:
    """Return the table of the recommended preset, its parts and its rivals."""
    benchmarks = [recommended_lines(name) for name in ("eth80", "cifar100", "toy_dots")]
    known = [row for row in RECOMMENDED_ROWS if any(row in lines for lines in benchmarks)]
    others = [row for lines in benchmarks for row in lines if row not in RECOMMENDED_ROWS]
    rows = []
    for row in dict.fromkeys(known + others):
        cells = [RECOMMENDED_ROWS.get(row, f"`{row}`")]
        for place, lines in enumerate(benchmarks):
            found = lines.get(row, [])
            numbers = f" (run {found[0]['run']})" if len(found) == 1 else ""
            cells.append(mean_text(floats(found, "accuracy")) + numbers)
            if place < 2:
                cells.append(megabytes(found) if found else "")
        rows.append(cells)
    header = ["", "ETH-80 (development)", "kept", "Online-CIFAR100", "kept", "toy dots (development)"]
    return markdown(header, rows)


def readme() -> str:
    """Return the table of the README: ETH-80, class-instance, at the bytes of 15 raw images."""
    lines = recommended_lines("eth80")
    rows = [
        [
            label,
            f"{statistics.fmean(floats(lines[row], 'accuracy')):.1f}",
            interval_text(lines[row]),
            megabytes(lines[row]) or "all images",
        ]
        for row, label in README_ROWS.items()
        if row in lines
    ]
    return markdown(["", "accuracy, %", "95 % interval", "kept"], rows)


def competitors(benchmark: str) -> str:
    """Return the table of all methods on a benchmark."""
    groups = grouped(read(DOCS / f"competitors_{benchmark}.csv"), "method", "protocol")
    rates = {
        line["method"]: line["learning_rates"]
        for line in read(DOCS / "competitors_rates.csv")
        if line["benchmark"] == benchmark
    }
    protocols = [name for name in ("class_instance", "class_iid") if any(key[1] == name for key in groups)]
    methods = list(dict.fromkeys(method for method, _ in groups))
    order = {
        name: max(
            statistics.fmean(floats(groups.get((name, one), [{"final_accuracy": "0"}]), "final_accuracy"))
            for one in protocols
        )
        for name in methods
    }
    rows = []
    for name in sorted(methods, key=lambda name: -order[name]):
        of_method = [groups.get((name, protocol), []) for protocol in protocols]
        counts = "/".join(dict.fromkeys(str(len(lines)) for lines in of_method))
        lines = [line for lines in of_method for line in lines]
        rows.append(
            [
                method_label(name),
                *[mean_text(floats(lines, "final_accuracy")) for lines in of_method],
                counts,
                f"{int(max(floats(lines, 'most_memory_bytes'))):,}",
                f"{max(floats(lines, 'mean_train_seconds')):.0f}",
                rates.get(name, ""),
            ]
        )
    names = [protocol.replace("_", "-").replace("iid", "i.i.d.") for protocol in protocols]
    return markdown(["method", *names, "runs", "bytes kept", "seconds", "learning rates"], rows)


def real_images(benchmark: str) -> str:
    """Return the table of CRUMB, its bounds and image replay, with the preset ``paper``."""
    return {"eth80": _real_eth80, "cifar100": _real_cifar100}[benchmark]()


def _real_eth80() -> str:
    lines = read(RUNS / "eth80_runs.csv")
    names = {
        ("finetune", ""): "`finetune` (lower bound)",
        ("image_replay", ""): "`image_replay`, 15 images",
        ("crumb", ""): "**`crumb`**, 417 memories",
        ("crumb", "cifar100"): "**`crumb`** after CRUMB pretraining on CIFAR-100",
        ("offline", ""): "`offline` (upper bound; one order for both)",
    }
    rows = []
    for key, label in names.items():
        found = [line for line in lines if (line["strategy"], line["pretrained"].partition(".")[0]) == key]
        cells = [
            mean_text(floats((line for line in found if line["protocol"] in (protocol, "either")), "final_accuracy"))
            for protocol in ("class_instance", "class_iid")
        ]
        rows.append([label, f"{int(float(found[0]['memory_bytes'])):,} B", *cells])
    return markdown(["strategy", "memory", "class-instance", "class-i.i.d."], rows)


def _real_cifar100() -> str:
    memory = {"finetune": 0, "image_replay": 15_053_000, "crumb": 15_067_004, "offline": 0}
    labels = {
        "finetune": "`finetune` (lower bound)",
        "image_replay": "`image_replay`, 100 images",
        "crumb": "**`crumb`**, 2,782 memories",
        "offline": "`offline` (upper bound), 3 epochs",
    }
    names = {"finetune": "lower_bound", "offline": "upper_bound"}
    paper = {
        line["method_or_row"]: line["value"]
        for line in read(ROOT / "experiments" / "support" / "paper_values.csv")
        if (line["table"], line["dataset"], line["protocol"]) == ("table1", "cifar100", "class_iid")
    }
    groups = grouped(read(RUNS / "cifar100_runs.csv"), "strategy")
    rows = []
    for name, label in labels.items():
        curves = [list(map(float, line["accuracy_after"].split())) for line in groups[(name,)]]
        after = [
            f"{statistics.fmean(curve[number - 1] for curve in curves):.1f}" if len(curves[0]) == 20 else ""
            for number in (1, 5, 10, 15)
        ]
        final = mean_text(floats(groups[(name,)], "final_accuracy"))
        rows.append([label, f"{memory[name]:,} B", *after, final, paper.get(names.get(name, name), "-")])
    return markdown(["strategy", "memory", "1", "5", "10", "15", "all 20", "paper, final"], rows)


def task_incremental() -> str:
    """Return the table of the regularisers with and without task labels."""
    labels = {
        "finetune": "`finetune`",
        "ewc": "`ewc`, strength 10,000",
        "si": "`si`, strength 10,000",
        "mas": "`mas`, strength 100",
        "lwf": "`lwf`, alpha 10",
        "stable_sgd": "`stable_sgd`",
    }
    found = {(line["method"], line["figure"]): line for line in read(DOCS / "task_incremental.csv")}

    def text(method: str, figure: str, mean: str = "mean", spread: str = "std", form: str = ".1f") -> str:
        line = found[method, figure]
        return f"{Decimal(line[mean]):{form}} ± {Decimal(line[spread]):.1f}"

    rows = [
        [
            label,
            text(method, "class_incremental"),
            text(method, "task_incremental"),
            ""
            if method == "finetune"
            else text(method, "task_incremental", "minus_finetune", "minus_finetune_std", "+.1f"),
            text(method, "forgetting"),
        ]
        for method, label in labels.items()
    ]
    header = [
        "",
        "class-incremental",
        "task-incremental",
        "minus fine-tuning, same run",
        "forgetting, task-incremental",
    ]
    return markdown(header, rows)


def feature_cache() -> str:
    """Return the table of seconds with and without a feature cache."""
    rows = [
        [
            f"all {line['runs']} runs" if line["strategy"] == "all" else f"`{line['strategy']}`",
            f"{int(line['seconds without']):,}",
            f"{int(line['seconds with']):,}",
            line["times as fast"],
            line["the same bits"],
        ]
        for line in read(DOCS / "results" / "feature_cache.csv")
    ]
    return markdown(["strategy", "seconds without", "with", "times as fast", "the same bits"], rows)


TABLES: dict[str, Callable[..., str]] = {
    "recommended": recommended,
    "readme": readme,
    "competitors": competitors,
    "real_images": real_images,
    "task_incremental": task_incremental,
    "feature_cache": feature_cache,
}


if __name__ == "__main__":
    print(TABLES[sys.argv[1]](*sys.argv[2:]), end="")
