"""``report.html`` read with the standard library's parser."""

import re
from collections import Counter

from fake_runs import fake_run, report
from html_pages import ATTACK, csv_of, page_of
from markupsafe import escape

from crumb_avalanche.report.page import environment


def test_every_number_of_the_csv_is_on_the_page(folder):
    finals = {row["final_accuracy"]["text"] for row in page_of(folder).tables["summary-table"]}
    assert finals == {"70.00 ± 10.00", "25.00", "90.00", "55.00", "5.50"}
    lines, rows = csv_of(folder), page_of(folder).tables["runs-table"]
    assert len(lines) == len(rows) == 7
    for line, row in zip(lines, rows):
        assert list(row) == list(line)
        for name, text in line.items():
            shown = row[name]
            assert text == (shown["text"] if shown["value"] is None else shown["value"]), name
            if name in ("final_accuracy", "memory_bytes", "train_seconds"):
                assert float(shown["text"].replace(",", "")) == float(text)


def test_it_is_well_formed_and_all_ids_are_its_own(folder):
    shown = page_of(folder)  # fails by itself where tags cross
    text = (folder / "report.html").read_text()
    assert text.startswith("<!DOCTYPE html>\n<html lang=") and text.isascii()
    assert [name for name, count in Counter(shown.ids).items() if count > 1] == []
    assert shown.used <= set(shown.ids) and len(shown.used) > 10
    assert shown.tags["svg"] == 4 and shown.tags["h1"] == shown.tags["main"] == shown.tags["title"] == 1
    assert all(value is None or "\n" not in value for _, _, value in shown.attributes)


def test_nothing_on_it_asks_for_anything(folder):
    text, shown = (folder / "report.html").read_text(), page_of(folder)
    links = [(tag, value) for tag, key, value in shown.attributes if key in ("src", "href", "srcset", "data", "action")]
    assert {value.partition("#")[0] for _, value in links} == {"", "data:,"}
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style and "http" not in style
    assert "http:" not in text and "https:" not in text and "default-src 'none'" in text


def test_what_comes_from_a_run_is_escaped(folder):
    text, shown = (folder / "report.html").read_text(), page_of(folder)
    assert shown.tags["script"] == 1 and shown.tags["img"] == shown.tags["b"] == 0
    assert ATTACK not in text and escape(ATTACK) in text
    assert not [key for _, key, _ in shown.attributes if key.startswith("on")]
    assert ATTACK in [row["pretrained"]["value"] for row in shown.tables["runs-table"]]


def test_hostile_texts():
    cell = environment().from_string('<td title="{{ text }}">{{ text }}</td>')
    escaped = "&#34;&gt;&lt;a b=&#39;c&#39;&gt;&amp;"
    assert cell.render(text="\"><a b='c'>&") == f'<td title="{escaped}">{escaped}</td>'
    replaced = r"a\x00b\x1bc\ud800d\uffffe\u202ef"
    assert cell.render(text="a\x00b\x1bc\ud800d\uffffe\u202ef") == f'<td title="{replaced}">{replaced}</td>'


def test_a_bound_learned_all_at_once_is_seen_beside_every_protocol(tmp_path):
    bound = fake_run(tmp_path / "bound", strategy="offline", protocol="class_instance")  # what its config.yaml has
    iid = fake_run(tmp_path / "iid", protocol="class_iid")
    report(bound, iid, output=tmp_path / "one")
    one = page_of(tmp_path / "one")
    assert "toy_shapes, class_instance" not in one.text
    assert one.text.count("Accuracy over all classes seen: mean of runs") == 1
    assert {line["group"] for line in csv_of(tmp_path / "one")} == {"crumb", "offline"}
    assert {line["protocol"] for line in csv_of(tmp_path / "one")} == {"class_iid"}

    report(bound, iid, fake_run(tmp_path / "instance", protocol="class_instance"), output=tmp_path / "both")
    both = page_of(tmp_path / "both")
    for place in (0, 1):
        assert "offline" in " ".join(row["group"]["text"] for row in both.tables[f"curves-table-{place}"])
    assert "curves-table-2" not in both.tables
    labels = {"crumb, protocol=class_iid", "crumb, protocol=class_instance", "offline, protocol=joint"}
    assert {line["group"] for line in csv_of(tmp_path / "both")} == labels


def test_one_run_has_its_classes_and_settings(tmp_path):
    report(fake_run(tmp_path / "a"))
    shown = page_of(tmp_path / "a")
    assert "cup, pear" in shown.text and "dog, car" in shown.text
    settings = {row["setting"]["text"]: row for row in shown.tables["settings-same"]}
    assert settings["replay_weight"]["value"]["text"] == "5.0"
    assert settings["replay_weight"]["meaning"]["text"].startswith("factor of the replay loss; default 5")
    assert "settings-differ" not in shown.tables
    matrix = shown.tables["table-2"]  # after summary and curves
    assert [cell["text"] for cell in matrix[0].values()] == ["exp 1", "100.0", "", "100.0"]
    assert [cell["text"] for cell in matrix[1].values()] == ["exp 2", "60.0", "80.0", "70.0"]
    assert [cell["style"] for cell in matrix[1].values()] == [None, "--share:60.0%", "--share:80.0%", None]
