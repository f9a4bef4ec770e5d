"""The figures of regularisers with and without task labels follow their definitions."""

import json
import statistics

import pytest
import task_incremental as script
from support.common_options import QUICK

from crumb_avalanche.runs.settings import RunSettings


def test_differences_are_within_a_run():
    def run(value):
        return dict.fromkeys(script.FIGURES, value)

    found = {"finetune": {0: run(10.0), 1: run(30.0)}, "ewc": {0: run(14.0), 1: run(36.0)}, "si": {5: run(10.0)}}
    *_, ewc, _, _, si = script.csv_rows_of(found)
    assert ewc == ["ewc", "forgetting", 2, 25.0, round(22 / 2**0.5, 4), 5.0, round(2**0.5, 4)]
    assert si == ["si", "forgetting", 1, 10.0, "", "", ""], "one run, without fine-tuning"


def test_a_stream_may_be_shortened(clips, tmp_path):
    more = dict(benchmark="clip_folder", dataset_root=str(clips), classes_per_experience=1, strategy="finetune")
    settings = RunSettings(**QUICK, **more, threads=1, progress=False, output=str(tmp_path))
    with pytest.raises(ValueError, match="the stream has 1 experience, so nothing can be forgotten; give"):
        script.measure(settings, experiences=1)
    script.measure(settings, experiences=2)
    found = json.loads(script.path_of(settings).read_text())
    learned, final = found["after_learning"], found["after_the_stream"]
    assert len(learned) == len(final) == 2, "of four"
    assert found["task_incremental"] == statistics.fmean(final) and found["forgetting"] == learned[0] - final[0]
    with pytest.raises(ValueError, match="made with other settings; use another --output"):
        script.measure(settings, experiences=3)
