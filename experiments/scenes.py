r"""Does a learner know the object, or the scene behind it?

    python experiments/scenes.py --eth80 ETH80 --photos PHOTOS [PHOTOS ...] \
        --backbones efficientnet_lite0=package

Objects of ETH-80 are cut out and pasted on photos. In each split two objects of each
class are held out; the others are taught in one lesson each, eight views at 0.4 to 0.9
of the image's height, in one of four streams:
  own        each object on a photo of its own
  table      all objects on one photo
  three      each object on three photos
  plain      none on a photo: images of ETH-80 as they are, which the objects fill
Asked is photo by photo: taught objects on the photo of their own (`same`) and on that
of an object of another class (`other`); held-out objects on new photos (`new`), at 0.9,
0.45 and 0.3 of the image's height (`size 1`, `size 0.5`, `size 0.33`), at 0.45 of the
light (`dark`), in warm light (`warm`); and new photos without an object (`empty`),
where the share is that of photos called known. After `plain`, taught and held-out
objects are asked as they are, too (`same`, `new`). A learner is not taught by `crumb`
and `remind`: they learn the same images by `crumb run --preset tuned`, and see the part
of an image that the learner looks at. Names of files divide the photos into two halves:
one for reporting, and with --development the one that settings are chosen on. Writes
`scenes.csv` (each split) and `scenes.md` (means with intervals over the splits) to
--output; the same command resumes.
"""

import argparse
import csv
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from support.common_options import run_script
from support.statistics import interval

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.images.boxes import cut_out
from crumb_avalanche.images.looks import middle
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import main as run
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import LEARNER, table

SIDE = 256
STREAMS = ("own", "table", "three", "plain")
ASKED = (
    "same",
    "other",
    "new",
    "size 1",
    "size 0.5",
    "size 0.33",
    "dark",
    "warm",
    "empty",
)
HEADER = [
    "backbone",
    "method",
    "looks",
    "stream",
    "split",
    "asked",
    "images",
    "right",
    "known",
]
AT_A_TIME = 64  # images that are asked together
TAUGHT, SHOWN = (
    8,
    6,
)  # views of an object that are taught, and that are asked in each way
WARM = (1.15, 0.95, 0.7)  # factors of red, green and blue
IN_A_RUN = (
    "crumb",
    "remind",
)  # methods that `crumb run` learns by, and a learner is not taught by


class View(NamedTuple):
    """An image of ETH-80, and the object on it, with alpha."""

    whole: Image.Image
    cut: Image.Image


def view_of(path: Path) -> View | None:
    """Return a view of an object; ``None`` if it cannot be separated from the blue ground."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    red, green, blue = np.moveaxis(
        ndimage.gaussian_filter(pixels.astype(np.float32), (0.6, 0.6, 0)), 2, 0
    )
    excess = (blue - (red + green) / 2) / ((red + green + blue) / 3 + 12)
    ground = np.median(
        np.concatenate(
            [excess[:4].ravel(), excess[-4:].ravel(), excess[:, :4].T.ravel()]
        )
    )
    parts, number = ndimage.label(ndimage.binary_opening(excess < 0.55 * ground))
    if not number:
        return None
    rows, columns = np.indices(parts.shape)
    centred = np.exp(-(((rows - 64) / 45) ** 2) - ((columns - 64) / 45) ** 2)
    sizes = ndimage.sum(centred, parts, range(1, number + 1))
    mask = ndimage.binary_fill_holes(
        ndimage.binary_closing(parts == 1 + int(np.argmax(sizes)))
    )
    touches = max(
        mask[0].mean(), mask[-1].mean(), mask[:, 0].mean(), mask[:, -1].mean()
    )
    if (
        not 0.03 < mask.mean() < 0.75
        or touches > 0.05
        or np.median(excess[mask]) > 0.3 * ground
    ):
        return None
    where = np.nonzero(mask)
    box = where[1].min(), where[0].min(), where[1].max() + 1, where[0].max() + 1
    cut = Image.fromarray(np.dstack([pixels, mask.astype(np.uint8) * 255])).crop(
        tuple(map(int, box))
    )
    return View(Image.fromarray(pixels), cut)


def cut_outs(root: Path) -> dict[str, dict[str, list[View]]]:
    """Return the views of ETH-80 that can be cut out, by class and object."""
    objects: dict[str, dict[str, list[View]]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        views = [
            view
            for file in sorted(folder.iterdir())
            if (view := view_of(file)) is not None
        ]
        objects.setdefault(folder.name.rstrip("0123456789"), {})[folder.name] = views
    return objects


def half_of(folders: Sequence[Path], development: bool) -> list[Path]:
    """Return the photos of folders that are for choosing settings, or those for reporting."""
    files = sorted(
        file for folder in folders for file in Path(folder).rglob("*") if file.is_file()
    )
    return [
        file for file in files if zlib.crc32(file.name.encode()) % 2 == int(development)
    ]


class Scenes:
    """Images of one split.

    Args:
        objects: the views of each object that can be cut out, by class and object.
        photos: files of photos.
        split: seeds what is held out and drawn.
    """

    def __init__(
        self,
        objects: dict[str, dict[str, list[View]]],
        photos: Sequence[Path],
        split: int,
    ):
        self.draws = np.random.default_rng(split)
        self._photos = iter(self.draws.permutation(np.array(photos, dtype=object)))
        self.taught: list[tuple[str, list[View]]] = []
        self.held_out: list[tuple[str, list[View]]] = []
        for name, known in objects.items():
            order = self.draws.permutation(sorted(known))
            for place, one in enumerate(order):
                views = [
                    known[one][view] for view in self.draws.permutation(len(known[one]))
                ]
                (self.held_out if place < 2 else self.taught).append((name, views))
        self.own = [[self.photo() for _ in range(3)] for _ in self.taught]
        self.table = self.photo()

    def photo(self) -> Image.Image:
        """Return a photo that was not drawn before."""
        with Image.open(next(self._photos)) as image:
            return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)

    def shown(
        self, view: View, photo: Image.Image, height: float | None = None
    ) -> Image.Image:
        """Return an object about the middle of a photo, at a share of its height; default between 0.4 and 0.9."""
        share = self.draws.uniform(0.4, 0.9) if height is None else height
        width, height = view.cut.size
        factor = min(share * SIDE / height, 0.95 * SIDE / width)
        size = max(1, round(width * factor)), max(1, round(height * factor))
        place = [
            round(SIDE * (0.5 + self.draws.uniform(-0.08, 0.08)) - length / 2)
            for length in size
        ]
        image, resized = photo.copy(), view.cut.resize(size, Image.Resampling.LANCZOS)
        image.paste(resized, (place[0], place[1]), resized)
        image.info["box"] = *place, place[0] + size[0], place[1] + size[1]
        return image

    def lessons(self, stream: str) -> Iterator[tuple[str, list[View]]]:
        """Yield class and images of each lesson, in an order that is drawn."""
        for place in self.draws.permutation(len(self.taught)):
            name, views = self.taught[place]
            if stream == "plain":
                yield name, [view.whole for view in views[:TAUGHT]]
                continue
            photos = (
                [self.table]
                if stream == "table"
                else self.own[place][: 1 if stream == "own" else 3]
            )
            yield (
                name,
                [
                    self.shown(view, photos[number % len(photos)])
                    for number, view in enumerate(views[:TAUGHT])
                ],
            )

    def asked(self, stream: str) -> Iterator[tuple[str, str, Image.Image]]:
        """Yield how it is asked, the class and the image."""
        if stream == "plain":
            for name, views in self.taught:
                yield from (("same", name, view.whole) for view in views[TAUGHT:][:2])
            for name, views in self.held_out:
                yield from (("new", name, view.whole) for view in views)
            return
        for place, (name, views) in enumerate(self.taught):
            rest = views[TAUGHT:]
            others = [
                self.own[other][0]
                for other, (label, _) in enumerate(self.taught)
                if label != name
            ]
            for view in rest[:2]:
                yield "same", name, self.shown(view, self.own[place][0])
                yield (
                    "other",
                    name,
                    self.shown(view, others[self.draws.integers(len(others))]),
                )
        for name, views in self.held_out:
            for view in views[:SHOWN]:
                yield "new", name, self.shown(view, self.photo())
                for size in (1, 0.5, 0.33):
                    yield (
                        f"size {size}",
                        name,
                        self.shown(view, self.photo(), 0.9 * size),
                    )
                shown = self.shown(view, self.photo())
                yield "dark", name, lit(shown, 0.45)
                yield "warm", name, lit(shown, WARM)
        for _ in range(60):
            yield "empty", "", self.photo()


def lit(image: Image.Image, factor: float | tuple[float, ...]) -> Image.Image:
    """Return an image in other light, with the place of its object."""
    changed = Image.fromarray(
        (np.asarray(image, dtype=np.float32) * factor).clip(0, 255).astype(np.uint8)
    )
    changed.info.update(image.info)
    return changed


def learned_in_a_run(
    scenes: Scenes, stream: str, share: float, folder: Path, **settings
) -> Learner:
    """Learn the middle of a stream's images as `crumb run` learns clips of objects; return what answers."""
    # A run tests on the first two objects of each class, which are not learned.
    objects = [(name, [views[0].whole]) for name, views in scenes.held_out]
    for number, (name, images) in enumerate([*objects, *scenes.lessons(stream)]):
        clip = folder / "clips" / name / str(number)
        clip.mkdir(parents=True)
        for place, image in enumerate(images):
            middle(image, share).save(clip / f"{place}.png")
    plan = RunPlan.of(
        RunSettings(
            "clip_folder",
            str(folder / "clips"),
            str(folder / "run"),
            preset="tuned",
            **settings,
        )
    )
    run(plan)
    return Learner.load(folder / "run" / LEARNER)


def measure(
    learner: Learner,
    scenes: Scenes,
    stream: str,
    boxed: bool = False,
    share: float = 1.0,
) -> list[list]:
    """Teach a stream, if nothing was learned yet, and ask about the middle of images.

    Returns:
        For each way of asking its name and the numbers of images, right ones and known
        ones.
    """
    for name, images in [] if learner.classes else scenes.lessons(stream):
        learner.teach(
            images, name, box=[image.info["box"] for image in images] if boxed else None
        )
    images = [
        (way, name, middle(image, share)) for way, name, image in scenes.asked(stream)
    ]
    if boxed:  # of an empty scene there is no box
        images = [
            (way, name, cut_out(image, image.info["box"]))
            for way, name, image in images
            if name
        ]
    found = {way: [0, 0, 0] for way in ASKED}
    for start in range(0, len(images), AT_A_TIME):
        some = images[start : start + AT_A_TIME]
        together = learner.predict([image for *_, image in some])
        for (way, name, _), answer in zip(
            some, together.frames or [together], strict=True
        ):  # one alone has no frames
            found[way] = [
                sum(pair)
                for pair in zip(
                    found[way], (1, answer.label == name, answer.known is not False)
                )
            ]
    return [[way, *counts] for way, counts in found.items() if counts[0]]


def summary(rows: Sequence[dict[str, str]]) -> str:
    """Return the table of the splits in Markdown: right answers in percent, and for `empty` those called known."""
    lines = []
    for case in dict.fromkeys(tuple(row[key] for key in HEADER[:4]) for row in rows):
        mine = [row for row in rows if tuple(row[key] for key in HEADER[:4]) == case]
        cells = []
        for way in ASKED:
            counted = "known" if way == "empty" else "right"
            shares = [
                100 * int(row[counted]) / int(row["images"])
                for row in mine
                if row["asked"] == way
            ]
            mean = f"{np.mean(shares):.1f}" if shares else ""
            cells.append(
                f"{mean} ± {interval(shares)[1]:.1f}" if len(shares) > 1 else mean
            )
        lines.append([*case, str(len({row["split"] for row in mine})), *cells])
    return table([*HEADER[:4], "splits", *ASKED[:-1], "empty called known"], lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--eth80", type=Path, help="folder of ETH-80: a folder of views for each object"
    )
    parser.add_argument(
        "--photos", type=Path, nargs="*", default=[], help="folders of photos"
    )
    parser.add_argument(
        "--backbones",
        nargs="*",
        default=["efficientnet_lite0=package"],
        metavar="NAME=WEIGHTS",
        help="of Learner",
    )
    parser.add_argument(
        "--methods",
        nargs="*",
        default=["recommended"],
        help="of Learner, or crumb and remind",
    )
    parser.add_argument(
        "--looks",
        nargs="*",
        default=[",".join(map(str, LOOKS))],
        help="such as 0.85,0.5, or box:0.85,0.5 with a box",
    )
    parser.add_argument("--streams", nargs="*", default=list(STREAMS), choices=STREAMS)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--development",
        action="store_true",
        help="the half of the photos for choosing settings",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/scenes"))
    parser.add_argument("--table-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = options.output / "scenes.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text()))) if path.exists() else []
    backbones = dict(one.split("=", 1) for one in options.backbones)
    done = {tuple(row[key] for key in HEADER[:5]) for row in rows}
    cases = [
        (backbone, method, looks, stream, str(split))
        for split in range(options.splits)
        for backbone in backbones
        for method in options.methods
        for looks in options.looks
        for stream in options.streams
    ]
    todo = [] if options.table_only else [case for case in cases if case not in done]
    if todo:
        objects, photos = (
            cut_outs(options.eth80),
            half_of(options.photos, options.development),
        )
    for backbone, method, looks, stream, split in todo:
        boxed = looks.startswith("box:")
        shares = tuple(float(share) for share in looks.removeprefix("box:").split(","))
        scenes = Scenes(objects, photos, int(split))
        if method in IN_A_RUN:
            network = {
                "strategy": method,
                "backbone": backbone,
                "weights": backbones[backbone],
            }
            with TemporaryDirectory() as folder:
                learner = learned_in_a_run(
                    scenes,
                    stream,
                    shares[0],
                    Path(folder),
                    **network,
                    threads=options.threads,
                )
        else:
            learner, shares = (
                Learner(method, backbone, backbones[backbone], looks=shares),
                (1.0,),
            )
            learner.use_runtime(options.runtime)
        for line in measure(learner, scenes, stream, boxed, shares[0]):
            rows.append(
                dict(
                    zip(
                        HEADER,
                        map(str, [backbone, method, looks, stream, split, *line]),
                    )
                )
            )
        options.output.mkdir(parents=True, exist_ok=True)
        write_csv(path, [HEADER, *([row[key] for key in HEADER] for row in rows)])
    text = summary(rows)
    if rows:
        write_text(options.output / "scenes.md", text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
