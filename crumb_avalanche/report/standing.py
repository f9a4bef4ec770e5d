"""Say in a sentence which method is ahead, by how much, and how surely."""

from collections.abc import Sequence
from statistics import fmean

from crumb_avalanche.report.paired import Paired, paired
from crumb_avalanche.report.runs import Group, Run, Stream, streams_of
from crumb_avalanche.system.words import counted


def standings(groups: Sequence[Group]) -> list[str]:
    """Return a text about the groups on each stream.

    The text names the stream where there are several.
    """
    on_stream: dict[Stream, list[Group]] = {}
    for group, streams in zip(groups, streams_of(groups)):
        for stream in streams:
            on_stream.setdefault(stream, []).append(group)
    texts = []
    for stream, members in on_stream.items():
        text = _standing(members)
        texts.append(f"{stream.name}: {text}" if len(on_stream) > 1 else text)
    return texts


def by_accuracy(groups: Sequence[Group]) -> list[Group]:
    """Sort groups by their mean final accuracy, the best first."""
    return sorted(groups, key=_final, reverse=True)


def _final(group: Group) -> float:
    """Mean final accuracy of a group, in percent."""
    return fmean(group.curve.finals)


def _standing(groups: Sequence[Group]) -> str:
    """Return the text about the groups on one stream."""
    ordered = by_accuracy(groups)
    learners = [group for group in ordered if not group.curve.joint]
    sentences = []
    if len(learners) > 1:
        sentences.append(_comparison(learners[0], learners[1]))
    elif learners:
        sentences.append(f"{learners[0].label} ends at {_final(learners[0]):.1f} %.")
    for group in ordered:
        if group.curve.joint:
            sentences.append(
                f"{group.label} sees all images at once, in every epoch, and ends at "
                f"{_final(group):.1f} %."
            )
    chances = {group.curve.chance[-1] for group in ordered if group.curve.chance}
    if len(chances) == 1:
        sentences.append(f"Chance is {chances.pop():.1f} %.")
    return " ".join(sentences)


def _comparison(first: Group, second: Group) -> str:
    """Say in words by how much the best method is ahead of the second."""
    accuracies = f"{_final(first):.1f} % and {_final(second):.1f} %"
    splits = {}
    for run in (*second.runs, *first.runs):
        splits[run.result["run"]] = run.result.get("frame_table_sha256")
    pair = paired(
        reference=_final_by_run(second),
        compared=_final_by_run(first),
        splits=splits,
    )
    if pair is None:
        return (
            f"{first.label} and {second.label} end at {accuracies}; they have no run "
            "number in common, so their difference is not judged."
        )
    return _judged(first.label, second.label, accuracies, pair)


def _final_by_run(group: Group) -> dict[int, float]:
    """Return the final accuracy of each run, by its number."""
    accuracies = {}
    for run in group.runs:
        accuracies[run.result["run"]] = run.result["final_accuracy"]
    return accuracies


def _judged(first: str, second: str, accuracies: str, pair: Paired) -> str:
    """Say what the difference of two methods in the same runs shows."""
    if pair.interval is None:
        return (
            f"{first} is ahead of {second} by {pair.mean:.1f} points ({accuracies}) in "
            f"{counted(len(pair.differences), 'run')}, which is too little to say how "
            "surely."
        )
    low, high = pair.interval
    units = len(pair.units)
    unit = counted(units, "run" if units == len(pair.differences) else "split")
    bounds = f"95 % interval {low:.1f} to {high:.1f}, {unit}"
    if low > 0:
        return (
            f"{first} is ahead of {second} by {pair.mean:.1f} points ({accuracies}; "
            f"{bounds})."
        )
    return (
        f"{first} and {second} are level: {accuracies}, a difference of "
        f"{pair.mean:.1f} points ({bounds})."
    )


def same_bytes(codes: Run, images: Run) -> str:
    """Compare a run that replays codes with one that replays images at its bytes."""
    return (
        f"In the same bytes CRUMB keeps {codes.ledger['buffer_items']:,.0f} memories "
        f"and image replay {images.ledger['buffer_items']:,.0f} images. CRUMB ends at "
        f"{codes.result['final_accuracy']:.1f} % and forgets {codes.forgetting:.1f} "
        f"points; image replay ends at {images.result['final_accuracy']:.1f} % and "
        f"forgets {images.forgetting:.1f}."
    )
