"""The benchmark of runs on videos runs both versions and prints its figures, whose values are not tested."""

import json
from pathlib import Path

import pytest
from called_script import called
from patch_images import images
from PIL import Image


@pytest.mark.slow
def test_json_is_one_object_with_the_figures(tmp_path):
    pytest.importorskip("av")
    for number in range(4):
        for one in range(2):
            folder = tmp_path / "images" / f"class{number}" / f"object{one}"
            folder.mkdir(parents=True)
            for frame, pixels in enumerate(images(number, 3, seed=one)):
                Image.fromarray(pixels).save(folder / f"{frame}.png")
    same = Path(__file__).parents[2]
    options = ["--images", tmp_path / "images", "--weights", "none", "--before", same, "--runtime", "torch"]
    done = called("bench_video", *options, "--threads", "1", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["frames"] == 24 and figures["ratio"] == pytest.approx(figures["before"] / figures["now"])
    assert figures["accuracy"]["before"] == figures["accuracy"]["now"]
