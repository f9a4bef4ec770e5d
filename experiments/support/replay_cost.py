"""What a run of CRUMB costs beside REMIND: seconds of an image, bytes held, and the peak while tables are computed."""

import json
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from support.bench import in_new_process, reset_peak, resident

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import table

CRUMB, SINGLE, BATCHES = "crumb", "remind, one image at a time", "remind, mini-batches"
ALL_MAPS, SAMPLE = "remind, tables from all maps", "remind, tables from a sample"
LEARNERS = {
    CRUMB: ("crumb", {}),
    SINGLE: ("remind", {"samples_at_a_time": True}),
    BATCHES: ("remind", {}),
}
COSTS = "cost_of_replay.csv"
CHILD = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from support.replay_cost import child; "
Values = Mapping[str, float]


@dataclass(frozen=True)
class Part:
    """The part of a run that is measured; 0 takes all."""

    experiences: int = 0
    # of each experience; REMIND draws 100 memories for an image, so give at least 100
    stream_images: int = 0
    table_images: int = (
        0  # of the first experience, which REMIND's tables are fitted to
    )
    measured_images: int = (
        64  # that the codebook is computed from; `crumb run` takes 64
    )

    def __post_init__(self):
        if min(self.experiences, self.stream_images, self.table_images) < 0:
            raise ValueError(
                "experiences, stream_images and table_images are 0 or more"
            )
        if self.experiences == 1:
            raise ValueError(
                "experiences=1 has no replay, which begins with the second; give 2 or more, or 0 for all"
            )


def sessions_of(settings: RunSettings, stream) -> dict:
    """The sessions of all learners, with one feature cache."""
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import Session
    from crumb_avalanche.system.process import set_up_process

    sessions, cache = {}, None
    for name, (strategy, method) in LEARNERS.items():
        plan = RunPlan.of(replace(settings, strategy=strategy, method=method))
        set_up_process(plan.threads, plan.run)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "No loggers specified"
            )  # nothing is evaluated
            sessions[name] = Session.build(
                plan, stream, cache=cache, evaluator=EvaluationPlugin(loggers=[])
            )
        cache = sessions[name].cache
    return sessions


def read_through(dataset, cache):
    """A data set of images, or with a cache of their maps."""
    if cache is None:
        return dataset
    return cache.store.dataset(
        dataset, np.asarray(list(dataset.frame_row)), list(map(int, dataset.targets))
    )


def streamed(
    learners: Mapping, experiences: list, cache, workers: int
) -> tuple[dict[str, list[float]], int]:
    """Train all learners in turns; return seconds of each experience, and REMIND's memories at the start of replay."""
    seconds, held = {name: [] for name in learners}, 0
    for number, experience in enumerate(experiences):
        for _ in read_through(
            experience.dataset, cache
        ):  # the first learner would pay for a cold disk
            pass
        for name, strategy in learners.items():
            start = time.perf_counter()
            strategy.train(experience, eval_streams=[], num_workers=workers)
            seconds[name].append(time.perf_counter() - start)
            print(
                f"experience {number + 1}/{len(experiences)}, {name}: {seconds[name][-1]:.1f} s",
                flush=True,
            )
        held = held or len(learners[SINGLE].storage_policy)
    return seconds, held


def write_maps(path: Path, model, dataset) -> tuple[int, ...]:
    """Write the maps of a data set as float32 `(N, H, W, C)`; returns that shape."""
    with open(path, "wb") as file:
        for start in range(0, len(dataset), 16):
            images = torch.stack(
                [
                    dataset[place][0]
                    for place in range(start, min(start + 16, len(dataset)))
                ]
            )
            images = images.to(model.pixel_mean.device)
            model.features(images).permute(
                0, 2, 3, 1
            ).contiguous().cpu().numpy().tofile(file)
    channels, height, width = model.map_shape
    return len(dataset), height, width, channels


def make_table(task: dict, shape: tuple[int, ...]) -> None:
    """Compute the codebook, or fit the tables, from maps of a shape `(N, H, W, C)` in the file of a task."""
    count, *_, channels = shape
    each = int(np.prod(shape[1:]))

    def read(first: int, images: int) -> np.ndarray:
        return np.fromfile(
            task["file"], np.float32, images * each, offset=4 * each * first
        ).reshape(-1, *shape[1:])

    if task["kind"] == CRUMB:
        from crumb_avalanche.models.calibration import CHUNK, sample_of
        from crumb_avalanche.models.codebook import INITIALISERS, Codebook

        places = np.unique(
            np.linspace(0, count - 1, task["measured_images"]).astype(int)
        )
        some = (
            np.concatenate([read(place, 1) for place in places[i : i + CHUNK]])
            for i in range(0, len(places), CHUNK)
        )
        sample = sample_of(torch.from_numpy(maps).permute(0, 3, 1, 2) for maps in some)
        codebook = Codebook(task["codebook_size"], task["codebook_dim"])
        INITIALISERS[task["codebook_init"]](
            codebook, sample, torch.Generator().manual_seed(task["seed"])
        )
    elif task["kind"] == ALL_MAPS:
        import faiss

        faiss.omp_set_num_threads(task["threads"])
        tables = faiss.ProductQuantizer(channels, task["sub_quantizers"], task["bits"])
        tables.cp.min_points_per_centroid = 1  # only warns
        tables.train(read(0, count).reshape(-1, channels))
    else:
        from crumb_avalanche.memory.product_quantizer import ProductQuantizer
        from crumb_avalanche.methods.remind import some_locations

        starts = range(0, count, 16)
        maps = (
            torch.from_numpy(read(start, min(16, count - start))).permute(0, 3, 1, 2)
            for start in starts
        )
        vectors = some_locations(
            maps, count, task["fit_vectors"], np.random.default_rng(task["seed"])
        )
        tables = ProductQuantizer(channels, task["sub_quantizers"], 2 ** task["bits"])
        tables.fit(vectors, task["seed"])


def child(text: str) -> None:
    """Print seconds, and peak resident memory minus resident memory before, of a task in this process."""
    task = json.loads(text)
    torch.set_num_threads(task["threads"])
    with (
        tempfile.NamedTemporaryFile() as file
    ):  # the first call of a library allocates more
        shape = (20, 4, 4, task["shape"][-1])
        np.random.default_rng(0).random(shape, np.float32).tofile(file.name)
        make_table({**task, "file": file.name}, shape)
    reset_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    make_table(task, tuple(task["shape"]))
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - start,
                "bytes": resident("VmHWM") - before,
            }
        )
    )


def ratios(
    image: Values, whole: Values, memory: Values
) -> list[tuple[str, str, str, float]]:
    """Quantity, method, by which other method, and the ratio."""
    pairs = [(CRUMB, SINGLE), (CRUMB, BATCHES), (BATCHES, SINGLE)]
    lines = [
        ("time of an image", one, other, image[one] / image[other])
        for one, other in pairs
    ]
    lines += [
        ("time of the whole run", one, other, whole[one] / whole[other])
        for one, other in pairs
    ]
    pairs = [(CRUMB, ALL_MAPS), (CRUMB, SAMPLE), (SAMPLE, ALL_MAPS)]
    return lines + [
        ("memory", one, other, memory[one] / memory[other]) for one, other in pairs
    ]


def measure(settings: RunSettings, part: Part) -> None:
    """Measure a run; print the ratios, and write seconds, bytes and ratios to `cost_of_replay.csv` in its folder."""
    from crumb_avalanche.methods.registry import get_strategy
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import open_stream
    from crumb_avalanche.system.process import set_up_process
    from crumb_avalanche.training.ledger import LedgerMetric

    plan, output, usual = (
        RunPlan.of(settings),
        Path(settings.output),
        get_strategy("remind").settings(),
    )
    output.mkdir(parents=True, exist_ok=True)
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan, joint=False)
    experiences = list(stream.benchmark.train_stream)[: part.experiences or None]
    first = experiences[0].dataset
    first = first.subset(range(min(part.table_images or len(first), len(first))))
    for experience in experiences if part.stream_images else ():
        experience.dataset = experience.dataset.subset(
            range(min(part.stream_images, len(experience.dataset)))
        )
    images = sum(len(experience.dataset) for experience in experiences[1:])
    sessions = sessions_of(settings, stream)
    cache, learners = (
        sessions[CRUMB].cache,
        {name: session.strategy for name, session in sessions.items()},
    )
    prepared = {name: session.calibration_seconds for name, session in sessions.items()}
    seconds, drawable = streamed(learners, experiences, cache, plan.workers)
    if drawable < 2 * usual.replays:
        print(
            f"note: REMIND began with {drawable} memories, too few for {usual.replays} mixtures: it costs more"
        )

    counted = {
        name: LedgerMetric().count(strategy)["memory_bytes"]
        for name, strategy in learners.items()
    }
    held = {CRUMB: counted[CRUMB], ALL_MAPS: counted[BATCHES], SAMPLE: counted[BATCHES]}
    quantizer = learners[BATCHES].storage_policy.quantizer
    task = {
        name: getattr(plan, name)
        for name in ("codebook_size", "codebook_dim", "codebook_init")
    }
    task |= dict(
        seed=plan.run,
        measured_images=part.measured_images,
        fit_vectors=usual.fit_vectors,
    )
    task |= dict(
        sub_quantizers=quantizer.sub_quantizers,
        bits=quantizer.bits,
        threads=torch.get_num_threads(),
    )
    with tempfile.TemporaryDirectory(dir=output) as folder:
        task["file"] = str(Path(folder) / "maps")
        task["shape"] = write_maps(
            Path(task["file"]), learners[CRUMB].model, read_through(first, cache)
        )
        # A new process has no earlier peak, and gives larger freed blocks back to the
        # system at once.
        variables = {
            "OMP_NUM_THREADS": str(task["threads"]),
            "MALLOC_MMAP_THRESHOLD_": "65536",
        }
        code = CHILD + "child(sys.argv[1])"
        made = {
            kind: in_new_process(
                "-c", code, json.dumps({**task, "kind": kind}), **variables
            )
            for kind in held
        }
    image = {name: sum(values[1:]) / images for name, values in seconds.items()}
    whole = {name: prepared[name] + sum(values) for name, values in seconds.items()}
    peak = {kind: figures["bytes"] for kind, figures in made.items()}
    lines = ratios(image, whole, {kind: peak[kind] + held[kind] for kind in held})
    frames = f"{len(experiences[0].dataset)} + {images} frames, F from {'images' if cache is None else 'a cache'}"
    print(f"\n{plan.benchmark}, {plan.protocol}, run {plan.run}: {frames}")
    print(
        table(
            ["quantity", "of", "by", "%"],
            [[*names, f"{100 * ratio:.1f}"] for *names, ratio in lines],
        )
    )
    columns = {
        "seconds_per_image": image,
        "seconds_whole_run": whole,
        "peak_bytes": peak,
        "held_bytes": held,
    }
    rows = [
        [name, method, "", value]
        for name, column in columns.items()
        for method, value in column.items()
    ]
    rows += [[f"ratio, {what}", one, other, ratio] for what, one, other, ratio in lines]
    write_csv(output / COSTS, [["quantity", "method", "by", "value"], *rows])
