"""Typed settings of ``crumb run``.

Imports neither torch nor Avalanche, to keep ``crumb --help`` fast.
"""

import inspect
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal

import yaml

from crumb_avalanche.system import setting_ranges as ranges
from crumb_avalanche.system.named_values import field_names, without
from crumb_avalanche.training.replay_settings import (
    Compute,
    Limit,
    Replay,
    Steps,
    Weight,
)

Protocol = Literal["class_instance", "class_iid", "table"]
Search = Literal["direction", "distance"]
Grouping = Literal["consecutive", "correlated"]
Density = Annotated[float, ranges.Range(0, 10**5, above=True)]
Preset = Literal["paper", "reference", "recommended", "tuned"]
# auto: the fastest that is installed; see models.runtimes.
RuntimeName = Literal["auto", "torch", "compiled", "onnxruntime"]
Value = int | float | bool | str | None
CLIPS = "clip_folder"  # the benchmark of a user's own images
MOST_RUNS = 10_000
MOST_CHARACTERS = 1_000_000  # of a file of settings


# Numbers that YAML 1.1 alone reads so: 010 is 8, and 1:30 is 90.
_OCTAL_OR_BASE_60 = re.compile(r"[-+]?0[0-7_]+|[^:]+:.*")


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML in which every value is what it looks like, and of bounded size.

    Refuses aliases, a few lines of which stand for more values than any memory holds;
    keys that are repeated; and numbers of YAML 1.1 that mean another one than people
    read: ``010`` is 8 there, and ``1:30`` is 90.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read the next value of the YAML file; refuse an alias."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it names a value by an alias (*); write the value out")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Read a mapping of the YAML file; refuse a key that it has twice."""
        mapping = super().compose_mapping_node(anchor)
        seen_keys = set()  # type and text of each
        for key, _ in mapping.value:
            line = key.start_mark.line + 1
            if isinstance(key.value, str) and (key.tag, key.value) in seen_keys:
                raise ValueError(
                    f"line {line} gives {key.value[:60]} again; give it once"
                )
            seen_keys.add((key.tag, str(key.value)))
        return mapping

    def construct_plain_number(self, node: Any) -> float:
        """Return a number; refuse one that only YAML 1.1 reads so."""
        if node.tag.endswith(":int"):
            number = self.construct_yaml_int(node)
        else:
            number = self.construct_yaml_float(node)
        if _OCTAL_OR_BASE_60.fullmatch(node.value):
            raise _misread(node, number)
        return number

    def construct_date(self, node: Any) -> Any:
        """Refuse a date, which no setting is."""
        raise _misread(node, self.construct_yaml_timestamp(node))


def _misread(node: Any, value: object) -> ValueError:
    """Return the error that says as what YAML 1.1 reads a value in a settings file."""
    return ValueError(
        f"line {node.start_mark.line + 1} has {node.value[:60]}, which YAML reads as "
        f"{value}; write a decimal number, or a text in quotes"
    )


for _kind, _constructor in {
    "int": _PlainLoader.construct_plain_number,
    "float": _PlainLoader.construct_plain_number,
    "timestamp": _PlainLoader.construct_date,
}.items():
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _constructor)


def load_yaml(text: str) -> Any:
    """Return what a YAML text of settings holds: numbers, texts, lists and mappings.

    Raises:
        ValueError: it is no YAML, too long or too deep, or has aliases or a key twice.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters; settings take at most "
            f"{MOST_CHARACTERS:,}"
        )
    try:
        return yaml.load(text, _PlainLoader)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


@dataclass(frozen=True)
class RunSettings(ranges.InRange):
    """Learn a stream and report the accuracy after every experience.

    ``RunPlan.of`` fills in settings that are None: with the value of the family, else
    of the preset, else the default given here.

    Attributes:
        benchmark: the stream: core50, toybox, ilab, icub, ilab_core50, cifar100,
            imagenet, eth80, tiny_imagenet, stream51, openloris_FACTOR (clutter,
            illumination, occlusion, pixel, sequence), clear10, clear100, orbit,
            toy_shapes, toy_shapes_short, toy_dots, or clip_folder (your own
            class/object/clip/frame tree, or class/object/clip.mp4).
        dataset_root: folder with the benchmark's images.
        output: folder for the results.
        run: seed of everything: class order, clip order, test objects, initial weights.
        runs: several runs, such as 0-9 or 0,3,5; each is written to its own subfolder,
            and a summary is printed.
        preset: recommended is the most accurate at the same bytes (default for
            clip_folder), paper follows the paper (default for the others), reference
            adds what its published code does, tuned is CRUMB trained as well as the
            time allows.
        strategy: a name that crumb strategies lists; default rda with preset
            recommended, else crumb.
        backbone: squeezenet1_0 (default), squeezenet1_1, efficientnet_lite0,
            mobilenet_v2, resnet18 or small_cnn; for small images also slim_resnet18,
            resnet32 and mlp, which have no frozen layers; timm:NAME for any network of
            timm. crumb backbones lists them.
        weights: 'torchvision', or 'timm' for timm:NAME (default; both download), or
            'package' for efficientnet_lite0 (default; extra weights); a .npz,
            .safetensors or .pth file, or 'none' for random weights.
        budget_images: memory budget, in raw images; default the benchmark's.
        feature_cache: folder for the cached F(x), which all runs share.
        threads: CPU threads of torch and faiss; 0 takes one per core, or where runs
            are done at a time, the run's share of them.
        device: cpu or cuda.
        method: settings that only the chosen strategy has, as --method.NAME VALUE;
            crumb strategies lists them.
        family: fair tunes the learning rate on the first experience and gives all
            methods the same network and bytes; paper uses network, resolution and
            learning rate of the paper's authors for the method.
        protocol: class_instance keeps clips and frame order, class_iid shuffles the
            frames of an experience, table keeps the order of the table.
        reference_stream: choose frames, orders and labels as the paper's published code
            does.
        fps: frames per second to take from the video files of a clip_folder; default 1.
        new_class: take every class folder of a clip_folder for a class, also near twins
            of names and train, test.
        on_bad_frame: raise stops at an unreadable image or a damaged video; skip leaves
            it out and counts it.
        classes_per_experience: default the benchmark's; of one with all classes in each
            experience, none.
        batch_size: images per batch; default the benchmark's. Stable SGD has its own
            (--method.batch_size).
        first_epochs: epochs on the first experience; default 10.
        epochs: epochs on each later experience.
        learning_rate: of SGD; default 1e-3.
        momentum: of SGD; default 0.9.
        weight_decay: of SGD, codebook included; default 1e-4.
        clamp_gradients: largest absolute value of a gradient element; 0 disables
            clamping.
        replay_weight: factor of the replay loss; default 5, and 1 with replay_compute.
        replay_steps: replay batches after each new batch.
        replay_limit: largest number of memories in a replay batch, which else has at
            least one of every old class and takes longer with every class.
        replay_compute: cost of replay, in units of the training step without it,
            instead of replay_steps; 1.4 with preset tuned. All classes are replayed
            alike then.
        fused: train on new and replayed batch in one optimiser step.
        selection_rule: which images are stored: every_jth (paper), reservoir (single
            pass) or reference.
        budget_bytes: memory budget in bytes, instead of budget_images.
        mem_size: number of memories, instead of a budget.
        cut_layer: number of leading layers that are frozen (of timm:NAME: of stages, or
            the name of the last frozen module); default the paper's cut, or that before
            the last stage; 0 trains the whole network.
        pretrained: a file written by crumb pretrain, instead of weights.
        image_size: resize images to this many pixels square; default 224, or what
            timm:NAME was trained with.
        relu_logits: ReLU on SqueezeNet's logits before they are pooled.
        head_kernel: kernel of SqueezeNet's last convolution, 1 or 3.
        fine_tuning: train pretrained layers with fixed batch statistics, a centred head
            and enlarged small images, as split_backbone does; true with preset tuned.
            No effect on SqueezeNet, and with weights none, pretrained or cut_layer 0.
        codebook_size: number of memory blocks.
        codebook_dim: length of a memory block; default 16, or the largest divisor below
            of timm:NAME's channels; with memories_per_image what follows from it.
        memories_per_image: number of memories at most that take the bytes of a raw
            image; codebook_dim is the longest with which they are no more. 56 with
            preset tuned.
        codebook_init: matched (default), distinct, dense_matched, normal, uniform,
            sampled, kmeans or spherical.
        codebook_search: what a memory block is chosen by: its direction (paper), or its
            distance, which has the smaller error.
        codebook_tables: number of tables of memory blocks, which groups of channels
            share; default 1.
        codebook_grouping: which channels make a group: consecutive ones (paper), or
            correlated ones.
        codebook_filter: filter rebuilt maps over 3 x 3 locations, by weights that have
            the least error on the first experience.
        evaluate_quantized: evaluate on maps rebuilt from memory blocks, as in training.
        precision: fp32, or bf16 autocast.
        cache_precision: precision of the feature cache on disk; fp16 takes half the
            space and rounds the maps a little.
        runtime: what runs F: torch; compiled (takes half a minute once); onnxruntime;
            auto for onnxruntime where it is installed. Maps differ in the last digits.
        workers: loader processes.
        overwrite: start over if the output folder holds a finished or interrupted run.
        keep_learner: write learner.safetensors to the output folder: what was learned,
            to be asked, and in closed form to be taught on.
        checkpoint: write a checkpoint after every experience; the same command resumes
            an interrupted run.
        checkpoint_every: also write a checkpoint every this many steps; 0 for none.
        evaluate_every: test every this many experiences, and after the first and the
            last.
        progress: show progress.
    """

    benchmark: str = "eth80"
    dataset_root: str | None = None
    output: str = "runs/latest"
    run: ranges.Seed = 0
    runs: str | None = None
    preset: Preset | None = None
    strategy: str | None = None
    backbone: str | None = None
    weights: str | None = None
    budget_images: Annotated[float, ranges.Range(0, 10**7)] | None = None
    feature_cache: str | None = None
    threads: ranges.Threads = 0
    device: str = "cpu"
    method: dict[str, Value] = field(default_factory=dict)
    family: Literal["fair", "paper"] | None = None
    protocol: Protocol = "class_instance"
    reference_stream: bool = False
    fps: Annotated[float, ranges.Range(0, 1000)] | None = None
    new_class: bool = False
    on_bad_frame: Literal["raise", "skip"] = "raise"
    classes_per_experience: ranges.Count | None = None
    batch_size: ranges.Count | None = None
    first_epochs: ranges.Epochs | None = None
    epochs: ranges.Epochs = 1
    learning_rate: ranges.Rate | None = None
    momentum: ranges.Share | None = None
    weight_decay: ranges.Decay | None = None
    clamp_gradients: ranges.NotNegative | None = None
    replay_weight: Weight = Replay.replay_weight
    replay_steps: Steps = Replay.replay_steps
    replay_limit: Limit | None = Replay.replay_limit
    replay_compute: Compute | None = Replay.replay_compute
    fused: bool = Replay.fused
    selection_rule: str | None = None
    budget_bytes: ranges.Bytes | None = None
    mem_size: ranges.Memories | None = None
    cut_layer: ranges.Number | str | None = None
    pretrained: str | None = None
    image_size: ranges.ImageSize | None = None
    relu_logits: bool | None = None
    head_kernel: ranges.Count | None = None
    fine_tuning: bool | None = None
    codebook_size: ranges.CodebookSize = 256
    codebook_dim: ranges.Count | None = None
    memories_per_image: Density | None = None
    codebook_init: str | None = None
    codebook_search: Search | None = None
    codebook_tables: ranges.Tables | None = None
    codebook_grouping: Grouping | None = None
    codebook_filter: bool | None = None
    evaluate_quantized: bool | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    cache_precision: Literal["fp32", "fp16"] = "fp32"
    runtime: RuntimeName = "torch"
    workers: ranges.Workers = 0
    overwrite: bool = False
    keep_learner: bool = True
    checkpoint: bool = True
    checkpoint_every: ranges.Upper = 0
    evaluate_every: Annotated[int, ranges.Range(1, ranges.NEVER)] = 1
    progress: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        budgets = []
        for name in ("budget_images", "budget_bytes", "mem_size"):
            if getattr(self, name) is not None:
                budgets.append(name)
        if len(budgets) > 1:
            raise ValueError(
                f"{' and '.join(budgets)} are both given; set the memory by one of them"
            )
        if not isinstance(self.method, dict):
            raise ValueError(
                f"method is {self.method!r}; give settings of the strategy as "
                "--method.NAME VALUE"
            )

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs to do, each once."""
        if self.runs is None:
            return [self.run]
        numbers: list[int] = []
        for part in self.runs.split(","):
            numbers += self._numbers_in(part.strip())
        return list(dict.fromkeys(numbers))

    def _numbers_in(self, part: str) -> range:
        """Return the run numbers in a part of ``runs``, such as 3 or 0-9.

        Raises:
            ValueError: the part is no number or range, or an empty or too long range.
        """
        first_text, dash, last_text = part.partition("-")
        first = self._run_number(first_text)
        last = self._run_number(last_text) if dash else first
        numbers = range(first, last + 1)
        if not numbers:
            raise ValueError(
                f"runs is {self.runs!r}, where {part} is an empty range; write "
                f"{last_text}-{first_text}"
            )
        if len(numbers) > MOST_RUNS:
            raise ValueError(
                f"runs is {self.runs!r}, which are {len(numbers):,} runs; give "
                f"{MOST_RUNS:,} or fewer"
            )
        return numbers

    def _run_number(self, text: str) -> int:
        """Return the number of a run that is written in ASCII digits."""
        if not (text.isascii() and text.isdecimal()):
            raise ValueError(
                f"runs is {self.runs!r}; write 0-9 for a range or 0,3,5 for a list"
            )
        # Converting thousands of digits is refused; those of a seed are fewer.
        ranges.checked_setting("run", int(text[:20]), ranges.Seed)
        return int(text)


# Groups of `crumb run --help`; all other settings are in a last group for experts.
GROUPS = {
    "your data": ("benchmark", "dataset_root", "output", "run", "runs"),
    "how good": ("preset", "strategy", "backbone", "weights", "budget_images"),
    "how fast": ("feature_cache", "threads", "device"),
}

# Paths, progress, speed, and fields that follow from other settings.
NON_RESULT_SETTINGS = frozenset(
    (
        "output",
        "overwrite",
        "progress",
        "feature_cache",
        "dataset_root",
        "budget",
        "capacity",
        "workers",
        "keep_learner",
        "checkpoint",
        "checkpoint_every",
        "evaluate_every",
        "threads",
    )
)


def result_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that can change the result of a run."""
    return without(settings, *NON_RESULT_SETTINGS)


def part_for(kind: type, settings: Any) -> dict[str, Any]:
    """Return the values of ``settings`` for the fields of a dataclass, by name.

    Fields of ``kind`` that the settings do not have are left out.
    """
    return {
        name: getattr(settings, name)
        for name in field_names(kind)
        if hasattr(settings, name)
    }


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a run with those of the method as ``method.NAME``."""
    values = without(settings, "method")
    method_settings = settings.get("method") or {}
    for name, value in method_settings.items():
        values[f"method.{name}"] = value
    return values


def meanings(settings: type) -> dict[str, str]:
    """Return what each setting of a dataclass means, and its default, by name.

    The texts are of the docstring of the class, or that of ``RunSettings``. They are
    empty where Python strips docstrings.

    Args:
        settings: the dataclass, of settings of a command.
    """
    texts = dict.fromkeys(field_names(settings), "")
    for documented in (RunSettings, *reversed(settings.__mro__)):
        texts |= _documented_attributes(documented)
    for setting in fields(settings):
        text = texts[setting.name]
        is_shown = setting.default not in (None, False, MISSING)
        if is_shown and "default" not in text:
            texts[setting.name] = f"{text.rstrip('.')} (default: {setting.default})"
    return texts


def _documented_attributes(settings: type) -> dict[str, str]:
    """Return what a class's docstring says of its settings, each in one line."""
    docstring = inspect.cleandoc(settings.__doc__ or "")
    _, _, attributes_part = docstring.partition("Attributes:")
    joined = re.sub(r"\n {8,}", " ", attributes_part)
    return dict(re.findall(r"^ {4}(\w+): (.+)$", joined, re.MULTILINE))
