"""Avalanche's own streams of images as tables, and its generators by name.

Scenarios of CapyMOA become benchmarks of Avalanche.

The name of a benchmark is `avalanche:GENERATOR`, or with arguments
`avalanche:CORe50:scenario=nc,mini=true`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import Benchmark
from benchmarks_toybox_ilab.streams.orders import TABLE
from benchmarks_toybox_ilab.tables.frame import SPLITS, Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PREFIX = "avalanche:"


@dataclass(frozen=True)
class HostImages:
    """Read the items of an Avalanche stream.

    A path names one as `train/EXPERIENCE/ITEM`.

    Attributes:
        name: The stream, for the repr, which keys caches.
        datasets: The data set of each `train/EXPERIENCE` and `test/EXPERIENCE`, without
            its own transforms.
    """

    name: str
    datasets: Mapping[str, Any] = field(repr=False)

    def __call__(self, path: str) -> Image.Image:
        """Return the image.

        As it is, or made of a tensor `(C, H, W)` of uint8 or of floats from 0 to 1.

        Raises:
            ValueError: If a tensor is outside that range, as normalised ones are.
        """
        experience, _, position = path.rpartition("/")  # "train/3" and "17"
        image = self.datasets[experience][int(position)][0]
        if isinstance(image, Image.Image):
            return image
        from torchvision.transforms.functional import to_pil_image

        lowest = float(image.min())
        highest = float(image.max())
        if image.is_floating_point() and not 0 <= lowest <= highest <= 1:
            raise ValueError(
                f"its values are not within 0 and 1; make the stream {self.name} "
                "without Normalize"
            )
        return to_pil_image(image)


def frames_of(benchmark: Any, name: str = "avalanche") -> FrameTable:
    """Make the table of the images of an Avalanche benchmark.

    `make_benchmark` gives the same experiences back. A session is an experience, the
    class is the label, and rows have the order of the stream. For the way back give
    `make_benchmark(table, "table", classes_per_experience=None)`. Labels are then those
    of the stream if these are 0 to n - 1. Transforms of the stream's own data sets are
    left out where Avalanche can do so.

    Args:
        benchmark: Has `train_stream` and `test_stream`, whose experiences have a data
            set with `targets`.
        name: Name of the table; caches of features take it for the content.

    Raises:
        FrameTableError: If a class has no training images.
    """
    datasets = {}
    frames = []
    for split in SPLITS:
        for number, experience in enumerate(getattr(benchmark, f"{split}_stream")):
            dataset = experience.dataset
            # Neither images nor labels are transformed.
            untransformed = dataset.replace_current_transform_group((None, None))
            datasets[f"{split}/{number}"] = untransformed
            for position, label in enumerate(dataset.targets):
                frames.append(
                    Frame(
                        path=f"{split}/{number}/{position}",
                        class_name=str(int(label)),
                        object_name="",  # Avalanche's streams know no objects
                        session=str(number),
                        frame=position,
                        split=split,
                    )
                )
    return FrameTable(frames, reader=HostImages(name, datasets), name=name)


def from_capymoa(scenario: Any) -> Any:
    """Make the Avalanche benchmark of a scenario of CapyMOA.

    An experience is a task, in the scenario's order. Items stay as they are, such as
    the features `(768,)` of `SplitCIFAR100ViT()`; a scenario of images gives a table by
    `frames_of`. Each item is read once, for its label.

    Args:
        scenario: Has `train_tasks` and `test_tasks`, lists of data sets of items and
            labels.
    """
    from avalanche.benchmarks import dataset_benchmark
    from torch.utils.data import Subset

    def with_targets(task: Any) -> Any:
        """Return the data set of a task with its labels as `targets`, for Avalanche."""
        # All items, in an object that takes the attribute; the task stays as it is.
        dataset: Any = Subset(task, range(len(task)))
        dataset.targets = [int(label) for _, label in task]
        return dataset

    return dataset_benchmark(
        train_datasets=list(map(with_targets, scenario.train_tasks)),
        test_datasets=list(map(with_targets, scenario.test_tasks)),
    )


def host_benchmark(name: str) -> Benchmark:
    """Return the benchmark of a name such as `avalanche:CLEAR:data_name=clear10`.

    Its generator runs when its table is made. Experiences are those of the stream. The
    folder of the data, the run (as `run` or `seed`) and no transforms are given to the
    generator, as far as it takes them; others as arguments in the name, in YAML.

    Raises:
        ValueError: If arguments are not KEY=VALUE, comma-separated; when the table is
            made, also if Avalanche has no such generator, or it does not take the
            arguments.
    """
    generator, _, text = name.removeprefix(PREFIX).partition(":")
    arguments = []  # of the generator: names and values
    for assignment in filter(None, text.split(",")):
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            raise _bad_name_error(name)
        arguments.append((key, value))
    if not generator:
        raise _bad_name_error(name)
    layout = Layout(
        name, f"Avalanche's {generator}", tree="", source="avalanche.benchmarks.classic"
    )
    return Benchmark(
        layout,
        # A tuple, because the tables of this function are cached by its arguments.
        partial(_frames_of_generator, name, generator, tuple(arguments)),
        classes_per_experience=None,  # those of the stream
        batch_size=21,
        budget_images=15,
        protocol=TABLE,  # experiences and order as in the table
    )


def _bad_name_error(name: str) -> ValueError:
    """Return the error for a benchmark's name that is not of Avalanche's generators."""
    return ValueError(
        f"benchmark {name!r} is not {PREFIX}GENERATOR or "
        f"{PREFIX}GENERATOR:KEY=VALUE,KEY=VALUE."
    )


@cache
def _frames_of_generator(
    name: str,
    generator: str,
    arguments: tuple[tuple[str, str], ...],
    root: str | Path | None = None,
    run: int = 0,
) -> FrameTable:
    """Return the table of the data set that a generator of Avalanche streams.

    Args:
        name: Name of the benchmark, for errors.
        generator: Name of the generator in Avalanche.
        arguments: Its arguments: names, and values in YAML.
        root: Folder of the data.
        run: Number of the class order.

    Raises:
        ValueError: If Avalanche cannot make the stream.
    """
    import yaml

    make_stream = _generator_of_avalanche(generator)
    parameters = inspect.signature(make_stream).parameters
    defaults: dict[str, object] = {
        "train_transform": None,
        "eval_transform": None,
        "dataset_root": root,
        "run": run,
    }
    if "run" not in parameters:  # most generators of Avalanche call it seed
        defaults["seed"] = defaults.pop("run")
    keywords = {key: value for key, value in defaults.items() if key in parameters}
    names_in_benchmark = [key for key, _ in arguments]
    _check_generator_arguments(name, parameters, {*keywords, *names_in_benchmark})
    try:
        for key, value in arguments:
            keywords[key] = yaml.safe_load(value)
        stream = make_stream(**keywords)
    except (AssertionError, LookupError, TypeError, yaml.YAMLError) as error:
        # In one line.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"Avalanche cannot make {name} ({reason}); give other arguments in the "
            "name."
        ) from error
    # Caches of features take the name of the table for its content, which folder and
    # run change.
    return frames_of(stream, name=f"{name} {root or ''} {run}".strip())


def _generator_of_avalanche(name: str) -> Callable[..., Any]:
    """Return the generator of Avalanche that has this name, such as `CORe50`."""
    from avalanche.benchmarks import classic

    generators = {}
    for key, function in vars(classic).items():
        if key[0].isupper() and inspect.isfunction(function):
            generators[key] = function
    if name not in generators:
        raise ValueError(
            f"Avalanche has no generator {name!r}; it has "
            f"{', '.join(sorted(generators))}."
        )
    return generators[name]


def _check_generator_arguments(
    name: str, parameters: Mapping[str, inspect.Parameter], arguments: set[str]
) -> None:
    """Raise ValueError if a generator of Avalanche lacks or does not take an argument.

    Args:
        name: Name of the benchmark.
        parameters: What the generator takes, by name.
        arguments: Names of the arguments that it would get.
    """
    wrong = sorted(arguments - parameters.keys())
    if not wrong:
        for key, parameter in parameters.items():
            is_needed = parameter.default is parameter.empty
            if is_needed and key not in arguments:
                wrong.append(key)
    if wrong:
        raise ValueError(
            f"{name} takes {', '.join(parameters)}; {', '.join(wrong)} is unknown, or "
            "is missing."
        )
