"""The cost of CRUMB beside REMIND: peaks of tables, ratios, and the lines of Table 2."""

from dataclasses import asdict

import pytest
from support.replay_cost import ALL_MAPS, BATCHES, CRUMB, SAMPLE, SINGLE, Part, ratios
from support.tables import PaperNumbers
from table2_cost import lines_of, measure_once, measured

from crumb_avalanche.runs.run_folder import FinishedRunError, write_csv, write_json
from crumb_avalanche.runs.settings import RunSettings

PAPER = PaperNumbers()


def test_ratios_by_hand():
    times, memory = {CRUMB: 2.0, SINGLE: 20.0, BATCHES: 4.0}, {CRUMB: 1.0, ALL_MAPS: 8.0, SAMPLE: 4.0}
    found = {(what, one, other): ratio for what, one, other, ratio in ratios(times, times, memory)}
    assert found["time of an image", CRUMB, SINGLE] == 0.1 and found["time of the whole run", CRUMB, BATCHES] == 0.5
    assert found["memory", CRUMB, ALL_MAPS] == 0.125 and found["memory", SAMPLE, ALL_MAPS] == 0.5


def costs(path, crumb_seconds):
    rows = [("seconds_whole_run", CRUMB, crumb_seconds), ("seconds_whole_run", SINGLE, 7200)]
    rows += [("peak_bytes", CRUMB, 3e7), ("held_bytes", CRUMB, 1e7)]
    rows += [("peak_bytes", ALL_MAPS, 8e8), ("held_bytes", ALL_MAPS, 2e8)]
    write_csv(path, [["quantity", "method", "by", "value"], *([one, method, "", value] for one, method, value in rows)])
    return path


def test_lines_of_table_2(tmp_path):
    files = [costs(tmp_path / "a.csv", 1800), costs(tmp_path / "b.csv", 5400), tmp_path / "none.csv"]
    assert measured(files[0]) == {"peak_ram_gb": (0.04, 1.0), "runtime_hours": (0.5, 2.0)}
    memory, time = lines_of("cifar100", files, PAPER)
    assert memory["ratios"][1] == pytest.approx(4) and time["ratios"][1] == pytest.approx(50)
    assert list(time.values())[3:11] == ["0.29", "1", "1.91", "2", "15.2 %", "50.0 %", "+34.8", "2"]
    for line in lines_of("imagenet", files[2:], PAPER):
        assert line["ratios"][1] is None and line["ours"] == line["runs"] == line["difference"] == ""
    (memory, _) = lines_of("eth80", files[:1], PAPER)
    assert memory["paper's data set"] == "cifar100" and memory["difference"] == "" and memory["ours"] == "4.0 %"
    part = costs(tmp_path / "cost_of_replay.csv", 1800)
    write_json(tmp_path / "made_with.json", asdict(Part(stream_images=100, experiences=2, table_images=80)))
    for line in lines_of("cifar100", [part], PAPER):
        words = "100 images of each experience, the first 2 experiences, REMIND's tables of 80 maps"
        assert line["measured on a part only"] == words and line["difference"] == ""
    with pytest.raises(FinishedRunError, match="measured with other settings; choose another --output"):
        measure_once(RunSettings(output=str(tmp_path)), Part())
