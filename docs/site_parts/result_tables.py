"""Tables of recorded runs, made from the CSV files of the repository."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from site_parts import paper_tables, recorded_tables, reference
from site_parts.csv_tables import (
    DATA_SETS,
    DOCS,
    LABELS,
    RECORDED,
    ROOT,
    RUNS,
    Line,
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

from crumb_avalanche.report.paired import interval
from crumb_avalanche.system.words import counted

# What the budget buys on ETH-80, the only table with this row.
PROJECTIONS = {"ranpac": "(640 projections)"}
RECOMMENDED_ROWS = LABELS["recommended"]
README_ROWS = LABELS["readme"]
NAMES = {"crumb, tuned": "tuned"}  # of these rows in docs/results/method_times.csv
STRATEGY = {"recommended": "rda"}  # of rows of recommended_eth80.csv
EPOCHS = {"offline": 10}  # of methods that see an image more than once
USUAL_RUNS = 10  # of a method in the table of all methods
# Data sets of the recommended preset, and those whose table says what is kept.
STREAMS = ("eth80", "cifar100", "tiny_imagenet", "sign_digits", "toy_dots")
STREAMS_WITH_BYTES = STREAMS[:3]


def method_label(name: str) -> str:
    """Format a method's name, such as ``ewc at 1e-3``."""
    method, _, rest = name.partition(" ")
    return f"`{method}` {rest or PROJECTIONS.get(name, '')}".strip()


def megabytes(lines: Sequence[Line]) -> str:
    """Format the largest memory of runs."""
    largest = max(floats(lines, "memory_bytes"))
    if largest == 0:
        return ""
    if largest >= 1e8:
        return f"{largest / 1e6:.0f} MB"
    return f"{largest / 1e6:.2f} MB"


def recommended_lines(benchmark: str) -> dict[str, Lines]:
    """Return the lines of a ``recommended_*.csv`` by row."""
    groups = grouped(read(DOCS / f"recommended_{benchmark}.csv"), "row")
    return {row: lines for (row,), lines in groups.items()}


def recommended(small: str = "") -> str:
    """Return the table of the recommended preset, its parts and its rivals; ``small``: at a second, smaller budget."""
    by_stream = {stream: recommended_lines(stream + small) for stream in STREAMS}
    recorded: dict[str, None] = {}
    for by_row in by_stream.values():
        recorded |= dict.fromkeys(by_row)
    labelled = [row for row in RECOMMENDED_ROWS if row in recorded]
    unrecommended = [row for row in recorded if row not in RECOMMENDED_ROWS]
    rows = []
    for row in (*labelled, *unrecommended):
        cells = [RECOMMENDED_ROWS.get(row, f"`{row}`")]
        for stream, by_row in by_stream.items():
            lines = by_row.get(row, [])
            cells.append(mean_of(lines))
            if small or stream in STREAMS_WITH_BYTES:
                cells.append(megabytes(lines) if lines else "")
        rows.append(cells)
    header = ["method"]
    for stream in STREAMS:
        header.append(marked(stream))
        if small or stream in STREAMS_WITH_BYTES:
            header.append("kept")
    return markdown(header, rows)


def method_times() -> dict[str, dict[str, float]]:
    """Return the milliseconds of each part of a stream image, by the rows of the README's table.

    F is the same for all, so its fastest pass counts for each: other programs add to
    it.
    """
    times: dict[str, dict[str, float]] = {}
    for line in read(RECORDED / "method_times.csv"):
        parts = list(line)[2:]
        times[line["preset"]] = {part: float(line[part]) for part in parts}
    passes = {name: EPOCHS.get(name, 1) for name in times}
    fastest = min(times[name]["F"] / passes[name] for name in times)
    for name, parts in times.items():
        parts["F"] = fastest * passes[name]
    by_row = {}
    for row in README_ROWS:
        name = NAMES.get(row, row)
        if name in times:
            by_row[row] = times[name]
    return by_row


def images_per_second() -> dict[str, str]:
    """Format the images/s of each row of the README's table, by those of streaming LDA."""
    times = {row: sum(parts.values()) for row, parts in method_times().items()}
    # Time of CRUMB by that of REMIND, on ETH-80, in the first row.
    _, first, *_ = rows_of("cost_of_replay")
    share = float(first[1].removesuffix(" %")) / 100
    times["remind, one image at a time"] = times["paper"] / share
    return {row: f"{times['slda'] / time:.2f}" for row, time in times.items()}


def methods_side_by_side() -> str:
    """Return the table of images/s, and of where an image's time goes."""
    speeds = images_per_second()
    rows = []
    for row, parts in method_times().items():
        total = sum(parts.values())
        learning = parts["search"] + parts["P"] + parts["replay"]
        remaining = total - parts["F"] - learning
        cells = [README_ROWS[row], speeds[row]]
        for time in (parts["F"], learning, remaining):
            cells.append(f"{100 * time / total:.0f} %")
        rows.append(cells)
    header = ["method", "images/s, by those of streaming LDA"]
    return markdown([*header, "F", "learning and replay", "the rest"], rows)


def readme() -> str:
    """Return the table of the README: ETH-80, class-instance, at the bytes of 15 raw images."""
    by_row = recommended_lines("eth80")
    speeds = images_per_second()
    rows = []
    for row, label in README_ROWS.items():
        if row not in by_row:
            continue
        lines = by_row[row]
        accuracies = floats(lines, "accuracy")
        splits = grouped(lines, "frame_table").values()
        means = [statistics.fmean(floats(split, "accuracy")) for split in splits]
        mean, half = interval(means)
        rows.append(
            [
                label,
                f"{statistics.fmean(accuracies):.1f}",
                f"{mean - half:.1f} to {mean + half:.1f}",
                megabytes(lines) or "all images",
                speeds.get(row, ""),
            ]
        )
    header = ["method", "accuracy, %", "95 % interval", "kept", "speed, LDA = 1"]
    return markdown(header, rows)


def competitors(benchmark: str) -> str:
    """Return the table of all methods on a benchmark, the best first."""
    lines = read(DOCS / f"competitors_{benchmark}.csv")
    rates = {}
    for line in read(DOCS / "competitors_rates.csv"):
        if line["benchmark"] == benchmark:
            rates[line["method"]] = line["learning_rates"]
    run_on = {line["protocol"] for line in lines}
    protocols = [name for name in ("class_instance", "class_iid") if name in run_on]
    best: dict[str, float] = {}
    cells: dict[str, list[str]] = {}
    for (name,), of_method in grouped(lines, "method").items():
        by_protocol = grouped(of_method, "protocol")
        finals = [
            floats(by_protocol.get((protocol,), []), "final_accuracy")
            for protocol in protocols
        ]
        best[name] = max(
            statistics.fmean(accuracies) for accuracies in finals if accuracies
        )
        counts = dict.fromkeys(str(len(accuracies)) for accuracies in finals)
        cells[name] = [
            method_label(name),
            *map(mean_text, finals),
            "/".join(counts),
            f"{int(max(floats(of_method, 'most_memory_bytes'))):,}",
            f"{max(floats(of_method, 'mean_train_seconds')):.0f}",
            rates.get(name, ""),
        ]
    rows = [cells[name] for name in sorted(best, key=best.__getitem__, reverse=True)]
    header = ["method", *map(protocol_text, protocols)]
    header += ["runs", "bytes kept", "seconds", "learning rates"]
    return markdown(header, rows)


def real_images(benchmark: str) -> str:
    """Return the table of CRUMB, its bounds and image replay, with the preset ``paper``."""
    return {"eth80": _real_eth80, "cifar100": _real_cifar100}[benchmark]()


def _real_eth80() -> str:
    """Return the table of ETH-80, by protocol."""
    by_pretraining: dict[tuple[str, str], Lines] = {}
    for line in read(RUNS / "eth80_runs.csv"):
        pretrained, _, _ = line["pretrained"].partition(".")
        key = (line["strategy"], pretrained)
        by_pretraining.setdefault(key, []).append(line)
    rows = []
    for strategy, pretrained, label in LABELS["real_eth80"]:
        lines = by_pretraining[strategy, pretrained]
        cells = [label, f"{int(float(lines[0]['memory_bytes'])):,} B"]
        for protocol in ("class_instance", "class_iid"):
            runs = [line for line in lines if line["protocol"] in (protocol, "either")]
            cells.append(mean_text(floats(runs, "final_accuracy")))
        rows.append(cells)
    return markdown(["strategy", "memory", "class-instance", "class-i.i.d."], rows)


def _real_cifar100() -> str:
    """Return the table of Online-CIFAR100: accuracy after some experiences, beside the paper's at the end."""
    values = read(ROOT / "experiments" / "support" / "paper_values.csv")
    by_case = grouped(values, "table", "dataset", "protocol")
    paper = {}
    for line in by_case["table1", "cifar100", "class_iid"]:
        paper[line["method_or_row"]] = line["value"]
    groups = grouped(read(RUNS / "cifar100_runs.csv"), "strategy")
    rows = []
    for name, (label, memory, paper_name) in LABELS["real_cifar100"].items():
        lines = groups[name,]
        cells = [label, f"{memory:,} B"]
        curves = [
            [float(accuracy) for accuracy in line["accuracy_after"].split()]
            for line in lines
        ]
        for number in (1, 5, 10, 15):
            # Bounds of all classes at once have one accuracy only.
            if len(curves[0]) == 20:
                after = statistics.fmean(curve[number - 1] for curve in curves)
                cells.append(f"{after:.1f}")
            else:
                cells.append("")
        cells.append(mean_text(floats(lines, "final_accuracy")))
        rows.append([*cells, paper.get(paper_name, "-")])
    header = ["strategy", "memory", "1", "5", "10", "15", "all 20", "paper, final"]
    return markdown(header, rows)


def tuned() -> str:
    """Return the table of the preset ``tuned`` beside its head, the paper's recipe and nearest class means."""
    eth80 = recommended_lines("eth80")
    cifar100 = recommended_lines("cifar100")
    dots = recommended_lines("toy_dots")
    paper_on_cifar100 = grouped(read(RUNS / "cifar100_runs.csv"), "strategy")["crumb",]
    means = grouped(read(DOCS / "competitors_cifar100.csv"), "method")["ncm",]
    eth80_name = marked("eth80", "tuned")
    cifar100_name = marked("cifar100", "tuned")
    lite0_name = f"{eth80_name}, EfficientNet-Lite0"
    lite0_cifar100_name = f"{cifar100_name}, EfficientNet-Lite0"
    dots_name = marked("toy_dots", "tuned")
    accuracies: dict[tuple[str, str], list[float]] = {
        (eth80_name, "tuned"): floats(eth80["crumb, tuned"], "accuracy"),
        (eth80_name, "head"): floats(eth80["crumb, tuned, head"], "accuracy"),
        (eth80_name, "paper"): floats(eth80["paper"], "accuracy"),
        (eth80_name, "ncm"): floats(eth80["ncm"], "accuracy"),
        (lite0_name, "tuned"): floats(
            eth80["crumb, tuned, EfficientNet-Lite0"], "accuracy"
        ),
        (cifar100_name, "tuned"): floats(cifar100["crumb, tuned"], "accuracy"),
        (cifar100_name, "paper"): floats(paper_on_cifar100, "final_accuracy"),
        (cifar100_name, "ncm"): floats(means, "final_accuracy"),
        (lite0_cifar100_name, "tuned"): floats(
            cifar100["crumb, tuned, EfficientNet-Lite0"], "accuracy"
        ),
        (dots_name, "tuned"): floats(dots["crumb, tuned"], "accuracy"),
        (dots_name, "ncm"): floats(dots["ncm"], "accuracy"),
    }
    recorded = grouped(read(RECORDED / "tuned.csv"), "stream", "method")
    for (stream, method), lines in recorded.items():
        accuracies[marked(stream, "tuned"), method] = floats(lines, "accuracy")
    equal_bytes_rows = grouped(
        read(RECORDED / "equal_bytes.csv"), "stream", "network", "row"
    )
    for method, row in (("tuned", "crumb, tuned"), ("paper", "paper")):
        lines = equal_bytes_rows["sign_digits", "SqueezeNet", row]
        accuracies[marked("sign_digits", "tuned"), method] = floats(lines, "accuracy")
    rows = []
    for name in dict.fromkeys(name for name, _ in accuracies):
        cells = [name]
        for method in ("tuned", "head", "paper", "ncm"):
            cells.append(_mean_of_runs(accuracies.get((name, method), [])))
        rows.append(cells)
    header = ["stream", "`--preset tuned`", "the same, answered by its head"]
    header += ["`--preset paper`", "nearest class mean (`ncm`)"]
    return markdown(header, rows)


def _mean_of_runs(values: Sequence[float]) -> str:
    """Format mean and deviation with the number of runs."""
    if not values:
        return ""
    runs = "run 0" if len(values) == 1 else f"{len(values)} runs"
    return f"{mean_text(values)} ({runs})"


def equal_bytes() -> str:
    """Return the table of codes, images and maps at the same bytes: mean accuracy by stream and network."""
    eth80 = recommended_lines("eth80")
    recorded = grouped(read(RECORDED / "equal_bytes.csv"), "stream", "network")
    columns = {f"{DATA_SETS['eth80']}, SqueezeNet": eth80}
    for (stream, network), lines in recorded.items():
        by_row = {row: of_row for (row,), of_row in grouped(lines, "row").items()}
        if stream == "cifar100":
            by_row = recommended_lines("cifar100") | by_row
        columns[f"{DATA_SETS[stream]}, {network}"] = by_row
    header = ["keeps"]
    for name, by_row in columns.items():
        header.append(f"{name} ({counted(len(by_row['paper']), 'run')})")
    rows = []
    for row, label in LABELS["equal_bytes"].items():
        cells = [_mean_or_reason(by_row.get(row, [])) for by_row in columns.values()]
        rows.append([label, *cells])
    return markdown(header, rows)


def _mean_or_reason(lines: Sequence[Line]) -> str:
    """Format the mean accuracy of runs; without an accuracy, the bytes hold too few items."""
    if not lines:
        return ""
    if not all(line["accuracy"] for line in lines):
        return "too few fit"
    return mean_of(lines)


def methods() -> str:
    """Return the table of strategies, with what each reaches on ETH-80, class-instance."""
    from crumb_avalanche.methods.registry import STRATEGIES

    reached = {}
    for row, lines in recommended_lines("eth80").items():
        reached[STRATEGY.get(row, row)] = floats(lines, "accuracy")
    competitors = read(DOCS / "competitors_eth80.csv")
    for (name, protocol), lines in grouped(competitors, "method", "protocol").items():
        # The row of rda there is of an earlier version.
        if protocol == "class_instance" and name != "rda":
            reached[name] = floats(lines, "final_accuracy")
    rows = []
    for name, entry in STRATEGIES.items():
        accuracies = reached.get(name, [])
        accuracy = mean_text(accuracies)
        if len(accuracies) != USUAL_RUNS:
            accuracy = _mean_of_runs(accuracies)
        rows.append([f"`{name}`", entry.summary, entry.source, entry.stores, accuracy])
    header = ["method", "what it does", "source", "stores", "ETH-80, %"]
    return markdown(header, rows, left=4)


def data_sets() -> str:
    """Return the table of data sets, with what a stream of each has and where its files come from."""
    from benchmarks_toybox_ilab.catalog import BENCHMARKS

    rows = []
    for name, benchmark in BENCHMARKS.items():
        files = benchmark.files
        cells = [f"`{name}`", files.title]
        for key in ("classes", "train", "test"):
            cells.append(f"{files.counts[key]:,}" if key in files.counts else "")
        classes = benchmark.classes_per_experience
        cells.append("a session" if classes is None else str(classes))
        cells.append(str(benchmark.budget_images))
        rows.append([*cells, files.source.replace("|", "\\|")])
    header = [
        "name",
        "data set",
        "classes",
        "training images",
        "test images",
        "classes in an experience",
        "memory in images",
        "source",
    ]
    return markdown(header, rows, left=2)


def backbones() -> str:
    """Return the table of built-in backbones, with where they are cut and what they expect of an image."""
    from crumb_avalanche.models.backbone_names import preprocessing_of
    from crumb_avalanche.models.backbones import BACKBONES

    rows = []
    for name, backbone in BACKBONES.items():
        expected = preprocessing_of(name)
        cells = [f"`{name}`", str(backbone.cut), str(expected.size)]
        cells.append(expected.interpolation)
        for channels in (expected.mean, expected.std):
            cells.append(", ".join(f"{value:g}" for value in channels))
        rows.append(cells)
    header = ["backbone", "layers in F", "pixels", "resized by", "mean", "deviation"]
    return markdown(header, rows)


def rooms() -> str:
    """Return the table of the packages' rooms, with the first line of what each says of itself."""
    rows = []
    for package, (_, names) in reference.PACKAGES.items():
        for name in names:
            path = f"{package}/{name}"
            path += "/" if (ROOT / path).is_dir() else ".py"
            rows.append([f"`{path}`", reference.first_line(package, name)])
    return markdown(["room, lowest first", "holds"], rows, left=2)


TABLES: dict[str, Callable[..., str]] = {
    "rooms": rooms,
    "recommended": recommended,
    "small_budgets": partial(recommended, "_small"),
    "readme": readme,
    "methods": methods,
    "data_sets": data_sets,
    "backbones": backbones,
    "methods_side_by_side": methods_side_by_side,
    "competitors": competitors,
    "real_images": real_images,
    "tuned": tuned,
    "equal_bytes": equal_bytes,
    "ablations": paper_tables.ablations,
    "claims": paper_tables.claims,
    "codes_and_images": paper_tables.codes_and_images,
    "deviations": paper_tables.deviations,
    "task_incremental": recorded_tables.task_incremental,
    "feature_cache": recorded_tables.feature_cache,
    "recorded": recorded_tables.recorded,
    "scenes": recorded_tables.scenes,
    "open_scenes": recorded_tables.open_scenes,
    "crumb_as_expert": recorded_tables.crumb_as_expert,
    "bytes_dial": recorded_tables.bytes_dial,
    "vyntri": recorded_tables.vyntri,
    "rival_settings": recorded_tables.rival_settings,
    "test_or_development": recorded_tables.test_or_development,
}
