"""The sentence that says who is ahead, by how much, and how surely."""

import pytest
from fake_runs import fake_run

from crumb_avalanche.report.runs import groups_of, read_run
from crumb_avalanche.report.standing import by_accuracy, same_bytes, standings


def groups_with(folder, finals, **shared):
    """Groups of runs by strategy, with the final accuracy of each run number."""
    runs = []
    for strategy, by_number in finals.items():
        for number, final in by_number.items():
            path = folder / strategy / str(number)
            split = {"frame_table_sha256": f"split {number}"}
            settings = {"strategy": strategy, **shared}
            runs.append(
                read_run(fake_run(path, final, number, result=split, **settings))
            )
    return groups_of(runs)


def runs_of(finals):
    """Final accuracies by number of the run."""
    return dict(enumerate(map(float, finals)))


@pytest.mark.parametrize(
    ("finals", "words"),
    [
        ({"crumb": {0: 70.0}}, "crumb ends at 70.0 %."),
        (
            {"crumb": {0: 70.0}, "finetune": {0: 25.0}},
            "Whether crumb is ahead of finetune is not decided: 70.0 % and 25.0 %, a "
            "difference of 45.0 points (1 run); it takes 5 runs.",
        ),
        # Differences of 44, 45, 46: 45 +- 4.303 * 1 / sqrt(3).
        (
            {
                "crumb": {0: 70.0, 1: 70.0, 2: 70.0},
                "finetune": {0: 24.0, 1: 25.0, 2: 26.0},
            },
            "Whether crumb is ahead of finetune is not decided: 70.0 % and 25.0 %, a "
            "difference of 45.0 points (95 % interval 42.5 to 47.5, 3 runs); it takes "
            "5 runs.",
        ),
        # Differences of 40, 42, 45, 48, 50: 45 +- 2.776 * 4.123 / sqrt(5).
        (
            {"crumb": runs_of(5 * [70.0]), "finetune": runs_of([30, 28, 25, 22, 20])},
            "crumb is ahead of finetune by 45.0 points (70.0 % and 25.0 %; 95 % "
            "interval 39.9 to 50.1, 5 runs).",
        ),
        # Differences of -1, 0, 0, 0, 2: 0.2 +- 2.776 * 1.095 / sqrt(5).
        (
            {"crumb": runs_of([59, 60, 60, 60, 62]), "finetune": runs_of(5 * [60.0])},
            "crumb and finetune are level: 60.2 % and 60.0 %, a difference of 0.2 "
            "points (95 % interval -1.2 to 1.6, 5 runs).",
        ),
        # Differences of -20, 0, 0, 5, 20: 1 +- 2.776 * 14.32 / sqrt(5).
        (
            {"crumb": runs_of([40, 60, 60, 65, 80]), "finetune": runs_of(5 * [60.0])},
            "Whether crumb is ahead of finetune is not shown: 61.0 % and 60.0 %, a "
            "difference of 1.0 points (95 % interval -16.8 to 18.8, 5 runs).",
        ),
        # Only run 0 is of both, and there the second is the better one.
        (
            {"crumb": {0: 60.0, 1: 90.0}, "finetune": {0: 65.0}},
            "Whether finetune is ahead of crumb is not decided: 65.0 % and 60.0 % in "
            "the runs that both have, a difference of 5.0 points (1 run); it takes 5 "
            "runs.",
        ),
        (
            {"crumb": {0: 70.0}, "finetune": {1: 25.0}},
            "crumb and finetune end at 70.0 % and 25.0 %; they have no run number in "
            "common, so their difference is not judged.",
        ),
    ],
)
def test_the_best_two(tmp_path, finals, words):
    (text,) = standings(groups_with(tmp_path, finals))
    assert text == f"{words} Chance is 25.0 %."


def test_runs_of_other_images_are_not_compared(tmp_path):
    groups = groups_with(tmp_path, {"crumb": runs_of(3 * [70.0])})
    groups += groups_with(tmp_path, {"finetune": runs_of(3 * [25.0])})
    groups[1].runs[2].result["frame_table_sha256"] = "another split"
    (text,) = standings(groups)
    assert "70.0 % and 25.0 % in the runs that both have" in text
    assert "2 runs)" in text
    assert "Runs of different images are not compared: 2." in text


def test_a_joint_learner_is_no_rival(tmp_path):
    finals = {"crumb": {0: 70.0}, "offline": {0: 60.0}}
    (text,) = standings(groups_with(tmp_path, finals))
    assert text == (
        "crumb ends at 70.0 %. offline sees all images at once, in every epoch, and "
        "ends at 60.0 %. Chance is 25.0 %."
    )


def test_streams_are_named(tmp_path):
    instance = groups_with(tmp_path / "a", {"crumb": {0: 70.0}})
    iid = groups_with(tmp_path / "b", {"crumb": {0: 80.0}}, protocol="class_iid")
    first, second = standings([*instance, *iid])
    assert "class_instance: crumb" in first
    assert "ends at 80.0 %" in second


def test_the_best_group_is_first(tmp_path):
    groups = groups_with(tmp_path, {"finetune": {0: 25.0}, "crumb": {0: 70.0}})
    assert [group.label for group in by_accuracy(groups)] == ["crumb", "finetune"]


@pytest.mark.parametrize(
    ("rows", "forgetting"),
    [
        (["0,90.0,", "1,50.0,80.0"], 40.0),
        (["0,,", "1,50.0,80.0"], None),  # not tested before the end
        (["0,50.0,", "1,60.0,80.0"], -10.0),
        # From the best of each experience: 90 - 40 and 60 - 60.
        (["0,90.0,,", "1,50.0,60.0,", "2,40.0,60.0,80.0"], 25.0),
    ],
)
def test_forgetting(tmp_path, rows, forgetting):
    result = {"accuracy_after": [70.0] * len(rows)}
    run = read_run(fake_run(tmp_path / "run", result=result, rows=rows))
    assert run.forgetting == forgetting


def test_a_joint_learner_forgets_nothing(tmp_path):
    assert read_run(fake_run(tmp_path / "run", strategy="offline")).forgetting is None


def test_codes_beside_images_of_the_same_bytes(tmp_path):
    codes = read_run(fake_run(tmp_path / "crumb", 70.0, ledger={"buffer_items": 352}))
    images = read_run(
        fake_run(
            tmp_path / "images",
            40.0,
            ledger={"buffer_items": 15},
            rows=["0,100.0,", "1,10.0,70.0"],
        )
    )
    assert same_bytes(codes, images) == (
        "In the same bytes CRUMB keeps 352 memories and image replay 15 images. CRUMB "
        "ends at 70.0 % and forgets 40.0 points; image replay ends at 40.0 % and "
        "forgets 90.0."
    )
