"""The fault campaign finds nothing, finds what is planted, resumes, and counts."""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random

import fault_campaign
import pytest
from support.faults import KINDS, cases_of, kind_named
from support.faults.case import Kind, judge

from crumb_avalanche.models.weights import WeightsError

SCRIPT = Path(__file__).parents[2] / "experiments" / "fault_campaign.py"
IN_PROCESS = ["checkpoint", "pretrained", "weights", "cache", "learner-2", "result", "index", "archives", "serve"]


def judged(kind, count, name="planted"):
    return [judge(kind, fault_campaign.generator(1, name, number)) for number in range(count)]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_some_cases_of_each_kind_are_clean(tmp_path, name):
    if name == "serve":
        pytest.importorskip("fastapi")
    kind = kind_named(name)(tmp_path)
    found = judged(kind, 6, name)
    kind.close()
    assert [case for case in found if case.verdict != "clean"] == []
    assert len({case.damage for case in found}) == 6


def test_a_reader_that_skips_its_checksums_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("crumb_avalanche.system.tensor_file.checksum", lambda name, tensor: "the same")
    found = judged(kind_named("pretrained")(tmp_path), 20)
    silent = [case for case in found if case.verdict == "silent"]
    assert silent and {case.verdict for case in found} == {"clean", "silent"}
    monkeypatch.undo()
    assert {case.verdict for case in judged(kind_named("pretrained")(tmp_path), 20)} == {"clean"}


class Planted(Kind):
    """A kind whose act is an argument."""

    def __init__(self, folder, act, limit=60.0):
        super().__init__(folder)
        self.act, self.limit, self.expected, self.restored = act, limit, "right", 0

    def damage(self, random):
        return "damage"

    def restore(self):
        self.restored += 1


def refuse():
    raise ValueError("of a library")


def refuse_in_our_words():
    from crumb_avalanche.models.weights import read_weights

    read_weights("nothing.npz")


def warn():
    warnings.warn("a file was damaged", stacklevel=1)
    return "other"


@pytest.mark.parametrize(
    ("act", "verdict"),
    [
        (lambda: "right", "clean"),
        (lambda: "other", "silent"),
        (warn, "clean"),
        (refuse_in_our_words, "clean"),
        (refuse, "traceback"),
        (lambda: {}["missing"], "traceback"),
        (lambda: time.sleep(20), "hang"),
    ],
)
def test_the_judge(tmp_path, act, verdict):
    # The short limit is for the hang alone: a busy machine may keep any process waiting for so long.
    kind = Planted(tmp_path, act, 0.05 if verdict == "hang" else 60)
    assert judge(kind, Random(0)).verdict == verdict and kind.restored == 1
    assert issubclass(WeightsError, ValueError)


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "hang"), (0.1, "clean"), (0.0, "hang")])
def test_a_process_that_works_gets_its_time_of_the_processor(tmp_path, monkeypatch, share, verdict):
    limit, asked = 0.05, []

    def process_time():
        """As if each time that the limit is over came at once: a busy machine may be late."""
        asked.append(share * limit * len(asked))
        return asked[-1]

    def work():
        while len(asked) < 6:  # at the start, and five times that the limit is over
            time.sleep(0.01)
        return "right"

    monkeypatch.setattr(time, "process_time", process_time)
    assert judge(Planted(tmp_path, work, limit), Random(0)).verdict == verdict


def test_usual_words_do_not_excuse_another_result(tmp_path):
    kind = Planted(tmp_path, warn)
    kind.learn_base()
    kind.expected = "right"
    assert judge(kind, Random(0)).verdict == "silent"


def test_finished_parts_are_not_repeated_and_counts_are_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fault_campaign, "PART", 8)
    arguments = ["--cases", "150", "--only", "index", "--output", str(tmp_path / "out"), "--json"]
    assert fault_campaign.main([*arguments, str(tmp_path / "counts.json")]) == 0
    written = json.loads((tmp_path / "counts.json").read_text())
    count = cases_of(150)["index"]
    row = {"tried": count, "clean": count, "traceback": 0, "hang": 0, "silent": 0}
    assert written == {"index": row, "total": row} and count > 8
    assert "index" in capsys.readouterr().out
    monkeypatch.setattr(fault_campaign, "kind_named", lambda name: pytest.fail("it was done before"))
    assert fault_campaign.main([*arguments, "-"]) == 0
    assert json.loads(capsys.readouterr().out) == written


def test_processes_of_kinds_find_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_campaign, "PART", 8)
    kinds = ["--cases", "100", "--only", "index", "checkpoint"]
    for workers in ("1", "2"):
        assert fault_campaign.main([*kinds, "--output", str(tmp_path / workers), "--workers", workers]) == 0
    one, two = (sorted((tmp_path / workers / "seed1").iterdir()) for workers in ("1", "2"))
    assert [path.name for path in one] == [path.name for path in two] and len(one) == 4
    for pair in zip(one, two):
        assert len({json.dumps(json.loads(path.read_text()) | {"seconds": 0}) for path in pair}) == 1


def test_a_process_of_a_kind_that_ends_early_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_campaign, "do_part", lambda *arguments: os._exit(3))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nothing removes the folder of the kind
    with pytest.raises(ValueError, match="process of index ended early; the same command resumes"):
        fault_campaign.main(["--cases", "20", "--only", "index", "--workers", "2", "--output", str(tmp_path)])


def test_a_case_that_ended_the_process_is_reported(tmp_path):
    (tmp_path / "running-cache.txt").write_text("cache 17")
    with pytest.raises(ValueError, match="ended within case 'cache 17'"):
        fault_campaign.main(["--cases", "20", "--only", "index", "--output", str(tmp_path)])


def test_the_shares_of_all_kinds():
    assert 0.99 < sum(share for _, share in KINDS.values()) < 1.01
    counts = cases_of(100_000)
    assert sum(counts.values()) == 100_000 and counts.pop("kills") >= 500 and min(counts.values()) >= 2000
    assert sum(cases_of(2000).values()) == 2000


@pytest.mark.slow
def test_2000_cases_are_clean_in_a_minute(tmp_path):
    start = time.perf_counter()
    command = [sys.executable, str(SCRIPT), "--cases", "2000", "--output", str(tmp_path), "--json", "-"]
    command += ["--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    total = json.loads(done.stdout)["total"]
    assert done.returncode == 0 and total == {"tried": 2000, "clean": 2000, "traceback": 0, "hang": 0, "silent": 0}
    assert time.perf_counter() - start <= 60
