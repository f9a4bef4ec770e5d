"""One contract for all scripts.

Options, help, the table of no runs, and a whole quick run that leaves its files.
"""

import csv
import errno
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from called_script import EXPERIMENTS, called, made_run
from support.common_options import SMOKE_TEST, common_options, parser_for, run_script
from support.findings import find
from support.paper_numbers import PaperNumbers
from support.starts import Starts
from table4_ablations import ROWS, cells_of, folder_of, settings_of

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.tensor_file import write_tensors
from crumb_avalanche.training.pretraining import FORMAT, read_pretrained

SCRIPTS = sorted(path.stem for path in EXPERIMENTS.glob("*.py"))
# Of the scripts with --table-only: the table that they write.
TABLES = {
    "table1_accuracy": "table1",
    "table2_cost": "table2",
    "table3_codes_vs_images": "table3",
    "table4_ablations": "table4",
    "fig3_curves": "fig3",
    "fig4_shape_bias": "fig4",
}
# Of others, which write nothing without runs.
EMPTY = (
    "competitors",
    "recommended",
    "bytes_dial",
    "crumb_as_expert",
    "taught_learner",
    "task_incremental",
)
# Of the scripts with --quick: more options, and files that they leave.
QUICK = {
    "table1_accuracy": (
        [],
        ["table1.csv", "table1.md", "table1_runs.csv", "table1.png"],
    ),
    "table2_cost": ([], ["table2.csv", "table2.md", "table2.png"]),
    "table3_codes_vs_images": ([], ["table3.csv", "table3_runs.csv", "table3.png"]),
    "table4_ablations": (
        ["--rows", "Half capacity", "Direct loss"],
        ["table4.csv", "table4_runs.csv", "table4.png"],
    ),
    "fig3_curves": (["--figure", "S2"], ["figS2.csv", "figS2.md", "figS2.png"]),
    "fig4_shape_bias": ([], ["fig4.csv", "fig4_runs.csv", "fig4.png"]),
    "fig5_memory_blocks": (
        ["--images", "2"],
        ["fig5.csv", "fig5_runs.csv", "fig5.png"],
    ),
    "buffer_sizes": ([], ["buffer_sizes.csv", "buffer_sizes.md", "buffer_sizes.png"]),
    "competitors": (
        ["--strategies", "slda", "chance", "offline"],
        ["competitors.csv", "competitors.png"],
    ),
    "recommended": (
        ["--rows", "- feature map", "0.60 MB", "slda"],
        ["recommended.csv", "recommended.png"],
    ),
    "bytes_dial": (
        ["--budgets", "10", "20000", "--processes", "0"],
        ["bytes_dial.csv", "bytes_dial.png"],
    ),
    "crumb_as_expert": (
        ["--processes", "0"],
        ["crumb_as_expert.csv", "crumb_as_expert.md"],
    ),
    "task_incremental": (
        [],
        ["task_incremental.csv", "task_incremental.md", "task_incremental.png"],
    ),
    "taught_learner": (
        ["--processes", "0"],
        ["taught_learner.csv", "taught_learner.md"],
    ),
    "memory_picture": ([], ["memory.csv", "memory.png"]),
    "known_prior": ([], ["quick/known_prior.csv"]),
    "named_unknown": (
        [],
        [
            "quick/named_unknown.csv",
            "quick/named_unknown_means.csv",
            "quick/named_unknown_curve.csv",
            "quick/named_unknown_curve.png",
        ],
    ),
    "novelty": ([], ["quick/novelty.csv"]),
    "open_set": (
        ["--methods", "rda", "ncm"],
        ["quick/open_set.csv", "quick/open_set_runs.csv", "quick/open_set.png"],
    ),
    "scenes": ([], ["quick/scenes.csv", "quick/scenes.md"]),
    "bench_feature_cache": (
        ["--strategies", "finetune", "ncm"],
        ["feature_cache.csv", "feature_cache.md"],
    ),
    "bench_codes": (["--repeats", "1"], ["codes.csv"]),
    "bench_parts": (
        ["--pixels", "64", "--presets", "recommended"],
        ["parts.csv", "parts.png"],
    ),
}
# of the scripts with --json: options of a short run, and some of the figures
FIGURES = {
    "bench_step": (
        ["--quick"],
        ["search_speedup", "search_working_bytes", "step_over_bare"],
    ),
    "bench_learner": (
        ["--quick", "--backbone", "efficientnet_lite0"],
        ["predict_over_bare", "teach_settled", "teach_bytes", "lessons"],
    ),
    "bench_streams": (
        ["--quick"],
        ["build_seconds", "build_bytes", "avalanche_seconds", "avalanche_bytes"],
    ),
    "bench_runtimes": (
        ["--repeats", "1", "--networks", "squeezenet1_0", "--batches", "1"],
        ["squeezenet1_0"],
    ),
}


def slow_but(scripts, *quick):
    """All scripts; those that are not named as quick are marked as slow."""
    slow = pytest.mark.slow
    return [
        script if script in quick else pytest.param(script, marks=slow)
        for script in scripts
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    process = called(script, "--help")
    assert process.returncode == 0 and f"{script}.py" in process.stdout, process.stderr


@pytest.mark.parametrize(
    "script", slow_but([*TABLES, *EMPTY], "table1_accuracy", "taught_learner")
)
def test_the_table_of_no_runs(script, tmp_path):
    process = called(
        script, "--table-only", "--output", tmp_path, "--benchmark", "eth80"
    )
    assert process.returncode == 0, process.stderr
    if script in TABLES:
        assert (tmp_path / f"{TABLES[script]}.csv").exists()
        assert (tmp_path / f"{TABLES[script]}.png").exists()


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
@pytest.mark.parametrize("script", slow_but(QUICK, "buffer_sizes", "scenes"))
def test_quick(script, tmp_path):
    options, files = QUICK[script]
    process = called(script, "--quick", "--output", tmp_path, *options)
    assert process.returncode == 0, process.stderr
    assert not [name for name in files if not (tmp_path / name).stat().st_size]
    with open(tmp_path / files[0]) as file:
        assert list(csv.reader(file))[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
@pytest.mark.parametrize("script", sorted(QUICK.keys() & {*TABLES, *EMPTY}))
def test_a_table_is_made_again_without_runs(script, tmp_path):
    options, files = QUICK[script]
    words = ["--quick", "--output", tmp_path, *options]
    assert called(script, *words).returncode == 0
    before = (tmp_path / files[0]).read_bytes()
    process = called(script, "--table-only", *words)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / files[0]).read_bytes() == before


def test_quick_says_that_its_numbers_mean_nothing(tmp_path):
    words = ["--quick", "--table-only", "--output", tmp_path]
    process = called("table3_codes_vs_images", *words)
    lines = process.stdout.splitlines()
    assert lines[0] == lines[-1] == SMOKE_TEST


def test_quick_figures_that_mean_something_have_no_warning(tmp_path):
    process = called("buffer_sizes", "--quick", "--output", tmp_path)
    assert SMOKE_TEST not in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", FIGURES)
def test_figures_are_one_object(script):
    options, names = FIGURES[script]
    process = called(script, "--json", *options)
    assert process.returncode == 0, process.stderr
    assert set(names) <= set(json.loads(process.stdout))


def test_the_readme_names_every_script():
    text = (EXPERIMENTS / "README.md").read_text()
    assert [script for script in SCRIPTS if f"`{script}.py`" not in text] == []


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (
            "recommended",
            ["--benchmark", "cifar100"],
            "cifar100 has no videos, so no class_instance: give --protocol",
        ),
        (
            "recommended",
            ["--preset", "reference"],
            "every row of this table has its own preset; leave it out",
        ),
        (
            "bytes_dial",
            ["--preset", "reference"],
            "every row has its own preset; leave it out",
        ),
        (
            "fig3_curves",
            ["--figure", "S1", "--benchmark", "cifar100"],
            "has no panel of cifar100: it shows video",
        ),
        (
            "fig4_shape_bias",
            ["--pretraining-only"],
            "needs --pretrained, --control-pretrained and --test-root",
        ),
        (
            "table4_ablations",
            ["--rows", "Thirds"],
            "there is no row 'Thirds'; the rows are Ours, Image",
        ),
        (
            "bench_feature_cache",
            ["--feature-cache", "x"],
            "--feature-cache cannot be given",
        ),
        (
            "table1_accuracy",
            ["--benchmark", "eth80", "eth80"],
            "give each benchmark once, and at most one folder",
        ),
        (
            "open_set",
            [],
            "there is no data: give --eth80, --sign-digits, --cifar100 or "
            "--tiny-imagenet, or --quick",
        ),
        ("table1_accuracy", ["--strategies", "magic"], "strategy 'magic' is unknown"),
    ],
)
def test_wrong_options_are_one_line(script, options, words, tmp_path):
    process = called(script, "--output", tmp_path, *options)
    assert process.returncode == 1 and words in process.stderr.splitlines()[-1]


def options(*given, several=False):
    return common_options(
        parser_for("Doc.", "runs/table9", several).parse_args([*given])
    )


def test_folders_by_the_options():
    assert options("--benchmark", "core50").output == Path("runs/table9/core50")
    assert options("--benchmark", "core50", "cifar100", several=True).output == Path(
        "runs/table9"
    )
    assert (
        options("--quick").output
        == options("--quick", several=True).output
        == Path("runs/table9/quick")
    )
    assert options("--output", "there").output == Path("there")


def test_settings_by_the_options():
    parsed = options(
        "--benchmark",
        "core50",
        "--dataset-root",
        "IMAGES",
        "--runs",
        "0,3-4",
        "--backbone",
        "resnet18",
        "--weights",
        "FILE",
    )
    assert parsed.runs == [0, 3, 4] and parsed.benchmark == "core50"
    settings = parsed.settings("core50", strategy="ewc")
    assert (settings.benchmark, settings.dataset_root, settings.weights) == (
        "core50",
        "IMAGES",
        "FILE",
    )
    assert settings.backbone == "resnet18"
    assert (
        settings.strategy,
        settings.runs,
        settings.threads,
        settings.checkpoint,
    ) == ("ewc", None, 1, False)
    assert options("--checkpoint-every", "50").base.checkpoint
    quick = options(
        "--quick",
        "--benchmark",
        "core50",
        "--dataset-root",
        "IMAGES",
        "--preset",
        "reference",
    )
    assert (
        quick.roots == {"toy_shapes_short": None}
        and quick.runs == [0]
        and quick.base.preset == "paper"
    )
    RunPlan.of(quick.settings("toy_shapes_short"))
    assert options("--processes", "3").engine.processes == 3


def test_protocols_by_the_options():
    parsed = options("--benchmark", "core50", "cifar100", several=True)
    assert parsed.protocols("core50") == [
        "class_instance",
        "class_iid",
    ] and parsed.protocols("cifar100") == ["class_iid"]
    assert parsed.protocols("cifar100", ["class_instance"]) == []
    assert options("--quick").protocols("toy_shapes_short") == ["class_instance"]


def test_an_error_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(SystemExit, match=r"^1$"):
        run_script(lambda: options("--runs", "1-"))
    assert capsys.readouterr().err.startswith("error: runs is '1-'; write 0-9")


def starts(folder=None, **given):
    return Starts(folder, "torchvision", given)


def options_of_table4(tmp_path, *more):
    return common_options(
        parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), *more])
    )


def settings_of_row(name, some=None):
    return settings_of(ROWS[name], some or starts(), 200)


def test_rows_are_those_of_the_paper_and_change_existing_settings():
    paper = []
    for key in PaperNumbers():
        if key[0] == "table4" and key[2] == "class_iid":
            paper.append(key[3])
    assert [name for name in ROWS if name != "Tiny-ImageNet pretrain"] == paper
    for name, row in ROWS.items():
        if "needs" in row:
            pretraining = {
                "CIFAR100 pretrain": " or --cifar100-start",
                "Tiny-ImageNet pretrain": " or --tiny-imagenet-start",
            }
            assert (
                settings_of_row(name)
                == f"needs {row['needs']}: --starts{pretraining.get(name, '')}"
            )
        else:
            RunPlan.of(replace(RunSettings(), **settings_of_row(name)))
            assert "pretrained" not in settings_of_row(name) and settings_of_row(name)[
                "codebook_dim"
            ] in (4, 8, 16, 32)
    assert len(set(map(folder_of, ROWS))) == len(ROWS) - 2, (
        "only rows that are Ours share a folder"
    )


def written_start(folder, name, **changes):
    """A file with these settings in its notes."""
    settings = vars(PretrainSettings(data="IMAGES", codebook_dim=8, **changes))
    state = {
        "codebook.blocks": torch.full((256, 8), float(len(name))),
        "plastic_layers.x": torch.ones(2),  # a row for each class
    }
    made_with = settings | {
        "data": str(Path("IMAGES").resolve()),
        "history": [],
        "classes": 2,
    }
    write_tensors(
        folder / f"{name}.safetensors",
        state,
        {"format": FORMAT, "made_with": json.dumps(made_with)},
    )


def test_mixed_starts_follow_their_parts(tmp_path):
    for value in ("fresh", "fresher"):
        written_start(tmp_path, "ours")
        written_start(tmp_path, value)
        (tmp_path / f"{value}.safetensors").replace(tmp_path / "fresh.safetensors")
        starts(tmp_path).commands([ROWS["Pretrain weights"]])
        blocks = read_pretrained(tmp_path / "ours_weights.safetensors")[0][
            "codebook.blocks"
        ]
        assert (blocks == len(value)).all()


def test_the_table_of_made_runs(tmp_path):
    made_run(tmp_path / "class_iid" / "ours" / "run0", 150)
    made_run(tmp_path / "class_iid" / "half_capacity" / "run0", 120)
    names = [
        "Ours",
        "Half capacity",
        "Vanilla pretrain",
        "256 blocks",
        "Pretrain weights",
        "No replay",
    ]
    cells = cells_of(
        names,
        options_of_table4(tmp_path, "--benchmark", "core50"),
        ["class_iid"],
        starts(),
        200,
    )
    assert {cell.folder.name for cell in cells if cell.settings} == {
        "ours",
        "half_capacity",
        "no_replay",
    }
    by_row = {finding.cell.row: finding for finding in find(cells, [0])}
    assert (
        by_row["256 blocks"].mean
        == by_row["Ours"].mean
        == by_row["Vanilla pretrain"].mean
        == 75
    )
    assert by_row["Vanilla pretrain"].cell.note == "the same runs as Ours"
    assert (
        by_row["Half capacity"].paired.mean == -15
        and by_row["Half capacity"].p_holm is None
    )
    assert by_row["No replay"].mean is None
    assert by_row["Pretrain weights"].cell.note == "needs CRUMB pretraining: --starts"
    # Without the file of Ours, runs that another call left are not tested against.
    missing_starts = starts(tmp_path / "no")
    ours, half = find(
        cells_of(
            names[:2], options_of_table4(tmp_path), ["class_iid"], missing_starts, 200
        ),
        [0],
    )
    assert ours.mean is None and half.mean is None and half.paired is None


def test_starts_that_exist(tmp_path):
    written_start(tmp_path, "ours", epochs=1)
    written_start(tmp_path, "init_uniform", epochs=1)
    existing_starts = starts(tmp_path)
    for name in ("Ours", "Ours p.t. + im. rep.", "Freeze memory"):
        assert settings_of_row(name, existing_starts)["pretrained"] == str(
            tmp_path / "ours.safetensors"
        )
    assert "pretrained" not in settings_of_row("Vanilla pretrain", existing_starts)
    assert settings_of_row("Uniform init.", existing_starts)["pretrained"] == str(
        tmp_path / "init_uniform.safetensors"
    )
    assert settings_of_row("Ours - direct loss", existing_starts).startswith(
        "needs CRUMB pretraining: "
    )
    assert settings_of_row("Ours - direct loss", existing_starts).endswith(
        "no_direct_loss.safetensors"
    )
    alone = starts(cifar100=tmp_path / "ours.safetensors")
    assert settings_of_row("CIFAR100 pretrain", alone)["pretrained"] == str(
        tmp_path / "ours.safetensors"
    )
    assert "pretrained" not in settings_of_row("Ours", alone)
    assert alone.described.endswith(
        "without CRUMB pretraining, but where the row says otherwise"
    )
    process = called(
        "table4_ablations", "--cifar100-start", tmp_path / "none.safetensors"
    )
    assert (
        "--cifar100-start" in process.stderr
        and "no such file; make it with crumb pretrain" in process.stderr
    )


@pytest.mark.parametrize(
    "script",
    ["recommended", "competitors", "bytes_dial", "fig4_shape_bias", "table2_cost"],
)
def test_scripts_that_read_folders_have_no_recorded_runs(script, tmp_path):
    process = called(script, "--recorded", tmp_path / "runs.csv", "--table-only")
    assert process.returncode == 2
    assert "unrecognized arguments: --recorded" in process.stderr
    assert "--recorded" not in called(script, "--help").stdout


def test_a_full_disk_is_one_line(capsys):
    def main():
        raise OSError(errno.ENOSPC, "No space left on device", "table1.csv")

    with pytest.raises(SystemExit, match="1"):
        run_script(main)
    words = capsys.readouterr().err
    assert "table1.csv" in words and "give the same command again" in words
