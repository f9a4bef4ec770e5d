"""The benchmark of lessons by workers runs and prints its figures, whose values are not tested."""

import json

import pytest
from called_script import called


@pytest.mark.slow
def test_json_is_one_object_with_the_figures():
    pytest.importorskip("ray")
    small = ["--backbone", "small_cnn", "--image-size", "32", "--pixels", "40", "--classes", "3", "--repeats", "1"]
    done = called("bench_many", "--json", *small)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures["seconds"]) == {"1", "2"} and set(figures["nodes"]) == {"1", "8", "64"}
    assert figures["images"] == 240 and figures["shards"] == 8
    assert figures["speedup"] == pytest.approx(figures["seconds"]["1"] / figures["seconds"]["2"])
    assert figures["nodes"]["1"] > figures["nodes"]["64"] > 0 < figures["state_bytes"]
