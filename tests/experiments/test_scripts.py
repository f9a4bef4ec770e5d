"""One contract for all scripts: help, the table of no runs, and a whole quick run that leaves its files."""

import csv
import json

import pytest
from called_script import EXPERIMENTS, called

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
EMPTY = ("competitors", "recommended", "bytes_dial", "crumb_as_expert", "taught_learner", "task_incremental")
# Of the scripts with --quick: more options, and files that they leave.
QUICK = {
    "table1_accuracy": ([], ["table1.csv", "table1.md", "table1_runs.csv", "table1.png"]),
    "table2_cost": ([], ["table2.csv", "table2.md", "table2.png"]),
    "table3_codes_vs_images": ([], ["table3.csv", "table3_runs.csv", "table3.png"]),
    "table4_ablations": (["--rows", "Half capacity", "Direct loss"], ["table4.csv", "table4_runs.csv", "table4.png"]),
    "fig3_curves": (["--figure", "S2"], ["figS2.csv", "figS2.md", "figS2.png"]),
    "fig4_shape_bias": ([], ["fig4.csv", "fig4_runs.csv", "fig4.png"]),
    "fig5_memory_blocks": (["--images", "2"], ["fig5.csv", "fig5_runs.csv", "fig5.png"]),
    "buffer_sizes": ([], ["buffer_sizes.csv", "buffer_sizes.md", "buffer_sizes.png"]),
    "competitors": (["--strategies", "slda", "chance", "offline"], ["competitors.csv", "competitors.png"]),
    "recommended": (["--rows", "- feature map", "0.60 MB", "slda"], ["recommended.csv", "recommended.png"]),
    "bytes_dial": (["--budgets", "10", "20000", "--processes", "0"], ["bytes_dial.csv", "bytes_dial.png"]),
    "crumb_as_expert": (["--processes", "0"], ["crumb_as_expert.csv", "crumb_as_expert.md"]),
    "task_incremental": ([], ["task_incremental.csv", "task_incremental.md", "task_incremental.png"]),
    "taught_learner": (["--processes", "0"], ["taught_learner.csv", "taught_learner.md"]),
    "novelty": ([], ["novelty.csv"]),
    "open_set": (["--methods", "rda", "ncm"], ["open_set.csv", "open_set_runs.csv", "open_set.png"]),
    "bench_feature_cache": (["--strategies", "finetune", "ncm"], ["feature_cache.csv", "feature_cache.md"]),
    "bench_parts": (["--pixels", "64", "--presets", "recommended"], ["parts.csv", "parts.png"]),
}
FIGURES = {  # of the scripts with --json: options of a short run, and some of the figures
    "bench_step": (["--quick"], ["search_speedup", "search_working_bytes", "step_over_bare"]),
    "bench_learner": (["--quick"], ["predict_over_bare", "teach_bytes", "answer_over_bare"]),
    "bench_streams": (["--quick"], ["build_seconds", "build_bytes", "avalanche_seconds", "avalanche_bytes"]),
    "bench_runtimes": (["--repeats", "1", "--networks", "squeezenet1_0", "--batches", "1"], ["squeezenet1_0"]),
}


def some_slow(scripts, *soon):
    """All scripts, of which all but some are tested by the slow tests alone."""
    return [one if one in soon else pytest.param(one, marks=pytest.mark.slow) for one in scripts]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    done = called(script, "--help")
    assert done.returncode == 0 and f"{script}.py" in done.stdout, done.stderr


@pytest.mark.parametrize("script", some_slow([*TABLES, *EMPTY], "table1_accuracy", "taught_learner"))
def test_the_table_of_no_runs(script, tmp_path):
    done = called(script, "--table-only", "--output", tmp_path, "--benchmark", "eth80")
    assert done.returncode == 0, done.stderr
    if script in TABLES:
        assert (tmp_path / f"{TABLES[script]}.csv").exists() and (tmp_path / f"{TABLES[script]}.png").exists()


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
@pytest.mark.parametrize("script", some_slow(QUICK, "buffer_sizes"))
def test_quick(script, tmp_path):
    more, files = QUICK[script]
    done = called(script, "--quick", "--output", tmp_path, *more)
    assert done.returncode == 0, done.stderr
    assert not [name for name in files if not (tmp_path / name).stat().st_size]
    with open(tmp_path / files[0]) as file:
        assert list(csv.reader(file))[1]
    if script in TABLES or script in EMPTY:  # the same table again, without any run
        before = (tmp_path / files[0]).read_bytes()
        done = called(script, "--quick", "--table-only", "--output", tmp_path, *more)
        assert done.returncode == 0 and (tmp_path / files[0]).read_bytes() == before, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", FIGURES)
def test_figures_are_one_object(script):
    options, names = FIGURES[script]
    done = called(script, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert set(names) <= set(json.loads(done.stdout))


def test_the_readme_names_every_script():
    text = (EXPERIMENTS / "README.md").read_text()
    assert [script for script in SCRIPTS if f"`{script}.py`" not in text] == []


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("recommended", ["--benchmark", "cifar100"], "cifar100 has no videos, so no class_instance: give --protocol"),
        ("recommended", ["--preset", "reference"], "every row of this table has its own preset; leave it out"),
        ("bytes_dial", ["--preset", "reference"], "every row has its own preset; leave it out"),
        ("fig3_curves", ["--figure", "S1", "--benchmark", "cifar100"], "has no panel of cifar100: it shows video"),
        ("fig4_shape_bias", ["--pretraining-only"], "needs --pretrained, --control-pretrained and --test-root"),
        ("table4_ablations", ["--rows", "Thirds"], "there is no row 'Thirds'; the rows are Ours, Image"),
        ("bench_feature_cache", ["--feature-cache", "x"], "--feature-cache cannot be given"),
        ("table1_accuracy", ["--benchmark", "eth80", "eth80"], "give each benchmark once, and at most one folder"),
        ("open_set", [], "there is no data: give --eth80, --sign-digits, --cifar100 or --tiny-imagenet, or --quick"),
        ("table1_accuracy", ["--strategies", "magic"], "strategy 'magic' is unknown"),
    ],
)
def test_wrong_options_are_one_line(script, options, words, tmp_path):
    done = called(script, "--output", tmp_path, *options)
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]
