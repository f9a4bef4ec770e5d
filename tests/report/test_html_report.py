"""Pages: ``report.html`` by the standard library's parser and in headless Chromium, and the page of answers."""

import base64
import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from camera_browser import PROGRAM, Chromium
from fake_runs import ATTACK, Page, csv_of, fake_run, mixed, page_of, page_with, report
from markupsafe import escape
from PIL import Image

from crumb_avalanche.images.clips import BadImage, Clip
from crumb_avalanche.learner.answer import Answer, ClassInfo
from crumb_avalanche.report.contact_sheet import ContactSheet, heat_map
from crumb_avalanche.report.page import environment


def test_every_number_of_the_csv_is_on_the_page(folder):
    finals = {
        row["final_accuracy"]["text"] for row in page_of(folder).tables["summary-table"]
    }
    assert finals == {"70.00 ± 10.00", "25.00", "90.00", "55.00", "5.50"}
    lines, rows = csv_of(folder), page_of(folder).tables["runs-table"]
    assert len(lines) == len(rows) == 7
    for line, row in zip(lines, rows):
        assert list(row) == list(line)
        for name, text in line.items():
            shown = row[name]
            assert text == (
                shown["text"] if shown["value"] is None else shown["value"]
            ), name
            if name in ("final_accuracy", "memory_bytes", "train_seconds"):
                assert float(shown["text"].replace(",", "")) == float(text)


def test_it_is_well_formed_and_all_ids_are_its_own(folder):
    shown = page_of(folder)  # fails by itself where tags cross
    text = (folder / "report.html").read_text()
    assert text.startswith("<!DOCTYPE html>\n<html lang=") and text.isascii()
    assert [name for name, count in Counter(shown.ids).items() if count > 1] == []
    assert shown.used <= set(shown.ids) and len(shown.used) > 10
    assert (
        shown.tags["svg"] == 4
        and shown.tags["h1"] == shown.tags["main"] == shown.tags["title"] == 1
    )
    assert all(value is None or "\n" not in value for _, _, value in shown.attributes)


def test_nothing_on_it_asks_for_anything(folder):
    text, shown = (folder / "report.html").read_text(), page_of(folder)
    links = [
        (tag, value)
        for tag, key, value in shown.attributes
        if key in ("src", "href", "srcset", "data", "action")
    ]
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
    assert (
        cell.render(text="a\x00b\x1bc\ud800d\uffffe\u202ef")
        == f'<td title="{replaced}">{replaced}</td>'
    )


def test_a_bound_learned_all_at_once_is_seen_beside_every_protocol(tmp_path):
    bound = fake_run(
        tmp_path / "bound", strategy="offline", protocol="class_instance"
    )  # what its config.yaml has
    iid = fake_run(tmp_path / "iid", protocol="class_iid")
    report(bound, iid, output=tmp_path / "one")
    one = page_of(tmp_path / "one")
    assert "toy_shapes, class_instance" not in one.text
    assert one.text.count("Accuracy over all classes seen: mean of runs") == 1
    assert {line["group"] for line in csv_of(tmp_path / "one")} == {"crumb", "offline"}
    assert {line["protocol"] for line in csv_of(tmp_path / "one")} == {"class_iid"}

    report(
        bound,
        iid,
        fake_run(tmp_path / "instance", protocol="class_instance"),
        output=tmp_path / "both",
    )
    both = page_of(tmp_path / "both")
    for place in (0, 1):
        assert "offline" in " ".join(
            row["group"]["text"] for row in both.tables[f"curves-table-{place}"]
        )
    assert "curves-table-2" not in both.tables
    labels = {
        "crumb, protocol=class_iid",
        "crumb, protocol=class_instance",
        "offline, protocol=joint",
    }
    assert {line["group"] for line in csv_of(tmp_path / "both")} == labels


def test_one_run_has_its_classes_and_settings(tmp_path):
    report(fake_run(tmp_path / "a"))
    shown = page_of(tmp_path / "a")
    assert "cup, pear" in shown.text and "dog, car" in shown.text
    settings = {row["setting"]["text"]: row for row in shown.tables["settings-same"]}
    assert settings["replay_weight"]["value"]["text"] == "5.0"
    assert settings["replay_weight"]["meaning"]["text"].startswith(
        "factor of the replay loss; default 5"
    )
    assert "settings-differ" not in shown.tables
    matrix = shown.tables["table-2"]  # after summary and curves
    assert [cell["text"] for cell in matrix[0].values()] == [
        "exp 1",
        "100.0",
        "",
        "100.0",
    ]
    assert [cell["text"] for cell in matrix[1].values()] == [
        "exp 2",
        "60.0",
        "80.0",
        "70.0",
    ]
    assert [cell["style"] for cell in matrix[1].values()] == [
        None,
        "--share:60.0%",
        "--share:80.0%",
        None,
    ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def opened(browser, folder):
    browser.open(folder / "report.html")
    return browser


def column(browser, table: str, name: str) -> list[str]:
    """The texts of a column, from top to bottom."""
    code = f"""(() => {{ const table = document.getElementById({table!r});
        const place = [...table.tHead.rows[0].cells].findIndex(head => head.dataset.name === {name!r});
        return [...table.tBodies[0].rows].map(row => row.cells[place].textContent); }})()"""
    return browser.evaluate(code)


def test_opens_without_errors_and_requests_with_tables_filled_and_figures_visible(
    opened, folder
):
    opened.evaluate("document.body.scrollHeight")
    seen: dict[str, list] = {}
    for event in opened.events:
        seen.setdefault(event["method"], []).append(event.get("params"))
    requests = [one["request"]["url"] for one in seen["Network.requestWillBeSent"]]
    # The icon is an empty data: address, which is answered without a request.
    assert [url for url in requests if not url.startswith("data:")] == [
        (folder / "report.html").as_uri()
    ]
    assert not {
        "Runtime.exceptionThrown",
        "Runtime.consoleAPICalled",
        "Log.entryAdded",
    } & set(seen), seen
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0
    assert opened.evaluate("window.attacked") is None
    rows = opened.evaluate(
        "[...document.querySelectorAll('table')].map(table => table.tBodies[0].rows.length)"
    )
    assert len(rows) >= 10 and min(rows) > 0
    boxes = opened.evaluate("""[...document.querySelectorAll('figure svg')].map(svg => [
        svg.getBoundingClientRect().width, svg.getBoundingClientRect().height, svg.getBBox().width,
        ...[...svg.querySelectorAll('[data-group] path')].map(path => path.getBoundingClientRect().width)])""")
    assert len(boxes) == 4 and all(min(box[:3]) > 200 for box in boxes)
    assert all(max(box[3:]) > 20 for box in boxes)
    heat = "[...document.querySelectorAll('.matrix td[style]')].map(cell => getComputedStyle(cell).backgroundColor)"
    assert len(set(opened.evaluate(heat))) > 1


def test_a_click_sorts_and_another_reverses(opened):
    head = "#summary-table th[data-name=final_accuracy]"
    for order, reverse in (("ascending", False), ("descending", True)):
        opened.click(f"{head} button")
        means = [
            float(text.split(" ")[0])
            for text in column(opened, "summary-table", "final_accuracy")
        ]
        assert means == sorted(
            [70.0, 25.0, 90.0, 55.0, 5.5], reverse=reverse
        )  # 5.50 before 25.00: as numbers
        assert (
            opened.evaluate(
                f"document.querySelector('{head}').getAttribute('aria-sort')"
            )
            == order
        )
    opened.click("#summary-table th[data-name=runs] button")
    sorted_by = "document.querySelectorAll('#summary-table th:not([aria-sort=none])[aria-sort]').length"
    assert opened.evaluate(sorted_by) == 1


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,000", "10", "9", "-1"], ["-1", "9", "10", "1,000"]),
        (["12.3 ± 4.5", "9.9 ± 50", ""], ["9.9 ± 50", "12.3 ± 4.5", ""]),
        (
            ["none", "0.001", "3e-4", "class10", "class9"],
            ["3e-4", "0.001", "class9", "class10", "none"],
        ),
    ],
)
def test_kinds_of_cells(browser, tmp_path, cells, expected):
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    head = '<table class="sortable" id="t"><thead><tr><th data-name="a">a</th></tr></thead>'
    (tmp_path / "a.html").write_text(page_with(f"{head}<tbody>{rows}</tbody></table>"))
    browser.open(tmp_path / "a.html")
    browser.click("#t button")
    assert column(browser, "t", "a") == expected


CONTRAST = """((a, b) => {
    const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(x => (x /= 255) <= 0.04045 ? x / 12.92
        : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const [dark, bright] = [light(a), light(b)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05) })"""


def test_texts_stand_out_in_light_and_dark_and_a_narrow_window_scrolls_tables_alone(
    opened,
):
    """WCAG AA asks for 4.5 between text and ground."""
    for scheme in ("light", "dark"):
        opened.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        for selector in (
            "td",
            "h2",
            "thead th",
            ".notes",
            "figcaption",
            "summary",
            "a",
        ):
            pair = f"getComputedStyle(document.querySelector('main {selector}, nav {selector}')).color"
            ground = (
                "getComputedStyle(document.querySelector('section')).backgroundColor"
            )
            assert opened.evaluate(f"{CONTRAST}({pair}, {ground})") > 4.5, selector
        body = "getComputedStyle(document.body).backgroundColor"
        assert opened.evaluate(f"{CONTRAST}({body}, 'rgb(0, 0, 0)') < 3") == (
            scheme == "dark"
        )
    opened.send(
        "Emulation.setDeviceMetricsOverride",
        width=400,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    opened.send("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = mixed(tmp_path_factory.mktemp("report") / "<b>$x&amp;")
    report(where)
    return where


class Stub:
    """Answers that a clip shows what its path says: ``LABEL CONFIDENCE``."""

    method, image_size, classes = "stub", 16, [ClassInfo("a", 1), ClassInfo("b", 1)]
    note, explains = "", False

    def predict_all(self, clip):
        frames = [path for path, _ in clip.frames]
        label, confidence = clip.path.split()[:2]
        known = None if label == "a" else confidence > "0.5"
        yield Answer(
            label,
            float(confidence),
            known,
            (("other", 0.1),),
            clip.path,
            clip.label,
            (None,) * len(frames),
        )


def clip(path, label=None, colours=((9, 9, 9),)):
    return Clip(
        path,
        label,
        iter([(path, Image.new("RGB", (40, 20), colour)) for colour in colours]),
    )


def sheet_of(*clips, most=300):
    sheet = ContactSheet(Stub(), most)
    unread = []
    answers = list(sheet.ask(clips, "skip", unread.append))
    assert [answer.path for answer in answers] == [one.path for one in clips]
    return sheet


def images(page):
    return [
        value for tag, key, value in page.attributes if (tag, key) == ("img", "src")
    ]


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_mistakes_come_first_and_the_most_confident_on_top():
    asked = [("a 0.7 w", "a"), ("b 0.6 x", "a"), ("b 0.9 y", "a"), ("b 0.8 z", "b")]
    page = Page(sheet_of(*(clip(*one) for one in asked), most=3).page("mine", []))
    places = [page.text.index(path) for path in ("b 0.9 y", "b 0.6 x", "a 0.7 w")]
    assert (
        "Images are shown of 3 of the 4 answers" in page.text
        and "b 0.8 z" not in page.text
    )
    assert (
        places == sorted(places)
        and len(images(page)) == 3
        and "2 of 4 right (50.0 %) The true class" in page.text
    )
    (row,) = page.tables["confused"]
    assert [row[name]["text"] for name in ("truth", "answer", "images")] == [
        "a",
        "b",
        "2",
    ]
    assert "There are no heat maps" in page.text


def test_unknown_images_are_named_so_and_unlabelled_ones_are_not_counted():
    page = Page(sheet_of(clip("b 0.4 x"), clip("a 0.4 y")).page("mine", []))
    assert (
        "unknown (nearest: b)" in page.text and "unknown (nearest: a)" not in page.text
    )
    assert (
        "1 of 2 unknown" in page.text
        and " %) The true class" not in page.text
        and "Confusion" not in page.text
    )


@pytest.mark.parametrize("count", [1, 200])
def test_a_clip_shows_its_middle_frame(count):
    colours = [(number, number, number) for number in range(count)]
    (uri,) = images(Page(sheet_of(clip("a 0.7", None, colours)).page("mine", [])))
    assert pixels(uri).shape == (20, 40, 3)
    assert abs(pixels(uri).mean() - count // 2) <= max(1, count / 64)


def test_names_and_paths_are_text():
    sheet = sheet_of(clip(f"b 0.9 {ATTACK}", ATTACK))
    page = Page(sheet.page(ATTACK, [BadImage(ATTACK, ATTACK)]))
    assert page.tags["script"] == 1 and ("img", "src", "x") not in page.attributes
    assert all(value.startswith("data:") for value in images(page))


def test_heat_maps_are_orange_for_the_answer_and_blue_against_it():
    import torch

    shares = torch.zeros(28, 28)
    shares[:14], shares[20:] = 2.0, -1.0
    uri = heat_map(shares, (100, 50))
    found = pixels(uri).astype(int)
    assert found.shape == (14, 28, 4)
    assert found[0, 0, 0] > found[0, 0, 2] and found[-1, 0, 2] > found[-1, 0, 0]
    assert found[0, 0, 3] > found[-1, 0, 3] > found[8, 0, 3] == 0
