"""Rows of Table 4 change existing settings; a row without its pretrained start names what it needs."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from called_script import called, made_run
from support.common_options import common_options, parser_for
from support.starts import Starts
from support.tables import PaperNumbers, find
from table4_ablations import ROWS, cells_of, folder_of, settings_of

from crumb_avalanche.runs.command_settings import PretrainSettings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings, as_dict
from crumb_avalanche.system.tensor_file import write_tensors
from crumb_avalanche.training.pretraining import FORMAT, read_pretrained


def starts(folder=None, **given):
    return Starts(folder, "torchvision", given)


def options(tmp_path, *more):
    return common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), *more]))


def of(name, some=None):
    return settings_of(ROWS[name], some or starts(), 200)


def test_rows_are_those_of_the_paper_and_change_existing_settings():
    paper = [key[3] for key in PaperNumbers() if key[0] == "table4" and key[2] == "class_iid"]
    assert [name for name in ROWS if name != "Tiny-ImageNet pretrain"] == paper
    for name, row in ROWS.items():
        if "needs" in row:
            own = {"CIFAR100 pretrain": " or --cifar100-start", "Tiny-ImageNet pretrain": " or --tiny-imagenet-start"}
            assert of(name) == f"needs {row['needs']}: --starts{own.get(name, '')}"
        else:
            RunPlan.of(replace(RunSettings(), **of(name)))
            assert "pretrained" not in of(name) and of(name)["codebook_dim"] in (4, 8, 16, 32)
    assert len({folder_of(name) for name in ROWS}) == len(ROWS) - 2, "only rows that are Ours share a folder"


def written_start(folder, name, **changes):
    """A file with these settings in its notes."""
    settings = as_dict(PretrainSettings(data="IMAGES", codebook_dim=8, **changes))
    state = {"codebook.blocks": torch.full((256, 8), float(len(name))), "plastic_layers.x": torch.ones(1)}
    made_with = settings | {"data": str(Path("IMAGES").resolve()), "history": [], "classes": 2}
    write_tensors(folder / f"{name}.safetensors", state, {"format": FORMAT, "made_with": json.dumps(made_with)})


def test_mixed_starts_follow_their_parts(tmp_path):
    for value in ("fresh", "fresher"):
        written_start(tmp_path, "ours")
        written_start(tmp_path, value)
        (tmp_path / f"{value}.safetensors").replace(tmp_path / "fresh.safetensors")
        starts(tmp_path).commands([ROWS["Pretrain weights"]])
        blocks = read_pretrained(tmp_path / "ours_weights.safetensors")[0]["codebook.blocks"]
        assert (blocks == len(value)).all()


def test_the_table_of_made_runs(tmp_path):
    made_run(tmp_path / "class_iid" / "ours" / "run0", 150)
    made_run(tmp_path / "class_iid" / "half_capacity" / "run0", 120)
    names = ["Ours", "Half capacity", "Vanilla pretrain", "256 blocks", "Pretrain weights", "No replay"]
    cells = cells_of(names, options(tmp_path, "--benchmark", "core50"), ["class_iid"], starts(), 200)
    assert {cell.folder.name for cell in cells if cell.settings} == {"ours", "half_capacity", "no_replay"}
    found = {finding.cell.row: finding for finding in find(cells, [0])}
    assert found["256 blocks"].mean == found["Ours"].mean == found["Vanilla pretrain"].mean == 75
    assert found["Vanilla pretrain"].cell.note == "the same runs as Ours"
    assert found["Half capacity"].paired.mean == -15 and found["Half capacity"].p_holm is None
    assert found["No replay"].mean is None
    assert found["Pretrain weights"].cell.note == "needs CRUMB pretraining: --starts"
    # Without the file of Ours, runs that another call left are not tested against.
    some = starts(tmp_path / "no")
    ours, half = find(cells_of(names[:2], options(tmp_path), ["class_iid"], some, 200), [0])
    assert ours.mean is None and half.mean is None and half.paired is None


def test_starts_that_exist(tmp_path):
    written_start(tmp_path, "ours", epochs=1)
    written_start(tmp_path, "init_uniform", epochs=1)
    some = starts(tmp_path)
    for name in ("Ours", "Ours p.t. + im. rep.", "Freeze memory"):
        assert of(name, some)["pretrained"] == str(tmp_path / "ours.safetensors")
    assert "pretrained" not in of("Vanilla pretrain", some)
    assert of("Uniform init.", some)["pretrained"] == str(tmp_path / "init_uniform.safetensors")
    assert of("Ours - direct loss", some).startswith("needs CRUMB pretraining: ")
    assert of("Ours - direct loss", some).endswith("no_direct_loss.safetensors")
    alone = starts(cifar100=tmp_path / "ours.safetensors")
    assert of("CIFAR100 pretrain", alone)["pretrained"] == str(tmp_path / "ours.safetensors")
    assert "pretrained" not in of("Ours", alone)
    assert alone.described.endswith("without CRUMB pretraining, but where the row says otherwise")
    done = called("table4_ablations", "--cifar100-start", tmp_path / "none.safetensors")
    assert "--cifar100-start" in done.stderr and "no such file; make it with crumb pretrain" in done.stderr
