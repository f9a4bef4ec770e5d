"""Table 3 pairs codes and images at each count, and finds the paper's numbers."""

import csv

import pytest
from called_script import called
from made_runs import made_run
from support.common_options import common_options, parser_for
from support.paper_numbers import read_paper_numbers
from support.saved_picture import save_picture
from support.side_by_side import find
from table3_codes_vs_images import COUNTS, assembled, paper_row, picture


def options(tmp_path, benchmark):
    return common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), "--benchmark", benchmark]))


def test_every_number_of_the_paper_has_its_cell(tmp_path):
    paper = read_paper_numbers()
    for benchmark, counts in (("core50", COUNTS), ("toybox", [200]), ("cifar100", [2000]), ("imagenet", [50_000])):
        protocols = options(tmp_path, benchmark).protocols(benchmark)
        cells = assembled(options(tmp_path, benchmark), protocols, counts, None)[1]
        wanted = [value for key, value in paper.items() if key[:2] == ("table3", benchmark)]
        assert sorted(cell.paper.value for cell in cells) == sorted(value.value for value in wanted)
    assert paper_row(paper, "eth80", "class_iid", "crumb", 400)[1] == "core50"
    assert paper_row(paper, "cifar100", "class_iid", "crumb", 400) == (None, "cifar100")


def test_settings_and_table(tmp_path):
    made_run(tmp_path / "class_iid" / "n200" / "crumb" / "run0", 150)
    made_run(tmp_path / "class_iid" / "n200" / "image_replay" / "run0", 130)
    todo, cells = assembled(options(tmp_path, "eth80"), ["class_iid"], [200, 400], "file.safetensors")
    ours = dict(protocol="class_iid", strategy="crumb", mem_size=400, codebook_dim=8, pretrained="file.safetensors")
    assert todo["class_iid/n400/crumb"] == ours
    assert "pretrained" not in todo["class_iid/n400/image_replay"]
    findings = find(cells, [0])
    assert [finding.mean for finding in findings] == [75, 65, None, None]
    assert findings[1].effect == -10 and findings[1].difference is None and findings[1].paper_effect < 0
    for path in save_picture(picture(findings, [200, 400], "A title"), tmp_path, "table3"):
        assert path.stat().st_size > 5000


@pytest.mark.slow
def test_quick(tmp_path):
    done = called("table3_codes_vs_images", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "table3.csv") as file:
        assert [row["runs"] for row in csv.DictReader(file)] == ["1"] * 4
