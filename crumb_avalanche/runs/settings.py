"""Typed settings of ``crumb run``. Imports neither torch nor Avalanche, so that ``crumb --help`` is quick."""

from dataclasses import dataclass, fields
from typing import Literal

Protocol = Literal["class_instance", "class_iid"]


@dataclass
class RunSettings:
    """Learn a stream and report the accuracy after every experience.

    Settings left at None take the value of the family, else of the preset, else the default given here.

    Attributes:
        benchmark: the stream: core50, toybox, ilab, icub, ilab_core50, cifar100, imagenet, eth80, toy_shapes,
            toy_shapes_short, toy_dots, or clip_folder (your own class/object/clip/frame tree, or
            class/object/clip.mp4).
        dataset_root: folder with the benchmark's images.
        reference_stream: frames, orders and labels as the paper's published code makes them, where that differs.
        fps: frames per second to take from the video files of a clip_folder; default 1.
        protocol: class_instance keeps clips and frame order, class_iid shuffles the frames of an experience.
        strategy: a name that crumb strategies lists; default crumb, or rda with preset recommended.
        strategy_config: a YAML file with settings that only this strategy has.
        family: fair tunes the learning rate on the first experience, the same network and bytes for all; paper takes
            network, resolution and learning rate as the paper's authors ran the method. For comparing methods.
        preset: paper does what the paper says, reference what its published code does on top, recommended what is
            most accurate at the same bytes.
        run: seed of everything: class order, clip order, test objects, initial weights.
        runs: several runs, such as 0-9 or 0,3,5; each gets a folder of its own and a summary is printed.
        output: folder for the results.
        overwrite: start over where the output folder holds a finished run, or one that was cut off.
        weights: 'torchvision' (default; downloads), a .npz, .safetensors or .pth file, or 'none' for random weights.
        backbone: squeezenet1_0 (default), squeezenet1_1, mobilenet_v2, resnet18 or small_cnn; trained as a whole also
            slim_resnet18, resnet32 and mlp, for small images.
        cut_layer: number of leading layers that are frozen; default the paper's cut, 0 trains the whole network.
        pretrained: a file written by crumb pretrain, instead of weights.
        image_size: images are resized to this many pixels square; default 224.
        budget_images: memory budget, in raw images; default the benchmark's.
        budget_bytes: memory budget in bytes, instead of budget_images.
        mem_size: number of memories, instead of a budget.
        feature_cache: folder in which F(x) is kept, so that every image passes F once for all runs.
        cache_precision: of the feature cache on disk; fp16 takes half the room and rounds the maps a little.
        classes_per_experience: default the benchmark's.
        batch_size: images per batch; default the benchmark's. (Stable SGD's is a setting of its own: strategy_config.)
        first_epochs: epochs on the first experience; default 10.
        epochs: epochs on each later experience.
        learning_rate: of SGD; default 1e-3.
        momentum: of SGD; default 0.9.
        weight_decay: of SGD, codebook included; default 1e-4.
        codebook_size: number of memory blocks.
        codebook_dim: length of a memory block.
        codebook_init: matched (default), dense_matched, normal, uniform, sampled or kmeans.
        freeze_codebook: keep the memory blocks as initialised.
        direct_weight: alpha, weight of the loss on unquantized maps.
        codebook_weight: beta, weight of the loss on quantized maps.
        replay_weight: factor of the replay loss.
        replay_steps: replay batches after each new batch.
        fused: new and replayed batch in one optimiser step.
        storing_rule: every_jth (paper), reservoir (single pass) or reference.
        clamp_gradients: largest absolute gradient element; 0 clamps nothing.
        relu_logits: ReLU on SqueezeNet's logits before they are pooled.
        head_kernel: kernel of SqueezeNet's last convolution, 1 or 3.
        evaluate_quantized: evaluate on maps rebuilt from memory blocks.
        precision: fp32, or bf16 autocast.
        compile: compile F (half a minute once).
        device: cpu or cuda.
        threads: CPU threads of torch and faiss; 0 takes one per core.
        workers: loader processes.
        on_bad_frame: raise stops at an image that cannot be read, skip leaves it out and counts; a damaged video always
            stops.
        checkpoint: keep model and buffer after every experience in the output folder, and what it takes to go on after
            an interruption: the same command does.
        checkpoint_every: write such a checkpoint every so many steps too.
        evaluate_every: test after every so many experiences; in any case after the first and the last.
        progress: show progress bars.
    """

    benchmark: str = "eth80"
    dataset_root: str | None = None
    reference_stream: bool = False
    fps: float | None = None
    protocol: Protocol = "class_instance"
    strategy: str | None = None
    strategy_config: str | None = None
    family: Literal["fair", "paper"] | None = None
    preset: Literal["paper", "reference", "recommended"] = "paper"
    run: int = 0
    runs: str | None = None
    output: str = "runs/latest"
    overwrite: bool = False
    weights: str | None = None
    backbone: str | None = None
    cut_layer: int | None = None
    pretrained: str | None = None
    image_size: int | None = None
    budget_images: float | None = None
    budget_bytes: int | None = None
    mem_size: int | None = None
    feature_cache: str | None = None
    cache_precision: Literal["fp32", "fp16"] = "fp32"
    classes_per_experience: int | None = None
    batch_size: int | None = None
    first_epochs: int | None = None
    epochs: int = 1
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    codebook_size: int = 256
    codebook_dim: int = 16
    codebook_init: str | None = None
    freeze_codebook: bool = False
    direct_weight: float = 0.0
    codebook_weight: float = 1.0
    replay_weight: float | None = None
    replay_steps: int = 1
    fused: bool = False
    storing_rule: str | None = None
    clamp_gradients: float | None = None
    relu_logits: bool | None = None
    head_kernel: int | None = None
    evaluate_quantized: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    device: str = "cpu"
    threads: int = 0
    workers: int = 0
    on_bad_frame: Literal["raise", "skip"] = "raise"
    checkpoint: bool = True
    checkpoint_every: int = 0
    evaluate_every: int = 1
    progress: bool = True

    def resolved(self) -> "RunSettings":
        """The same with every ``None`` filled in that a family, a preset or a default decides.

        Raises:
            ValueError: two settings that exclude each other, or a number out of its range.
        """
        for name, lowest in LOWEST.items():
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                counted = f"it counts {COUNTED[name]}: " if name in COUNTED else ""
                raise ValueError(f"{name} is {value}; {counted}give {lowest} or more")
        if self.momentum is not None and self.momentum >= 1:
            raise ValueError(f"momentum is {self.momentum}; give 0 or more, but less than 1")
        given = [name for name in ("budget_images", "budget_bytes", "mem_size") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; the memory is set by one of them")
        from crumb_avalanche.runs.presets import decided

        return decided(self)

    def run_numbers(self) -> list[int]:
        """The runs asked for.

        Raises:
            ValueError: ``runs`` is not of the form 0-9 or 0,3,5, or a range goes downwards.
        """
        if self.runs is None:
            return [self.run]
        numbers: list[int] = []
        for part in self.runs.split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise ValueError(f"runs is {self.runs!r}; write 0-9 for a range or 0,3,5 for a list")
            more = range(int(first), int(last if dash else first) + 1)
            if not more:
                raise ValueError(f"runs is {self.runs!r}, where {part.strip()} is an empty range; write {last}-{first}")
            numbers += more
        return list(dict.fromkeys(numbers))


# The lowest values of settings that are numbers, and what those count that are easily mistaken.
_ABOVE_ZERO = "batch_size classes_per_experience codebook_dim codebook_size epochs evaluate_every first_epochs"
_NOT_NEGATIVE = "budget_bytes budget_images checkpoint_every clamp_gradients codebook_weight cut_layer direct_weight"
_NOT_NEGATIVE += " learning_rate mem_size momentum replay_steps replay_weight run threads weight_decay workers"
LOWEST = dict.fromkeys(f"{_ABOVE_ZERO} head_kernel image_size".split(), 1) | dict.fromkeys(_NOT_NEGATIVE.split(), 0)
COUNTED = {"evaluate_every": "experiences", "checkpoint_every": "steps", "batch_size": "images", "cut_layer": "layers"}

# Where things lie and how they are shown: settings that do not change a result.
NO_PART_OF_THE_RESULT = frozenset(
    {
        *("output", "overwrite", "progress", "feature_cache", "dataset_root"),
        *("workers", "checkpoint", "checkpoint_every", "evaluate_every", "threads"),
    }
)


def part_for(kind: type, settings) -> dict:
    """The values of ``settings`` that a settings class of the library has fields for."""
    return {item.name: getattr(settings, item.name) for item in fields(kind) if hasattr(settings, item.name)}


def as_dict(settings) -> dict:
    """Settings as plain values, in the order of their declaration."""
    return {item.name: getattr(settings, item.name) for item in fields(settings)}
