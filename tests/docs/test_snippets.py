"""The Python lines of pages, run one after the other."""

import contextlib
import io
from types import SimpleNamespace

import pytest
import torch
from page_commands import ROOT, blocks
from patch_images import SIZE, images
from PIL import Image

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, Recipe
from crumb_avalanche.models.codebook import init_normal_


def defined_by(page: str, codes=slice(None)) -> dict:
    """What the Python blocks of a page define."""
    names: dict = {}
    for code in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")[codes]:
        exec(compile(code, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_models_of_scikit_learns_users_learn():
    pytest.importorskip("sklearn")
    names = defined_by("coming_from.md")
    assert names["here"].score(names["features"], names["labels"]) > 0.9
    assert (names["model"].predict(names["features"]) == names["labels"]).mean() > 0.9
    assert names["pipeline"].classes_.tolist() == ["cup", "dog"]


def test_plain_onnx_runtime_answers_as_the_learner(weights_file, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    learner = Learner(backbone="small_cnn", weights=weights_file, image_size=SIZE)
    for number in range(3):
        learner.teach(images(number), f"c{number}")
    monkeypatch.chdir(tmp_path)
    export_onnx(learner, tmp_path / "mine.onnx")
    Image.fromarray(images(1, 1, seed=3)[0]).save("photo.jpg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        defined_by("robots.md", slice(-1, None))
    label, share = printed.getvalue().split()
    answer = learner.predict("photo.jpg")
    assert label == answer.label and float(share) == pytest.approx(answer.confidence, abs=1e-3)


@pytest.fixture(scope="module")
def names():
    """What the examples of adding a method, a data set and a buffer define."""
    return defined_by("extend.md")


def test_the_data_set_holds_out_an_object(names):
    table = names["table"]
    assert len(table) == 48 and table.classes == ("blue", "green", "red", "yellow")
    assert {name for name, split in zip(table.object_name, table.split) if split == "test"} == {"2"}
    assert names["benchmark"].n_classes == 4 and len(names["benchmark"].train_stream) == 2


def test_the_strategy_learns(names):
    accuracy = next(value for name, value in names["results"].items() if name.startswith("Top1_Acc_Stream"))
    assert accuracy > 0.5  # chance is 0.25


def test_the_buffer_holds_the_bytes_that_it_says(names):
    buffer, model = names["buffer"], names["model"]
    assert len(buffer) == 8 and buffer.buffer_bytes == 8 * buffer.item_bytes(model)
    maps = torch.randn(2, *model.map_shape)
    batch = SimpleNamespace(feature_map=maps)
    assert torch.allclose(buffer.to_maps(buffer.to_rows(batch, [0, 1], model), model), maps, atol=1e-2)


def test_the_entry_builds_the_strategy_and_counts_its_memories(names, make_model):
    model, entry = make_model(), STRATEGIES["clipped_replay"]
    init_normal_(model.codebook, torch.zeros(1), torch.Generator().manual_seed(0))
    recipe = Recipe(model, LearningSettings(), entry.method_settings({"norm": 2}), 8, 4, 0, "cpu", {})
    built = entry.build(recipe)
    assert isinstance(built, names["ClippedReplay"]) and built.norm == 2 and built.storage_policy.max_size == 8
    channels, height, width = model.map_shape
    assert entry.memories_in_budget(model, 10 * 2 * channels * height * width, 4) == 10


def test_the_closed_form_learns_and_its_bytes_and_settings_follow_from_it(names):
    strategy, entry = names["scaled"], STRATEGIES["scaled_means"]
    accuracy = next(value for name, value in names["closed_form_results"].items() if name.startswith("Top1_Acc_Stream"))
    assert accuracy > 0.5 and strategy.statistics.settings["least"] == 0.01
    assert entry.fixed_bytes(strategy.model, entry.settings(), 4) == strategy.statistics_bytes
    with pytest.raises(ValueError, match=r"least is 0; give more than 0"):
        entry.method_settings({"least": 0})
