"""The pretrained files that the rows of Table 4 start from, and the commands that make them.

A folder holds `NAME.safetensors` for each start. Two files combine others:
`ours_weights` has the weights of `ours` and the codebook of `fresh`, `ours_blocks` has
the codebook of `ours` and the weights of `fresh`. `fresh` is pretrained for an epoch at
a learning rate of 0, with another seed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

OURS, FRESH, STOCK = "ours", "fresh", "stock"  # stock: no file
MIXED = {
    "ours_weights": (OURS, FRESH),
    "ours_blocks": (FRESH, OURS),
}  # (weights, codebook)
CIFAR100, TINY_IMAGENET = "cifar100", "tiny_imagenet"
OTHER_IMAGES = (
    CIFAR100,
    TINY_IMAGENET,
)  # starts from other images than those of `ours`
OWN = {  # options of some starts
    FRESH: {"epochs": 1, "learning_rate": 0, "seed": 1},  # nothing is learned
    CIFAR100: {"data": "torchvision:CIFAR100"},
    TINY_IMAGENET: {"data": "TINY_IMAGENET/train"},
}


@dataclass(frozen=True)
class Starts:
    """A folder of pretrained files, or None, the weights of MobileNetV2, and files elsewhere by name."""

    folder: Path | None
    mobilenet_weights: str
    given: dict[str, Path] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """Describe what "Ours" starts from."""
        if self.folder is None:
            but = ", but where the row says otherwise" * bool(self.given)
            return f"all rows start from stock weights, without CRUMB pretraining{but}"
        if (file := self.file(OURS)) is None:
            return f"pretrained files in {self.folder}, where that of Ours is missing"
        from crumb_avalanche.training.pretraining import read_pretrained

        made = read_pretrained(file)[1]
        images = f"{made.get('images')} images of {'/'.join(Path(str(made.get('data'))).parts[-2:])}"
        return f"Ours starts from CRUMB pretraining on {images}, {made.get('epochs')} epochs"

    def file(self, name: str) -> Path | None:
        """The file of a start; None if it does not exist."""
        path = self.given.get(name) or (
            self.folder / f"{name}.safetensors" if self.folder else None
        )
        return path if path and path.is_file() else None

    def commands(self, rows: Iterable[dict]) -> list[str]:
        """The commands that make what is missing, without the options of all; files that combine others are made."""
        wanted: dict[str, dict] = {}
        for row in rows:
            start = row.get("start", OURS)
            for name in MIXED.get(start, (start,)):
                if name != STOCK and not self.file(name):
                    wanted.setdefault(
                        name, row.get("pretraining", {}) if name == start else {}
                    )
            if start in MIXED:
                self.mix(start)
        commands = []
        for name, changes in wanted.items():
            options = {
                "data": "IMAGENET/train",
                "codebook_dim": 8,
                **changes,
                **OWN.get(name, {}),
            }
            options["output"] = self.folder / f"{name}.safetensors"
            words = [
                f"--{option.replace('_', '-')} {str(value).lower() if value is False else value}"
                for option, value in options.items()
            ]
            commands.append(" ".join(["crumb pretrain", *words]))
        return commands

    def mix(self, name: str) -> None:
        """Combine a file from its parts if they exist, always anew, as the parts may have changed."""
        from crumb_avalanche.system.tensor_file import write_tensors
        from crumb_avalanche.training.pretraining import FORMAT, read_pretrained

        weights, codebook = (self.file(part) for part in MIXED[name])
        if not weights or not codebook:
            return
        state, notes = read_pretrained(weights)
        blocks = read_pretrained(codebook)[0]["codebook.blocks"]
        if blocks.shape != state["codebook.blocks"].shape:
            raise ValueError(
                f"the codebooks of {weights} and {codebook} are of shapes {tuple(state['codebook.blocks'].shape)} "
                f"and {tuple(blocks.shape)}; make both with the same settings"
            )
        state["codebook.blocks"] = blocks
        notes = json.dumps({**notes, "codebook_from": codebook.name})
        write_tensors(
            self.folder / f"{name}.safetensors",
            state,
            {"format": FORMAT, "made_with": notes},
        )
