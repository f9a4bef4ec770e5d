"""Tables of recorded runs, made from the CSV files of the repository, so that each number is stored once.

    python docs/site_parts/result_tables.py readme

prints a table: the one of the README, which a test compares with the runs, or another of ``TABLES`` with its arguments.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scipy import stats

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from site_parts import paper_tables, recorded_tables
from site_parts.csv_tables import DOCS, RECORDED, ROOT, RUNS, floats, grouped, markdown, mean_text, read, rows_of

# Rows of docs/recommended_*.csv, in the order of the page, with their descriptions.
RECOMMENDED_ROWS = {
    "recommended": "**`recommended`**",
    "- head share": "without the second answer (`--method.head_share 0`)",
    "- all features, but their span": "in the span of the class means (`--method.span true --method.own 0.3`)",
    "version 0.1": "the preset of version 0.1: that, without cells, shrunk towards the mean variance",
    "srda": "Deep SRDA, features of `recommended` (`srda`)",
    "srda, head's input": "Deep SRDA, features of the head's input alone (`--method.maps false`)",
    "lr_rgda": "LR-RGDA, features of `recommended` (`lr_rgda`)",
    "lr_rgda, head's input": "LR-RGDA, features of the head's input alone (`--method.maps false`)",
    "foal": "F-OAL (`foal`)",
    "fecam": "FeCAM, map's cells and head's input (`fecam`)",
    "klda": "KLDA, features of `recommended` (`klda`)",
    "acil": "ACIL, features of `recommended` (`acil`)",
    "ranpac_gcv": "RanPAC with chosen ridge, features of `recommended` (`ranpac_gcv`)",
    "slda": "streaming LDA (`slda`)",
    "slda, same features": "streaming LDA, features of `recommended`",
    "- own directions": "LDA, features and bytes of `recommended` (`--method.own 0 --method.head_share 0`)",
    "ncm": "nearest class mean (`ncm`)",
    "crumb, tuned": "CRUMB, trained and read well (`--preset tuned`)",
    "paper": "CRUMB, the paper's recipe (`--preset paper`)",
    "crumb, k-means codebook": "the same with a k-means codebook",
    "reference": "CRUMB, the published code's recipe (`--preset reference`)",
    "remind, one image at a time": "REMIND as its authors run it (`--method.samples_at_a_time true`)",
    "remind": "REMIND in mini-batches (`remind`)",
    "map_replay": "raw maps instead of codes (`map_replay`)",
    "offline": "all classes at once, shuffled, ten epochs (`offline`)",
}
PROJECTIONS = {"ranpac": "(640 projections)"}  # what the budget buys on ETH-80, the only table with this row
# Rows of the README's table.
README_ROWS = {
    "recommended": "`--preset recommended`",
    "crumb, tuned": "CRUMB, `--preset tuned`",
    "paper": "CRUMB, `--preset paper`",
    "remind, one image at a time": "REMIND, one image at a time",
    "slda": "streaming LDA",
    "offline": "joint training, ten epochs",
}
NAMES = {"crumb, tuned": "tuned"}  # of these rows in docs/results/method_times.csv
EPOCHS = {"offline": 10}  # of methods that see an image more than once


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


def accuracy_and_bytes(lines: list[dict[str, str]]) -> list[str]:
    """Format the accuracy of a row's runs, and what they keep; two empty cells without runs."""
    number = f" (run {lines[0]['run']})" if len(lines) == 1 else ""
    return [mean_text(floats(lines, "accuracy")) + number, megabytes(lines) if lines else ""]


def recommended() -> str:
    """Return the table of the recommended preset, its parts and its rivals."""
    benchmarks = [recommended_lines(name) for name in ("eth80", "cifar100", "tiny_imagenet", "sign_digits", "toy_dots")]
    known = [row for row in RECOMMENDED_ROWS if any(row in lines for lines in benchmarks)]
    others = [row for lines in benchmarks for row in lines if row not in RECOMMENDED_ROWS]
    rows = []
    for row in dict.fromkeys(known + others):
        cells = [RECOMMENDED_ROWS.get(row, f"`{row}`")]
        for place, lines in enumerate(benchmarks):
            cells += accuracy_and_bytes(lines.get(row, []))[: 2 if place < 3 else 1]
        rows.append(cells)
    header = ["method", "ETH-80 (development)", "kept", "Online-CIFAR100", "kept", "Tiny-ImageNet", "kept"]
    header += ["sign digits (development)", "toy dots (development)"]
    return markdown(header, rows)


def small_budgets() -> str:
    """Return the table of the recommended preset and its closest rivals at a second, smaller budget."""
    names = "eth80", "cifar100", "tiny_imagenet", "sign_digits", "toy_dots"
    benchmarks = [recommended_lines(f"{name}_small") for name in names]
    rows = []
    for row in [one for one in RECOMMENDED_ROWS if any(one in lines for lines in benchmarks)]:
        cells = [RECOMMENDED_ROWS[row]]
        for lines in benchmarks:
            cells += accuracy_and_bytes(lines.get(row, []))
        rows.append(cells)
    header = ["method", "ETH-80 (development)", "kept", "Online-CIFAR100", "kept", "Tiny-ImageNet", "kept"]
    return markdown([*header, "sign digits (development)", "kept", "toy dots (development)", "kept"], rows)


def method_times() -> dict[str, dict[str, float]]:
    """Return the milliseconds of each part of a stream image, by the rows of the README's table.

    F is the same for all, and most of the time. So its fastest pass counts for each: what other programs add to it
    would hide the difference between methods.
    """
    lines = {line["preset"]: line for line in read(RECORDED / "method_times.csv")}
    parts = {name: {part: float(line[part]) for part in list(line)[2:]} for name, line in lines.items()}
    passes = {name: EPOCHS.get(name, 1) for name in parts}
    fastest = min(parts[name]["F"] / passes[name] for name in parts)
    parts = {name: {**times, "F": fastest * passes[name]} for name, times in parts.items()}
    return {row: parts[name] for row in README_ROWS if (name := NAMES.get(row, row)) in parts}


def images_per_second() -> dict[str, str]:
    """Format the images/s of each row of the README's table, by those of streaming LDA."""
    times = {row: sum(parts.values()) for row, parts in method_times().items()}
    _, (_, share, *_), *_ = rows_of("cost_of_replay")  # time of CRUMB by that of REMIND, ETH-80
    times["remind, one image at a time"] = times["paper"] / (float(share.removesuffix(" %")) / 100)
    return {row: f"{times['slda'] / time:.2f}" for row, time in times.items()}


def methods_side_by_side() -> str:
    """Return the table of images/s, and of where an image's time goes."""
    speeds = images_per_second()
    rows = []
    for row, parts in method_times().items():
        total = sum(parts.values())
        learning = sum(parts[name] for name in ("search", "P", "replay"))
        others = total - parts["F"] - learning
        shares = [f"{100 * time / total:.0f} %" for time in (parts["F"], learning, others)]
        rows.append([README_ROWS[row], speeds[row], *shares])
    return markdown(["method", "images/s, by those of streaming LDA", "F", "learning and replay", "the rest"], rows)


def readme() -> str:
    """Return the table of the README: ETH-80, class-instance, at the bytes of 15 raw images."""
    lines, speeds = recommended_lines("eth80"), images_per_second()
    rows = [
        [
            label,
            f"{statistics.fmean(floats(lines[row], 'accuracy')):.1f}",
            interval_text(lines[row]),
            megabytes(lines[row]) or "all images",
            speeds[row],
        ]
        for row, label in README_ROWS.items()
        if row in lines
    ]
    return markdown(["method", "accuracy, %", "95 % interval", "kept", "images/s"], rows)


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


def tuned() -> str:
    """Return the table of the preset ``tuned`` beside the paper's and nearest class means."""
    found = {
        ("ETH-80", "tuned"): recommended_lines("eth80")["crumb, tuned"],
        ("ETH-80", "paper"): [line for line in _earlier_eth80() if line["row"] == "paper"],
        ("ETH-80", "ncm"): [line for line in _earlier_eth80() if line["row"] == "ncm"],
        ("Online-CIFAR100", "tuned"): recommended_lines("cifar100")["crumb, tuned"],
        ("Online-CIFAR100", "paper"): _final(RUNS / "cifar100_runs.csv", "strategy", "crumb"),
        ("Online-CIFAR100", "ncm"): _final(DOCS / "competitors_cifar100.csv", "method", "ncm"),
        ("toy dots", "tuned"): recommended_lines("toy_dots")["crumb, tuned"],
        ("toy dots", "ncm"): recommended_lines("toy_dots")["ncm"],
    }
    others = grouped(read(RECORDED / "tuned.csv"), "stream", "method")
    found |= {(stream.replace("_", " "), method): lines for (stream, method), lines in others.items()}
    rows = []
    for stream in dict.fromkeys(stream for stream, _ in found):
        cells = [stream]
        for method in ("tuned", "paper", "ncm"):
            lines = found.get((stream, method), [])
            runs = f" ({'run 0' if len(lines) == 1 else f'{len(lines)} runs'})" if lines else ""
            cells.append(mean_text(floats(lines, "accuracy")) + runs)
        rows.append(cells)
    return markdown(["stream", "`--preset tuned`", "`--preset paper`", "nearest class mean (`ncm`)"], rows)


def _earlier_eth80() -> list[dict[str, str]]:
    return read(RUNS / "recommended_eth80_version_0_1.csv")


def _final(path: Path, column: str, name: str) -> list[dict[str, str]]:
    return [{"accuracy": line["final_accuracy"]} for line in read(path) if line[column] == name]


TABLES: dict[str, Callable[..., str]] = {
    "recommended": recommended,
    "small_budgets": small_budgets,
    "readme": readme,
    "methods_side_by_side": methods_side_by_side,
    "competitors": competitors,
    "real_images": real_images,
    "task_incremental": recorded_tables.task_incremental,
    "feature_cache": recorded_tables.feature_cache,
    "tuned": tuned,
    "open_set": recorded_tables.open_set,
    "recorded": recorded_tables.recorded,
    "crumb_as_expert": recorded_tables.crumb_as_expert,
    "bytes_dial": recorded_tables.bytes_dial,
    "rival_settings": recorded_tables.rival_settings,
    "ablations": paper_tables.ablations,
    "codes_and_images": paper_tables.codes_and_images,
}


if __name__ == "__main__":
    print(TABLES[sys.argv[1]](*sys.argv[2:]), end="")
