"""What a run of CRUMB costs beside REMIND: seconds of an image, and bytes.

Bytes are those held, and the peak while tables are computed.
"""

import json
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.bench import in_new_process, reset_peak, resident

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import format_table

CRUMB = "crumb"
SINGLE = "remind, one image at a time"
BATCHES = "remind, mini-batches"
ALL_MAPS = "remind, tables from all maps"
SAMPLE = "remind, tables from a sample"
# Strategy and settings of the method of each learner.
LEARNERS = {
    CRUMB: ("crumb", {}),
    SINGLE: ("remind", {"samples_at_a_time": True}),
    BATCHES: ("remind", {}),
}
COSTS = "cost_of_replay.csv"
# Program of the process that computes a table.
CHILD = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    "from support.replay_cost import print_cost; print_cost(sys.argv[1])"
)
MAPS_AT_A_TIME = 16
WARM_UP_SHAPE = (20, 4, 4)  # number, height and width of the small maps
Values = Mapping[str, float]


@dataclass(frozen=True)
class Part:
    """The part of a run that is measured; 0 takes all.

    Attributes:
        experiences: number of experiences.
        stream_images: images of each experience. REMIND draws 100 memories for an
            image, so give at least 100.
        table_images: images of the first experience that REMIND's tables are fitted to.
        measured_images: images that the codebook is computed from; `crumb run` takes 64.
    """

    experiences: int = 0
    stream_images: int = 0
    table_images: int = 0
    measured_images: int = 64

    def __post_init__(self):
        if min(self.experiences, self.stream_images, self.table_images) < 0:
            raise ValueError(
                "experiences, stream_images and table_images are 0 or more"
            )
        if self.experiences == 1:
            raise ValueError(
                "experiences=1 has no replay, which begins with the second; give 2 or "
                "more, or 0 for all"
            )


@dataclass(frozen=True)
class TableTask:
    """Compute a codebook or REMIND's tables from maps in a file.

    Attributes:
        kind: CRUMB, ALL_MAPS or SAMPLE.
        file: float32 maps ``(N, H, W, C)``.
        shape: ``(N, H, W, C)``.
        seed: of the run.
        threads: CPU threads.
        measured_images: images that the codebook is computed from.
        codebook_size: number of memory blocks.
        codebook_dim: values of a block.
        codebook_init: how the codebook is initialised.
        fit_vectors: locations that REMIND's tables are fitted to.
        sub_quantizers: number of REMIND's tables.
        bits: bits of a code of a table.
    """

    kind: str
    file: str
    shape: tuple[int, ...]
    seed: int
    threads: int
    measured_images: int
    codebook_size: int
    codebook_dim: int
    codebook_init: str
    fit_vectors: int
    sub_quantizers: int
    bits: int

    def read(self, first: int, images: int) -> np.ndarray:
        """Read maps ``(images, H, W, C)``, beginning with the map `first`."""
        values = int(np.prod(self.shape[1:]))
        flat = np.fromfile(
            self.file, np.float32, images * values, offset=4 * values * first
        )
        return flat.reshape(-1, *self.shape[1:])

    def maps(self, starts: Sequence[int], images: int) -> Iterator[torch.Tensor]:
        """Yield maps ``(images, C, H, W)`` from each start on."""
        for start in starts:
            count = min(images, self.shape[0] - start)
            yield torch.from_numpy(self.read(start, count)).permute(0, 3, 1, 2)

    def run(self) -> None:
        """Compute the table, and forget it."""
        if self.kind == CRUMB:
            self._compute_codebook()
        elif self.kind == ALL_MAPS:
            self._fit_all_maps()
        else:
            self._fit_sample()

    def _compute_codebook(self) -> None:
        """Initialise a codebook of CRUMB from maps spread over the experience.

        The codebook is dropped, as only the cost is measured.
        """
        from crumb_avalanche.models.calibration import CHUNK, sampled_locations
        from crumb_avalanche.models.codebook import Codebook
        from crumb_avalanche.models.initialisers import INITIALISERS

        last = self.shape[0] - 1
        rows = np.unique(np.linspace(0, last, self.measured_images).astype(int))
        samples = []  # (b, C, L) of each chunk
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK].tolist()
            maps = torch.cat(list(self.maps(chunk, 1)))
            samples.append(sampled_locations(maps))
        locations = torch.cat(samples).unsqueeze(2)  # (N, C, 1, L)
        codebook = Codebook(self.codebook_size, self.codebook_dim)
        generator = torch.Generator().manual_seed(self.seed)
        INITIALISERS[self.codebook_init](codebook, locations, generator)

    def _fit_all_maps(self) -> None:
        """Fit REMIND's tables to all maps at once, as its authors do."""
        import faiss

        channels = self.shape[-1]
        faiss.omp_set_num_threads(self.threads)
        tables = faiss.ProductQuantizer(channels, self.sub_quantizers, self.bits)
        tables.cp.min_points_per_centroid = 1  # only warns
        tables.train(self.read(0, self.shape[0]).reshape(-1, channels))

    def _fit_sample(self) -> None:
        """Fit REMIND's tables to a sample of locations, as this library does."""
        from crumb_avalanche.memory.product_quantizer import ProductQuantizer
        from crumb_avalanche.methods.remind import draw_locations

        count = self.shape[0]
        maps = self.maps(range(0, count, MAPS_AT_A_TIME), MAPS_AT_A_TIME)
        generator = np.random.default_rng(self.seed)
        vectors = draw_locations(maps, count, self.fit_vectors, generator)
        tables = ProductQuantizer(self.shape[-1], self.sub_quantizers, 2**self.bits)
        tables.fit(vectors, self.seed)


def print_cost(text: str) -> None:
    """Do a task in this process, and print its cost as JSON.

    The cost is ``seconds``, and ``bytes``: peak resident memory minus resident memory
    before. The task is done on small maps first, since the first call of a library
    allocates more.

    Args:
        text: arguments of the `TableTask`, as JSON.
    """
    task = TableTask(**json.loads(text))
    torch.set_num_threads(task.threads)
    with tempfile.NamedTemporaryFile() as file:
        shape = (*WARM_UP_SHAPE, task.shape[-1])
        np.random.default_rng(0).random(shape, np.float32).tofile(file.name)
        replace(task, file=file.name, shape=shape).run()
    reset_peak()  # of the resident memory, VmHWM
    before = resident("VmRSS")
    start = time.perf_counter()
    task.run()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": resident("VmHWM") - before}))


def sessions_of(settings: RunSettings, stream: Any) -> dict[str, Any]:
    """Build the sessions of all learners, with one feature cache."""
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import PreparedRun, Session
    from crumb_avalanche.system.process import set_up_process

    sessions: dict[str, Any] = {}
    cache = None
    for name, (strategy, method) in LEARNERS.items():
        plan = RunPlan.of(replace(settings, strategy=strategy, method=method))
        set_up_process(plan.threads, plan.run)
        with warnings.catch_warnings():
            # Nothing is evaluated.
            warnings.filterwarnings("ignore", "No loggers specified")
            evaluator = EvaluationPlugin(loggers=[])
            prepared = PreparedRun.of(plan, stream)
            session = Session.of(prepared, cache=cache, evaluator=evaluator)
        sessions[name] = session
        cache = session.cache
    return sessions


def read_through(dataset: Any, cache: Any) -> Any:
    """Return a data set of images, or with a cache of their maps."""
    if cache is None:
        return dataset
    rows = np.asarray(list(dataset.frame_row))
    labels = list(map(int, dataset.targets))
    return cache.store.dataset(dataset, rows, labels)


@dataclass(frozen=True)
class TimedTraining:
    """Learners that were trained in turns.

    Attributes:
        seconds: of each experience, by learner.
        memories: REMIND's memories when replay began.
    """

    seconds: dict[str, list[float]]
    memories: int


def train_in_turns(
    learners: Mapping[str, Any], experiences: Sequence[Any], cache: Any, workers: int
) -> TimedTraining:
    """Train all learners in turns, experience by experience, and time them.

    Args:
        learners: strategies by name.
        experiences: of the stream.
        cache: of the maps of its images; None without one.
        workers: processes that load images.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    memories = 0
    for number, experience in enumerate(experiences, start=1):
        # The first learner would pay for a cold disk.
        for _ in read_through(experience.dataset, cache):
            pass
        for name, strategy in learners.items():
            start = time.perf_counter()
            strategy.train(experience, eval_streams=[], num_workers=workers)
            elapsed = time.perf_counter() - start
            seconds[name].append(elapsed)
            position = f"experience {number}/{len(experiences)}"
            print(f"{position}, {name}: {elapsed:.1f} s", flush=True)
        memories = memories or len(learners[SINGLE].storage_policy)
    return TimedTraining(seconds, memories)


def write_maps(path: Path, model: Any, dataset: Any) -> tuple[int, ...]:
    """Write the maps of a data set as float32 ``(N, H, W, C)``; return that shape."""
    count = len(dataset)
    with open(path, "wb") as file:
        for start in range(0, count, MAPS_AT_A_TIME):
            indices = range(start, min(start + MAPS_AT_A_TIME, count))
            images = torch.stack([dataset[index][0] for index in indices])
            maps_bchw = model.features(images.to(model.pixel_mean.device))
            maps_bhwc = maps_bchw.permute(0, 2, 3, 1).contiguous()
            maps_bhwc.cpu().numpy().tofile(file)
    channels, height, width = model.map_shape
    return count, height, width, channels


@dataclass(frozen=True)
class Ratio:
    """A quantity of a learner by that of another.

    Attributes:
        quantity: what is compared.
        learner: whose quantity.
        other: by whose quantity.
        value: the ratio.
    """

    quantity: str
    learner: str
    other: str
    value: float


def ratios(image: Values, whole: Values, memory: Values) -> list[Ratio]:
    """Compare learners.

    Args:
        image: seconds of an image by learner.
        whole: seconds of the whole run by learner.
        memory: bytes by way of making tables.
    """
    in_time = [(CRUMB, SINGLE), (CRUMB, BATCHES), (BATCHES, SINGLE)]
    in_bytes = [(CRUMB, ALL_MAPS), (CRUMB, SAMPLE), (SAMPLE, ALL_MAPS)]
    return [
        *_ratios("time of an image", image, in_time),
        *_ratios("time of the whole run", whole, in_time),
        *_ratios("memory", memory, in_bytes),
    ]


def _ratios(
    quantity: str, values: Values, pairs: Sequence[tuple[str, str]]
) -> list[Ratio]:
    """Compare the values of pairs."""
    compared = []
    for learner, other in pairs:
        ratio = values[learner] / values[other]
        compared.append(Ratio(quantity, learner, other, ratio))
    return compared


@dataclass(frozen=True)
class Costs:
    """What was measured of a run.

    Attributes:
        seconds_per_image: after the first experience, by learner.
        seconds_whole_run: without evaluation, by learner.
        peak_bytes: while tables are computed, by way of making them.
        held_bytes: codes, labels and tables, by way of making them.
    """

    seconds_per_image: dict[str, float]
    seconds_whole_run: dict[str, float]
    peak_bytes: dict[str, float]
    held_bytes: dict[str, float]

    @property
    def ratios(self) -> list[Ratio]:
        """CRUMB's costs by those of REMIND."""
        memory = {}
        for kind, held_bytes in self.held_bytes.items():
            memory[kind] = self.peak_bytes[kind] + held_bytes
        return ratios(self.seconds_per_image, self.seconds_whole_run, memory)

    @property
    def csv_rows(self) -> list[list[object]]:
        """Header, and a row for each quantity of each learner."""
        rows: list[list[object]] = [["quantity", "method", "by", "value"]]
        for quantity, values in asdict(self).items():
            for method, value in values.items():
                rows.append([quantity, method, "", value])
        for ratio in self.ratios:
            quantity = f"ratio, {ratio.quantity}"
            rows.append([quantity, ratio.learner, ratio.other, ratio.value])
        return rows


def first_images(dataset: Any, count: int) -> Any:
    """The first images of a data set; all of them if `count` is 0."""
    return dataset.subset(range(min(count or len(dataset), len(dataset))))


def measure(settings: RunSettings, part: Part) -> None:
    """Measure seconds and bytes of a run of CRUMB and of REMIND.

    Prints the ratios, and writes seconds, bytes and ratios to `cost_of_replay.csv` in
    the folder of the run.

    Args:
        settings: of the run.
        part: of the run that is measured.
    """
    from crumb_avalanche.methods.registry import get_strategy
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process

    plan = RunPlan.of(settings)
    output = Path(settings.output)
    output.mkdir(parents=True, exist_ok=True)
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan, joint=False)
    experiences = list(stream.benchmark.train_stream)[: part.experiences or None]
    table_images = first_images(experiences[0].dataset, part.table_images)
    if part.stream_images:
        for experience in experiences:
            experience.dataset = first_images(experience.dataset, part.stream_images)
    sessions = sessions_of(settings, stream)
    cache = sessions[CRUMB].cache
    learners = {name: session.strategy for name, session in sessions.items()}
    training = train_in_turns(learners, experiences, cache, plan.workers)
    replays = get_strategy("remind").settings().replays
    if training.memories < 2 * replays:
        print(
            f"note: REMIND began with {training.memories} memories, too few for "
            f"{replays} mixtures: it costs more"
        )
    images = sum(len(experience.dataset) for experience in experiences[1:])
    seconds_per_image = {}
    seconds_whole_run = {}
    for name, seconds in training.seconds.items():
        seconds_per_image[name] = sum(seconds[1:]) / images
        seconds_whole_run[name] = sessions[name].calibration_seconds + sum(seconds)
    costs = Costs(
        seconds_per_image=seconds_per_image,
        seconds_whole_run=seconds_whole_run,
        peak_bytes=peak_bytes_of_tables(
            plan, part, learners, read_through(table_images, cache), output
        ),
        held_bytes=held_bytes_of(learners),
    )
    source = "images" if cache is None else "a cache"
    frames = f"{len(experiences[0].dataset)} + {images} frames, F from {source}"
    print(f"\n{plan.benchmark}, {plan.protocol}, run {plan.run}: {frames}")
    lines = []
    for ratio in costs.ratios:
        percent = f"{100 * ratio.value:.1f}"
        lines.append([ratio.quantity, ratio.learner, ratio.other, percent])
    print(format_table(["quantity", "of", "by", "%"], lines))
    write_csv(output / COSTS, costs.csv_rows)


def held_bytes_of(learners: Mapping[str, Any]) -> dict[str, float]:
    """Bytes of codes, labels and tables, by way of making the tables."""
    from crumb_avalanche.training.ledger import LedgerMetric

    bytes_of_crumb = LedgerMetric().count(learners[CRUMB])["memory_bytes"]
    bytes_of_remind = LedgerMetric().count(learners[BATCHES])["memory_bytes"]
    return {
        CRUMB: bytes_of_crumb,
        ALL_MAPS: bytes_of_remind,
        SAMPLE: bytes_of_remind,
    }


def peak_bytes_of_tables(
    plan: Any, part: Part, learners: Mapping[str, Any], dataset: Any, output: Path
) -> dict[str, float]:
    """Peak bytes while tables are computed, each in a new process.

    Args:
        plan: of the run.
        part: that is measured.
        learners: trained strategies.
        dataset: images or maps that the tables are computed from.
        output: folder for the file of maps, which is removed.
    """
    from crumb_avalanche.methods.registry import get_strategy

    quantizer = learners[BATCHES].storage_policy.quantizer
    threads = torch.get_num_threads()
    # A new process has no earlier peak, and gives larger freed blocks back to the
    # system at once.
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    peaks = {}
    with tempfile.TemporaryDirectory(dir=output) as folder:
        file = Path(folder) / "maps"
        task = TableTask(
            kind=CRUMB,
            file=str(file),
            shape=write_maps(file, learners[CRUMB].model, dataset),
            seed=plan.run,
            threads=threads,
            measured_images=part.measured_images,
            codebook_size=plan.codebook_size,
            codebook_dim=plan.codebook_dim,
            codebook_init=plan.codebook_init,
            fit_vectors=get_strategy("remind").settings().fit_vectors,
            sub_quantizers=quantizer.sub_quantizers,
            bits=quantizer.bits,
        )
        for kind in (CRUMB, ALL_MAPS, SAMPLE):
            text = json.dumps(asdict(replace(task, kind=kind)))
            peaks[kind] = in_new_process("-c", CHILD, text, **variables)["bytes"]
    return peaks
