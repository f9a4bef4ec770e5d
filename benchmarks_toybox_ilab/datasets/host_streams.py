"""Avalanche's own streams of images as tables, its generators by name, and scenarios of CapyMOA for Avalanche.

The name of a benchmark is `avalanche:GENERATOR`, or with arguments
`avalanche:CORe50:scenario=nc,mini=true`.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import Benchmark
from benchmarks_toybox_ilab.streams.orders import TABLE
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PREFIX = "avalanche:"


@dataclass(frozen=True)
class HostImages:
    """Read the items of an Avalanche stream, which a path names as `train/EXPERIENCE/ITEM`.

    Attributes:
        name: The stream, for the repr, which keys caches.
        datasets: The data set of each `train/EXPERIENCE` and `test/EXPERIENCE`, without
            its own transforms.
    """

    name: str
    datasets: Mapping[str, Any] = field(repr=False)

    def __call__(self, path: str) -> Image.Image:
        """Return the image: as it is, or made of a tensor `(C, H, W)` of uint8 or of floats from 0 to 1.

        Raises:
            ValueError: If a tensor is outside that range, as normalised ones are.
        """
        experience, _, item = path.rpartition("/")
        image = self.datasets[experience][int(item)][0]
        if isinstance(image, Image.Image):
            return image
        from torchvision.transforms.functional import to_pil_image

        if (
            image.is_floating_point()
            and not 0 <= float(image.min()) <= float(image.max()) <= 1
        ):
            raise ValueError(
                f"its values are not within 0 and 1; make the stream {self.name} without Normalize"
            )
        return to_pil_image(image)


def frames_of(benchmark: Any, name: str = "avalanche") -> FrameTable:
    """The table of the images of an Avalanche benchmark; `make_benchmark` gives the same experiences back.

    A session is an experience, the class is the label, and rows have the order of the
    stream. For the way back give `make_benchmark(table, "table",
    classes_per_experience=None)`. Labels are then those of the stream if these are 0 to
    n - 1. Transforms of the stream's own data sets are left out where Avalanche can do
    so.

    Args:
        benchmark: Has `train_stream` and `test_stream`, whose experiences have a data
            set with `targets`.
        name: Name of the table; caches of features take it for the content.

    Raises:
        FrameTableError: If a class has no training images.
    """
    datasets, frames = {}, []
    for split in ("train", "test"):
        for number, experience in enumerate(getattr(benchmark, f"{split}_stream")):
            data = experience.dataset
            datasets[f"{split}/{number}"] = data.replace_current_transform_group(
                (None, None)
            )
            for item, label in enumerate(data.targets):
                frames.append(
                    Frame(
                        f"{split}/{number}/{item}",
                        str(int(label)),
                        "",
                        str(number),
                        item,
                        split,
                    )
                )
    return FrameTable(frames, reader=HostImages(name, datasets), name=name)


def from_capymoa(scenario: Any) -> Any:
    """The Avalanche benchmark of a scenario of CapyMOA; an experience is a task, in the scenario's order.

    Items stay as they are, such as the features `(768,)` of `SplitCIFAR100ViT()`; a
    scenario of images gives a table by `frames_of`. Each item is read once, for its
    label.

    Args:
        scenario: Has `train_tasks` and `test_tasks`, lists of data sets of items and
            labels.
    """
    from avalanche.benchmarks import dataset_benchmark
    from torch.utils.data import Subset

    def labelled(task):
        items = Subset(task, range(len(task)))
        items.targets = [int(label) for _, label in task]
        return items

    return dataset_benchmark(
        *(
            list(map(labelled, tasks))
            for tasks in (scenario.train_tasks, scenario.test_tasks)
        )
    )


def host_benchmark(name: str) -> Benchmark:
    """The benchmark of a name such as `avalanche:CLEAR:data_name=clear10`; its generator runs when its table is made.

    Experiences are those of the stream. The folder of the data, the run (as `run` or
    `seed`) and no transforms are given to the generator, as far as it takes them;
    others as arguments in the name, in YAML.

    Raises:
        ValueError: If arguments are not KEY=VALUE, comma-separated; when the table is
            made, also if Avalanche has no such generator, or it does not take the
            arguments.
    """
    generator, _, given = name.removeprefix(PREFIX).partition(":")
    pairs = [pair.partition("=") for pair in given.split(",") if pair]
    if not generator or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(
            f"benchmark {name!r} is not {PREFIX}GENERATOR or {PREFIX}GENERATOR:KEY=VALUE,KEY=VALUE."
        )
    layout = Layout(
        name, f"Avalanche's {generator}", tree="", source="avalanche.benchmarks.classic"
    )
    arguments = tuple((key, value) for key, _, value in pairs)
    return Benchmark(
        layout,
        partial(_frames, name, generator, arguments),
        None,
        21,
        15,
        protocol=TABLE,
    )


@cache
def _frames(
    name: str,
    generator: str,
    arguments: tuple[tuple[str, str], ...],
    root: str | Path | None = None,
    run: int = 0,
) -> FrameTable:
    import yaml
    from avalanche.benchmarks import classic

    known = [
        one
        for one, value in vars(classic).items()
        if one[0].isupper() and inspect.isfunction(value)
    ]
    if generator not in known:
        raise ValueError(
            f"Avalanche has no generator {generator!r}; it has {', '.join(sorted(known))}."
        )
    call = getattr(classic, generator)
    taken = inspect.signature(call).parameters
    usual = {"train_transform": None, "eval_transform": None, "dataset_root": root}
    usual["run" if "run" in taken else "seed"] = run
    given = {key: value for key, value in usual.items() if key in taken}
    names = {*given, *dict(arguments)}
    if (unknown := sorted(names - taken.keys())) or (
        unknown := [
            one.name
            for one in taken.values()
            if one.default is one.empty and one.name not in names
        ]
    ):
        raise ValueError(
            f"{name} takes {', '.join(taken)}; {', '.join(unknown)} is unknown, or is missing."
        )
    try:
        stream = call(
            **given | {key: yaml.safe_load(value) for key, value in arguments}
        )
    except (AssertionError, LookupError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"Avalanche cannot make {name} ({reason}); give other arguments in the name."
        ) from error
    return frames_of(stream, f"{name} {root or ''} {run}".strip())
