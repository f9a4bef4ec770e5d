"""Benchmarks by name.

The table of a data set, and the Avalanche stream that its generator makes of it.
"""

import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from typing_extensions import Unpack

from benchmarks_toybox_ilab.datasets.layout import Layout, unfinished_download
from benchmarks_toybox_ilab.streams.orders import KEYWORD_DEFAULTS, StreamKeywords
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import whole_number

if TYPE_CHECKING:
    from benchmarks_toybox_ilab.streams.protocols import FrameBenchmark
else:
    FrameBenchmark = "FrameBenchmark"  # importing it takes seconds

# Keywords that leave official lists of experiences nothing to draw or divide.
DRAWN = (
    "n_experiences",
    "classes_per_experience",
    "seed",
    "fixed_class_order",
    "shuffle",
    "first_exp_with_half_classes",
    "per_exp_classes",
    "protocol",
)
# Keywords of Avalanche's generators that these do not have, and why.
NOT_HERE = {
    "feature_type": "images alone are read; the network of the model makes features "
    "of them",
    "meta_root": "the folders of train and val name the classes, so that the "
    "development kit is not read",
}
# Keywords whose default is that of the data set; see `Benchmark.stream`.
SET_BY_DATA_SET = ("protocol", "classes_per_experience")
Generator = TypeVar("Generator", bound=Callable)


def given_keywords(host: StreamKeywords, names: Iterable[str] = DRAWN) -> list[str]:
    """Return the names of those keywords to which a call of a generator gives a value.

    Args:
        host: The keywords of the call.
        names: Keywords to look for.
    """
    return [name for name in names if host.get(name) is not None]


def shows_keywords(generator: Generator) -> Generator:
    """Put the keywords of every stream into the signature of a generator, in place.

    `help`, editors and `inspect.signature` then name them, instead of `**host`. Those
    that a data set sets itself have the default None.

    Returns:
        The same generator, for use as a decorator.
    """
    signature = inspect.signature(generator)
    parameters = dict(signature.parameters)
    parameters.pop("host", None)
    for name, default in KEYWORD_DEFAULTS.items():
        if name in SET_BY_DATA_SET:
            default = None
        parameters[name] = inspect.Parameter(
            name,
            kind=inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=StreamKeywords.__annotations__[name],
        )
    with_keywords = signature.replace(parameters=list(parameters.values()))
    generator.__signature__ = with_keywords  # type: ignore[attr-defined]
    return generator


@dataclass(frozen=True)
class Benchmark:
    """A data set and the settings of its stream.

    Attributes:
        files: Layout of its files.
        frames: `frames(root, **options)` returns the table of a run.
        classes_per_experience: Number of classes in one experience; None makes an
            experience of each session.
        batch_size: Number of new images in one training step.
        budget_images: Number of images that a replay buffer may hold, or as many bytes
            in another form.
        class_groups: `class_groups(table, reference)` returns the groups that
            `protocols.plan_stream` takes.
        protocol: Protocol of its generator by default.
        test_split: The split of the test stream, see `protocols.plan_stream`.
        host_folder: Name of its folder where Avalanche keeps data; by default its own
            name without underscores.
        host_order: `host_order(table, seed)` returns the classes, or their labels, in
            the order that Avalanche draws with a seed; None is as `orders.HostDraws`.
        whole_table: `whole_table(root)` returns the table that `crumb prepare` lists
            and checks; None is that of `frames`, in run 0 if there are several.
    """

    files: Layout
    frames: Callable[..., FrameTable]
    classes_per_experience: int | None
    batch_size: int
    budget_images: int
    class_groups: Callable[[FrameTable, bool], Sequence[Sequence[str]] | None] = (
        lambda table, reference: None
    )
    protocol: str = "class_instance"
    test_split: str = "test"
    host_folder: str = ""
    host_order: Callable[[FrameTable, int], Sequence[int | str]] | None = None
    whole_table: Callable[[str | Path], FrameTable] | None = None

    @property
    def name(self) -> str:
        """Name of the data set on the command line."""
        return self.files.name

    @property
    def needs_root(self) -> bool:
        """Whether the data set consists of files below a folder."""
        return bool(self.files.tree)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the arguments of `frames`."""
        return tuple(inspect.signature(self.frames).parameters)

    def table(
        self,
        root: str | None,
        run: int,
        reference: bool = False,
        fps: float | None = None,
        bad_videos: list[str] | None = None,
        new_class: bool = False,
    ) -> FrameTable:
        """Make the frame table of the data set for a run.

        Args:
            root: Folder of the data set.
            run: Number of the run.
            reference: Whether to choose frames as the paper's published code does.
            fps: Frames per second taken from a video, for a folder of clips.
            bad_videos: Collects a message for each video that cannot be read; None
                makes such a video an error.
            new_class: Take every class folder for a class, also if the names of two are
                nearly the same or they look like splits.

        Raises:
            FrameTableError: If a root is needed and not given, the data set does not
                take `fps`, or the folder is not that of the data set.
        """
        if self.needs_root and root is None:
            advice = " (for clips of your own: --benchmark clip_folder)"
            if self.name == "clip_folder":
                advice = ""
            raise FrameTableError(
                f"benchmark {self.name} needs --dataset-root; expected there: "
                f"{self.files.tree}{advice}"
            )
        if fps is not None and "fps" not in self.options:
            raise FrameTableError(
                f"benchmark {self.name} reads no video files; fps={fps:g} is for "
                "clip_folder."
            )
        arguments = {
            "run": run,
            "reference": reference,
            "fps": 1.0 if fps is None else fps,
            "bad_videos": bad_videos,
            "new_class": new_class,
        }
        # The data set's function of frames takes only some of them.
        accepted = {name: arguments[name] for name in self.options if name in arguments}
        return self.frames(root, **accepted)

    def prepared_table(self, root: str | Path) -> FrameTable:
        """Make the table that `crumb prepare` lists and checks: all that is there.

        Raises:
            FrameTableError: If the folder is not that of the data set.
        """
        make_table = self.whole_table or self.frames
        return make_table(root)

    def warn_of_gaps(
        self, root: str | Path | None, is_downloaded: bool = False
    ) -> None:
        """Warn if a download or preparation below a root stopped before the end.

        A part of a data set that a user chose has no trace of that, and no warning.

        Args:
            root: Folder of the data set; None if it has none.
            is_downloaded: Whether the whole data set was asked for; then any gap is a
                warning.
        """
        if not self.needs_root or root is None:
            return
        if not (is_downloaded or self.files.is_unfinished(Path(root))):
            return
        # Variants of a data set are checked as the data set itself.
        data = BENCHMARKS.get(self.name, self)
        try:
            missing = data.files.missing(data.prepared_table(root))
        except FrameTableError as error:
            missing = [str(error)]
        if missing:
            warnings.warn(
                f"{self.name} in {root} is not complete: {missing[0]}; `crumb prepare "
                f"{self.name} --dataset-root {root} --check` lists the gaps",
                stacklevel=3,
            )

    def stream(
        self,
        dataset_root: str | Path | None,
        arguments: Mapping[str, object] | None = None,
        download: bool = False,
        /,
        **keywords: Unpack[StreamKeywords],
    ) -> FrameBenchmark:
        """Make the Avalanche benchmark of the data set.

        Every generator does so, with these arguments and errors.

        Args:
            dataset_root: Folder of the data set, as `root` of the function that makes
                its table; None is its folder where Avalanche keeps data, such as
                `~/.avalanche/data/toybox`.
            arguments: The others of a generator, which are those of that function.
                With `reference` order and labels are drawn, too, as the paper's
                published code does.
            download: Download the data set to `dataset_root` if nothing of it is there,
                and warn if it is not whole.
            keywords: See `StreamKeywords`. `protocol`, `classes_per_experience` and the
                transforms have the defaults of this benchmark.

        Raises:
            FrameTableError: If the table of frames cannot be made, or a class has no
                test frames.
            ValueError: If a keyword is out of range, or two exclude each other.
            TypeError: If a keyword is unknown.
        """
        # Importing them takes seconds: they need Avalanche.
        from benchmarks_toybox_ilab.streams.protocols import make_benchmark

        arguments = dict(arguments or {})
        _check_keywords(self.name, keywords, of_generator=arguments)
        # Some tables depend on the run, too. A seed takes its place, as in Avalanche.
        if "run" in self.options:
            run = keywords.get("seed")
            if run is None:
                run = keywords.get("run")
            arguments["run"] = run or 0
        root = self.resolve_root(dataset_root)
        if download and root is not None and self.files.find(root) is None:
            download_whole(self.files.url, self.files.md5, root)
        table = self.frames(root, **arguments)
        self.warn_of_gaps(root, is_downloaded=download)
        image_size = cast(int, arguments.get("size", 224))  # pixels; toy shapes say it
        # Editors follow the keywords into make_benchmark only if no item is assigned.
        keywords.update(self._defaults(keywords, image_size))  # type: ignore
        order = self._order_of_host(table, keywords)  # classes as Avalanche draws them
        if order is not None:
            keywords.update({"fixed_class_order": order})
        reference = bool(arguments.get("reference"))
        groups = self.class_groups(table, reference)
        return make_benchmark(
            table,
            class_groups=groups,
            reference=reference,
            test_split=self.test_split,
            **keywords,
        )

    def _defaults(self, keywords: StreamKeywords, image_size: int) -> dict[str, object]:
        """Return the defaults of this benchmark for what a call gives no value to.

        Args:
            keywords: Of the call of the generator.
            image_size: Side of the images in pixels.

        Raises:
            ValueError: If two keywords divide the classes.
        """
        from benchmarks_toybox_ilab.streams.torch_dataset import imagenet_transform

        transform = imagenet_transform(image_size)
        defaults: dict[str, object] = {
            "protocol": self.protocol,
            "train_transform": transform,
            "eval_transform": transform,
        }
        if keywords.get("n_experiences") is None:
            defaults["classes_per_experience"] = self.classes_per_experience
        elif keywords.get("classes_per_experience") is not None:
            raise ValueError(
                "n_experiences and classes_per_experience both divide the classes; "
                "give one of them."
            )
        # What the call gives a value to goes before the default.
        for name in given_keywords(keywords, [*defaults]):
            del defaults[name]
        return defaults

    def _order_of_host(
        self, table: FrameTable, keywords: StreamKeywords
    ) -> Sequence[int | str] | None:
        """Return the classes of the data set as Avalanche orders them with a seed.

        None where it orders them as those of any data set, or no seed draws them.

        Args:
            table: The frames.
            keywords: Those of the generator's call: "seed", "shuffle" and
                "fixed_class_order" matter.
        """
        seed = keywords.get("seed")
        is_fixed = keywords.get("fixed_class_order") is not None
        is_shuffled = keywords.get("shuffle", True) and not is_fixed
        if self.host_order is None or seed is None or not is_shuffled:
            return None
        return self.host_order(table, whole_number("seed", seed, 0))

    def resolve_root(self, root: str | Path | None) -> Path | None:
        """Return the folder of the data set that a caller means.

        None stands for its folder where Avalanche keeps data; without files there is
        none.

        Raises:
            TypeError: If root is a number, which is first among the arguments of
                Avalanche's generators.
        """
        if not self.needs_root:
            return None
        if isinstance(root, int):
            raise TypeError(
                f"dataset_root is {root}; for a number of experiences give "
                f"n_experiences={root}."
            )
        if root is None:
            from avalanche.benchmarks.datasets import default_dataset_location

            folder = self.host_folder or self.name.replace("_", "")
            root = default_dataset_location(folder)
        return Path(root)


def _check_keywords(
    name: str, keywords: Mapping[str, object], of_generator: Iterable[str]
) -> None:
    """Raise TypeError if a call of a data set's generator has an unknown keyword.

    Args:
        name: Name of the data set.
        keywords: Keywords of the call, besides those of the generator itself.
        of_generator: Keywords of the generator itself, which may be meant.
    """
    known = [*StreamKeywords.__annotations__, *of_generator]
    for keyword in keywords.keys() - StreamKeywords.__annotations__.keys():
        similar = get_close_matches(keyword, known, n=1, cutoff=0.7)
        if keyword in NOT_HERE:
            advice = f": {NOT_HERE[keyword]}."
        elif similar:
            advice = f"; did you mean {similar[0]!r}?"
        else:
            advice = f". Its keywords are {', '.join(known)}."
        raise TypeError(f"{name} has no keyword {keyword!r}{advice}")


def download_whole(url: str, md5: str, root: Path) -> None:
    """Download the archive of a data set to root and unpack it there.

    All of it, or nothing if that is interrupted. Folders that hold files stay.

    Args:
        url: Address of the archive.
        md5: Its MD5 checksum.
        root: Folder of the data set.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    unfinished = unfinished_download(url, root)
    download_and_extract_archive(url, str(root), str(unfinished), md5=md5)
    for entry in unfinished.iterdir():
        target = root / entry.name
        holds_files = target.is_dir() and os.listdir(target)
        if not holds_files:
            entry.replace(target)
    shutil.rmtree(unfinished)


BENCHMARKS: dict[str, Benchmark] = {}
"""The benchmarks by name, as for `crumb run --benchmark`."""


def register(benchmark: Benchmark) -> Benchmark:
    """Make a benchmark known by its name; an earlier one of that name is replaced."""
    BENCHMARKS[benchmark.name] = benchmark
    return benchmark
