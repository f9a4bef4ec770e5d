"""Record what a rebuilding of the packages must not change, and compare with a recorded file.

    python tests/golden.py record FILE --quick
    python tests/golden.py record FILE
    python tests/golden.py compare FILE --quick

``--quick`` takes minutes: toy shapes, taught learners, export. Without it, ETH-80 with
real weights takes hours on one core besides. ``compare`` computes again and prints what
differs; its exit code is 1 if anything does.

A name after the file limits either to the values below it: ``compare FILE methods/er
eth80``. ``record`` keeps the values that the file has, so the same command resumes.
ETH-80 and weights come from ``--data``, by default the folder that ``CRUMB_TEST_DATA``
names. Only commands and the names that the front modules export are used.

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
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CRUMB_RUNTIME"] = "torch"  # what --runtime auto takes, instead of a trial
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

Named = Iterator[
    tuple[str, Callable[[], Any]]
]  # names of values, with the functions that compute them
POINTS = 10  # of percent: difference of accuracies that another machine may make

# Settings of a run of a second, in which not all images of the stream fit into the
# memory.
TOY = [
    *(
        "--benchmark",
        "clip_folder",
        "--preset",
        "paper",
        "--backbone",
        "small_cnn",
        "--image-size",
        "32",
    ),
    *(
        "--classes-per-experience",
        "3",
        "--batch-size",
        "8",
        "--first-epochs",
        "4",
        "--learning-rate",
        "0.01",
    ),
    *("--threads", "1", "--progress", "false"),
]
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
    "crumb, reference rule": [
        "--selection-rule",
        "reference",
        "--clamp-gradients",
        "10",
    ],
    "crumb, preset tuned": ["--preset", "tuned", "--budget-images", "6"],
    "crumb, fused steps": ["--fused", "true", "--replay-steps", "2"],
    "crumb, reservoir and shuffled frames": [
        "--selection-rule",
        "reservoir",
        "--protocol",
        "class_iid",
    ],
    "crumb, both losses": [
        "--method.direct_weight",
        "0.5",
        "--evaluate-quantized",
        "true",
    ],
    "crumb, learning rate found": [
        "--family",
        "fair",
        "--learning-rate",
        "null",
        "--budget-images",
        "7",
    ],
    "remind, one image at a time": [
        *(
            "--strategy",
            "remind",
            "--method.samples_at_a_time",
            "true",
            "--method.replays",
            "4",
        )
    ],
    "er, ring": ["--strategy", "er", "--method.ring_below", "100"],
    "slda, maps": [
        "--strategy",
        "slda",
        "--method.maps",
        "true",
        "--budget-images",
        "300",
    ],
    "rda, preset recommended": ["--preset", "recommended", "--strategy", "rda"],
}
METHODS_OF_LEARNER = ("recommended", "slda", "ncm", "ranpac")
ETH80 = {
    "crumb": ["--preset", "paper"],
    "crumb, preset tuned": ["--preset", "tuned", "--budget-images", "6"],
    "rda": ["--preset", "recommended", "--strategy", "rda"],
    **{
        name: ["--preset", "paper", "--strategy", name]
        for name in ("slda", "icarl", "remind", "er", "offline")
    },
}


def command(*arguments: object) -> str:
    """Call ``crumb`` in this process; return what it printed."""
    from crumb_avalanche.cli import main

    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main([str(argument) for argument in arguments])
    if code:
        raise RuntimeError(f"crumb {' '.join(map(str, arguments))}: {err.getvalue()}")
    return out.getvalue()


def digest(content: bytes) -> str:
    """The first 12 digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


class Shapes:
    """A folder of toy shapes as image files, and weights, both made on first use."""

    CLASSES = ("arrow", "cross", "fish", "heart", "key", "mug")

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def clips(self) -> Path:
        """``class/object/session/frame.png``: 6 classes x 3 objects x 2 clips x 8 frames of 32 pixels."""
        root = self.folder / "clips"
        if not root.exists():
            table = drawn(self.CLASSES, frames_per_clip=8)
            for row, path in enumerate(table.path):
                place = root / f"{path}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                table.read(row).save(place)
        return root

    @property
    def weights(self) -> Path:
        """A file of weights of ``small_cnn`` that plain torch trained on ten other shapes for seconds."""
        import torch

        from benchmarks_toybox_ilab import FrameDataset, imagenet_transform
        from crumb_avalanche import SmallCNN

        path = self.folder / "small_cnn.pth"
        if not path.exists():
            names = (
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
            table = drawn(names, frames_per_clip=6)
            shown = list(FrameDataset(table, range(len(table)), imagenet_transform(32)))
            images, labels = (
                torch.stack([image for image, _ in shown]),
                torch.tensor([label for _, label in shown]),
            )
            torch.manual_seed(0)
            network = SmallCNN()
            optimizer = torch.optim.SGD(
                network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
            )
            for _ in range(12):
                for rows in torch.randperm(len(images)).split(20):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(
                        network(images[rows]), labels[rows]
                    ).backward()
                    optimizer.step()
            torch.save(network.state_dict(), path)
        return path


def drawn(names: tuple[str, ...], frames_per_clip: int) -> Any:
    """The table of toy shapes of these classes: three objects each, in two clips, 32 pixels."""
    from benchmarks_toybox_ilab import ToyShapesFrames

    settings = dict(
        objects_per_class=3,
        sessions=2,
        frames_per_clip=frames_per_clip,
        size=32,
        held_out_sessions=(1,),
    )
    return ToyShapesFrames(classes=names, **settings)


def result_of(folder: Path) -> dict[str, Any]:
    """What a run reached and kept, from its folder."""
    import numpy as np

    result, ledger = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("result", "ledger")
    )
    found = {
        "accuracies": [
            round(accuracy, 4) for accuracy in result["accuracy_after"]
        ],  # the last one is the final one
        "learning_rate": result["learning_rate"],
        **{
            name: ledger[name]
            for name in ("buffer_items", "buffer_bytes", "memory_bytes")
        },
    }
    with np.load(folder / "predictions.npz") as file:
        order = np.argsort(file["row"], kind="stable")
        found["answers_digest"] = digest(file["answer"][order].astype("<i4").tobytes())
        found["confidence_digest"] = digest(
            file["confidence"][order].astype("<f4").tobytes()
        )
    return found


def toy_run(
    shapes: Shapes, name: str, *settings: object, start: tuple[object, ...] = ()
) -> dict[str, Any]:
    """Result of a run on the toy shapes for two experiences."""
    start = start or ("--weights", shapes.weights)
    if "--budget-images" not in settings and "--pretrained" not in start:
        settings += ("--budget-images", BUDGETS.get(name.split(",")[0], BUDGET))
    with tempfile.TemporaryDirectory() as folder:
        command(
            "run",
            *TOY,
            "--dataset-root",
            shapes.clips,
            *start,
            *settings,
            "--output",
            folder,
        )
        return result_of(Path(folder))


def pretrained_run(shapes: Shapes) -> dict[str, Any]:
    """Result of a run that starts from plastic layers and a codebook that ``crumb pretrain`` made."""
    with tempfile.TemporaryDirectory() as folder:
        images, file = Path(folder, "images"), Path(folder, "pretrained.safetensors")
        for name in shapes.CLASSES[:3]:  # one folder of photos a class
            (images / name).mkdir(parents=True)
            for number, path in enumerate(sorted((shapes.clips / name).rglob("*.png"))):
                (images / name / f"{number:02d}.png").symlink_to(path)
        command(
            *(
                "pretrain",
                "--data",
                images,
                "--backbone",
                "small_cnn",
                "--weights",
                shapes.weights,
                "--epochs",
                2,
            ),
            *(
                "--image-size",
                32,
                "--batch-size",
                8,
                "--threads",
                1,
                "--progress",
                "false",
                "--output",
                file,
            ),
        )
        return toy_run(shapes, "crumb", start=("--pretrained", file))


def taught(shapes: Shapes, method: str) -> dict[str, Any]:
    """Answers for the objects that were not shown, of classes that were taught and of one that was not."""
    import torch

    from crumb_avalanche import Learner

    torch.manual_seed(0)
    learner, known = (
        Learner(method, "small_cnn", shapes.weights, image_size=32, looks=(1.0,)),
        shapes.CLASSES[:5],
    )
    for name in known:
        learner.teach(shapes.clips / name / "object0", name)
    learner.forget(known[1])
    for name in known[:2]:
        learner.teach(shapes.clips / name / "object1" / "session0", name)
    asked = [shapes.clips / name / "object2" / "session1" for name in shapes.CLASSES]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learner.safetensors"
        learner.save(file)
        answers, again = (
            [x for path in asked for x in one.predict_all(path)]
            for one in (learner, Learner.load(file))
        )
    right = sum(
        f"/clips/{answer.label}/" in Path(answer.path).as_posix() for answer in answers
    )
    return {
        "accuracy": 100 * right / len(answers),
        "answers_digest": digest(" ".join(answer.label for answer in answers).encode()),
        "confidence": [answer.confidence for answer in answers[::9]],
        "known_digest": digest(repr([answer.known for answer in answers]).encode()),
        "as_loaded": [answer.label for answer in answers]
        == [answer.label for answer in again],
        "images": {info.name: info.images for info in learner.classes},
        "bytes": learner.bytes,
    }


def exported(shapes: Shapes, method: str) -> dict[str, Any]:
    """Outputs of an ONNX file in ONNX Runtime for three images."""
    import numpy as np
    import onnxruntime
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        model, file = (
            Path(folder) / "learner.safetensors",
            Path(folder) / "learner.onnx",
        )
        new = (
            "--method",
            method,
            "--backbone",
            "small_cnn",
            "--weights",
            shapes.weights,
            "--image-size",
            32,
        )
        for name in shapes.CLASSES[:3]:
            plain = (
                "--label",
                name,
                "--threads",
                1,
                "--progress",
                "false",
                "--runtime",
                "torch",
            )
            command(
                "teach",
                model,
                shapes.clips / name,
                *plain,
                *(() if model.exists() else new),
            )
        command("export", model, "--output", file, "--threads", 1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        paths = [
            shapes.clips / name / "object2" / "session1" for name in shapes.CLASSES[1:4]
        ]
        pixels = np.stack(
            [
                np.array(Image.open(sorted(path.iterdir())[0]).convert("RGB"))
                for path in paths
            ]
        )
        outputs = session.run(None, {"images": pixels})
    return {
        output.name: value.tolist()
        for output, value in zip(session.get_outputs(), outputs)
    }


def eth80_root(options: argparse.Namespace, work: Path) -> tuple[Path, Path]:
    """The unpacked images, and the weights."""
    data, root = Path(options.data), work / "unpacked" / "eth80"
    if not root.exists():
        shutil.unpack_archive(data / "eth80" / "eth80_128.zip", work / "unpacked")
    return root, data / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"


def eth80_run(
    options: argparse.Namespace, work: Path, name: str, run: int
) -> dict[str, Any]:
    """Result of a run on ETH-80; an interrupted one resumes."""
    root, weights = eth80_root(options, work)
    output = work / f"{name}, run {run}"
    if not (output / "result.json").exists():
        command(
            *(
                "run",
                "--benchmark",
                "eth80",
                "--dataset-root",
                root,
                "--weights",
                weights,
                "--run",
                run,
                *ETH80[name],
            ),
            *(
                "--feature-cache",
                work / "cache",
                "--output",
                output,
                "--threads",
                1,
                "--progress",
                "false",
            ),
        )
    return result_of(output)


def eth80_taught(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Answers of a recommended learner that saw the first four objects of each class, for the last one."""
    from crumb_avalanche import Learner

    root, weights = eth80_root(options, work)
    objects: dict[str, list[Path]] = {}
    for folder in sorted(root.iterdir()):
        objects.setdefault(folder.name.rstrip("0123456789"), []).append(folder)
    learner = Learner("recommended", "squeezenet1_0", weights, looks=(1.0,))
    for number in range(4):
        for name, folders in objects.items():
            learner.teach(folders[number], name)
    answers = [
        (name, answer)
        for name, folders in objects.items()
        for answer in learner.predict_all(folders[-1])
    ]
    return {
        "accuracy": 100
        * sum(answer.label == name for name, answer in answers)
        / len(answers),
        "known": sum(bool(answer.known) for _, answer in answers),
        "confidence": [answer.confidence for _, answer in answers[::20]],
        "bytes": learner.bytes,
    }


def machine() -> dict[str, str]:
    """What decides the last digits."""
    cpu, found = Path("/proc/cpuinfo"), dict[str, str]()
    for line in reversed(cpu.read_text().splitlines() if cpu.exists() else []):
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()  # of the first core
    # Virtual machines name CPUs of several generations alike, whose libraries round
    # differently.
    parts = [
        f"{name} {found[name]}"
        for name in ("cpu family", "model", "stepping")
        if name in found
    ]
    name = ", ".join([found.get("model name") or platform.processor(), *parts])
    versions = {
        name: importlib.metadata.version(name)
        for name in ("torch", "torchvision", "numpy", "faiss-cpu")
    }
    return {"cpu": name, "machine": platform.machine(), **versions}


def values(options: argparse.Namespace, work: Path) -> Named:
    """All values that are asked for."""
    shapes, eth80 = Shapes(work), {"taught": partial(eth80_taught, options, work)}
    for run in (0, 1):
        eth80 |= {
            f"{name}, run {run}": partial(eth80_run, options, work, name, run)
            for name in ETH80
        }
    names = re.findall(r"^(\w+): ", command("strategies"), re.MULTILINE)
    methods = {
        name: partial(toy_run, shapes, name, "--strategy", name) for name in names
    }
    methods |= {
        name: partial(toy_run, shapes, name, *settings)
        for name, settings in VARIANTS.items()
    }
    parts: dict[str, dict[str, Callable[[], Any]]] = {
        "methods": {**methods, "crumb, pretrained": partial(pretrained_run, shapes)},
        "learners": {
            method: partial(taught, shapes, method) for method in METHODS_OF_LEARNER
        },
        "exports": {
            method: partial(exported, shapes, method) for method in METHODS_OF_LEARNER
        },
        "eth80": {} if options.quick else eth80,
    }
    for part, listed in parts.items():
        for name, compute in listed.items():
            if not options.only or {part, f"{part}/{name}"} & {*options.only}:
                yield f"{part}/{name}", compute


def record(options: argparse.Namespace, work: Path) -> int:
    """Compute what the file lacks, and write it after each value."""
    file = Path(options.file)
    recorded = (
        json.loads(file.read_text())
        if file.exists()
        else {"machine": machine(), "values": {}}
    )
    if recorded["machine"] != machine():
        print(
            f"{file} was recorded on another machine: {recorded['machine']}; give another file",
            file=sys.stderr,
        )
        return 1
    for name, compute in values(options, work):
        if name in recorded["values"]:
            continue
        recorded["values"][name] = compute()
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value)}"
            for name, value in recorded["values"].items()
        ]
        text = (
            f'{{"machine": {json.dumps(recorded["machine"])},\n "values": {{\n'
            + ",\n".join(lines)
            + "\n}}\n"
        )
        unfinished = file.with_name(f"{file.name}.unfinished")
        unfinished.write_text(text)
        unfinished.replace(file)
        print(name, flush=True)
    return 0


def compare(options: argparse.Namespace, work: Path) -> int:
    """Compute again and print what differs from the file."""
    recorded = json.loads(Path(options.file).read_text())
    same = recorded["machine"] == machine()
    if not same:
        print(
            f"recorded on another machine: {recorded['machine']}; this is {machine()}"
        )
    found, seen = 0, set()
    for name, compute in values(options, work):
        seen.add(name)
        if name not in recorded["values"]:
            lines = ["not in the file"]
        else:
            try:
                lines = list(
                    differences(
                        recorded["values"][name],
                        json.loads(json.dumps(compute())),
                        same,
                    )
                )
            except Exception as error:  # the other values are of interest all the same
                lines = [f"{type(error).__name__}: {error}"]
        for line in lines:
            print(f"{name}: {line}", flush=True)
        found += bool(lines)
    parts = {name.split("/")[0] for name in seen}
    for name in recorded["values"] if not options.only else ():
        if name.split("/")[0] in parts and name not in seen:
            print(f"{name}: only in the file")
            found += 1
    print(
        f"{len(seen) - found} of {len(seen)} values are as recorded"
        + ("" if same else ", within the tolerance")
    )
    return int(found > 0)


def differences(old: Any, new: Any, same: bool, place: str = "") -> Iterator[str]:
    """Say where a recorded value and the one now differ, which may be of the ``same`` kind of machine or not."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            where = f"{place}{name} "
            if name not in old or name not in new:
                yield f"{where}is only {'there now' if name in new else 'in the file'}"
            else:
                yield from differences(old[name], new[name], same, where)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}has {len(old)} and {len(new)} items"
        for number, (one, other) in enumerate(zip(old, new)):
            yield from differences(one, other, same, f"{place}{number} ")
    elif old != new:
        numbers = all(isinstance(value, int | float) for value in (old, new))
        near = numbers and "accurac" in place and abs(old - new) <= POINTS
        if not same and (
            near
            or "digest" in place
            or (isinstance(old, float) and "accurac" not in place)
        ):
            return
        yield f"{place}is {old!r} in the file and {new!r} now" + (
            f" ({new - old:+.3g})" if numbers else ""
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", help="the JSON file of recorded values")
    parser.add_argument(
        "only",
        nargs="*",
        help="values, or parts of them: methods, learners, exports, eth80",
    )
    parser.add_argument("--quick", action="store_true", help="without ETH-80")
    parser.add_argument(
        "--data",
        default=os.environ.get("CRUMB_TEST_DATA"),
        help="folder of eth80/, imagenet_weights/",
    )
    parser.add_argument(
        "--work",
        help="folder for ETH-80's images and runs, to resume them; default a temporary one",
    )
    options = parser.parse_intermixed_args(arguments)
    if (
        not options.quick
        and not options.data
        and (not options.only or "eth80" in str(options.only))
    ):
        parser.error("without --quick, give --data or set CRUMB_TEST_DATA")
    import torch

    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        return {"record": record, "compare": compare}[options.action](options, work)


if __name__ == "__main__":
    raise SystemExit(main())
