"""Measure the cost of CRUMB beside REMIND in one run: seconds per image of the stream, and memory.

    python experiments/cost_of_replay.py --benchmark eth80 --dataset-root ETH80 --output runs/cost
    python experiments/cost_of_replay.py --quick

Takes the settings of `crumb run`: benchmark, network, budget and so on. Three learners take turns, experience by
experience, on the same threads: CRUMB; REMIND as its authors run it, with one new image and 50 mixtures of memories in
each step; REMIND with one step for each batch. Time excludes evaluation, and with --feature-cache also F, which is the
same for all.

Memory is the sum of what is kept (codes, labels, tables) and the peak while the table is computed, with the maps that
it is computed from. Each peak is measured in a process of its own: CRUMB's codebook; REMIND's tables by faiss from all
maps of the first experience at once, as in its authors' code; and from a sample of locations, as in this library. The
maps are read from a file, so that F, which is the same for all, does not count. Seconds and bytes depend on the
machine, so ratios are printed. Writes `cost_of_replay.csv` and `cost_of_replay.png` to --output.
"""

import json
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from support import common_options
from support.bench import in_new_process
from support.memory import reset_peak, resident
from support.pictures import bars

from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche.runs.settings import RunSettings, add_run_arguments, underscored

CRUMB, SINGLE, BATCHES = "crumb", "remind, one image at a time", "remind, mini-batches"
ALL_MAPS, SAMPLE = "remind, tables from all maps", "remind, tables from a sample"
LEARNERS = {CRUMB: ("crumb", {}), SINGLE: ("remind", {"samples_at_a_time": True}), BATCHES: ("remind", {})}
CHILD = "--measure-table"
TARGETS = {"time of an image": 0.15, "memory": 0.05}  # the paper's Table 2, CIFAR100
QUICK = common_options.QUICK | dict(benchmark=common_options.QUICK_BENCHMARK, budget_images=200)


@dataclass
class CostSettings:
    """Settings of the measurement.

    Attributes:
        output: folder for table and picture.
        experiences: number of experiences from the start of the stream; 0 takes all.
        stream_images: number of frames of each experience; 0 takes all. REMIND draws 100 memories for an image, so
            give at least 100.
        measured_images: number of maps that the codebook is computed from; crumb run takes 64.
        table_images: number of maps that REMIND's tables are fitted to; 0 takes the whole first experience.
    """

    output: str = "runs/cost_of_replay"
    experiences: int = 0
    stream_images: int = 0
    measured_images: int = 64
    table_images: int = 0

    def __post_init__(self):
        if min(self.experiences, self.stream_images, self.table_images) < 0 or self.measured_images < 1:
            raise ValueError("experiences, stream_images and table_images are 0 or more, measured_images is at least 1")
        if self.experiences == 1:
            raise ValueError("experiences=1 has no replay, which begins with the second; give 2 or more, or 0 for all")


def built(name: str, settings: RunSettings, stream, cache):
    """The session of one of the learners."""
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import Session
    from crumb_avalanche.system.process import set_up_process

    strategy, method = LEARNERS[name]
    plan = RunPlan.of(replace(settings, strategy=strategy, method=method))
    set_up_process(plan.threads, plan.run)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # nothing is evaluated
        return Session.build(plan, stream, cache=cache, evaluator=EvaluationPlugin(loggers=[]))


def read_through(dataset, cache):
    """A data set of images, or with a cache of their maps."""
    if cache is None:
        return dataset
    return cache.store.dataset(dataset, np.asarray(list(dataset.frame_row)), list(map(int, dataset.targets)))


def streamed(learners: dict, experiences: list, cache, workers: int) -> tuple[dict, int]:
    """Train all learners; return seconds by learner and experience, and REMIND's memories at the start of replay."""
    seconds, held = {name: [] for name in learners}, 0
    for number, experience in enumerate(experiences):
        for _ in read_through(experience.dataset, cache):  # the first learner would pay for a cold disk
            pass
        for name, strategy in learners.items():
            start = time.perf_counter()
            strategy.train(experience, eval_streams=[], num_workers=workers)
            seconds[name].append(time.perf_counter() - start)
            print(f"experience {number + 1}/{len(experiences)}, {name}: {seconds[name][-1]:.1f} s", flush=True)
        held = held or len(learners[SINGLE].storage_policy)
    return seconds, held


def write_maps(path: Path, model, dataset) -> tuple[int, ...]:
    """Write the maps of a data set as float32 `(N, H, W, C)`; returns that shape."""
    with open(path, "wb") as file:
        for start in range(0, len(dataset), 16):
            images = torch.stack([dataset[place][0] for place in range(start, min(start + 16, len(dataset)))])
            images = images.to(model.pixel_mean.device)
            model.features(images).permute(0, 2, 3, 1).contiguous().cpu().numpy().tofile(file)
    channels, height, width = model.map_shape
    return len(dataset), height, width, channels


def make_table(task: dict, shape: tuple[int, ...]) -> None:
    """Compute the codebook, or fit the tables, from the maps in a file.

    Args:
        task: `kind`, `file` (float32 maps) and their `shape` `(N, H, W, C)`, `seed`, `threads`; for the codebook
            `codebook_size`, `codebook_dim`, `codebook_init` and `measured_images`; for the tables `sub_quantizers`,
            `bits` and `fit_vectors`.
        shape: shape of the maps in the file.
    """
    count, *_, channels = shape
    each = int(np.prod(shape[1:]))

    def read(first: int, images: int) -> np.ndarray:
        return np.fromfile(task["file"], np.float32, images * each, offset=4 * each * first).reshape(-1, *shape[1:])

    if task["kind"] == CRUMB:
        from crumb_avalanche.models.calibration import CHUNK, sample_of
        from crumb_avalanche.models.codebook import INITIALISERS, Codebook

        places = np.unique(np.linspace(0, count - 1, task["measured_images"]).astype(int))
        some = (
            np.concatenate([read(place, 1) for place in places[i : i + CHUNK]]) for i in range(0, len(places), CHUNK)
        )
        sample = sample_of(torch.from_numpy(maps).permute(0, 3, 1, 2) for maps in some)
        codebook = Codebook(task["codebook_size"], task["codebook_dim"])
        INITIALISERS[task["codebook_init"]](codebook, sample, torch.Generator().manual_seed(task["seed"]))
    elif task["kind"] == ALL_MAPS:
        import faiss

        faiss.omp_set_num_threads(task["threads"])
        tables = faiss.ProductQuantizer(channels, task["sub_quantizers"], task["bits"])
        tables.cp.min_points_per_centroid = 1  # only warns
        tables.train(read(0, count).reshape(-1, channels))
    else:
        from crumb_avalanche.memory.product_quantizer import ProductQuantizer
        from crumb_avalanche.methods.remind_memory import LocationSample

        sample = LocationSample(count, task["fit_vectors"], np.random.default_rng(task["seed"]))
        for start in range(0, count, 16):
            sample.take(torch.from_numpy(read(start, min(16, count - start))).permute(0, 3, 1, 2))
        tables = ProductQuantizer(channels, task["sub_quantizers"], 2 ** task["bits"])
        tables.fit(sample.vectors, task["seed"])


def made(task: dict) -> dict:
    """Measure seconds, and peak resident memory minus resident memory before, in this process."""
    torch.set_num_threads(task["threads"])
    with tempfile.NamedTemporaryFile() as file:  # the first call of a library allocates more
        shape = (20, 4, 4, task["shape"][-1])
        np.random.default_rng(0).random(shape, np.float32).tofile(file.name)
        make_table({**task, "file": file.name}, shape)
    reset_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    make_table(task, tuple(task["shape"]))
    return {"seconds": time.perf_counter() - start, "bytes": resident("VmHWM") - before}


def made_in_new_process(task: dict) -> dict:
    """Measure in a new process, in which larger freed blocks go back to the system at once."""
    variables = {"OMP_NUM_THREADS": str(task["threads"]), "MALLOC_MMAP_THRESHOLD_": "65536"}
    return in_new_process(__file__, CHILD, json.dumps(task), **variables)


def ratios(image: dict, whole: dict, memory: dict) -> list[tuple[str, str, str, float]]:
    """Quantity, method, by which other method, and the ratio."""
    pairs = [(CRUMB, SINGLE), (CRUMB, BATCHES), (BATCHES, SINGLE)]
    lines = [("time of an image", one, other, image[one] / image[other]) for one, other in pairs]
    lines += [("time of the whole run", one, other, whole[one] / whole[other]) for one, other in pairs]
    pairs = [(CRUMB, ALL_MAPS), (CRUMB, SAMPLE), (SAMPLE, ALL_MAPS)]
    return lines + [("memory", one, other, memory[one] / memory[other]) for one, other in pairs]


def show(title: str, image: dict, whole: dict, peak: dict, held: dict, making: dict, output: Path) -> None:
    """Print the tables and ratios; write them as CSV and as a picture."""
    from crumb_avalanche.report.pictures import save
    from crumb_avalanche.runs.run_folder import write_csv
    from crumb_avalanche.runs.tables import table

    memory = {kind: peak[kind] + held[kind] for kind in held}
    lines = ratios(image, whole, memory)
    rows = [[name, f"{1000 * image[name]:.1f}", f"{whole[name]:.1f}"] for name in image]
    print(f"\n{title}\n\n" + table(["learner", "ms an image", "whole run, s"], rows) + "\n")
    header = ["method", "peak MB", "held MB", "memory MB", "making, s"]
    rows = [[kind, *(f"{part[kind] / 1e6:.2f}" for part in (peak, held, memory))] for kind in held]
    print(table(header, [[*row, f"{making[row[0]]:.1f}"] for row in rows]) + "\n")
    for what, one, other, ratio in lines:
        target = TARGETS.get(what) if (one, other) in ((CRUMB, SINGLE), (CRUMB, ALL_MAPS)) else None
        aim = "" if target is None else f" (aim: at most {100 * target:.0f} %)"
        print(f"{what}, {one} by {other}: {100 * ratio:.1f} %{aim}")
    csv_rows = [["quantity", "method", "by", "value"]]
    columns = {"seconds_per_image": image, "seconds_whole_run": whole, "peak_bytes": peak, "held_bytes": held}
    csv_rows += [[name, method, "", value] for name, column in columns.items() for method, value in column.items()]
    csv_rows += [[f"ratio, {what}", one, other, ratio] for what, one, other, ratio in lines]
    write_csv(output / "cost_of_replay.csv", csv_rows)
    panels = {
        "milliseconds for an image, after the first experience": {"time": {k: [1000 * v] for k, v in image.items()}},
        "megabytes": {
            label: {kind: [value / 1e6] for kind, value in part.items()}
            for label, part in (("to make the table", peak), ("held for good", held))
        },
    }
    save(bars(panels, title), output, "cost_of_replay")
    print(f"\nalso in {output}: cost_of_replay.csv, cost_of_replay.png")


def main(settings: RunSettings, cost: CostSettings) -> None:
    """Measure all learners."""
    from crumb_avalanche.methods.remind import RemindSettings
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process
    from crumb_avalanche.training.ledger import LedgerMetric

    plan, output, usual = RunPlan.of(settings), Path(cost.output), RemindSettings()
    output.mkdir(parents=True, exist_ok=True)
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan, joint=False)
    experiences = list(stream.benchmark.train_stream)[: cost.experiences or None]
    first = experiences[0].dataset
    first = first.subset(range(min(cost.table_images or len(first), len(first))))
    for experience in experiences if cost.stream_images else ():
        experience.dataset = experience.dataset.subset(range(min(cost.stream_images, len(experience.dataset))))
    images = sum(len(experience.dataset) for experience in experiences[1:])
    sessions, cache = {}, None
    for name in LEARNERS:
        sessions[name] = built(name, settings, stream, cache)
        cache = sessions[name].cache  # one for all
    learners = {name: session.strategy for name, session in sessions.items()}
    prepared = {name: session.calibration_seconds for name, session in sessions.items()}
    seconds, drawable = streamed(learners, experiences, cache, plan.workers)
    if drawable < 2 * usual.replays:
        print(f"note: REMIND began with {drawable} memories, too few for {usual.replays} mixtures: it costs more")

    counted = {name: LedgerMetric().count(strategy)["memory_bytes"] for name, strategy in learners.items()}
    held = {CRUMB: counted[CRUMB], ALL_MAPS: counted[BATCHES], SAMPLE: counted[BATCHES]}
    quantizer = usual.quantizer(learners[BATCHES].model)
    task = {name: getattr(plan, name) for name in ("codebook_size", "codebook_dim", "codebook_init")}
    task |= dict(seed=plan.run, measured_images=cost.measured_images, fit_vectors=usual.fit_vectors)
    task |= dict(sub_quantizers=quantizer.sub_quantizers, bits=quantizer.bits, threads=torch.get_num_threads())
    with tempfile.TemporaryDirectory(dir=output) as folder:
        task["file"] = str(Path(folder) / "maps")
        task["shape"] = write_maps(Path(task["file"]), learners[CRUMB].model, read_through(first, cache))
        making = {kind: made_in_new_process({**task, "kind": kind}) for kind in held}
    frames = f"{len(experiences[0].dataset)} + {images} frames, tables from {len(first)} maps"
    where = f"{task['threads']} threads, F from {'images' if cache is None else 'a cache'}"
    show(
        f"{plan.benchmark}, {plan.protocol}, run {plan.run}: {frames}, {where}",
        {name: sum(values[1:]) / images for name, values in seconds.items()},
        {name: prepared[name] + sum(values) for name, values in seconds.items()},
        {kind: figures["bytes"] for kind, figures in making.items()},
        held,
        {kind: figures["seconds"] for kind, figures in making.items()},
        output,
    )


def command_line():
    """The command line: settings of the measurement, and those of `crumb run` that it reads."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_class_arguments(CostSettings)
    parser.add_argument("--quick", action="store_true", help="rendered shapes and a tiny network, to try the script")
    nothing = {"strategy", "method", "family", "runs", "output", "overwrite", "checkpoint", "runtime"}
    add_run_arguments(parser, nothing)
    parser.set_defaults(threads=1)
    return parser


if __name__ == "__main__":
    with safe_output():
        if sys.argv[1:2] == [CHILD]:
            print(json.dumps(made(json.loads(sys.argv[2]))))
            sys.exit()
        chosen = command_line().parse_args(underscored(sys.argv[1:])).as_dict()
        quick = chosen.pop("quick")
        own = CostSettings(**{item.name: chosen.pop(item.name) for item in fields(CostSettings)})
        run_settings = RunSettings(**chosen)
        if quick:
            run_settings = replace(run_settings, **QUICK)
            own = replace(own, stream_images=own.stream_images or 24, table_images=80, measured_images=8)
        main(run_settings, own)
