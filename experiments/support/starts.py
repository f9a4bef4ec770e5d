"""The pretrained files that rows of Table 4 start from, and commands that make them.

A folder holds `NAME.safetensors` for each start. Two files combine others:
`ours_weights` has the weights of `ours` and the codebook of `fresh`, `ours_blocks` has
the codebook of `ours` and the weights of `fresh`. `fresh` is pretrained for an epoch at
a learning rate of 0, with another seed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

OURS = "ours"
FRESH = "fresh"
STOCK = "stock"  # no file
# Starts that combine two files, those of the weights and of the codebook.
MIXED = {"ours_weights": (OURS, FRESH), "ours_blocks": (FRESH, OURS)}
CIFAR100 = "cifar100"
TINY_IMAGENET = "tiny_imagenet"
OTHER_IMAGES = (CIFAR100, TINY_IMAGENET)  # starts from other images than those of OURS
SHARED_OPTIONS = {"data": "IMAGENET/train", "codebook_dim": 8}  # of `crumb pretrain`
OWN_OPTIONS = {
    FRESH: {"epochs": 1, "learning_rate": 0, "seed": 1},  # nothing is learned
    CIFAR100: {"data": "torchvision:CIFAR100"},
    TINY_IMAGENET: {"data": "TINY_IMAGENET/train"},
}


@dataclass(frozen=True)
class Starts:
    """The pretrained files that rows start from.

    Attributes:
        folder: has `NAME.safetensors` for each start; None without one.
        mobilenet_weights: weights of MobileNetV2, as for `crumb run`.
        files: files outside the folder, by name of the start.
    """

    folder: Path | None
    mobilenet_weights: str
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """Describe what "Ours" starts from."""
        if self.folder is None:
            text = "all rows start from stock weights, without CRUMB pretraining"
            if self.files:
                text += ", but where the row says otherwise"
            return text
        file = self.file(OURS)
        if file is None:
            return f"pretrained files in {self.folder}, where that of Ours is missing"
        from crumb_avalanche.training.pretraining import read_pretrained

        made_with = read_pretrained(file)[1]
        data = "/".join(Path(str(made_with.get("data"))).parts[-2:])
        return (
            f"Ours starts from CRUMB pretraining on {made_with.get('images')} images of "
            f"{data}, {made_with.get('epochs')} epochs"
        )

    def file(self, name: str) -> Path | None:
        """The file of a start; None if it does not exist."""
        path = self.files.get(name)
        if path is None and self.folder is not None:
            path = self.folder / f"{name}.safetensors"
        return path if path and path.is_file() else None

    def commands(self, rows: Iterable[dict]) -> list[str]:
        """The commands that make what is missing, without the options of all.

        Files that combine others are made at once.
        """
        pretraining: dict[str, dict] = {}  # options by name of the missing start
        for row in rows:
            start = row.get("start", OURS)
            if start in MIXED:
                self.mix(start)
            for name in MIXED.get(start, (start,)):
                if name != STOCK and not self.file(name):
                    arguments = row.get("pretraining", {}) if name == start else {}
                    pretraining.setdefault(name, arguments)
        return [
            self._command(name, arguments) for name, arguments in pretraining.items()
        ]

    def _command(self, name: str, own: dict) -> str:
        """The command that makes a start."""
        options = {**SHARED_OPTIONS, **own, **OWN_OPTIONS.get(name, {})}
        options["output"] = self.folder / f"{name}.safetensors"
        words = ["crumb pretrain"]
        for option, value in options.items():
            text = "false" if value is False else str(value)
            words.append(f"--{option.replace('_', '-')} {text}")
        return " ".join(words)

    def mix(self, name: str) -> None:
        """Combine a file from its parts if they exist.

        It is made anew each time, as the parts may have changed.

        Raises:
            ValueError: the codebooks of the parts have different shapes.
        """
        from crumb_avalanche.system.tensor_file import write_tensors
        from crumb_avalanche.training.pretraining import FORMAT, read_pretrained

        weights, codebook = (self.file(source) for source in MIXED[name])
        if not weights or not codebook:
            return
        state, notes = read_pretrained(weights)
        blocks = read_pretrained(codebook)[0]["codebook.blocks"]
        own_shape = tuple(state["codebook.blocks"].shape)
        shape = tuple(blocks.shape)
        if shape != own_shape:
            raise ValueError(
                f"the codebooks of {weights} and {codebook} are of shapes {own_shape} "
                f"and {shape}; make both with the same settings"
            )
        state["codebook.blocks"] = blocks
        made_with = json.dumps({**notes, "codebook_from": codebook.name})
        header = {"format": FORMAT, "made_with": made_with}
        write_tensors(self.folder / f"{name}.safetensors", state, header)
