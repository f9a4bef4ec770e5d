"""``crumb report``: tables, pictures and ``report.html`` of finished runs.

The page makes no request and is readable without its script.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from markupsafe import Markup

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from benchmarks_toybox_ilab.tables.text import ListedError
from crumb_avalanche.report import group_tables, pictures
from crumb_avalanche.report.page import MARK, Matrix, Table, render
from crumb_avalanche.report.runs import (
    IDENTITY,
    NAMES,
    NOT_COMPARED,
    Group,
    Run,
    Stream,
    differences,
    find_runs,
    groups_of,
    notes_on,
    read_run,
    streams_of,
)
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.report.standing import by_accuracy, standings
from crumb_avalanche.runs.plan import default_settings
from crumb_avalanche.runs.run_folder import (
    RESULT,
    DamagedRunError,
    refuse_foreign_files,
)
from crumb_avalanche.runs.tables import (
    cell,
    format_table,
    ledger_table,
    matrix_table,
    print_budget,
    print_left_out,
    usage_of,
)
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.system.words import counted

PAGE = "report.html"  # by which the other files of a report are known
# In the order in which they are named.
FILES = ("report.png", "report.svg", PAGE, "report.csv", "comparison.csv")
MAIN_SETTINGS = (
    *IDENTITY,
    "run",
    "weights",
    "backbone",
    "first_epochs",
    "epochs",
    "batch_size",
    "learning_rate",
)
OPEN_MATRICES = 6  # groups; with more, the matrices are collapsed
LONGEST_TITLE = 80  # characters
WIDTH = 80  # characters of a line of the terminal
TIMES = (
    "times of different runs are comparable only when measured side by side on the "
    "same machine"
)


def main(settings: ReportSettings) -> None:
    """Print tables of runs; write a page, pictures, and tables as CSV.

    Args:
        settings: folders to look for runs in, and the folder of the report.

    Raises:
        ValueError: there is no finished run, or a run cannot be read; the others are
            reported first. Or the report cannot be written, and then no file of it is.
    """
    run_folders = find_runs(settings.folders)
    problems = run_folders.problems
    runs = []
    for folder in run_folders.finished:
        try:
            runs.append(read_run(folder))
        except DamagedRunError as error:
            problems.append(str(error))
    if not runs:
        if not problems:
            raise ValueError(
                "no folder was given; write crumb report FOLDER [FOLDER ...]"
            )
        raise ListedError("no run can be reported", problems)
    output = Path(settings.output or _default_output(settings.folders, runs))
    groups = by_accuracy(groups_of(runs))
    summary = group_tables.summary_table(groups)
    unfinished = [
        f"unfinished and left out, without {RESULT}: {path}"
        for path in run_folders.unfinished
    ]
    left_out = [*problems, *unfinished]
    _write_files(output, _file_contents(groups, summary, output, left_out))
    if len(runs) == 1:
        print_run(groups[0])
    else:
        print_comparison(groups, summary)
    print(f"\nwritten to {output}:\n{', '.join(FILES)}")
    first_run = runs[0]
    for command in usage_of(first_run.folder, first_run.settings["strategy"]):
        print(command)
    if run_folders.unfinished:
        folders = ", ".join(map(str, run_folders.unfinished))
        print(f"unfinished and left out, without {RESULT}: {folders}")
    if problems:
        raise ListedError(
            "not everything could be reported; the rest is written", problems
        )


def _default_output(folders: Sequence[str], runs: Sequence[Run]) -> Path:
    """Return where a report goes: beside a single run, or in the folder of several."""
    if len(runs) == 1:
        return runs[0].folder
    folder = Path(folders[0])
    if len(folders) == 1:
        return folder
    return folder.parent


def _file_contents(
    groups: Sequence[Group], summary: Table, output: Path, left_out: Sequence[str]
) -> dict[str, bytes]:
    """Return the content of each file of a report, by its name in ``FILES``.

    Args:
        groups: of runs.
        summary: table with a line for each group.
        output: folder of the report.
        left_out: folders and runs that cannot be reported, and why, a line for each.
    """
    runs = group_tables.runs_table(groups, output)
    page = render(PAGE, report_page(groups, summary, runs, left_out))
    varying = differences(groups)  # names of the settings in which they differ
    common_names = [name for name in NAMES if name not in varying]
    title = ", ".join(f"{name} {groups[0].settings[name]}" for name in common_names)
    curves = [group.curve for group in groups]
    picture = pictures.encoded(pictures.comparison_picture(title, curves))
    return {
        "report.png": picture["png"],
        "report.svg": picture["svg"],
        PAGE: page.encode(),
        "report.csv": runs.csv.encode(),
        "comparison.csv": summary.csv.encode(),
    }


def _write_files(output: Path, contents: dict[str, bytes]) -> None:
    """Write the files of a report, all or none.

    The files of an earlier one are replaced when all are complete.

    Args:
        output: folder of the report, made if it is not there.
        contents: of each file, by its name.

    Raises:
        ValueError: they cannot be written, for instance because the disk is full.
    """
    try:
        with _removed_if_it_fails(output), locked(output), ExitStack() as writers:
            # Raises if such files are there that no report wrote.
            refuse_foreign_files(output, FILES, {PAGE: MARK})
            other_names = [name for name in contents if name != PAGE]
            # Files are replaced as contexts end, in reverse: the page first.
            for name in (*other_names, PAGE):
                file = writers.enter_context(atomic_write(output / name))
                file.write(contents[name])
                file.flush()  # a full disk shows before the first one is replaced
    except OSError as error:
        if error.filename is None:
            error.filename = str(output)
        reason = disk_advice(error) or f"{output}: {error}"
        raise ValueError(
            f"the report cannot be written to {reason}; or name another folder with "
            "--output"
        ) from error


@contextmanager
def _removed_if_it_fails(folder: Path) -> Iterator[None]:
    """Remove a folder and its parents after an error in the ``with`` block.

    Those that were there before stay.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in created:
            with suppress(OSError):  # something else was put into it
                path.rmdir()
        raise


def print_run(group: Group) -> None:
    """Print the only run of a group: settings, accuracies and ledger, as tables.

    The settings are the main ones, and those that differ from their defaults.
    """
    run = group.runs[0]
    settings = run.settings
    defaults = default_settings(
        settings["benchmark"], settings["preset"], settings["strategy"]
    )
    shown_settings = list(MAIN_SETTINGS)
    for name, value in settings.items():
        if name not in NOT_COMPARED and value != defaults.get(name):
            shown_settings.append(name)
    rows = []
    for name in dict.fromkeys(shown_settings):
        if settings.get(name) is not None:
            rows.append([name, cell(settings[name])])
    print(run.folder)
    print(format_table(["setting", "value"], rows))
    print(matrix_table(run.matrix, run.result["accuracy_after"], run.joint))
    print(ledger_table(run.ledger))
    print_budget(run.ledger, run.result)
    print_left_out(run.result)


def print_comparison(groups: Sequence[Group], summary: Table) -> None:
    """Print groups of runs side by side: results, settings, and how they stand.

    Args:
        groups: of runs.
        summary: table with a line for each group.
    """
    print(
        "accuracy at the end over all classes: mean +- standard deviation of runs;\n"
        "forgets: points lost since the best test of an experience; mean of runs"
    )
    print(summary.lines)
    print(fill(f"images/s: {TIMES}", WIDTH))
    differing_settings = group_tables.differing_settings(groups)
    if differing_settings is not None:
        print("\nsettings in which they differ\n" + differing_settings.lines)
    for note in notes_on(groups):
        print(f"note: {note}")
    for text in standings(groups):
        print("\n" + fill(text, WIDTH))


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure of the page as an ``svg`` element, with its caption."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class StreamPart:
    """What the page shows about the groups on one stream.

    Attributes:
        name: of the stream.
        figures: accuracy after each experience, and final accuracy.
        table: accuracy after each experience.
        group_numbers: the page's number of each group.
    """

    name: str
    figures: list[CaptionedFigure]
    table: Table
    group_numbers: list[int]


@dataclass(frozen=True)
class MatrixPart:
    """The accuracy matrix of a group, and the classes of each experience, if known."""

    group: Group
    matrix: Matrix
    classes: list[list[str]]


@dataclass(frozen=True)
class ReportPage:
    """What ``report.html`` shows.

    Attributes:
        title, lead: head of the page.
        group_numbers: of the groups, from 0. A row and a curve with the same number
            light up together when one of them is pointed at.
        group_of_runs: number of the group of each run, in the order of ``runs``.
        summary: a line for each group.
        notes: on the comparison, and on what was left out.
        streams: figures of each stream, because accuracies on different ones do not
            compare.
        matrices: of each group; they are open if ``matrices_are_open``.
        ledger_bytes, ledger_seconds: means of runs.
        runs: a line for each run.
        settings_differ: ``None`` if the groups differ in none.
        settings_same: all others.
    """

    title: str
    lead: str
    group_numbers: list[int]
    group_of_runs: list[int]
    summary: Table
    notes: list[str]
    streams: list[StreamPart]
    matrices: list[MatrixPart]
    matrices_are_open: bool
    ledger_bytes: Table
    ledger_seconds: Table
    runs: Table
    settings_differ: Table | None
    settings_same: Table


def report_page(
    groups: Sequence[Group], summary: Table, runs: Table, left_out: Sequence[str]
) -> ReportPage:
    """Collect what ``report.html`` shows of groups of runs.

    Args:
        groups: of runs; elements of the page are marked by their numbers, from 0.
        summary: table with a line for each group.
        runs: table with a line for each run.
        left_out: folders and runs that cannot be reported, and why, a line for each.
    """
    n_runs = sum(len(group.runs) for group in groups)
    counts = f"{counted(n_runs, 'finished run')} in {counted(len(groups), 'group')}"
    lead = (
        f"{' '.join(standings(groups))} {counts}; the runs of a group differ in their "
        "seed only. Accuracy is in percent of the test images, mean ± standard "
        "deviation over runs (n - 1); forgetting is in points lost since the best test "
        "of an experience."
    )
    group_of_runs = []  # number of the group of each run
    matrices = []  # accuracies of each group after each experience
    for number, group in enumerate(groups):
        group_of_runs += [number] * len(group.runs)
        matrix = group_tables.accuracy_matrix(group)
        classes = group_tables.classes_of_experiences(group)
        matrices.append(MatrixPart(group, matrix, classes))
    return ReportPage(
        title=f"{_streams_name(groups)}: {counted(n_runs, 'run')}",
        lead=lead,
        group_numbers=list(range(len(groups))),
        group_of_runs=group_of_runs,
        summary=summary,
        notes=[*notes_on(groups), *left_out, TIMES],
        streams=_stream_parts(groups),
        matrices=matrices,
        matrices_are_open=len(matrices) <= OPEN_MATRICES,
        ledger_bytes=group_tables.bytes_table(groups),
        ledger_seconds=group_tables.seconds_table(groups),
        runs=runs,
        settings_differ=group_tables.differing_settings(groups),
        settings_same=group_tables.same_settings(groups),
    )


def _streams_name(groups: Sequence[Group]) -> str:
    """Name the streams of all groups, if that is not too long for a title."""
    names: dict[str, None] = {}  # each once
    for streams in streams_of(groups):
        names |= dict.fromkeys(stream.name for stream in streams)
    name = " and ".join(names)
    return name if len(name) <= LONGEST_TITLE else "Finished runs"


def _stream_parts(groups: Sequence[Group]) -> list[StreamPart]:
    """Return what the page shows of each stream: figures and a table.

    A stream is a benchmark with a protocol; accuracies compare within one.

    Args:
        groups: of runs; a joint learner may be on several streams.
    """
    numbers_by_stream: dict[Stream, list[int]] = {}  # of the groups on it
    for number, streams in enumerate(streams_of(groups)):
        for stream in streams:
            numbers_by_stream.setdefault(stream, []).append(number)
    parts = []
    for index, (stream, group_numbers) in enumerate(numbers_by_stream.items()):
        groups_of_stream = [groups[number] for number in group_numbers]
        part = StreamPart(
            name=stream.name,
            figures=_stream_figures(groups_of_stream, stream, group_numbers, index),
            table=group_tables.curves_table(groups_of_stream),
            group_numbers=group_numbers,
        )
        parts.append(part)
    return parts


def _stream_figures(
    groups: Sequence[Group], stream: Stream, group_numbers: Sequence[int], index: int
) -> list[CaptionedFigure]:
    """Draw the accuracies of groups on a stream, and caption the figures.

    Args:
        groups: of runs on the stream.
        stream: benchmark and protocol of the groups.
        group_numbers: the page's number of each group, by which curves are marked.
        index: number of the stream on the page, for ids.

    Returns:
        The curves after each experience, and the final accuracies.
    """
    curves = [group.curve for group in groups]
    # Without the name of the stream, which all of them share.
    for curve, label in zip(curves, _labels_on_stream(groups)):
        curve.label = label
    caption = "Accuracy over all classes seen"
    finals_caption = "Final accuracy"
    if any(curve.std for curve in curves):
        caption += ": mean of runs"
        if len(curves) <= pictures.CROWDED:
            caption += ", band of one standard deviation"
        finals_caption += ": bar mean, line one standard deviation, dots runs"
    figures = pictures.page_figures(curves)
    curves_svg = pictures.inline_svg(
        figures.curves,
        prefix=f"curves-{index}-",
        label=f"{caption}; {stream.name}",
        groups=group_numbers,
    )
    finals_svg = pictures.inline_svg(
        figures.finals,
        prefix=f"finals-{index}-",
        label=f"{finals_caption}; {stream.name}",
        groups=group_numbers,
    )
    return [
        CaptionedFigure(curves_svg, caption),
        CaptionedFigure(finals_svg, finals_caption),
    ]


def _labels_on_stream(groups: Sequence[Group]) -> list[str]:
    """Return labels of groups on one stream, without its name if they stay distinct."""
    labels = []
    for group in groups:
        label = group.label
        for name in ("benchmark", "protocol", "dataset_root"):
            label = label.replace(group.label_part(name), "")
        labels.append(label)
    if len(set(labels)) < len(labels):
        return [group.label for group in groups]
    return labels
