"""Table 2 is computed from measurements of cost_of_replay.py; cells without any are empty."""

import csv
from dataclasses import asdict, replace

import pytest
import table2_cost
from called_script import called
from cost_of_replay import CRUMB, SINGLE, CostSettings
from support.paper_numbers import read_paper_numbers
from support.saved_picture import save_picture
from support.table_memory import ALL_MAPS
from table2_cost import lines_of, measure_once, measured, picture, text_of

from crumb_avalanche.runs.run_folder import FinishedRunError, write_json
from crumb_avalanche.runs.settings import RunSettings


def written(path, crumb_seconds):
    rows = [("seconds_whole_run", CRUMB, crumb_seconds), ("seconds_whole_run", SINGLE, 7200)]
    rows += [("peak_bytes", CRUMB, 3e7), ("held_bytes", CRUMB, 1e7)]
    rows += [("peak_bytes", ALL_MAPS, 8e8), ("held_bytes", ALL_MAPS, 2e8)]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["quantity", "method", "by", "value"])
        writer.writerows([quantity, method, "", value] for quantity, method, value in rows)
    return path


def test_lines_by_hand(tmp_path):
    files = [written(tmp_path / "a.csv", 1800), written(tmp_path / "b.csv", 5400), tmp_path / "none.csv"]
    assert measured(files[0]) == {"peak_ram_gb": (0.04, 1.0), "runtime_hours": (0.5, 2.0)}
    paper = read_paper_numbers()
    memory, time = lines_of("cifar100", files, paper)
    assert (memory.ratio, time.ratio) == (pytest.approx(4), pytest.approx(50)) and memory.runs == 2
    assert memory.difference == pytest.approx(4 - 100 * memory.paper[0] / memory.paper[1])
    assert text_of(time)[3:] == ["0.29", "1", "1.91", "2", "15.2 %", "50.0 %", "+34.8", "2"]
    for path in save_picture(picture([memory, time]), tmp_path, "table2"):
        assert path.stat().st_size > 5000


def test_not_measured_and_another_benchmark(tmp_path):
    paper = read_paper_numbers()
    for line in lines_of("imagenet", [tmp_path / "none.csv"], paper):
        assert line.ours is None and line.ratio is None and text_of(line)[-1] == text_of(line)[-2] == ""
    (memory, _) = lines_of("eth80", [written(tmp_path / "a.csv", 1800)], paper)
    assert memory.paper_dataset == "cifar100" and memory.difference is None and memory.ratio == pytest.approx(4)


def test_a_part_of_the_stream_is_not_compared_with_the_paper(tmp_path):
    files = [written(tmp_path / "cost_of_replay.csv", 1800)]
    write_json(tmp_path / "made_with.json", asdict(CostSettings(stream_images=100, experiences=2, table_images=80)))
    for line in lines_of("cifar100", files, read_paper_numbers()):
        assert line.part == "100 images of each experience, the first 2 experiences, REMIND's tables of 80 maps"
        assert line.difference is None and line.ratio is not None
    write_json(tmp_path / "made_with.json", asdict(CostSettings()))
    assert [line.part for line in lines_of("cifar100", files, read_paper_numbers())] == ["", ""]


def test_a_measurement_is_not_repeated_and_other_settings_are_refused(tmp_path, monkeypatch):
    calls = []

    def measure(settings, own):
        calls.append(own)
        written(tmp_path / "cost_of_replay.csv", 1800)

    monkeypatch.setattr(table2_cost, "measure", measure)
    settings, own = RunSettings(benchmark="eth80"), CostSettings(str(tmp_path), stream_images=120)
    measure_once(settings, own)
    measure_once(replace(settings, dataset_root="elsewhere"), own)
    assert calls == [own]
    for others in ((settings, replace(own, stream_images=121)), (replace(settings, feature_cache="cache"), own)):
        with pytest.raises(FinishedRunError, match=f"{tmp_path} was measured with other settings; choose another"):
            measure_once(*others)


@pytest.mark.slow
def test_quick(tmp_path):
    done = called("table2_cost", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "table2.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["runs"] for row in rows] == ["1", "1"]
    assert "24 images of each experience" in rows[0]["measured on a part only"]
    again = called("table2_cost", "--quick", "--output", tmp_path, "--table-only")
    assert again.returncode == 0 and "experience 1" not in again.stdout
