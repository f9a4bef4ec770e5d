"""``crumb predict``: ask a learner what images show."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.text import ListedError, printable
from crumb_avalanche.cli.settings import PredictSettings
from crumb_avalanche.cli.teach import start_runtime
from crumb_avalanche.images.clips import BadImage, Clip
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.system.folder_lock import output_file
from crumb_avalanche.system.process import keep_freed_memory
from crumb_avalanche.system.words import counted

WORST = 10  # mistakes that are listed


def main(settings: PredictSettings) -> None:
    """Print an answer for each image and clip.

    Raises:
        ValueError: some files could not be read; the answers for all others were
            printed.
    """
    asked = settings.sources or settings.camera or settings.boxes
    if settings.watch is not None and (asked or settings.csv or settings.html):
        raise ValueError(
            "--watch stands alone, or with --json: leave sources, --camera, --boxes, --csv and --html out"
        )
    if not asked and settings.watch is None:
        raise ValueError(
            "give images, videos, folders or patterns to ask about, --camera 0, --boxes, or --watch 0"
        )
    if settings.json and settings.csv:
        raise ValueError(
            "--json and --csv are two forms of the same output; give one of them"
        )
    keep_freed_memory()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.html and Path(settings.html).suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"--html {settings.html} is the page to write; give a name that ends in .html"
        )
    learner = opened(settings)
    if settings.watch is not None:
        return watch(learner, settings)
    start_runtime(
        learner,
        settings.runtime,
        *settings.sources,
        *([settings.camera] if settings.camera else []),
    )
    unread: list[BadImage] = []
    if settings.html is None:
        answers = printed(
            answers_of(learner.predict_all, learner.predict, settings, unread), settings
        )
    else:
        # Here, because other output does not need the template engine.
        from crumb_avalanche.report.contact_sheet import ContactSheet
        from crumb_avalanche.report.page import is_page

        sheet, page = ContactSheet(learner), Path(settings.html)
        with output_file(page, "a page of this program", is_page, "--html"):
            answers = printed(
                answers_of(sheet.ask, sheet.ask_boxes, settings, unread), settings
            )
            write_text(page, sheet.page(Path(settings.model).name, unread))
        print(f"written: {page}", file=sys.stderr)
    if not settings.json and not settings.csv:
        summarize([answer for answer in answers if answer.truth is not None])
    if unread:
        raise ListedError(f"{counted(len(unread), 'file')} could not be read", unread)


def watch(learner: Learner, settings: PredictSettings) -> None:
    """Print what a camera, a video or a stream shows as its frames come."""
    learner.use_runtime(settings.runtime)
    for answer in learner.watch(str(settings.watch)):
        if settings.json:
            print(json.dumps(answer.as_dict()), flush=True)
        elif answer.changed:
            print(
                f"{answer.time:8.1f} s  {answer.shown}  {100 * answer.confidence:.0f} %",
                flush=True,
            )


def opened(settings: PredictSettings) -> Learner:
    """Load a learner, or what a run of any strategy learned; say on stderr what to know of its answers."""
    if (Path(settings.model) / "result.json").exists():
        from crumb_avalanche.runs.run_folder import read_result

        read_result(Path(settings.model))
    learner = Learner.load(settings.model, settings.weights)
    if learner.note:
        print(f"{learner.method}: {learner.note}", file=sys.stderr)
    return learner


def answers_of(
    ask: Callable,
    ask_boxes: Callable,
    settings: PredictSettings,
    unread: list[BadImage],
) -> Iterator[Answer]:
    """Yield the answers for all sources; ``unread`` receives what is left out.

    Args:
        ask: function as ``predict_all``.
        ask_boxes: function of a path and boxes, as ``predict``.
        settings: says what is asked about.
        unread: see above.
    """
    sources: list[str | Clip] = list(settings.sources)
    if settings.camera is not None:
        from crumb_avalanche.images.camera import camera_clip

        sources.append(camera_clip(settings.camera, settings.seconds))
    boxes = {} if settings.boxes is None else read_boxes(Path(settings.boxes))
    questions = [
        (source, partial(ask, source, on_bad="skip", report=unread.append))
        for source in sources
    ]
    questions += [
        (path, partial(ask_boxes, path, found)) for path, found in boxes.items()
    ]
    for source, question in questions:
        try:
            yield from question()
        except (BadFrameError, FileNotFoundError, ValueError) as error:
            if len(questions) == 1 or isinstance(error, NothingTaughtError):
                raise
            reason = str(error).removeprefix(f"{source} ")
            unread.append(
                BadImage(str(source), reason)
            )  # the other sources are asked all the same


def read_boxes(file: Path) -> dict[str, Any]:
    """Read the boxes of images: JSON with the names of images, from the folder of the file on, and lists of boxes."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [
            name
            for name, count in Counter(name for name, _ in pairs).items()
            if count > 1
        ]:
            raise ValueError(f"it has {twice[0]!r} twice: write one list of its boxes")
        return dict(pairs)

    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
        if None in found.values():
            raise ValueError("null is no list of boxes: write [] for none")
        return {str(file.parent / name): boxes for name, boxes in found.items()}
    except (AttributeError, RecursionError, ValueError) as error:
        raise ValueError(
            f'--boxes {file} is not JSON as {{"photo.jpg": [[10, 20, 110, 220]]}} ({error})'
        ) from error


def printed(answers: Iterator[Answer], settings: PredictSettings) -> list[Answer]:
    """Print answers as they come, in one of three formats; return them without their frames."""
    kept = []
    if settings.csv:
        print(
            csv_text(
                [
                    [
                        "path",
                        "label",
                        "confidence",
                        "known",
                        "runner_up",
                        "runner_up_confidence",
                    ]
                ]
            ),
            end="",
        )
    for answer in answers:
        if settings.json:
            print(json.dumps(answer.as_dict()))
        elif settings.csv:
            name, share = answer.runners_up[0] if answer.runners_up else ("", 0.0)
            cells = (
                answer.place,
                answer.label,
                f"{answer.confidence:.6f}",
                answer.known,
                name,
                f"{share:.6f}",
            )
            print(csv_text([cells]), end="")
        else:
            others = ", ".join(
                f"{name} {100 * share:.0f} %" for name, share in answer.runners_up[:2]
            )
            shown = f"{printable(answer.place)}  {answer.shown}  {100 * answer.confidence:.0f} %"
            print(shown + (f"  ({others})" if others else ""))
        # each answer is seen as it comes, and `| head` ends the command
        sys.stdout.flush()
        kept.append(answer)
    return kept


def summarize(answers: list[Answer]) -> None:
    """Print accuracy, confusions and the worst mistakes of answers whose true class is known."""
    if not answers:
        return
    wrong = [answer for answer in answers if answer.label != answer.truth]
    right = len(answers) - len(wrong)
    print(f"\n{right} of {len(answers)} right ({100 * right / len(answers):.1f} %)")
    for (truth, label), count in Counter(
        (answer.truth, answer.label) for answer in wrong
    ).most_common(WORST):
        print(f"  {truth} taken for {label}: {count}")
    for answer in sorted(wrong, key=lambda answer: -answer.confidence)[:WORST]:
        print(
            f"  {printable(answer.path)}: {answer.label} {100 * answer.confidence:.0f} %, is {answer.truth}"
        )
