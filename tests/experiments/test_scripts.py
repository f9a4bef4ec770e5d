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
# The table that a script with --table-only writes.
TABLES = {
    "table1_accuracy": "table1",
    "table2_cost": "table2",
    "table3_codes_vs_images": "table3",
    "table4_ablations": "table4",
    "fig3_curves": "fig3",
    "fig4_shape_bias": "fig4",
    "deviations": "deviations",
}
# Scripts with --table-only that write nothing without runs.
EMPTY = (
    "competitors",
    "recommended",
    "bytes_dial",
    "crumb_as_expert",
    "taught_learner",
    "task_incremental",
)
# Further options of a script with --quick, and files that it leaves.
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
    "deviations": (
        ["--rows", "preset reference", "gradients clamped at 10"],
        ["deviations.csv", "deviations_runs.csv", "deviations.png"],
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
# Options of a short run of a script with --json, and some of its figures.
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
    parameters = []
    for script in scripts:
        marks = () if script in quick else pytest.mark.slow
        parameters.append(pytest.param(script, marks=marks))
    return parameters


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_the_script(script):
    process = called(script, "--help")
    assert process.returncode == 0, process.stderr
    assert f"{script}.py" in process.stdout


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
def test_quick_leaves_its_files(script, tmp_path):
    options, files = QUICK[script]
    process = called(script, "--quick", "--output", tmp_path, *options)
    assert process.returncode == 0, process.stderr
    empty = [name for name in files if not (tmp_path / name).stat().st_size]
    assert empty == []
    with open(tmp_path / files[0]) as file:
        _, first_row, *_ = csv.reader(file)
    assert first_row


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
@pytest.mark.parametrize("script", sorted(QUICK.keys() & {*TABLES, *EMPTY}))
def test_a_table_is_made_again_without_runs(script, tmp_path):
    options, files = QUICK[script]
    table = tmp_path / files[0]
    arguments = ["--quick", "--output", tmp_path, *options]
    assert called(script, *arguments).returncode == 0
    contents = table.read_bytes()
    process = called(script, "--table-only", *arguments)
    assert process.returncode == 0, process.stderr
    assert table.read_bytes() == contents


def test_quick_says_that_its_numbers_mean_nothing(tmp_path):
    arguments = ["--quick", "--table-only", "--output", tmp_path]
    process = called("table3_codes_vs_images", *arguments)
    first, *_, last = process.stdout.splitlines()
    assert first == SMOKE_TEST
    assert last == SMOKE_TEST


def test_quick_figures_that_mean_something_have_no_warning(tmp_path):
    process = called("buffer_sizes", "--quick", "--output", tmp_path)
    assert SMOKE_TEST not in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", FIGURES)
def test_figures_are_printed_as_one_json_object(script):
    options, names = FIGURES[script]
    process = called(script, "--json", *options)
    assert process.returncode == 0, process.stderr
    assert set(names) <= set(json.loads(process.stdout))


def test_the_readme_names_every_script():
    text = (EXPERIMENTS / "README.md").read_text()
    unnamed = [script for script in SCRIPTS if f"`{script}.py`" not in text]
    assert unnamed == []


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (
            "recommended",
            ["--benchmark", "cifar100"],
            "cifar100 has no videos, so no class_instance: give --protocol",
        ),
        (
            "deviations",
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
    ids=[
        "no videos for recommended",
        "no videos for deviations",
        "preset of recommended",
        "preset of bytes_dial",
        "no panel",
        "no pretrained files",
        "unknown row",
        "feature cache",
        "a benchmark twice",
        "no data",
        "unknown strategy",
    ],
)
def test_wrong_options_are_one_line(script, options, words, tmp_path):
    process = called(script, "--output", tmp_path, *options)
    assert process.returncode == 1
    assert words in process.stderr.splitlines()[-1]


def options(*arguments, several=False):
    """Options of a script that writes to `runs/table9`."""
    parser = parser_for("Doc.", "runs/table9", several)
    return common_options(parser.parse_args(arguments))


def options_of_core50(*arguments):
    """Options of a script that reads CORe50 from the folder `IMAGES`."""
    return options("--benchmark", "core50", "--dataset-root", "IMAGES", *arguments)


def test_a_benchmark_has_its_folder():
    parsed = options("--benchmark", "core50")
    assert parsed.output == Path("runs/table9/core50")


def test_several_benchmarks_share_a_folder():
    parsed = options("--benchmark", "core50", "cifar100", several=True)
    assert parsed.output == Path("runs/table9")


@pytest.mark.parametrize("several", [False, True])
def test_quick_has_its_folder(several):
    assert options("--quick", several=several).output == Path("runs/table9/quick")


def test_a_named_folder_is_taken_as_it_is():
    assert options("--output", "there").output == Path("there")


def test_options_name_runs_and_benchmark():
    parsed = options_of_core50("--runs", "0,3-4")
    assert parsed.runs == [0, 3, 4]
    assert parsed.benchmark == "core50"


def test_settings_follow_the_options():
    parsed = options_of_core50("--backbone", "resnet18", "--weights", "FILE")
    settings = parsed.settings("core50", strategy="ewc")
    assert settings.benchmark == "core50"
    assert settings.dataset_root == "IMAGES"
    assert settings.weights == "FILE"
    assert settings.backbone == "resnet18"
    assert settings.strategy == "ewc"


def test_settings_are_those_of_one_run_on_one_thread():
    settings = options_of_core50("--runs", "0,3-4").settings("core50")
    assert settings.runs is None
    assert settings.threads == 1
    assert settings.checkpoint is False


def test_runs_have_checkpoints_on_request():
    assert options("--checkpoint-every", "50").base.checkpoint


def test_quick_is_one_run_of_made_shapes_with_its_own_preset():
    quick = options_of_core50("--quick", "--preset", "reference")
    assert quick.roots == {"toy_shapes_short": None}
    assert quick.runs == [0]
    assert quick.base.preset == "paper"
    RunPlan.of(quick.settings("toy_shapes_short"))


def test_the_number_of_processes_is_an_option():
    assert options("--processes", "3").engine.processes == 3


@pytest.mark.parametrize(
    ("benchmark", "protocols"),
    [("core50", ["class_instance", "class_iid"]), ("cifar100", ["class_iid"])],
)
def test_a_benchmark_has_the_protocols_of_its_images(benchmark, protocols):
    parsed = options("--benchmark", "core50", "cifar100", several=True)
    assert parsed.protocols(benchmark) == protocols


def test_a_benchmark_without_videos_has_no_class_instance():
    parsed = options("--benchmark", "core50", "cifar100", several=True)
    assert parsed.protocols("cifar100", ["class_instance"]) == []


def test_quick_has_one_protocol():
    assert options("--quick").protocols("toy_shapes_short") == ["class_instance"]


def test_an_error_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(SystemExit, match=r"^1$"):
        run_script(lambda: options("--runs", "1-"))
    assert capsys.readouterr().err.startswith("error: runs is '1-'; write 0-9")


def starts(folder=None, **files):
    """Pretrained files of a folder, and of other images."""
    return Starts(folder, "torchvision", files)


def options_of_table4(folder, *arguments):
    parser = parser_for("Doc.", "runs")
    return common_options(parser.parse_args(["--output", str(folder), *arguments]))


def settings_of_row(name, pretrained=None):
    """Settings of a row of Table 4, by default without any pretrained file."""
    return settings_of(ROWS[name], pretrained or starts(), 200)


ROWS_WITH_START = [name for name, row in ROWS.items() if "needs" in row]
ROWS_WITHOUT_START = [name for name, row in ROWS.items() if "needs" not in row]
# The option that takes the file of a row, beside the folder of all.
OWN_START = {
    "CIFAR100 pretrain": " or --cifar100-start",
    "Tiny-ImageNet pretrain": " or --tiny-imagenet-start",
}


def test_rows_are_those_of_the_paper():
    of_paper = []
    for table, _, protocol, row, *_ in PaperNumbers():
        if table == "table4" and protocol == "class_iid":
            of_paper.append(row)
    ours = {"Tiny-ImageNet pretrain", "Distinct init."}
    assert [name for name in ROWS if name not in ours] == of_paper


@pytest.mark.parametrize("name", ROWS_WITH_START)
def test_a_row_without_its_start_says_what_it_needs(name):
    needs = ROWS[name]["needs"]
    option = OWN_START.get(name, "")
    assert settings_of_row(name) == f"needs {needs}: --starts{option}"


@pytest.mark.parametrize("name", ROWS_WITHOUT_START)
def test_a_row_changes_existing_settings(name):
    settings = settings_of_row(name)
    RunPlan.of(replace(RunSettings(), **settings))
    assert "pretrained" not in settings
    assert settings["codebook_dim"] in (4, 8, 16, 32)


def test_only_rows_that_are_ours_share_a_folder():
    folders = {folder_of(name) for name in ROWS}
    assert len(folders) == len(ROWS) - 2


def write_start(folder, name, block=0.0, **changes):
    """Write a pretrained file of a folder with its settings.

    Args:
        folder: of the pretrained files.
        name: of the start.
        block: each value of its codebook.
        changes: settings of `crumb pretrain` that differ from the defaults.
    """
    settings = vars(PretrainSettings(data="IMAGES", codebook_dim=8, **changes))
    state = {
        "codebook.blocks": torch.full((256, 8), block),
        "plastic_layers.x": torch.ones(2),  # a row for each class
    }
    made_with = {
        **settings,
        "data": str(Path("IMAGES").resolve()),
        "history": [],
        "classes": 2,
    }
    notes = {"format": FORMAT, "made_with": json.dumps(made_with)}
    write_tensors(folder / f"{name}.safetensors", state, notes)


def test_a_mixed_start_follows_its_parts(tmp_path):
    write_start(tmp_path, "ours", block=4.0)
    for block in (5.0, 7.0):
        write_start(tmp_path, "fresh", block=block)
        starts(tmp_path).commands([ROWS["Pretrain weights"]])
        state, _ = read_pretrained(tmp_path / "ours_weights.safetensors")
        assert (state["codebook.blocks"] == block).all()


@pytest.fixture
def runs_of_table4(tmp_path):
    """A folder with a run of Ours and one of another row."""
    made_run(tmp_path / "class_iid" / "ours" / "run0", 150)
    made_run(tmp_path / "class_iid" / "half_capacity" / "run0", 120)
    return tmp_path


@pytest.fixture
def cells_of_table4(runs_of_table4):
    names = ["Ours", "Half capacity", "Vanilla pretrain"]
    names += ["256 blocks", "Pretrain weights", "No replay"]
    parsed = options_of_table4(runs_of_table4, "--benchmark", "core50")
    return cells_of(names, parsed, ["class_iid"], starts(), 200)


@pytest.fixture
def findings_of_table4(cells_of_table4):
    return {finding.cell.row: finding for finding in find(cells_of_table4, [0])}


def test_rows_that_are_ours_share_its_runs(cells_of_table4):
    folders = {cell.folder.name for cell in cells_of_table4 if cell.settings}
    assert folders == {"ours", "half_capacity", "no_replay"}


@pytest.mark.parametrize("row", ["Ours", "Vanilla pretrain", "256 blocks"])
def test_rows_that_are_ours_have_its_accuracy(findings_of_table4, row):
    assert findings_of_table4[row].mean == 75


def test_a_row_that_is_ours_without_starts_says_so(findings_of_table4):
    note = findings_of_table4["Vanilla pretrain"].cell.note
    assert note == "the same runs as Ours"


def test_a_row_is_compared_with_ours(findings_of_table4):
    half = findings_of_table4["Half capacity"]
    assert half.paired.mean == -15
    assert half.p_holm is None


def test_a_row_without_runs_or_start_is_empty(findings_of_table4):
    assert findings_of_table4["No replay"].mean is None
    note = findings_of_table4["Pretrain weights"].cell.note
    assert note == "needs CRUMB pretraining: --starts"


def test_runs_are_not_read_without_the_start_of_ours(runs_of_table4):
    parsed = options_of_table4(runs_of_table4)
    without_file = starts(runs_of_table4 / "no")
    names = ["Ours", "Half capacity"]
    cells = cells_of(names, parsed, ["class_iid"], without_file, 200)
    ours, half = find(cells, [0])
    assert ours.mean is None
    assert half.mean is None
    assert half.paired is None


@pytest.fixture
def existing_starts(tmp_path):
    """The files of two starts, that of Ours and that of another initialisation."""
    write_start(tmp_path, "ours", epochs=1)
    write_start(tmp_path, "init_uniform", epochs=1)
    return starts(tmp_path)


@pytest.mark.parametrize(
    ("row", "start"),
    [
        ("Ours", "ours"),
        ("Ours p.t. + im. rep.", "ours"),
        ("Freeze memory", "ours"),
        ("Uniform init.", "init_uniform"),
    ],
)
def test_a_row_begins_from_its_start(existing_starts, row, start):
    pretrained = settings_of_row(row, existing_starts)["pretrained"]
    assert pretrained == str(existing_starts.folder / f"{start}.safetensors")


def test_vanilla_pretrain_begins_from_no_start(existing_starts):
    assert "pretrained" not in settings_of_row("Vanilla pretrain", existing_starts)


def test_a_row_whose_start_is_missing_names_its_file(existing_starts):
    reason = settings_of_row("Ours - direct loss", existing_starts)
    assert reason.startswith("needs CRUMB pretraining: ")
    assert reason.endswith("no_direct_loss.safetensors")


def test_a_start_of_other_images_is_that_of_its_row_alone(tmp_path):
    file = tmp_path / "cifar100.safetensors"
    of_cifar100 = starts(cifar100=file)
    write_start(tmp_path, "cifar100", epochs=1)
    settings = settings_of_row("CIFAR100 pretrain", of_cifar100)
    assert settings["pretrained"] == str(file)
    assert "pretrained" not in settings_of_row("Ours", of_cifar100)
    words = "without CRUMB pretraining, but where the row says otherwise"
    assert of_cifar100.described.endswith(words)


def test_a_start_of_other_images_that_is_missing_is_refused(tmp_path):
    file = tmp_path / "none.safetensors"
    process = called("table4_ablations", "--cifar100-start", file)
    assert "--cifar100-start" in process.stderr
    assert "no such file; make it with crumb pretrain" in process.stderr


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
    error = capsys.readouterr().err
    assert "table1.csv" in error
    assert "give the same command again" in error
