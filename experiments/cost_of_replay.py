"""What CRUMB costs beside REMIND, in one run: seconds for an image of the stream, and memory.

    python experiments/cost_of_replay.py --benchmark eth80 --dataset-root ETH80 --output runs/cost
    python experiments/cost_of_replay.py --quick

All settings of `crumb run` are known here too: benchmark, network, budget and so on. Three learners take turns,
experience by experience, at the same threads: CRUMB; REMIND as its authors run it, one new image a step with 50
mixtures of memories; REMIND with a step for each batch. Time counts everything but evaluation; with --feature-cache it
is without F, which all need alike.

Memory is what is held for good (codes, labels, tables) and the peak of making the table, maps that it is made from
included, each in a process of its own: CRUMB's codebook; REMIND's tables by faiss from all maps of the first experience
at once, as its authors' code has it; and from a sample of locations, as this library has it. The maps are read from a
file: what F itself needs is the same for all, and counted for none. Bare figures say more about the machine than about
a method, so ratios are printed. Written to --output: `cost_of_replay.csv` and `cost_of_replay.png`.
"""

import csv
import io
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from support import common_options
from table_memory import ALL_MAPS, CODEBOOK, SAMPLE, made_in_new_process

from crumb_avalanche.runs.arguments import add_run_arguments, run_arguments
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.atomic_file import atomic_write

CRUMB, SINGLE, BATCHES = CODEBOOK, "remind, one image at a time", "remind, mini-batches"
LEARNERS = {CRUMB: ("crumb", {}), SINGLE: ("remind", {"samples_at_a_time": True}), BATCHES: ("remind", {})}
TARGETS = {"time of an image": 0.15, "memory": 0.05}  # the paper's Table 2, CIFAR100
QUICK = common_options.QUICK | dict(benchmark=common_options.QUICK_BENCHMARK, budget_images=200)


@dataclass
class CostSettings:
    """What is measured.

    Attributes:
        output: folder for table and picture.
        experiences: only the first so many are learned; 0 takes all.
        stream_images: so many frames of each experience are learned, by all alike; 0 takes all. REMIND draws 100
            memories for an image, so give at least 100.
        measured_images: maps that the codebook is made from; crumb run takes 64.
        table_images: maps that REMIND's tables are made from; 0 takes the whole first experience.
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
            raise ValueError("experiences=1 is none after the first, where replay begins; give 2 or more, or 0 for all")


def built(name: str, settings: RunSettings, stream, cache):
    """The session of one of the learners."""
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.process import set_up_process
    from crumb_avalanche.runs.session import Session

    strategy, method = LEARNERS[name]
    plan = RunPlan.of(replace(settings, strategy=strategy, method=method))
    set_up_process(plan.threads, plan.run)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # nothing is evaluated
        return Session.build(plan, stream, cache=cache, evaluator=EvaluationPlugin(loggers=[]))


def read_through(dataset, cache):
    """The images of a data set, or their maps out of the cache, which is filled."""
    if cache is None:
        return dataset
    return cache.dataset(dataset, np.asarray(list(dataset.frame_row)), list(map(int, dataset.targets)))


def streamed(learners: dict, experiences: list, cache, workers: int) -> tuple[dict, int]:
    """Seconds of each learner for each experience, and the memories held by REMIND when it begins to replay."""
    seconds, held = {name: [] for name in learners}, 0
    for number, experience in enumerate(experiences):
        for _ in read_through(experience.dataset, cache):  # or whoever is first would pay for a cold disk
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


def ratios(image: dict, whole: dict, memory: dict) -> list[tuple[str, str, str, float]]:
    """Quantity, method, by which other method, and the ratio."""
    pairs = [(CRUMB, SINGLE), (CRUMB, BATCHES), (BATCHES, SINGLE)]
    lines = [("time of an image", one, other, image[one] / image[other]) for one, other in pairs]
    lines += [("time of the whole run", one, other, whole[one] / whole[other]) for one, other in pairs]
    pairs = [(CRUMB, ALL_MAPS), (CRUMB, SAMPLE), (SAMPLE, ALL_MAPS)]
    return lines + [("memory", one, other, memory[one] / memory[other]) for one, other in pairs]


def picture(path: Path, title: str, image: dict, making: dict, held: dict) -> None:
    """Seconds of an image and bytes, with their values."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    upper, lower = figure.subplots(2, 1)
    bars = upper.barh(list(image), [1000 * value for value in image.values()], color="#0072B2")
    upper.bar_label(bars, fmt="%.1f", padding=3)
    upper.set(xlabel="milliseconds for an image of the stream, after the first experience")
    places = np.arange(len(making))
    for part, label, shift, colour in (
        (making, "to make the table", -0.2, "#D55E00"),
        (held, "held for good", 0.2, "#009E73"),
    ):
        bars = lower.barh(places + shift, [value / 1e6 for value in part.values()], 0.4, label=label, color=colour)
        lower.bar_label(bars, fmt="%.1f", padding=3)
    lower.set(xlabel="megabytes", yticks=places, yticklabels=list(making))
    lower.legend(frameon=False)
    for axes in (upper, lower):
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=150)


def show(title: str, image: dict, whole: dict, peak: dict, held: dict, making: dict, output: Path) -> None:
    """Print the tables and the ratios; write them as CSV and as a picture."""
    from crumb_avalanche.runs.run_folder import write_text
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["quantity", "method", "by", "value"])
    columns = {"seconds_per_image": image, "seconds_whole_run": whole, "peak_bytes": peak, "held_bytes": held}
    writer.writerows([name, method, "", value] for name, column in columns.items() for method, value in column.items())
    writer.writerows([f"ratio, {what}", one, other, ratio] for what, one, other, ratio in lines)
    write_text(output / "cost_of_replay.csv", text.getvalue())
    picture(output / "cost_of_replay.png", title, image, peak, held)
    print(f"\nalso in {output}: cost_of_replay.csv, cost_of_replay.png")


def main(settings: RunSettings, cost: CostSettings) -> None:
    """Measure everything."""
    from crumb_avalanche.baselines.memory_settings import RemindSettings
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.process import set_up_process
    from crumb_avalanche.runs.stream import open_stream
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
    """Settings of `crumb run`, without those that have no meaning here, and of this measurement."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_class_arguments(CostSettings)
    parser.add_argument("--quick", action="store_true", help="rendered shapes and a tiny network, to see it work")
    nothing = {"strategy", "method", "family", "runs", "output", "overwrite", "checkpoint", "compile"}
    add_run_arguments(parser, nothing)
    parser.set_defaults(threads=1)
    return parser


if __name__ == "__main__":
    chosen = command_line().parse_args(run_arguments(sys.argv[1:])).as_dict()
    quick = chosen.pop("quick")
    own = CostSettings(**{item.name: chosen.pop(item.name) for item in fields(CostSettings)})
    run_settings = RunSettings(**chosen)
    if quick:
        run_settings = replace(run_settings, **QUICK)
        own = replace(own, stream_images=own.stream_images or 24, table_images=80, measured_images=8)
    main(run_settings, own)
