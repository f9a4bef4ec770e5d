"""The pretrained files that the rows of Table 4 start from, and the commands that make them.

A folder holds `NAME.safetensors` for each start. Two files combine others: `ours_weights` has the weights of `ours` and
the codebook of `fresh`, `ours_blocks` has the codebook of `ours` and the weights of `fresh`. `fresh` is pretrained for
an epoch at a learning rate of 0, with another seed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from crumb_avalanche.runs.command_settings import PretrainSettings

OURS, FRESH, STOCK = "ours", "fresh", "stock"  # stock: no file
MIXED = {"ours_weights": (OURS, FRESH), "ours_blocks": (FRESH, OURS)}  # (weights, codebook)
CIFAR100, TINY_IMAGENET = "cifar100", "tiny_imagenet"
OTHER_IMAGES = (CIFAR100, TINY_IMAGENET)  # starts from other images than those of `ours`


@dataclass(frozen=True)
class Starts:
    """A folder of pretrained files, or None, the settings that make `ours`, and files elsewhere by name."""

    folder: Path | None
    base: PretrainSettings
    mobilenet_weights: str
    given: dict[str, Path] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """Describe what "Ours" starts from."""
        if self.folder is None:
            but = ", but where the row says otherwise" * bool(self.given)
            return f"all rows start from stock weights, without CRUMB pretraining{but}"
        if self.file(OURS) is None:
            return f"pretrained files in {self.folder}, where that of Ours is missing"
        made = made_with(self.file(OURS))
        images = f"{made.get('images')} images of {'/'.join(Path(str(made.get('data'))).parts[-2:])}"
        return f"Ours starts from CRUMB pretraining on {images}, {made.get('epochs')} epochs"

    def file(self, name: str) -> Path | None:
        """The file of a start; None if it does not exist."""
        path = self.given.get(name) or (self._path(name) if self.folder else None)
        return path if path and path.is_file() else None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def settings(self, name: str, changes: dict) -> PretrainSettings:
        """Settings of `crumb pretrain` that make a start."""
        made = replace(self.base, **changes, output=str(self._path(name)))
        if name == FRESH:
            return replace(made, epochs=1, learning_rate=0.0, seed=self.base.seed + 1)  # nothing is learned
        if name in OTHER_IMAGES:
            return replace(made, data={CIFAR100: "torchvision:CIFAR100"}.get(name, "TINY_IMAGENET/train"))
        return replace(made, weights=self.mobilenet_weights) if made.backbone == "mobilenet_v2" else made

    def wanted(self, rows: Iterable[dict]) -> dict[str, dict]:
        """Starts that `crumb pretrain` makes for the rows, with their changes; for combined files their parts."""
        names: dict[str, dict] = {}
        for row in rows:
            start = row.get("start", OURS)
            for name in MIXED.get(start, (start,)):
                if name != STOCK and name not in self.given:
                    names.setdefault(name, row.get("pretraining", {}) if name == start else {})
        return names

    def commands(self, rows: Iterable[dict]) -> list[str]:
        """The commands that make what is missing; files that combine others are made."""
        wanted = self.wanted(rows).items()
        missing = [self.settings(name, changes) for name, changes in wanted if not self.file(name)]
        for name in dict.fromkeys(row["start"] for row in rows if row.get("start") in MIXED):
            self.mix(name)
        return [command(settings) for settings in missing]

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
        write_tensors(self._path(name), state, {"format": FORMAT, "made_with": notes})


def made_with(file: Path) -> dict:
    """Settings that a pretrained file was made with."""
    from crumb_avalanche.training.pretraining import read_pretrained

    return read_pretrained(file)[1]


def command(settings: PretrainSettings) -> str:
    """The command line of `crumb pretrain` with these settings."""
    words = ["crumb pretrain"]
    for item in fields(PretrainSettings):
        value = getattr(settings, item.name)
        if item.name == "data" or value != item.default:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"--{item.name.replace('_', '-')} {text}")
    return " ".join(words)
