"""Record what a rebuilding of the packages must not change, and compare with it.

::

    python tests/golden.py record FILE --quick    # toy shapes and learners: minutes
    python tests/golden.py record FILE            # ETH-80 besides: hours
    python tests/golden.py compare FILE --quick   # compute again, print what differs

``compare`` ends with exit code 1 if anything differs. A name after the file limits
either to the values below it: ``compare FILE methods/er eth80``. ``record`` keeps the
values that the file has, so the same command resumes. ETH-80 and weights come from
``--data``, by default the folder that ``CRUMB_TEST_DATA`` names. Only commands and the
names that the front modules export are used.

All values come from one thread. They are compared exactly if the file was recorded on
the same kind of machine: CPU, torch, numpy and faiss. Elsewhere texts, counts and bytes
are compared exactly, accuracies within ``POINTS``, and the other values are left out: a
rounding that differs may send a short training of an untrained network another way.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CRUMB_RUNTIME"] = "torch"  # what --runtime auto takes, instead of a trial
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

Compute = Callable[[], Any]
POINTS = 10  # of percent: difference of accuracies that another machine may make
SAME_VERSIONS = ("torch", "torchvision", "numpy", "faiss-cpu")

# Settings of a run of a second, in which not all images of the stream fit into the
# memory.
TOY = (
    "--benchmark clip_folder --preset paper --backbone small_cnn --image-size 32 "
    "--classes-per-experience 3 --batch-size 8 --first-epochs 4 --learning-rate 0.01 "
    "--threads 1 --progress false"
)
PRETRAIN = (
    "--backbone small_cnn --epochs 2 --image-size 32 --batch-size 8 --threads 1 "
    "--progress false"
)
BUDGET = 30  # images
# Budgets with room for what these methods keep besides memories.
BUDGETS = {
    "crumb": 5,
    "icarl": 130,
    "bic": 130,
    "aanets": 360,
    "remind": 50,
    "ranpac": 600,
}
# Settings that change how a method learns, besides each method with its own defaults.
VARIANTS = {
    "crumb, reference rule": "--selection-rule reference --clamp-gradients 10",
    "crumb, preset tuned": "--preset tuned --budget-images 12",
    "crumb, fused steps": "--fused true --replay-steps 2",
    "crumb, reservoir and shuffled frames": (
        "--selection-rule reservoir --protocol class_iid"
    ),
    "crumb, both losses": "--method.direct_weight 0.5 --evaluate-quantized true",
    "crumb, learning rate found": (
        "--family fair --learning-rate null --budget-images 7"
    ),
    "remind, one image at a time": (
        "--strategy remind --method.samples_at_a_time true --method.replays 4"
    ),
    "er, ring": "--strategy er --method.ring_below 100",
    "slda, maps": "--strategy slda --method.maps true --budget-images 300",
    "rda, preset recommended": "--preset recommended --strategy rda",
}
METHODS_OF_LEARNER = ("recommended", "slda", "ncm", "ranpac")
ETH80 = {
    "crumb": "--preset paper",
    "crumb, preset tuned": "--preset tuned --budget-images 6",
    "rda": "--preset recommended --strategy rda --method.looks 1",
    "slda": "--preset paper --strategy slda",
    "icarl": "--preset paper --strategy icarl",
    "remind": "--preset paper --strategy remind",
    "er": "--preset paper --strategy er",
    "offline": "--preset paper --strategy offline",
}


def command(*arguments: object) -> str:
    """Call ``crumb`` in this process; return what it printed."""
    from crumb_avalanche.cli import main

    words = list(map(str, arguments))
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    if code:
        raise RuntimeError(f"crumb {' '.join(words)}: {err.getvalue()}")
    return out.getvalue()


def digest(content: bytes) -> str:
    """The first 12 digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


# Images and weights


def drawn(names: tuple[str, ...], frames_per_clip: int) -> Any:
    """The table of toy shapes: three objects a class, in two clips, of 32 pixels."""
    from benchmarks_toybox_ilab import ToyShapesFrames

    return ToyShapesFrames(
        classes=names,
        objects_per_class=3,
        sessions=2,
        frames_per_clip=frames_per_clip,
        size=32,
        held_out_sessions=(1,),
    )


class Shapes:
    """A folder of toy shapes as image files, and weights, both made on first use."""

    CLASSES = ("arrow", "cross", "fish", "heart", "key", "mug")
    # Of the images that the weights are trained on.
    OTHERS = (
        "bottle",
        "chair",
        "crescent",
        "gear",
        "hammer",
        "house",
        "ladder",
        "leaf",
        "ring",
        "star",
    )

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def clips(self) -> Path:
        """``class/object/session/frame.png``, of 32 pixels.

        6 classes x 3 objects x 2 clips x 8 frames.
        """
        root = self.folder / "clips"
        if not root.exists():
            table = drawn(self.CLASSES, frames_per_clip=8)
            for row, name in enumerate(table.path):
                path = root / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                table.read(row).save(path)
        return root

    @property
    def weights(self) -> Path:
        """A file of weights of ``small_cnn``, trained on ten other shapes."""
        path = self.folder / "small_cnn.pth"
        if not path.exists():
            train_network(self.OTHERS, path)
        return path


def train_network(names: tuple[str, ...], path: Path) -> None:
    """Train ``small_cnn`` on toy shapes for seconds, with plain torch."""
    import torch
    from torch.utils.data import default_collate

    from benchmarks_toybox_ilab import FrameDataset, imagenet_transform
    from crumb_avalanche import SmallCNN

    table = drawn(names, frames_per_clip=6)
    samples = list(FrameDataset(table, range(len(table)), imagenet_transform(32)))
    images, labels = default_collate(samples)
    torch.manual_seed(0)
    network = SmallCNN()
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
    )
    for _ in range(12):
        for rows in torch.randperm(len(images)).split(20):
            optimizer.zero_grad()
            logits = network(images[rows])
            torch.nn.functional.cross_entropy(logits, labels[rows]).backward()
            optimizer.step()
    torch.save(network.state_dict(), path)


# Runs on toy shapes


def result_of(folder: Path) -> dict[str, Any]:
    """What a run reached and kept, from its folder."""
    import numpy as np

    result = json.loads((folder / "result.json").read_text())
    ledger = json.loads((folder / "ledger.json").read_text())
    with np.load(folder / "predictions.npz") as file:
        order = np.argsort(file["row"], kind="stable")
        answers = file["answer"][order].astype("<i4")
        confidence = file["confidence"][order].astype("<f4")
    # The last accuracy is the final one.
    accuracies = [round(accuracy, 4) for accuracy in result["accuracy_after"]]
    return {
        "accuracies": accuracies,
        "learning_rate": result["learning_rate"],
        "buffer_items": ledger["buffer_items"],
        "buffer_bytes": ledger["buffer_bytes"],
        "memory_bytes": ledger["memory_bytes"],
        "answers_digest": digest(answers.tobytes()),
        "confidence_digest": digest(confidence.tobytes()),
    }


def toy_run(shapes: Shapes, *settings: object) -> dict[str, Any]:
    """Result of a run on the toy shapes for two experiences."""
    data = ("--dataset-root", shapes.clips)
    with tempfile.TemporaryDirectory() as folder:
        command("run", *TOY.split(), *data, *settings, "--output", folder)
        return result_of(Path(folder))


def method_run(shapes: Shapes, name: str, settings: str) -> dict[str, Any]:
    """Result of a run of a method, with weights and a budget.

    Args:
        shapes: the images and the weights.
        name: of the value; the method's comes first, before a comma.
        settings: flags of the run.
    """
    words: list[object] = settings.split()
    if "--budget-images" not in words:
        words += ["--budget-images", BUDGETS.get(name.split(",")[0], BUDGET)]
    return toy_run(shapes, "--weights", shapes.weights, *words)


def pretrained_run(shapes: Shapes) -> dict[str, Any]:
    """Result of a run that starts from what ``crumb pretrain`` made."""
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "images")
        file = Path(folder, "pretrained.safetensors")
        for name in shapes.CLASSES[:3]:
            link_photos(shapes.clips / name, photos / name)
        paths = ("--data", photos, "--weights", shapes.weights, "--output", file)
        command("pretrain", *paths, *PRETRAIN.split())
        return toy_run(shapes, "--pretrained", file)


def link_photos(clips: Path, folder: Path) -> None:
    """Put links to all frames of a class into one folder."""
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(clips.rglob("*.png"))):
        (folder / f"{number:02d}.png").symlink_to(path)


# Learners


def taught(shapes: Shapes, method: str) -> dict[str, Any]:
    """Answers for objects that were not shown, of taught classes and of another one."""
    import torch

    from crumb_avalanche import Learner

    torch.manual_seed(0)
    learner = Learner(method, "small_cnn", shapes.weights, image_size=32, looks=(1.0,))
    classes = shapes.CLASSES[:5]
    for name in classes:
        learner.teach(shapes.clips / name / "object0", name)
    learner.forget(classes[1])
    for name in classes[:2]:
        learner.teach(shapes.clips / name / "object1" / "session0", name)
    clips = [shapes.clips / name / "object2" / "session1" for name in shapes.CLASSES]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learner.safetensors"
        learner.save(file)
        answers = answers_to(learner, clips)
        loaded_answers = answers_to(Learner.load(file), clips)
    labels = []
    known = []
    right = 0
    for answer in answers:
        labels.append(answer.label)
        known.append(answer.known)
        right += f"/clips/{answer.label}/" in Path(answer.path).as_posix()
    return {
        "accuracy": 100 * right / len(answers),
        "answers_digest": digest(" ".join(labels).encode()),
        "confidence": [answer.confidence for answer in answers[::9]],
        "known_digest": digest(repr(known).encode()),
        "as_loaded": labels == [answer.label for answer in loaded_answers],
        "images": {info.name: info.images for info in learner.classes},
        "bytes": learner.bytes,
    }


def answers_to(learner: Any, clips: list[Path]) -> list[Any]:
    answers = []
    for clip in clips:
        answers += learner.predict_all(clip)
    return answers


def exported(shapes: Shapes, method: str) -> dict[str, Any]:
    """Outputs of an ONNX file in ONNX Runtime for three images."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learner.onnx"
        learner = Path(folder) / "learner.safetensors"
        teach_by_command(shapes, method, learner)
        command("export", learner, "--output", file, "--threads", 1)
        return outputs_of(file, pixels_of(shapes))


def teach_by_command(shapes: Shapes, method: str, learner: Path) -> None:
    """Make a learner of three classes."""
    network = ("--backbone", "small_cnn", "--image-size", 32)
    new = ("--method", method, "--weights", shapes.weights, *network)
    plain = ("--threads", 1, "--progress", "false", "--runtime", "torch")
    for name in shapes.CLASSES[:3]:
        arguments = (shapes.clips / name, "--label", name, *plain)
        if not learner.exists():
            arguments += new
        command("teach", learner, *arguments)


def pixels_of(shapes: Shapes) -> Any:
    """The first frames of three clips, ``(3, h, w, 3)`` uint8."""
    import numpy as np
    from PIL import Image

    pixels = []
    for name in shapes.CLASSES[1:4]:
        clip = shapes.clips / name / "object2" / "session1"
        image = Image.open(min(clip.iterdir())).convert("RGB")
        pixels.append(np.array(image))
    return np.stack(pixels)


def outputs_of(file: Path, pixels: Any) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, {"images": pixels})
    names = [output.name for output in session.get_outputs()]
    return {name: value.tolist() for name, value in zip(names, outputs)}


# ETH-80


@dataclass(frozen=True)
class Eth80:
    """The unpacked images, and the weights.

    Attributes:
        data: folder of ``eth80/`` and ``imagenet_weights/``.
        work: folder for images and runs.
    """

    data: Path
    work: Path

    @property
    def root(self) -> Path:
        """The images, unpacked on first use."""
        root = self.work / "unpacked" / "eth80"
        if not root.exists():
            archive = self.data / "eth80" / "eth80_128.zip"
            shutil.unpack_archive(archive, self.work / "unpacked")
        return root

    @property
    def weights(self) -> Path:
        return self.data / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"

    def run(self, name: str, run: int) -> dict[str, Any]:
        """Result of a run; an interrupted one resumes."""
        output = self.work / f"{name}, run {run}"
        if not (output / "result.json").exists():
            command(
                *("run", "--benchmark", "eth80", "--dataset-root", self.root),
                *("--weights", self.weights, "--run", run, *ETH80[name].split()),
                *("--feature-cache", self.work / "cache", "--output", output),
                *("--threads", 1, "--progress", "false"),
            )
        return result_of(output)

    def taught(self) -> dict[str, Any]:
        """Answers of a recommended learner for the last object of each class.

        It saw the first four.
        """
        from crumb_avalanche import Learner

        objects: dict[str, list[Path]] = {}
        for folder in sorted(self.root.iterdir()):
            objects.setdefault(folder.name.rstrip("0123456789"), []).append(folder)
        learner = Learner("recommended", "squeezenet1_0", self.weights, looks=(1.0,))
        for number in range(4):
            for name, folders in objects.items():
                learner.teach(folders[number], name)
        answers = []
        right = 0
        for name, folders in objects.items():
            of_class = list(learner.predict_all(folders[-1]))
            answers += of_class
            right += sum(answer.label == name for answer in of_class)
        return {
            "accuracy": 100 * right / len(answers),
            "known": sum(bool(answer.known) for answer in answers),
            "confidence": [answer.confidence for answer in answers[::20]],
            "bytes": learner.bytes,
        }


# Values and machines


def cpu_facts() -> dict[str, str]:
    """What Linux says of the first core; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    facts: dict[str, str] = {}
    if not path.exists():
        return facts
    for line in reversed(path.read_text().splitlines()):
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    return facts


def machine() -> dict[str, str]:
    """What decides the last digits."""
    facts = cpu_facts()
    name = facts.get("model name") or platform.processor()
    # Virtual machines name CPUs of several generations alike, whose libraries round
    # differently.
    words = [name]
    for fact in ("cpu family", "model", "stepping"):
        if fact in facts:
            words.append(f"{fact} {facts[fact]}")
    cpu = ", ".join(words)
    versions = {name: importlib.metadata.version(name) for name in SAME_VERSIONS}
    return {"cpu": cpu, "machine": platform.machine(), **versions}


def values_by_part(
    options: argparse.Namespace, work: Path
) -> dict[str, dict[str, Compute]]:
    """The functions that compute all values, by part and name."""
    shapes = Shapes(work)
    names = re.findall(r"^(\w+): ", command("strategies"), re.MULTILINE)
    methods: dict[str, Compute] = {}
    for name in names:
        methods[name] = partial(method_run, shapes, name, f"--strategy {name}")
    for name, flags in VARIANTS.items():
        methods[name] = partial(method_run, shapes, name, flags)
    methods["crumb, pretrained"] = partial(pretrained_run, shapes)
    learners: dict[str, Compute] = {}
    exports: dict[str, Compute] = {}
    for method in METHODS_OF_LEARNER:
        learners[method] = partial(taught, shapes, method)
        exports[method] = partial(exported, shapes, method)
    return {
        "methods": methods,
        "learners": learners,
        "exports": exports,
        "eth80": {} if options.quick else eth80_values(options, work),
    }


def eth80_values(options: argparse.Namespace, work: Path) -> dict[str, Compute]:
    eth80 = Eth80(Path(options.data or ""), work)
    computes: dict[str, Compute] = {"taught": eth80.taught}
    for run in (0, 1):
        for name in ETH80:
            computes[f"{name}, run {run}"] = partial(eth80.run, name, run)
    return computes


def values(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, Compute]]:
    """Names of the values that are asked for, with what computes them."""
    only = set(options.only)
    for group, computes in values_by_part(options, work).items():
        for name, compute in computes.items():
            full_name = f"{group}/{name}"
            if not only or group in only or full_name in only:
                yield full_name, compute


def record(options: argparse.Namespace, work: Path) -> int:
    """Compute what the file lacks, and write it after each value."""
    file = Path(options.file)
    recorded = {"machine": machine(), "values": {}}
    if file.exists():
        recorded = json.loads(file.read_text())
    if recorded["machine"] != machine():
        print(
            f"{file} was recorded on another machine: {recorded['machine']}; give "
            "another file",
            file=sys.stderr,
        )
        return 1
    for name, compute in values(options, work):
        if name not in recorded["values"]:
            recorded["values"][name] = compute()
            write_values(file, recorded)
            print(name, flush=True)
    return 0


def write_values(file: Path, recorded: dict[str, Any]) -> None:
    """Write one value a line, to a file of its own first."""
    lines = []
    for name, value in recorded["values"].items():
        lines.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    header = f'{{"machine": {json.dumps(recorded["machine"])},\n "values": {{\n'
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(header + ",\n".join(lines) + "\n}}\n")
    unfinished.replace(file)


def compare(options: argparse.Namespace, work: Path) -> int:
    """Compute again and print what differs from the file."""
    recorded = json.loads(Path(options.file).read_text())
    same = recorded["machine"] == machine()
    if not same:
        print(
            f"recorded on another machine: {recorded['machine']}; this is {machine()}"
        )
    computed = set()
    differing = 0
    for name, compute in values(options, work):
        computed.add(name)
        lines = differences_of(name, compute, recorded["values"], same)
        for line in lines:
            print(f"{name}: {line}", flush=True)
        differing += bool(lines)
    if not options.only:
        differing += print_missing(recorded["values"], computed)
    tolerance = "" if same else ", within the tolerance"
    equal = len(computed) - differing
    print(f"{equal} of {len(computed)} values are as recorded{tolerance}")
    return int(differing > 0)


def differences_of(
    name: str, compute: Compute, recorded: dict[str, Any], same: bool
) -> list[str]:
    """Say where a value differs from the recorded one."""
    if name not in recorded:
        return ["not in the file"]
    try:
        value = json.loads(json.dumps(compute()))
        return list(differences(recorded[name], value, same))
    except Exception as error:  # the other values are of interest all the same
        return [f"{type(error).__name__}: {error}"]


def print_missing(recorded: dict[str, Any], computed: set[str]) -> int:
    """Print values of the computed parts that only the file has; return how many."""
    computed_parts = {name.split("/")[0] for name in computed}
    missing = 0
    for name in recorded:
        if name.split("/")[0] in computed_parts and name not in computed:
            print(f"{name}: only in the file")
            missing += 1
    return missing


def differences(old: Any, new: Any, same: bool, where: str = "") -> Iterator[str]:
    """Say where a recorded value and the one now differ.

    Args:
        old, new: the values; dictionaries and lists are compared item by item.
        same: whether both are of the same kind of machine.
        where: names and numbers of the item, each followed by a space.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            inside = f"{where}{name} "
            if name not in old:
                yield f"{inside}is only there now"
            elif name not in new:
                yield f"{inside}is only in the file"
            else:
                yield from differences(old[name], new[name], same, inside)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}has {len(old)} and {len(new)} items"
        for number, (old_item, new_item) in enumerate(zip(old, new)):
            yield from differences(old_item, new_item, same, f"{where}{number} ")
    elif old != new and (same or not may_differ(old, new, where)):
        change = ""
        if are_numbers(old, new):
            change = f" ({new - old:+.3g})"
        yield f"{where}is {old!r} in the file and {new!r} now{change}"


def are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def may_differ(old: Any, new: Any, where: str) -> bool:
    """Whether another machine may give a value that differs so."""
    if "accurac" in where:
        return are_numbers(old, new) and abs(old - new) <= POINTS
    return "digest" in where or isinstance(old, float)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("action", choices=["record", "compare"])
    options.add_argument("file", help="the JSON file of recorded values")
    options.add_argument(
        "only",
        nargs="*",
        help="values, or parts of them: methods, learners, exports, eth80",
    )
    options.add_argument("--quick", action="store_true", help="without ETH-80")
    options.add_argument(
        "--data",
        default=os.environ.get("CRUMB_TEST_DATA"),
        help="folder of eth80/, imagenet_weights/",
    )
    options.add_argument(
        "--work",
        help="folder for ETH-80's images and runs, to resume them; default a "
        "temporary one",
    )
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_intermixed_args(arguments)
    asks_for_eth80 = not options.only or "eth80" in str(options.only)
    if not options.quick and not options.data and asks_for_eth80:
        parser().error("without --quick, give --data or set CRUMB_TEST_DATA")
    import torch

    torch.set_num_threads(1)
    action = record if options.action == "record" else compare
    if options.work:
        work = Path(options.work)
        work.mkdir(parents=True, exist_ok=True)
        return action(options, work)
    with tempfile.TemporaryDirectory() as folder:
        return action(options, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
