"""Rows of Table 4 change existing settings; a row without its start names what it needs."""

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from called_script import called
from made_runs import made_run
from PIL import Image
from support.ablation_rows import MEMORY_RECALL, ROWS, STOCK
from support.common_options import common_options, parser_for, rows_named
from support.paper_numbers import read_paper_numbers
from support.pretrained_starts import Starts, command
from support.side_by_side import find
from table4_ablations import OURS, assembled, settings_of, starts_of

from crumb_avalanche.runs.command_settings import PretrainSettings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings, as_dict
from crumb_avalanche.system.tensor_file import write_tensors
from crumb_avalanche.training.pretraining import FORMAT, read_pretrained

BY_NAME = {row.name: row for row in ROWS}


def starts(folder=None):
    return Starts(folder, PretrainSettings(data="IMAGES", codebook_dim=8), "torchvision")


def options(tmp_path, *more):
    return common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), *more]))


def test_rows_are_those_of_the_paper():
    paper = [key[3] for key in read_paper_numbers() if key[0] == "table4" and key[2] == "class_iid"]
    assert [row.name for row in ROWS if row.name != "Tiny-ImageNet pretrain"] == paper


def test_rows_change_existing_settings(tmp_path):
    for row in ROWS:
        RunSettings(**{name: value for name, value in row.stream.items()})
        changes = settings_of(row, starts(), 200)
        if row.needs:
            own = {"CIFAR100 pretrain": " or --cifar100-start", "Tiny-ImageNet pretrain": " or --tiny-imagenet-start"}
            assert changes == f"needs {row.needs}: --starts{own.get(row.name, '')}"
        else:
            RunPlan.of(replace(RunSettings(), **changes))
            assert "pretrained" not in changes and changes["codebook_dim"] in (4, 8, 16, 32)


def test_what_rows_change(tmp_path):
    def of(name):
        return settings_of(BY_NAME[name], starts(), 200)

    ours = of("Ours")
    assert ours == dict(mem_size=200, codebook_dim=8)
    assert of("256 blocks") == of("8-dim. blocks") == ours and BY_NAME["256 blocks"].folder == "ours"
    assert of("Quarter capacity")["mem_size"] == 50
    assert of("16-dim. blocks adj.") == dict(mem_size=400, codebook_dim=16)
    assert of("32-dim. blocks adj.") == dict(mem_size=800, codebook_dim=32)
    assert of("MobileNetV2 CNN")["mem_size"] == 1430 and of("MobileNetV2 CNN")["weights"] == "torchvision"
    assert of("Ours + direct loss")["method"] == {"direct_weight": 1.0}
    assert of("Direct loss")["method"]["codebook_weight"] == 0.0
    assert of("MeRec replay")["method"] == MEMORY_RECALL
    folders = {row.folder for row in ROWS}
    assert len(folders) == len(ROWS) - 2, "only rows that are Ours share a folder"


def test_rows_with_starts(tmp_path):
    for name in ("ours", "init_uniform"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    some = starts(tmp_path)
    ours = str(tmp_path / "ours.safetensors")
    assert settings_of(BY_NAME["Ours"], some, 200)["pretrained"] == ours
    assert settings_of(BY_NAME["Ours p.t. + im. rep."], some, 200)["pretrained"] == ours
    assert settings_of(BY_NAME["Freeze memory"], some, 200)["pretrained"] == ours
    assert "pretrained" not in settings_of(BY_NAME["Vanilla pretrain"], some, 200)
    uniform = settings_of(BY_NAME["Uniform init."], some, 200)
    assert uniform["pretrained"] == str(tmp_path / "init_uniform.safetensors")
    words = settings_of(BY_NAME["Ours - direct loss"], some, 200)
    assert words == f"needs CRUMB pretraining: {tmp_path / 'no_direct_loss'}.safetensors"


@pytest.mark.parametrize(
    ("name", "flag"), [("CIFAR100", "--cifar100-start"), ("Tiny-ImageNet", "--tiny-imagenet-start")]
)
def test_a_start_from_other_images_alone_fills_its_row(tmp_path, name, flag):
    row = BY_NAME[f"{name} pretrain"]
    assert settings_of(row, starts(), 200) == f"needs {row.needs}: --starts or {flag}"
    file = tmp_path / "made.safetensors"
    parser = parser_for("Doc.", "runs")
    for option in ("--cifar100-start", "--tiny-imagenet-start", "--starts", "--pretrain-data", "--pretrain-root"):
        parser.add_argument(option)
    parser.set_defaults(make_starts=False, mobilenet_weights="torchvision")
    parser.set_defaults(images_per_class=0, pretrain_epochs=10, pretrain_batch_size=128)
    chosen = parser.parse_args([flag, str(file)])
    with pytest.raises(ValueError, match=rf"{flag} .*made\.safetensors: no such file; .*crumb pretrain"):
        starts_of(chosen, common_options(chosen))
    file.write_bytes(b"")
    some = starts_of(chosen, common_options(chosen))
    assert settings_of(row, some, 200)["pretrained"] == str(file)
    assert [row.name for row in ROWS if row.start in some.given] == [f"{name} pretrain"]
    assert "pretrained" not in settings_of(OURS, some, 200)
    assert some.described.endswith("without CRUMB pretraining, but where the row says otherwise")


def test_commands_that_make_starts(tmp_path):
    some = starts(tmp_path)
    lines = some.commands([BY_NAME["Ours"], BY_NAME["Ours - direct loss"], BY_NAME["4 blocks"]])
    output = f"--output {tmp_path}/"
    assert lines[0] == f"crumb pretrain --data IMAGES {output}ours.safetensors --codebook-dim 8"
    assert lines[1].endswith("--codebook-dim 8 --direct-weight 0.0")
    assert "--codebook-size 4" in lines[2]
    mixed = some.commands([BY_NAME["Pretrain weights"]])
    assert "ours.safetensors" in mixed[0] and "--learning-rate 0.0" in mixed[1] and "--seed 1" in mixed[1]
    assert some.commands([row for row in ROWS if row.start == STOCK]) == []
    for data in ("IMAGES", "torchvision:CIFAR10", "cifar_like/train"):
        other = Starts(tmp_path, PretrainSettings(data=data, codebook_dim=8), "torchvision")
        (cifar,) = other.commands([BY_NAME["CIFAR100 pretrain"]])
        assert "--data torchvision:CIFAR100 " in cifar
    (tiny,) = some.commands([BY_NAME["Tiny-ImageNet pretrain"]])
    assert f"crumb pretrain --data TINY_IMAGENET/train {output}tiny_imagenet.safetensors --codebook-dim 8" in tiny
    assert "--cut-layer 3" in some.commands([BY_NAME["Early feature replay"]])[0]
    assert command(PretrainSettings("X", progress=False)) == "crumb pretrain --data X --progress false"


def written_start(folder, name, **changes):
    """A file with these settings in its notes."""
    settings = as_dict(PretrainSettings(data="IMAGES", codebook_dim=8, **changes))
    state = {"codebook.blocks": torch.full((256, 8), float(len(name))), "plastic_layers.x": torch.ones(1)}
    made_with = settings | {"data": str(Path("IMAGES").resolve()), "history": [], "classes": 2}
    write_tensors(folder / f"{name}.safetensors", state, {"format": FORMAT, "made_with": json.dumps(made_with)})


def test_starts_with_other_settings(tmp_path):
    written_start(tmp_path, "ours", epochs=1)
    written_start(tmp_path, "no_direct_loss", epochs=30, direct_weight=0.0)
    some = starts(tmp_path)
    row = BY_NAME["Ours - direct loss"]
    assert some.unlike_ours(row) == "pretrained with epochs=30, not 1 as Ours"
    _, cells = assembled([OURS, row], options(tmp_path), ["class_iid"], some, 200)
    assert [cell.note for cell in cells] == ["", "pretrained with epochs=30, not 1 as Ours"]
    with pytest.raises(
        ValueError, match=r"ours\.safetensors was made with epochs=1, not 10; ask for the same, or give"
    ):
        some.make([OURS])
    written_start(tmp_path, "no_direct_loss", epochs=1, direct_weight=0.0)
    assert some.unlike_ours(row) == ""


def test_mixed_starts_follow_their_parts(tmp_path):
    row = BY_NAME["Pretrain weights"]
    for value in ("fresh", "fresher"):
        written_start(tmp_path, "ours")
        written_start(tmp_path, value)
        (tmp_path / f"{value}.safetensors").replace(tmp_path / "fresh.safetensors")
        starts(tmp_path).mix([row])
        blocks = read_pretrained(tmp_path / "ours_weights.safetensors")[0]["codebook.blocks"]
        assert (blocks == len(value)).all()


def test_the_table_of_made_runs(tmp_path):
    made_run(tmp_path / "class_iid" / "ours" / "run0", 150)
    made_run(tmp_path / "class_iid" / "half_capacity" / "run0", 120)
    names = ["Half capacity", "Vanilla pretrain", "256 blocks", "Pretrain weights", "No replay"]
    rows = rows_named(ROWS, names, always=OURS)
    todo, cells = assembled(rows, options(tmp_path, "--benchmark", "core50"), ["class_iid"], starts(), 200)
    assert set(todo) == {"class_iid/ours", "class_iid/half_capacity", "class_iid/no_replay"}
    found = {finding.cell.row: finding for finding in find(cells, [0])}
    assert found["256 blocks"].mean == found["Ours"].mean == 75
    assert found["Vanilla pretrain"].mean == 75 and found["Vanilla pretrain"].cell.note == "the same runs as Ours"
    assert found["Half capacity"].effect == -15 and found["Half capacity"].p_holm is None
    assert (
        found["No replay"].mean is None and found["Pretrain weights"].cell.note == "needs CRUMB pretraining: --starts"
    )


def test_nothing_is_tested_against_runs_of_another_call(tmp_path):
    made_run(tmp_path / "class_iid" / "ours" / "run0", 150)  # left by a call without the missing folder of starts
    made_run(tmp_path / "class_iid" / "image_replay" / "run0", 120)
    rows = [OURS, BY_NAME["Image replay"]]
    _, cells = assembled(rows, options(tmp_path, "--benchmark", "core50"), ["class_iid"], starts(tmp_path / "no"), 200)
    ours, images = find(cells, [0])
    assert ours.mean is None and images.effect is None and images.s4 is None


def test_wrong_options(tmp_path):
    with pytest.raises(ValueError, match="there is no row 'Thirds'; the rows are Ours, Image"):
        rows_named(ROWS, ["Thirds"], always=OURS)
    chosen = argparse.Namespace(make_starts=True, starts=None, pretrain_data="IMAGES")
    with pytest.raises(ValueError, match="--make-starts needs --starts, the folder to write to, and --pretrain-data"):
        starts_of(chosen, options(tmp_path))


@pytest.mark.slow
def test_a_quick_table_with_starts(tmp_path):
    random = np.random.default_rng(0)
    for number in range(16):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    options = ["--quick", "--output", tmp_path / "out", "--starts", tmp_path / "starts", "--make-starts"]
    options += ["--pretrain-data", tmp_path / "images", "--pretrain-epochs", "1"]
    done = called("table4_ablations", *options)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "out" / "table4.csv") as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert all(row["runs"] == "1" for row in rows.values()) and "Pretrain weights" in rows
    assert {path.name for path in (tmp_path / "out").glob("table4.*")} == {
        f"table4.{k}" for k in ("csv", "md", "png", "svg")
    }
    from crumb_avalanche.training.pretraining import read_pretrained

    state = {
        name: read_pretrained(tmp_path / "starts" / f"{name}.safetensors")[0]
        for name in ("ours", "fresh", "ours_weights")
    }
    assert (state["ours_weights"]["codebook.blocks"] == state["fresh"]["codebook.blocks"]).all()
    assert not (state["ours"]["codebook.blocks"] == state["fresh"]["codebook.blocks"]).all()
    plastic = next(name for name in state["ours"] if name.startswith("plastic_layers"))
    assert (state["ours_weights"][plastic] == state["ours"][plastic]).all()


def test_the_paper_has_two_rows_of_cifar100(tmp_path):
    rows = [OURS, BY_NAME["Image replay"], BY_NAME["Half capacity"]]
    _, cells = assembled(rows, options(tmp_path, "--benchmark", "cifar100"), ["class_iid"], starts(), 2000)
    assert [(cell.paper.value, cell.paper_reference.value, cell.paper_dataset) for cell in cells] == [
        (47.97, 47.97, "cifar100"),
        (47.81, 47.97, "cifar100"),
        (75.14, 79.93, "core50"),
    ]
