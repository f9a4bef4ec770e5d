"""Every method of `crumb strategies` on one benchmark, at the same bytes: one table, one picture.

    python experiments/competitors.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Finished runs are kept and skipped: call it again to go on. Written to --output: `competitors.csv`, `competitors.md`,
`competitors.png`, and a folder of each run.

With --family fair (default) all learn on the same frozen features with the same bytes, and each tunes its learning rate
on the first experience. With --family paper each has the network, resolution and learning rate of the paper's authors.
Two rows are not at the same bytes: a bound that learns all classes at once, which has no protocol and is run once for
both, and raw-map replay, which keeps as many maps as CRUMB does, for in CRUMB's bytes there is room for six.
"""

import argparse
import csv
import io
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from sweep import add_engine_options, engine_of, exit_code, grid, sweep

from crumb_avalanche.cli.run_folder import RESULT, write_text
from crumb_avalanche.cli.settings import RunSettings
from crumb_avalanche.cli.tables import markdown, table

PROTOCOLS = ("class_instance", "class_iid")


@dataclass
class Row:
    """What the runs of one method gave.

    Attributes:
        accuracies: final accuracy in percent of each finished run, by protocol.
        memory: bytes kept besides the network at the end, labels and statistics included: the most of all runs.
        seconds: of training, mean over the runs.
        rates: learning rates chosen, in order of size.
    """

    name: str
    accuracies: dict[str, list[float]]
    memory: int
    seconds: float
    rates: list[float]

    @property
    def runs(self) -> str:
        """How many, for both protocols where they differ."""
        return "/".join(dict.fromkeys(str(len(values)) for values in self.accuracies.values()))


def rows_of(strategies: list[str], protocols: list[str], maps: int) -> dict[str, dict]:
    """Settings of each row of the sweep, by its folder."""
    from crumb_avalanche.baselines.registry import STRATEGIES, get_strategy

    rows = {}
    for name in strategies or STRATEGIES:
        for protocol in ["joint"] if get_strategy(name).joint else protocols:
            rows[f"{protocol}/{name}"] = dict(strategy=name)
            if protocol != "joint":
                rows[f"{protocol}/{name}"]["protocol"] = protocol
            if name == "map_replay":
                rows[f"{protocol}/{name}"]["mem_size"] = maps
    return rows


def collect(output: Path, names: list[str], protocols: list[str], runs: list[int]) -> list[Row]:
    """The finished runs, by method; methods without any are left out."""
    rows = []
    for name in names:
        accuracies, ledgers, rates = {}, [], set()
        for protocol in protocols:
            folder = output / "joint" / name
            folder = folder if folder.exists() else output / protocol / name
            done = [folder / f"run{run}" for run in runs if (folder / f"run{run}" / RESULT).exists()]
            results = [json.loads((run / RESULT).read_text()) for run in done]
            accuracies[protocol] = [result["final_accuracy"] for result in results]
            rates |= {result["learning_rate"] for result in results} - {None}
            ledgers += [json.loads((run / "ledger.json").read_text()) for run in done]
        if ledgers:
            memory = max(ledger["memory_bytes"] for ledger in ledgers)
            seconds = statistics.fmean(ledger["train_seconds"] for ledger in ledgers)
            rows.append(Row(name, accuracies, memory, seconds, sorted(rates)))
    return rows


def lines_of(rows: list[Row]) -> list[list[str]]:
    """The table as text, names of the columns first; a protocol that nothing was run in has none."""
    protocols = protocols_of(rows)
    names = [protocol.replace("_", "-") for protocol in protocols]
    header = ["method", *names, "runs", "bytes kept", "seconds", "learning rate"]
    return [header, *(cells(row, protocols) for row in rows)]


def protocols_of(rows: list[Row]) -> list[str]:
    """Those that something was run in."""
    return [name for name in PROTOCOLS if any(row.accuracies.get(name) for row in rows)]


def cells(row: Row, protocols: list[str]) -> list[str]:
    """A row as text."""
    accuracies = [mean_and_spread(row.accuracies.get(protocol, [])) for protocol in protocols]
    rates = " ".join(f"{rate:g}" for rate in row.rates)
    return [row.name, *accuracies, row.runs, f"{row.memory:,}", f"{row.seconds:.0f}", rates]


def mean_and_spread(values: list[float]) -> str:
    """`mean +- standard deviation`, or nothing where nothing was run."""
    if not values:
        return ""
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def write_tables(output: Path, rows: list[Row]) -> None:
    """The table as Markdown, and every run as a line of CSV."""
    header, *lines = lines_of(rows)
    write_text(output / "competitors.md", markdown([header, ["---"] * len(header), *lines]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "protocol", "place", "final_accuracy", "memory_bytes", "mean_train_seconds"])
    for row in rows:
        for protocol, values in row.accuracies.items():
            for place, value in enumerate(values):
                writer.writerow([row.name, protocol, place, f"{value:.4f}", row.memory, f"{row.seconds:.1f}"])
    write_text(output / "competitors.csv", text.getvalue())


def picture(output: Path, rows: list[Row], title: str) -> Path:
    """Mean accuracies with their spread, best method on top."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def mean(row: Row) -> float:
        return max(statistics.fmean(values) for values in row.accuracies.values() if values)

    rows = sorted(rows, key=mean)
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.3 * len(rows)), layout="constrained")
    looks = {"class_instance": ("o", "C0", 0.12), "class_iid": ("s", "C1", -0.12)}
    for protocol in protocols_of(rows):
        marker, colour, shift = looks[protocol]
        shown = [(place, row.accuracies[protocol]) for place, row in enumerate(rows) if row.accuracies.get(protocol)]
        axes.errorbar(
            [statistics.fmean(values) for _, values in shown],
            [place + shift for place, _ in shown],
            xerr=[statistics.stdev(values) if len(values) > 1 else 0 for _, values in shown],
            fmt=marker,
            color=colour,
            capsize=2,
            label=protocol.replace("_", "-"),
        )
    axes.set(yticks=range(len(rows)), yticklabels=[row.name for row in rows], xlim=(0, 100), title=title)
    axes.set_xlabel("accuracy over all classes at the end, percent (mean and standard deviation)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right")
    path = output / "competitors.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", default="eth80")
    parser.add_argument("--dataset-root")
    parser.add_argument("--weights", default="torchvision")
    parser.add_argument("--family", choices=["fair", "paper"], default="fair")
    parser.add_argument("--strategies", nargs="*", help="default: all")
    parser.add_argument("--protocols", nargs="*", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument("--runs", default="0-9")
    parser.add_argument("--feature-cache", help="folder for F(x); 350 KB an image, half with --cache-precision fp16")
    parser.add_argument("--cache-precision", default="fp32", choices=["fp32", "fp16"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"], help="of F and P, for all methods")
    parser.add_argument("--output", default="runs/competitors")
    add_engine_options(parser)
    parser.add_argument(
        "--maps", type=int, default=417, help="raw maps that map_replay keeps: as many as CRUMB, whatever their bytes"
    )
    parser.add_argument("--table-only", action="store_true", help="no new runs: show what is there")
    parser.add_argument("--quick", action="store_true", help="rendered shapes, a tiny network, one run")
    options = parser.parse_args()
    output = Path(options.output)
    base = RunSettings(
        benchmark=options.benchmark,
        dataset_root=options.dataset_root,
        family=options.family,
        weights=None if options.family == "paper" and options.weights == "torchvision" else options.weights,
        feature_cache=options.feature_cache,
        cache_precision=options.cache_precision,
        precision=options.precision,
        runs=options.runs,
        threads=1,
        checkpoint=False,
        progress=False,
    )
    if options.quick:
        base = RunSettings(
            benchmark="toy_shapes",
            family=options.family,
            weights="none",
            backbone="small_cnn",
            image_size=64,
            budget_images=60,
            feature_cache=str(output / "feature_cache"),
            runs="0",
            first_epochs=1,
            threads=1,
            checkpoint=False,
            progress=False,
        )
    runs = base.run_numbers()
    rows = rows_of(options.strategies, options.protocols, options.maps)
    base.runs = None
    failed = (
        {}
        if options.table_only
        else sweep(grid(base, output, runs, rows), engine=engine_of(options), retries=options.retries)
    )
    names = list(dict.fromkeys(changes["strategy"] for changes in rows.values()))
    found = collect(output, names, options.protocols, runs)
    if found:
        write_tables(output, found)
        header, *lines = lines_of(found)
        print(table(header, lines))
        title = f"{base.benchmark}, family {options.family}"
        print(f"\nalso in {output}: competitors.md, competitors.csv, {picture(output, found, title).name}")
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
