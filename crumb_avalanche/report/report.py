"""``crumb report``: tables, pictures and an HTML page of the finished runs in some folders."""

from pathlib import Path

from benchmarks_toybox_ilab.tables.text import ListedError
from crumb_avalanche.report.html_report import report_page
from crumb_avalanche.report.page import MARK, Table
from crumb_avalanche.report.pictures import comparison_picture, save
from crumb_avalanche.report.run_tables import runs_table, settings_tables, summary_table
from crumb_avalanche.report.runs import (
    IDENTITY,
    NOT_COMPARED,
    Group,
    differences,
    find_runs,
    groups_of,
    notes_on,
    read_run,
)
from crumb_avalanche.runs.command_settings import ReportSettings
from crumb_avalanche.runs.plan import usual_settings
from crumb_avalanche.runs.run_folder import RESULT, DamagedRunError, refuse_others
from crumb_avalanche.runs.tables import cell, ledger_table, matrix_table, table, usage_of
from crumb_avalanche.system.atomic_file import write_text
from crumb_avalanche.system.folder_lock import locked

PAGE = "report.html"
FILES = [PAGE, "report.csv", "comparison.csv", "report.png", "report.svg"]
MAIN_SETTINGS = [*IDENTITY, "run", "weights", "backbone", "first_epochs", "epochs", "batch_size", "learning_rate"]


def main(settings: ReportSettings) -> None:
    """Print tables of the runs in some folders; write a page, pictures, and tables as CSV.

    ValueError: there is no finished run, or a run cannot be read; the others are reported first.
    """
    finished, unfinished, problems = find_runs(settings.folders)
    runs = []
    for folder in finished:
        try:
            runs.append(read_run(folder))
        except DamagedRunError as error:
            problems.append(str(error))
    if not runs:
        if not problems:
            raise ValueError("no folder was given; write crumb report FOLDER [FOLDER ...]")
        raise ListedError("no run can be reported", problems)
    first = Path(settings.folders[0])
    beside = runs[0].folder if len(runs) == 1 else first if len(settings.folders) == 1 else first.parent
    output = Path(settings.output or beside)
    groups, left_out = groups_of(runs), [f"unfinished and left out, without {RESULT}: {path}" for path in unfinished]
    try:
        with locked(output):
            refuse_others(output, FILES, {PAGE: MARK})
            # First the page, by which the other files are known.
            summary, runs_of = summary_table(groups), runs_table(groups, output)
            write_text(output / PAGE, report_page(groups, summary, runs_of, [*problems, *left_out]))
            runs_of.write(output / "report.csv")
            summary.write(output / "comparison.csv")
            alike = [name for name in IDENTITY[:4] if name not in differences(groups)]
            title = ", ".join(f"{name} {groups[0].settings[name]}" for name in alike)
            written = save(comparison_picture(title, [group.curve for group in groups]), output)
            written += [output / name for name in (PAGE, "report.csv", "comparison.csv")]
    except OSError as error:
        raise ValueError(f"{output} cannot be written to ({error}); name another folder with --output") from error
    if len(runs) == 1:
        print_run(groups[0])
    else:
        print_comparison(groups, summary)
    usage = usage_of(runs[0].folder, runs[0].settings["strategy"])
    print("\nwritten: " + ", ".join(map(str, written)), *usage, sep="\n")
    if unfinished:
        print(f"unfinished and left out, without {RESULT}: " + ", ".join(map(str, unfinished)))
    if problems:
        raise ListedError("not everything could be reported; the rest is written", problems)


def print_run(group: Group) -> None:
    """Print a group's only run: settings, accuracies and ledger."""
    run = group.runs[0]
    settings = run.settings
    usual = usual_settings(settings["benchmark"], settings["preset"], settings["strategy"])
    special = [name for name in settings if name not in NOT_COMPARED and settings[name] != usual.get(name)]
    names = [name for name in dict.fromkeys(MAIN_SETTINGS + special) if settings.get(name) is not None]
    print(f"{run.folder}\n" + table(["setting", "value"], [[name, cell(settings[name])] for name in names]))
    print(matrix_table(run.matrix, run.result["accuracy_after"], run.joint))
    print(ledger_table(run.ledger))


def print_comparison(groups: list[Group], summary: Table) -> None:
    """Print groups of runs side by side."""
    print("final accuracy over all classes: mean +- standard deviation of runs (n - 1); the others are means")
    print(summary.lines)
    print("images/s: times of different runs are comparable only when measured side by side on the same machine")
    if (differ := settings_tables(groups)[0]) is not None:
        print("\nsettings in which they differ\n" + differ.lines)
    for note in notes_on(groups):
        print(f"note: {note}")
