"""The comparison of costs runs, prints and writes its ratios, whose values are not tested."""

import csv

import numpy as np
import pytest
from called_script import called
from cost_of_replay import ALL_MAPS, CRUMB, CostSettings, command_line, made_in_new_process

LEARNERS = ["crumb", "remind, one image at a time", "remind, mini-batches"]
MEMORIES = ["crumb", "remind, tables from all maps", "remind, tables from a sample"]


@pytest.mark.slow
def test_quick_prints_the_ratios_and_writes_table_and_picture(tmp_path):
    done = called("cost_of_replay", "--quick", "--output", tmp_path, "--progress", "false")
    assert done.returncode == 0, done.stderr
    assert "24 + 96 frames, tables from 80 maps, 1 threads, F from images" in done.stdout
    assert "note: REMIND began with 24 memories, too few for 50 mixtures" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cost_of_replay.csv",
        "cost_of_replay.png",
        "cost_of_replay.svg",
    ]
    with open(tmp_path / "cost_of_replay.csv") as file:
        rows = list(csv.DictReader(file))
    values = {(row["quantity"], row["method"], row["by"]): float(row["value"]) for row in rows}
    # The few maps that CRUMB reads here may fit into memory that is free already.
    assert values["peak_bytes", "crumb", ""] >= 0
    assert all(value > 0 for place, value in values.items() if place != ("peak_bytes", "crumb", ""))
    for quantity, methods in (
        *(("seconds_per_image", LEARNERS), ("seconds_whole_run", LEARNERS)),
        *(("peak_bytes", MEMORIES), ("held_bytes", MEMORIES)),
    ):
        assert [method for one, method, _ in values if one == quantity] == methods

    def per_image(name):
        return values["seconds_per_image", name, ""]

    ratio = values["ratio, time of an image", LEARNERS[0], LEARNERS[1]]
    assert ratio == pytest.approx(per_image(LEARNERS[0]) / per_image(LEARNERS[1]))
    assert f"time of an image, crumb by {LEARNERS[1]}: {100 * ratio:.1f} % (aim: at most 15 %)" in done.stdout
    memory = {name: values["peak_bytes", name, ""] + values["held_bytes", name, ""] for name in MEMORIES}
    ratio = values["ratio, memory", "crumb", MEMORIES[1]]
    assert ratio == pytest.approx(memory["crumb"] / memory[MEMORIES[1]])
    assert f"memory, crumb by {MEMORIES[1]}: {100 * ratio:.1f} % (aim: at most 5 %)" in done.stdout
    # A step for each image, with replays, against one for a batch.
    assert per_image(LEARNERS[1]) > per_image(LEARNERS[2])


def test_the_peak_of_a_table_is_that_of_its_maps(tmp_path):
    shape = (4800, 6, 6, 64)
    maps = np.random.default_rng(0).random(shape, np.float32)  # 44 MB: the system may give out memory 2 MB at a time
    maps.tofile(tmp_path / "maps")
    task = dict(file=str(tmp_path / "maps"), shape=shape, seed=0, threads=1, codebook_size=16, codebook_dim=16)
    task |= dict(codebook_init="matched", measured_images=20, sub_quantizers=4, bits=4)
    everything = made_in_new_process({**task, "kind": ALL_MAPS})
    assert maps.nbytes < everything["bytes"] < 2.5 * maps.nbytes
    few = made_in_new_process({**task, "kind": CRUMB})
    assert few["bytes"] < 0.2 * maps.nbytes and few["seconds"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(experiences=1), "experiences=1 .*give 2 or more"),
        (dict(experiences=-2), "experiences, stream_images and table_images are 0 or more"),
        (dict(stream_images=-1), "experiences, stream_images and table_images are 0 or more"),
        (dict(measured_images=0), "measured_images is at least 1"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        CostSettings(**changes)


def test_the_command_line_has_the_settings_of_a_run():
    assert command_line().parse_args([]).threads == 1
