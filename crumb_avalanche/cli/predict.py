"""``crumb predict``: ask a learner what images show."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.text import ListedError, printable
from crumb_avalanche.cli.open_learner import start_runtime
from crumb_avalanche.cli.settings import PredictSettings
from crumb_avalanche.images.clips import BadImage, Clip
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.learner.watch import Watched
from crumb_avalanche.system.folder_lock import output_file
from crumb_avalanche.system.process import keep_freed_memory
from crumb_avalanche.system.words import counted

WORST = 10  # mistakes that are listed
COLUMNS = (
    "path",
    "label",
    "confidence",
    "known",
    "unknown",
    "runner_up",
    "runner_up_confidence",
)
Answers = Iterator[Answer]


@dataclass(frozen=True)
class Asker:
    """Asks a learner about all sources of ``crumb predict``, one after the other.

    The learner itself answers, or a ``ContactSheet`` that collects its answers.

    Attributes:
        settings: of the command.
        predict_all: answers for a source, as ``Learner.predict_all``.
        predict_boxes: answers for boxes of an image, as ``Learner.predict``.
        unread: receives the files that cannot be read.
    """

    settings: PredictSettings
    predict_all: Callable[..., Answers]
    predict_boxes: Callable[..., Any]
    unread: list[BadImage] = field(default_factory=list)

    def answers(self) -> Answers:
        """Yield the answers for all sources; skip what cannot be read."""
        calls = self._prepared_calls()
        # Its error is that of the command; errors of boxes do not name their photo.
        is_only_source = len(calls) == 1 and self.settings.boxes is None
        for source, predict in calls:
            try:
                yield from predict()
            except (BadFrameError, FileNotFoundError, ValueError) as error:
                if is_only_source or isinstance(error, NothingTaughtError):
                    raise
                # The other sources are answered for all the same.
                self.unread.append(BadImage(str(source), reason_of(error, source)))

    def _prepared_calls(self) -> list[tuple[str | Clip, Callable[[], Any]]]:
        """Return each source with a function without arguments that answers for it.

        Sources are those of the command line, then the camera, then images with boxes.
        """
        settings = self.settings
        sources: list[str | Clip] = list(settings.sources)
        if settings.camera is not None:
            from crumb_avalanche.images.camera import camera_clip

            sources.append(camera_clip(settings.camera, settings.seconds))
        calls: list[tuple[str | Clip, Callable[[], Any]]] = []
        for source in sources:
            report = self.unread.append
            predict = partial(self.predict_all, source, on_bad="skip", report=report)
            calls.append((source, predict))
        if settings.boxes is not None:
            for path, boxes in read_boxes(Path(settings.boxes)).items():
                calls.append((path, partial(self.predict_boxes, path, boxes)))
        return calls


def reason_of(error: Exception, source: str | Clip) -> str:
    """Return what an error says of a source, without its name."""
    if isinstance(error, BadFrameError) and error.reason:
        return error.reason  # what else it says is advice for Python
    return str(error).removeprefix(f"{source} ")


def main(settings: PredictSettings) -> None:
    """Print an answer for each image and clip.

    Raises:
        ValueError: settings do not go together or with the learner. Or some files could
            not be read; then the answers for all others were printed.
    """
    check_settings(settings)  # raises for those that do not go together
    keep_freed_memory()  # for the next batch of maps, which is faster
    if settings.threads:
        torch.set_num_threads(settings.threads)
    learner = load_learner(settings)
    if settings.watch is not None:
        watch(learner, settings)
        return
    sources = list(settings.sources)
    if settings.camera:
        sources.append(settings.camera)
    start_runtime(learner, settings.runtime, *sources)
    unread: list[BadImage] = []
    if settings.html is None:
        # `unread` receives the files that cannot be read.
        asker = Asker(settings, learner.predict_all, learner.predict, unread)
        answers = print_answers(asker.answers(), settings)
    else:
        answers = print_and_write_page(learner, settings, unread)
    is_for_people = not settings.json and not settings.csv
    if is_for_people:
        labelled = [answer for answer in answers if answer.truth is not None]
        summarize(labelled, {info.name for info in learner.classes})
    if unread:
        raise ListedError(f"{counted(len(unread), 'file')} could not be read", unread)


def check_settings(settings: PredictSettings) -> None:
    """Raise ValueError for settings of ``crumb predict`` that do not go together."""
    has_sources = settings.sources or settings.camera or settings.boxes
    has_other_form = settings.csv or settings.html
    if settings.watch is not None and (has_sources or has_other_form):
        raise ValueError(
            "--watch stands alone, or with --json: leave sources, --camera, --boxes, "
            "--csv and --html out"
        )
    if not has_sources and settings.watch is None:
        raise ValueError(
            "give images, videos, folders or patterns to ask about, --camera 0, "
            "--boxes, or --watch 0"
        )
    if settings.json and settings.csv:
        raise ValueError(
            "--json and --csv are two forms of the same output; give one of them"
        )
    if settings.html and Path(settings.html).suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"--html {settings.html} is the page to write; give a name that ends in "
            ".html"
        )


def load_learner(settings: PredictSettings) -> Learner:
    """Load a learner, or what a run of any strategy learned.

    What to know of its answers is said on stderr.

    Args:
        settings: ``model`` is the file, or the folder of a run; ``strict`` the
            confidence from which on a class is named, if it is given.

    Raises:
        DamagedRunError: a file of the run's folder was changed.
        LearnerError: the file is no learner, is damaged or needs weights; or the folder
            is not that of a run.
        ValueError: ``--strict`` is given, and the learner names a class always.
    """
    if (Path(settings.model) / "result.json").exists():
        from crumb_avalanche.runs.run_folder import read_result

        read_result(Path(settings.model))  # which checks the files of the run
    learner = Learner.load(settings.model, settings.weights)
    if learner.note:
        print(f"{learner.method}: {learner.note}", file=sys.stderr)
    if settings.strict is not None:
        check_strict_counts(learner)
        learner.set_strict(settings.strict)
    return learner


def check_strict_counts(learner: Learner) -> None:
    """Raise ValueError for a learner that names a class whatever its confidence is."""
    if learner.strict == 0:
        raise ValueError(
            f"--strict decides what is called unknown, and {learner.method} of a run "
            "always names a class: leave --strict out"
        )


def watch(learner: Learner, settings: PredictSettings) -> None:
    """Print what a camera, a video or a stream shows as its frames come.

    Of a video that is too short for a change, the last answer is printed.
    """
    learner.use_runtime(settings.runtime)
    answers = learner.watch(str(settings.watch))
    if settings.json:
        for answer in answers:
            print(json.dumps(answer.as_dict()), flush=True)
        return
    last_answer = None
    has_changed = False
    for last_answer in answers:
        if last_answer.changed:
            has_changed = True
            print(line_of_watched(last_answer), flush=True)
    if last_answer is not None and not has_changed:
        print(line_of_watched(last_answer))


def line_of_watched(answer: Watched) -> str:
    """Return an answer for a frame, with its time, as a line for people."""
    line = f"{answer.time:8.1f} s  {answer.label_text}"
    if not answer.unknown:
        line += f"  {100 * answer.confidence:.0f} %"
    return line


def print_and_write_page(
    learner: Learner, settings: PredictSettings, unread: list[BadImage]
) -> list[Answer]:
    """Answer for all sources, print the answers, and write the page of ``--html``.

    Args:
        learner: answers.
        settings: of the command: the sources, and the path of the page.
        unread: receives the files that cannot be read.

    Returns:
        The answers, for the summary.
    """
    # Here, because other output does not need the template engine.
    from crumb_avalanche.report.contact_sheet import ContactSheet
    from crumb_avalanche.report.page import is_page

    sheet = ContactSheet(learner)  # asks the learner, and collects answers for the page
    asker = Asker(settings, sheet.predict_all, sheet.predict_boxes, unread)
    page = Path(str(settings.html))
    with output_file(page, "a page of this program", is_page, "--html"):
        answers = print_answers(asker.answers(), settings)
        write_text(page, sheet.page(Path(settings.model).name, unread))
    print(f"written: {page}", file=sys.stderr)
    return answers


def read_boxes(file: Path) -> dict[str, Any]:
    """Read the boxes of images from a JSON file.

    It holds the names of images, relative to its folder, each with a list of boxes:
    left, top, right and bottom in pixels.

    Returns:
        The boxes of each image, by its path. They are not checked.

    Raises:
        ValueError: the file is no such JSON, or names an image twice.
    """
    try:
        boxes_by_name = json.loads(
            file.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repeats
        )
        if None in boxes_by_name.values():
            raise ValueError("null is no list of boxes: write [] for none")
        boxes_by_path = {}
        for name, boxes in boxes_by_name.items():
            boxes_by_path[str(file.parent / name)] = boxes
        return boxes_by_path
    except (AttributeError, RecursionError, ValueError) as error:
        raise ValueError(
            f'--boxes {file} is not JSON as {{"photo.jpg": [[10, 20, 110, 220]]}} '
            f"({error})"
        ) from error


def _without_repeats(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object of boxes, of which none may be twice."""
    counts = Counter(name for name, _ in members)
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"it has {name!r} twice: write one list of its boxes")
    return dict(members)


def print_answers(answers: Answers, settings: PredictSettings) -> list[Answer]:
    """Print answers as they come, and return them.

    Args:
        answers: are printed.
        settings: ``json`` or ``csv`` is the format; else lines for people.
    """
    printed_answers = []
    if settings.csv:
        print(csv_text([COLUMNS]), end="")
    for answer in answers:
        if settings.json:
            print(json.dumps(answer.as_dict()))
        elif settings.csv:
            print(csv_text([csv_row(answer)]), end="")
        else:
            print(line_of(answer))
        # A pipe gets each answer as it comes, and `| head` ends the command.
        sys.stdout.flush()
        printed_answers.append(answer)
    return printed_answers


def csv_row(answer: Answer) -> tuple[object, ...]:
    """Return an answer as a line of ``--csv``, the values of ``COLUMNS``."""
    runner_up = ""
    runner_up_confidence = 0.0
    if answer.runners_up:
        runner_up, runner_up_confidence = answer.runners_up[0]
    return (
        answer.source,
        answer.label,
        f"{answer.confidence:.6f}",
        answer.known,
        answer.unknown,
        runner_up,
        f"{runner_up_confidence:.6f}",
    )


def line_of(answer: Answer) -> str:
    """Return an answer as a line for people.

    It has the class, its probability and two runners-up. That something is unknown has
    no probability: those of the classes hold if one of them is shown.
    """
    line = f"{printable(answer.source)}  {answer.label_text}"
    if answer.unknown:
        return line
    line += f"  {100 * answer.confidence:.0f} %"
    if not answer.runners_up:
        return line
    runners_up = [
        f"{name} {100 * probability:.0f} %"
        for name, probability in answer.runners_up[:2]
    ]
    return f"{line}  ({', '.join(runners_up)})"


def summarize(answers: list[Answer], taught: set[str]) -> None:
    """Print accuracy, unknown images, confusions and the worst mistakes.

    Args:
        answers: those whose true class is known.
        taught: names of the classes taught.
    """
    if not answers:
        return
    print(f"\n{headline(answers)}")
    for truth, answers_for_it in answers_for_untaught(answers, taught).items():
        n_unknown = sum(answer.unknown for answer in answers_for_it)
        n_answers = len(answers_for_it)
        print(f"  {truth} was not taught: {n_unknown} of {n_answers} unknown")
    wrong = [answer for answer in answers if answer.wrong]
    confusions = Counter((answer.truth, answer.label) for answer in wrong)
    for (true_class, label), count in confusions.most_common(WORST):
        print(f"  {true_class} taken for {label}: {count}")
    most_confident = sorted(wrong, key=lambda answer: -answer.confidence)
    for answer in most_confident[:WORST]:
        percent = f"{100 * answer.confidence:.0f} %"
        path = printable(answer.path)
        print(f"  {path}: {answer.label} {percent}, is {answer.truth}")


def headline(answers: list[Answer]) -> str:
    """Return how many answers are right, unknown and wrong."""
    n_right = sum(answer.right for answer in answers)
    n_unknown = sum(answer.unknown for answer in answers)
    n_wrong = sum(answer.wrong for answer in answers)
    percent = f"{100 * n_right / len(answers):.1f} %"
    return (
        f"{n_right} of {len(answers)} right ({percent}), {n_unknown} unknown, "
        f"{n_wrong} taken for another class"
    )


def answers_for_untaught(
    answers: list[Answer], taught: set[str]
) -> dict[str, list[Answer]]:
    """Return the answers for classes that were not taught, by the true class."""
    by_truth: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.truth is not None and answer.truth not in taught:
            by_truth.setdefault(answer.truth, []).append(answer)
    return by_truth
