"""Random values for every setting of every command, hostile ones included."""

import dataclasses
import os
import shutil
from pathlib import Path
from random import Random

import yaml
from support.faults.case import Kind, command
from support.faults.material import NETWORK, QUIET, finished_run, write_photo, write_weights
from support.faults.odd_values import LARGEST, NAMES, NUMBERS, TEXTS

from crumb_avalanche.cli.parser import COMMANDS

# Never drawn, with the reason.
DENIED = {
    "workers": "each is a process: thousands of them would take the machine down",
    "threads": "each is a thread; a thousand are allowed",
    "runtime": "compiles, or measures, for seconds to half a minute",
    "config": "is drawn as a file below",
    "camera": "opens a device",
    "host": "looks names up in the network",
    "port": "may be in use",
    "data": "torchvision:NAME downloads",
    "progress": "prints bars",
    "check": "is a flag",
}
SLOW = {"crumb demo", "crumb serve"}  # takes minutes; waits for requests
ACTIONS = ("show", "forget", "rename", "undo", "merge", "eat")


class Settings(Kind):
    """A command with odd settings ends well, or says which one is wrong in some lines."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.run = finished_run(folder)
        self.clips, self.photo = folder / "clips", write_photo(folder / "photo.png", 1)
        self.weights, self.learner = write_weights(folder / "weights.safetensors"), folder / "base.safetensors"
        new = ("--weights", self.weights, *NETWORK, *QUIET)
        assert command("teach", self.learner, self.clips / "cup", "--label", "cup", *new).code == 0
        self.names = [name for name in COMMANDS if f"crumb {name}" not in SLOW]

    def damage(self, random: Random) -> str:
        self.work = self.folder / "work"
        self.work.mkdir()
        self.command = random.choices(self.names, [8 if name == "run" else 2 for name in self.names])[0]
        settings = COMMANDS[self.command][0]
        names = [item.name for item in dataclasses.fields(settings) if item.name not in DENIED]
        base = self.valid(random)
        names = [name for name in names if name not in ("folders", "model", "sources", "action", "names", "name")]
        drawn = [
            (name, self.value(name, random)) for name in random.sample(names, min(len(names), random.randint(1, 3)))
        ]
        if random.random() < 0.1:
            drawn.append(
                (random.choice(("nothing", "method.power", "method.x", "method", "help")), random.choice(NUMBERS))
            )
        if random.random() < 0.2:
            path = self.work / "settings.yaml"
            path.write_text(self.as_file(drawn, random), errors="surrogateescape")
            given = ["--config", path]
        else:
            given = [f"--{name}={value}" for name, value in drawn]
        given = [one for one in given if "\0" not in str(one) or random.random() < 0.5]
        self.arguments = [self.command, *base, *given]
        self.given = {} if given[:1] == ["--config"] else dict(drawn)
        return " ".join(f"{one!s:.120}" for one in [self.command, *map(repr, drawn), *given[:1]])

    def valid(self, random: Random) -> list[object]:
        """Valid arguments of the command."""
        small, output = (*NETWORK, *QUIET), self.work / "output"
        shutil.copy(self.learner, self.work / "mine.safetensors")
        mine = self.work / "mine.safetensors"
        run = ["--benchmark", "clip_folder", "--dataset-root", self.clips, "--weights", "none", "--output", output]
        return {
            "run": [*run, "--first-epochs", 1, "--strategy", random.choice(("ncm", "crumb", "rda", "er")), *small],
            "pretrain": [
                "--data",
                self.clips,
                "--weights",
                "none",
                "--epochs",
                1,
                "--output",
                f"{output}.safetensors",
                *small,
            ],
            "prepare": ["tiny_imagenet", "--dataset-root", output, "--source", self.clips, "--workers", 1],
            "report": [self.run, "--output", output],
            "strategies": [random.choice(("ncm", "x", ""))],
            "backbones": ["small_cnn", "--threads", 1],
            "teach": [mine, self.clips / "dog", "--label", "dog", *QUIET],
            "predict": [mine, self.photo, "--threads", 1],
            "learner": [random.choice(ACTIONS), mine, *random.choices(("cup", "", "x", "ü"), k=random.randint(0, 2))],
            "export": [mine, "--threads", 1, "--output", self.work / "mine.onnx"],
        }[self.command]

    def value(self, name: str, random: Random) -> str:
        """A value for a setting."""
        if name in ("output", "dataset_root", "feature_cache", "html", "source", "pretrained", "weights"):
            paths = (self.work / "new", self.photo, self.work / "a" / "b", self.photo / "below", "/proc/x", "/dev/full")
            values = (
                *map(str, paths),
                "",
                " ",
                "x" * 300,
                "\udcff",
                "~nobody/x",
                "/" + "y/" * 3000,
                "none",
                "/dev/null",
            )
            return str(self.work / random.choice(values)) if random.random() < 0.1 else random.choice(values)
        number = random.choice((*NUMBERS, str(random.randint(1, LARGEST)), f"{random.random():.3f}"))
        return random.choices((number, random.choice(TEXTS), random.choice(NAMES)), (6, 2, 2))[0]

    def as_file(self, drawn: list[tuple[str, str]], random: Random) -> str:
        """Settings as YAML, some of it broken."""
        if random.random() < 0.3:
            return random.choice(
                ("", "- 1", "a: [", "\t", "\ufeff", "a: &x [*x]", "[" * 3000, "{" * 3000, "\0", "1", "a: 1\na: 2")
            )
        try:
            return yaml.safe_dump({name: yaml.safe_load(value) for name, value in drawn})
        except Exception:
            return "\n".join(f"{name}: {value}" for name, value in drawn)

    def act(self) -> list[str]:
        """Settings that the finished run did not take."""
        here = Path.cwd()
        os.chdir(self.work)  # some paths are relative
        try:
            code = command(*self.arguments).code
        finally:
            os.chdir(here)
        config = self.work / "output" / "config.yaml"
        if code or not config.exists():
            return ["failed"] * bool(code)
        taken = yaml.safe_load(config.read_text())
        return [name for name, value in self.given.items() if name in taken and not same(value, taken[name])]

    def right(self, found: list[str]) -> bool:
        return not found

    def restore(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def same(given: str, taken: object) -> bool:
    """Whether a setting has the value that was given, as text or as a number."""
    if given.strip().lower() in ("", "null", "none", "~") or str(taken) == given.strip():
        return True
    try:
        return float(yaml.safe_load(given)) == float(taken)  # type: ignore[arg-type]
    except (TypeError, ValueError, yaml.YAMLError):
        return False
