"""Damage files, kill processes, fill disks, send odd requests; count what goes wrong without a word.

Every case is drawn from the seed, its kind and its number alone. A case is *clean* if its result is that of an
undamaged base, or an error or a warning of ours says that something is wrong; else it is a *traceback*, a *hang*, or
*silent*: a result changed, and nothing said so. Parts of finished cases are kept in the output folder, and the same
command resumes after them.
"""

import argparse
import gc
import json
import multiprocessing.connection
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: threads and forked processes do not mix

import torch
from support.faults import KINDS, cases_of, kind_named
from support.faults.case import VERDICTS, Kind, judge

from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche.runs.run_folder import write_json
from crumb_avalanche.runs.tables import table

PART = 250  # cases
COLUMNS = ("tried", *VERDICTS)


def generator(seed: int, name: str, number: int) -> random.Random:
    """The generator of a case."""
    return random.Random(f"{seed} {name} {number}")


def do_part(kind: Kind, seed: int, name: str, numbers: range, running: Path) -> dict:
    """Judge some cases of a kind; returns their counts, and the cases that were not clean.

    Args:
        kind: its base.
        seed: of the campaign.
        name: of the kind.
        numbers: of the cases.
        running: file that names the case under way, for one that ends this process.
    """
    counts, bad, start = Counter(dict.fromkeys(VERDICTS, 0)), [], time.perf_counter()
    for number in numbers:
        running.write_text(f"{name} {number}")
        case = judge(kind, generator(seed, name, number))
        counts[case.verdict] += 1
        if case.verdict != "clean":
            bad.append({"case": number, **case._asdict()})
    running.unlink()
    return {"tried": len(numbers), **counts, "seconds": time.perf_counter() - start, "bad": bad}


def do_kind(name: str, seed: int, count: int, output: Path) -> list[dict]:
    """Do the unfinished parts of a kind, each written to a file of its own; returns all its parts."""
    parts, kind, running = [], None, output / f"running-{name}.txt"
    with tempfile.TemporaryDirectory(prefix="faults", ignore_cleanup_errors=True) as folder:
        for first in range(0, count, PART):
            numbers = range(first, min(first + PART, count))
            path = output / f"seed{seed}" / f"{name}-{numbers.start:06d}-{numbers.stop:06d}.json"
            if not path.exists():
                if kind is None:
                    kind = kind_named(name)(Path(folder))
                    gc.collect()
                    gc.freeze()  # runs collect garbage at their end, which takes longer than the run
                write_json(path, do_part(kind, seed, name, numbers, running))
            parts.append(json.loads(path.read_text()))
        if kind is not None:
            kind.close()
    return parts


def do_kinds_in_processes(names: list[str], seed: int, counts: dict[str, int], output: Path, workers: int) -> None:
    """Do the unfinished parts of kinds, each kind in a process of its own; those of few and long cases first.

    Raises:
        ValueError: a process ended before its parts were finished; raised when all others have ended.
    """
    for name in names:
        kind_named(name)  # imports what its process would import again
    context = multiprocessing.get_context("fork")
    waiting = sorted(names, key=lambda name: KINDS[name][1])
    working: dict[str, multiprocessing.process.BaseProcess] = {}
    failed: list[str] = []
    try:
        while waiting or working:
            while waiting and len(working) < workers:
                name = waiting.pop(0)
                working[name] = context.Process(target=do_kind, args=(name, seed, counts[name], output))
                working[name].start()
            multiprocessing.connection.wait([process.sentinel for process in working.values()])
            for name in [name for name, process in working.items() if not process.is_alive()]:
                failed += [name] * bool(working.pop(name).exitcode)
    finally:
        for process in working.values():
            process.terminate()
    if failed:
        raise ValueError(f"the process of {', '.join(failed)} ended early; the same command resumes")


def summary_of(parts: dict[str, list[dict]]) -> dict[str, dict[str, int]]:
    """Counts by kind, and their total."""
    found = {name: {column: sum(part[column] for part in some) for column in COLUMNS} for name, some in parts.items()}
    return {**found, "total": {column: sum(counts[column] for counts in found.values()) for column in COLUMNS}}


def report_crash(output: Path) -> None:
    """Say which case ended an earlier process, and stop: it is worse than a traceback."""
    for running in output.glob("running-*.txt"):
        text = running.read_text()
        running.unlink()
        raise ValueError(
            f"an earlier campaign in {output} ended within case {text!r}; if it was not interrupted, look at it with "
            "--only KIND --case NUMBER. The same command goes on now"
        )


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=2000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(KINDS), nargs="+", default=list(KINDS), help="kinds to do")
    parser.add_argument("--case", type=int, help="show what this case of the one kind of --only does, and nothing else")
    parser.add_argument("--workers", type=int, default=1, help="kinds done at the same time, each in a process")
    parser.add_argument("--json", help="also write the counts to this file, '-' for standard output alone")
    parser.add_argument("--output", default="runs/faults", help="folder of finished parts")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Do the campaign; returns 1 if a case was not clean."""
    chosen = parsed(arguments)
    torch.set_num_threads(1)
    if chosen.case is not None:
        with tempfile.TemporaryDirectory(prefix="faults", ignore_cleanup_errors=True) as folder:
            kind = kind_named(chosen.only[0])(Path(folder))
            case = judge(kind, generator(chosen.seed, chosen.only[0], chosen.case))
            kind.close()
        print(*case, sep="\n")
        return case.verdict != "clean"
    output, counts = Path(chosen.output), cases_of(chosen.cases)
    output.mkdir(parents=True, exist_ok=True)
    report_crash(output)
    parts = {}
    if chosen.workers > 1:
        do_kinds_in_processes(chosen.only, chosen.seed, counts, output, chosen.workers)
    for name in chosen.only:
        parts[name] = do_kind(name, chosen.seed, counts[name], output)
        print(f"{name}: {counts[name]} cases", file=sys.stderr)
    gc.unfreeze()
    summary = summary_of(parts)
    seconds = {name: sum(part["seconds"] for part in some) for name, some in parts.items()}
    seconds["total"] = sum(seconds.values())
    for name, some in parts.items():
        for bad in [bad for part in some for bad in part["bad"]][:10]:
            print(f"{name} {bad['case']}: {bad['verdict']}: {bad['damage']}\n{bad['said']}", file=sys.stderr)
    if chosen.json and chosen.json != "-":
        write_json(Path(chosen.json), summary)
    if chosen.json == "-":
        print(json.dumps(summary))
    else:
        rows = [[name, *map(str, row.values()), f"{seconds[name]:.0f}"] for name, row in summary.items()]
        print(table(["kind", *COLUMNS, "seconds"], rows))
    return int(summary["total"]["clean"] < summary["total"]["tried"])


if __name__ == "__main__":
    with safe_output():
        sys.exit(main())
