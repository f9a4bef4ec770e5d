"""The signature, the docstring and the steps that all Avalanche generators share, written once."""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.frame_table import FrameTable

ClassGroups = Callable[[FrameTable, bool], Sequence[Sequence[str]] | None]

_ENTRY = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)


def _shared(
    dataset_root: str | Path,
    protocol: str,
    run: int = 0,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    classes_per_experience: int = 2,
) -> None:
    """Parameters and documentation of every generator.

    Args:
        dataset_root: Folder of the data set.
        protocol: "class_instance", "class_iid" or "offline"; see `protocols.make_benchmark`.
        run: Seed of the order of classes, clips and frames.
        train_transform: PIL image to tensor; None is `imagenet_transform({image_size})`, which gives float32 tensors of
            3 x {image_size} x {image_size}.
        eval_transform: The same for the test stream.
        classes_per_experience: Number of classes in one experience.

    Returns:
        A `protocols.FrameBenchmark` with `train_stream` and `test_stream`.

    Raises:
        FrameTableError: If the table of frames cannot be made (see the function that makes it, such as `ETH80Frames`),
            or a class has no test frames.
        ValueError: If the protocol is unknown, or a number is out of range.
    """


def generator(
    protocol: str = "class_instance",
    classes_per_experience: int = 2,
    image_size: int = 224,
    class_groups: ClassGroups = lambda table, reference: None,
) -> Callable[[Callable[..., FrameTable]], Callable[..., Any]]:
    """Turn a function that makes a table into a generator of Avalanche benchmarks.

    The generator takes the parameters of `_shared`, then those of the function, which gets only its own. `Args` entries
    of the function's docstring follow the shared ones or replace those of the same name.

    Args:
        protocol: Default protocol.
        classes_per_experience: Default number of classes in one experience.
        image_size: Side in pixels of the default transforms, if the generator is called without `size`.
        class_groups: `class_groups(table, reference)` gives the groups that `protocols.plan_stream` takes.
    """

    def decorate(make_table: Callable[..., FrameTable]) -> Callable[..., Any]:
        own = inspect.signature(make_table).parameters
        parameters = {**inspect.signature(_shared).parameters, **own}
        for name, default in (("protocol", protocol), ("classes_per_experience", classes_per_experience)):
            parameters[name] = parameters[name].replace(default=default)
        signature = inspect.Signature(list(parameters.values()))
        extra = next((name for name, parameter in own.items() if parameter.kind is parameter.VAR_KEYWORD), "")

        @wraps(make_table)
        def generate(*args: Any, **kwargs: Any) -> Any:
            from benchmarks_toybox_ilab.streams.protocols import (
                make_benchmark,
            )  # imports Avalanche, which takes seconds
            from benchmarks_toybox_ilab.streams.torch_dataset import imagenet_transform

            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{make_table.__name__}() {error}") from None
            bound.apply_defaults()
            given = bound.arguments
            given |= given.pop(extra, {})
            table = make_table(**{name: given[name] for name in given if name in own or name not in parameters})
            default = imagenet_transform(given.get("size", image_size))
            reference = given.get("reference", False)
            return make_benchmark(
                table,
                given["protocol"],
                given["run"],
                given["classes_per_experience"],
                default if given["train_transform"] is None else given["train_transform"],
                default if given["eval_transform"] is None else given["eval_transform"],
                class_groups(table, reference),
                reference,
            )

        generate.__signature__ = signature
        generate.__doc__ = make_table.__doc__ and _documentation(make_table, image_size)  # python -OO drops docstrings
        return generate

    return decorate


def _documentation(make_table: Callable[..., FrameTable], image_size: int) -> str:
    shared, *others = inspect.getdoc(_shared).format(image_size=image_size).split("\n\n")[1:]
    summary, _, own = inspect.getdoc(make_table).partition("\n\nArgs:\n")
    entries = _entries(shared) | _entries(own)
    arguments = "\n".join(f"    {name}: {text.rstrip()}" for name, text in entries.items())
    return "\n\n".join([summary, f"Args:\n{arguments}", *others])


def _entries(arguments: str) -> dict[str, str]:
    """The text of each entry of an `Args` section, by name."""
    _, *parts = _ENTRY.split(arguments)
    return dict(zip(parts[::2], parts[1::2], strict=True))
