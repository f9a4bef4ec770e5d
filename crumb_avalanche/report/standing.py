"""Say in a sentence which method is ahead, by how much, and how surely."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from crumb_avalanche.report.paired import (
    LEAST_UNITS,
    Paired,
    numbers_of_other_images,
    paired,
)
from crumb_avalanche.report.runs import Group, Run, Stream, streams_of
from crumb_avalanche.system.words import counted


def standings(groups: Sequence[Group]) -> list[str]:
    """Return a text about how the groups of runs stand, for each stream.

    A stream is a benchmark with a protocol. The text names it where there are several.
    """
    groups_by_stream: dict[Stream, list[Group]] = {}
    for group, streams in zip(groups, streams_of(groups)):
        for stream in streams:
            groups_by_stream.setdefault(stream, []).append(group)
    has_several_streams = len(groups_by_stream) > 1
    texts = []
    for stream, groups_of_stream in groups_by_stream.items():
        text = _standing_text(groups_of_stream)
        texts.append(f"{stream.name}: {text}" if has_several_streams else text)
    return texts


def by_accuracy(groups: Sequence[Group]) -> list[Group]:
    """Sort groups of runs by their mean final accuracy, the best first."""
    return sorted(groups, key=_final_accuracy, reverse=True)


def _final_accuracy(group: Group) -> float:
    """Return the mean final accuracy of a group's runs, in percent."""
    return fmean(group.curve.finals)


def _standing_text(groups: Sequence[Group]) -> str:
    """Return the text about the groups of runs on one stream.

    The best two learners of the stream are compared; then come joint learners, which
    are bounds, and the accuracy of guessing.
    """
    ordered = by_accuracy(groups)  # the best first
    streamed = [group for group in ordered if not group.curve.joint]
    sentences = []
    if len(streamed) > 1:
        first, second, *_ = streamed
        sentences.append(_comparison(first, second))
    elif streamed:
        (only_group,) = streamed
        accuracy = _final_accuracy(only_group)
        sentences.append(f"{only_group.label} ends at {accuracy:.1f} %.")
    for group in ordered:
        if group.curve.joint:
            sentences.append(
                f"{group.label} sees all images at once, in every epoch, and ends at "
                f"{_final_accuracy(group):.1f} %."
            )
    final_chances = {group.curve.chance[-1] for group in ordered if group.curve.chance}
    if len(final_chances) == 1:
        sentences.append(f"Chance is {final_chances.pop():.1f} %.")
    return " ".join(sentences)


def _comparison(first: Group, second: Group) -> str:
    """Say by how much one of the two best groups is ahead, and how surely.

    Args:
        first, second: the groups; their runs of the same number are compared.
    """
    splits = _split_by_run(first)
    dropped = numbers_of_other_images(splits, _split_by_run(second))
    first_finals = _without_numbers(_final_by_run(first), dropped)
    second_finals = _without_numbers(_final_by_run(second), dropped)
    note = ""
    if dropped:
        numbers = ", ".join(map(str, dropped))
        note = f" Runs of different images are not compared: {numbers}."
    comparison = paired(second_finals, first_finals, splits)
    if comparison is None:
        return (
            f"{first.label} and {second.label} end at {_final_accuracy(first):.1f} % "
            f"and {_final_accuracy(second):.1f} %; they have no run number in common, "
            f"so their difference is not judged.{note}"
        )
    if comparison.mean < 0:  # in the common runs, the second is the better one
        first, second = second, first
        first_finals, second_finals = second_finals, first_finals
        comparison = paired(second_finals, first_finals, splits)
        assert comparison is not None, "the same runs are compared"
    common_numbers = comparison.differences.keys()
    means = []  # over the common runs
    has_other_runs = False
    for group, finals in ((first, first_finals), (second, second_finals)):
        mean = fmean(finals[number] for number in common_numbers)
        means.append(f"{mean:.1f} %")
        has_other_runs |= _final_by_run(group).keys() != common_numbers
    accuracies = " and ".join(means)
    if has_other_runs:
        accuracies += " in the runs that both have"
    return _difference_text(first.label, second.label, accuracies, comparison) + note


def _without_numbers(
    finals: Mapping[int, float], numbers: Sequence[int]
) -> dict[int, float]:
    """Return the accuracies of the runs that do not have some numbers."""
    return {number: final for number, final in finals.items() if number not in numbers}


def _split_by_run(group: Group) -> dict[int, str | None]:
    """Return the hash of the table of frames of each run of a group, by its number.

    Runs of one split share it.
    """
    splits = {}
    for run in group.runs:
        splits[run.result["run"]] = run.result.get("frame_table_sha256")
    return splits


def _final_by_run(group: Group) -> dict[int, float]:
    """Return the final accuracy of each run of a group, by its number, in percent."""
    accuracies = {}
    for run in group.runs:
        accuracies[run.result["run"]] = run.result["final_accuracy"]
    return accuracies


def _difference_text(
    first_label: str, second_label: str, accuracies: str, comparison: Paired
) -> str:
    """Say what the difference of two groups of runs shows.

    Args:
        first_label, second_label: of the better group and of the other.
        accuracies: of both in the runs that are compared, in words.
        comparison: of the groups in these runs.
    """
    points = f"{comparison.mean:.1f} points"
    # Runs, or splits of the data where several runs have one.
    n_units = len(comparison.units)
    is_of_runs = n_units == len(comparison.differences)
    unit = "run" if is_of_runs else "split"
    bounds = counted(n_units, unit)
    if comparison.interval is not None:
        low, high = comparison.interval
        bounds = f"95 % interval {low:.1f} to {high:.1f}, {bounds}"
    standing = comparison.standing
    if standing == "higher":
        return (
            f"{first_label} is ahead of {second_label} by {points} ({accuracies}; "
            f"{bounds})."
        )
    difference = f"{accuracies}, a difference of {points} ({bounds})"
    if standing == "level":
        return f"{first_label} and {second_label} are level: {difference}."
    question = f"Whether {first_label} is ahead of {second_label} is {standing}"
    if standing == "not decided":
        difference += f"; it takes {LEAST_UNITS} {unit}s"
    return f"{question}: {difference}."


def same_bytes(codes: Run, images: Run) -> str:
    """Say how a run that replays codes compares with one of images at its bytes.

    Both runs have forgetting: they learn a stream of several experiences.
    """
    return (
        f"In the same bytes CRUMB keeps {codes.ledger['buffer_items']:,.0f} memories "
        f"and image replay {images.ledger['buffer_items']:,.0f} images. CRUMB ends at "
        f"{codes.result['final_accuracy']:.1f} % and forgets {codes.forgetting:.1f} "
        f"points; image replay ends at {images.result['final_accuracy']:.1f} % and "
        f"forgets {images.forgetting:.1f}."
    )
