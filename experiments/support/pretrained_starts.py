"""The pretrained files that the rows of Table 4 start from: which there are, and how each is made.

A folder holds `NAME.safetensors` for each start. Two of them are mixed from others: `ours_weights` has the weights of
`ours` and a codebook made afresh, `ours_blocks` has the codebook of `ours` and weights without CRUMB pretraining; both
take the other half from `fresh`, which is pretrained for no epoch and with another seed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from support.ablation_rows import BLOCKS_OF_OURS, OURS, STOCK, WEIGHTS_OF_OURS, Ablation

from crumb_avalanche.runs.command_settings import PretrainSettings
from crumb_avalanche.runs.settings import as_dict

FRESH = "fresh"
MIXED = {WEIGHTS_OF_OURS: (OURS, FRESH), BLOCKS_OF_OURS: (FRESH, OURS)}  # (weights, codebook)
CIFAR100 = "cifar100"


@dataclass(frozen=True)
class Starts:
    """A folder of pretrained files; None for runs that all start from stock weights.

    Attributes:
        folder: of the files.
        base: how `ours` is made; `weights` and `data` are what all others take too.
        mobilenet_weights: weights that the start of MobileNetV2 takes instead.
        given: files that lie elsewhere, by the name of the start.
    """

    folder: Path | None
    base: PretrainSettings
    mobilenet_weights: str
    given: dict[str, Path] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """What "Ours" starts from, in words."""
        if self.folder is None:
            but = ", but where the row says otherwise" * bool(self.given)
            return f"all rows start from stock weights, without CRUMB pretraining{but}"
        if self.file(OURS) is None:
            return f"pretrained files in {self.folder}, where that of Ours is missing"
        made = made_with(self.file(OURS))
        images = f"{made.get('images')} images of {Path(str(made.get('data'))).name}"
        return f"Ours starts from CRUMB pretraining on {images}, {made.get('epochs')} epochs"

    def file(self, name: str) -> Path | None:
        """The file of a start, if it is there."""
        path = self.given.get(name) or (self._path(name) if self.folder else None)
        return path if path and path.is_file() else None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def settings(self, name: str, changes: dict) -> PretrainSettings:
        """Settings of `crumb pretrain` that make a start.

        Raises:
            ValueError: `crumb pretrain` has no such setting.
        """
        known = {item.name for item in fields(PretrainSettings)}
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"crumb pretrain has no setting {unknown[0]}, which the start {name!r} needs")
        made = replace(self.base, **changes, output=str(self._path(name)))
        if name == FRESH:
            return replace(made, epochs=0, seed=self.base.seed + 1)
        if name == CIFAR100:
            return replace(made, data="torchvision:CIFAR100")
        return replace(made, weights=self.mobilenet_weights) if made.backbone == "mobilenet_v2" else made

    def wanted(self, rows: Sequence[Ablation]) -> dict[str, dict]:
        """Starts that `crumb pretrain` makes for some rows, with their changes; mixed ones by what they are of."""
        names: dict[str, dict] = {}
        for row in rows:
            for name in MIXED.get(row.start, (row.start,)):
                if name != STOCK:
                    names.setdefault(name, row.pretraining if name == row.start else {})
        return names

    def make(self, rows: Sequence[Ablation]) -> list[str]:
        """Make the files that are missing, mixed ones too; returns in words those that cannot be made.

        Raises:
            ValueError: a file is there that was made with other settings.
        """
        from crumb_avalanche.runs import pretrain

        problems = []
        for name, changes in self.wanted(rows).items():
            if name in self.given:
                continue
            try:
                settings = self.settings(name, changes)
            except ValueError as error:
                problems.append(str(error))
                continue
            if file := self.file(name):
                its, wanted = decisive(made_with(file)), decisive(as_dict(settings))
                if its.pop("data", wanted["data"]) != wanted["data"]:
                    print(f"{file} was made from images in another folder than {wanted['data']}; taken as it is")
                if others := differences(its, wanted):
                    raise ValueError(f"{file} was made with {others}; ask for the same, or give another --starts")
                continue
            print(f"\npretraining {settings.output}", flush=True)
            settings.output = str(self._path(f"{name}.part"))  # not taken for done where this is cut off
            self._path(name).parent.mkdir(parents=True, exist_ok=True)
            pretrain.main(replace(settings, overwrite=True))
            Path(settings.output).replace(self._path(name))
        self.mix(rows)
        return problems

    def mix(self, rows: Sequence[Ablation]) -> None:
        """Make the mixed files whose parts are there; anew, for the parts may not be what they were."""
        from crumb_avalanche.models.weights import save_safetensors
        from crumb_avalanche.training.pretraining import FORMAT, read_pretrained

        for name in dict.fromkeys(row.start for row in rows if row.start in MIXED):
            weights, codebook = (self.file(part) for part in MIXED[name])
            if not weights or not codebook:
                continue
            state, notes = read_pretrained(weights)
            blocks = read_pretrained(codebook)[0]["codebook.blocks"]
            if blocks.shape != state["codebook.blocks"].shape:
                raise ValueError(
                    f"the codebooks of {weights} and {codebook} are of shapes {tuple(state['codebook.blocks'].shape)} "
                    f"and {tuple(blocks.shape)}; make both with the same settings"
                )
            state["codebook.blocks"] = blocks
            notes = json.dumps({**notes, "codebook_from": codebook.name})
            save_safetensors(self._path(name), state, {"format": FORMAT, "made_with": notes})

    def unlike_ours(self, row: Ablation) -> str:
        """In what its start was made otherwise than that of Ours, the row's own change apart; empty if in nothing."""
        if row.start in (STOCK, OURS, *MIXED) or not (file := self.file(row.start)) or not (ours := self.file(OURS)):
            return ""
        own = {*row.pretraining, *(["weights"] if "backbone" in row.pretraining else [])}
        own |= {"data", "dataset_root"} if row.start == CIFAR100 else set()
        its, that = (
            {key: value for key, value in decisive(made_with(path)).items() if key not in own} for path in (file, ours)
        )
        found = differences(its, that)
        return found and f"pretrained with {found} as Ours"

    def commands(self, rows: Sequence[Ablation]) -> list[str]:
        """For each missing file the command that makes it, or why there is none."""
        lines = []
        for name, changes in self.wanted(rows).items():
            if self.file(name):
                continue
            try:
                lines.append(command(self.settings(name, changes)))
            except ValueError as error:
                lines.append(str(error))
        return lines


def made_with(file: Path) -> dict:
    """What a pretrained file says of its making."""
    from crumb_avalanche.training.pretraining import read_pretrained

    return read_pretrained(file)[1]


def decisive(settings: dict) -> dict:
    """The settings of `crumb pretrain` among some that decide what it makes; of files and folders their place."""
    from crumb_avalanche.runs.pretrain import NON_RESULT_SETTINGS

    names = {item.name for item in fields(PretrainSettings)} - NON_RESULT_SETTINGS - {"device"}
    chosen = {name: value for name, value in settings.items() if name in names}
    for name in ("data", "weights"):
        if Path(chosen.get(name, "")).exists():
            chosen[name] = str(Path(chosen[name]).resolve())
    return chosen


def differences(its: dict, other: dict) -> str:
    """``epochs=1, not 20; ...`` for settings that both have."""
    names = [name for name in its if name in other and its[name] != other[name]]
    return "; ".join(f"{name}={its[name]}, not {other[name]}" for name in names)


def command(settings: PretrainSettings) -> str:
    """The command line of `crumb pretrain` that has these settings."""
    words = ["crumb pretrain"]
    for item in fields(PretrainSettings):
        value = getattr(settings, item.name)
        if item.name == "data" or value != item.default:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"--{item.name.replace('_', '-')} {text}")
    return " ".join(words)
