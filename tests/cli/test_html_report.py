"""``report.html``: read with the standard library's parser, and opened in headless Chromium where there is one."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_report import fake_run, report, sweep

from crumb_avalanche.cli.html_elements import element, escaped
from crumb_avalanche.cli.html_report import Section, page
from crumb_avalanche.cli.settings import RunSettings, as_dict

VOID = {"meta", "link", "br", "img", "input", "hr", "col", "wbr"}
ATTACK = '<script>window.attacked = 1</script><img src=x onerror="window.attacked = 1">"\'&'


class Page(HTMLParser):
    """What is on a page: tables by id, as rows of column name -> cell; fails where tags do not fit together."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.used, self.tables, self.texts = [], [], set(), {}, []
        self.tags, self.attributes, self.table, self.in_head = Counter(), [], None, False
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"{tag} has an attribute twice: {attrs}"
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        self.used.update(re.findall(r"url\(#([^)]+)\)", values.get("style") or values.get("clip-path") or ""))
        if (values.get("href") or "").startswith("#"):
            self.used.add(values["href"][1:])
        if tag == "table":
            self.table = self.tables.setdefault(values.get("id", f"table-{len(self.tables)}"), [])
            self.names = []
        if tag == "thead":
            self.in_head = True
        if tag == "tr" and not self.in_head:
            self.table.append({})
        if tag in ("td", "th"):
            if self.in_head:
                self.names.append(values.get("data-name"))
            else:
                self.name = self.names[len(self.table[-1])] or str(len(self.table[-1]))
                self.table[-1][self.name] = {
                    "text": "",
                    "value": values.get("data-value"),
                    "style": values.get("style"),
                }
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"
        self.in_head = self.in_head and tag != "thead"

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th") and not self.in_head:
            self.table[-1][self.name]["text"] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def csv_of(folder: Path) -> list[dict]:
    with open(folder / "report.csv", newline="") as file:
        return list(csv.DictReader(file))


def mixed(folder: Path) -> Path:
    """Groups with finals 70 ± 10, 25 and a joint 90, on one stream, one of class_iid, and one that attacks the page."""
    sweep(folder)
    fake_run(folder / "offline", 90.0, strategy="offline")
    fake_run(folder / "iid", 55.0, protocol="class_iid", replay_weight=5.0)
    fake_run(folder / "attack", 5.5, pretrained=ATTACK, **{"new" + ATTACK: ATTACK})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = mixed(tmp_path_factory.mktemp("report") / "<b>$x&amp;")
    report(where)
    return where


# without a browser


def test_every_number_of_the_csv_is_on_the_page(folder):
    lines, rows = csv_of(folder), page_of(folder).tables["runs-table"]
    assert len(lines) == len(rows) == 7
    for line, row in zip(lines, rows):
        assert list(row) == list(line)
        for name, text in line.items():
            shown = row[name]
            assert text == (shown["text"] if shown["value"] is None else shown["value"]), name
            if name in ("final_accuracy", "memory_bytes", "train_seconds"):
                assert float(shown["text"].replace(",", "")) == float(text)


def test_every_number_of_the_tex_is_on_the_page(folder):
    tex = [line for line in (folder / "report.tex").read_text().splitlines() if line.endswith(r"\\")][1:]
    for row, line in zip(page_of(folder).tables["summary-table"], tex, strict=True):
        numbers = [cell["text"].replace("±", r"$\pm$") for cell in list(row.values())[1:]]
        assert line.removesuffix(r" \\").split(" & ")[-len(numbers) :] == numbers


def test_means_are_those_worked_out_by_hand(folder):
    finals = {row["final_accuracy"]["text"] for row in page_of(folder).tables["summary-table"]}
    assert finals == {"70.00 ± 10.00", "25.00", "90.00", "55.00", "5.50"}


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
    assert "http:" not in text and "https:" not in text and "default-src &#x27;none&#x27;" in text


def test_what_comes_from_a_run_is_escaped(folder):
    text, shown = (folder / "report.html").read_text(), page_of(folder)
    assert shown.tags["script"] == 1 and shown.tags["img"] == shown.tags["b"] == 0
    assert ATTACK not in text and escaped(ATTACK) in text
    assert not [key for _, key, _ in shown.attributes if key.startswith("on")]
    assert ATTACK in [row["pretrained"]["value"] for row in shown.tables["runs-table"]]


def test_hostile_texts():
    assert escaped('<a b="c">\'&') == "&lt;a b=&quot;c&quot;&gt;&#x27;&amp;"
    assert escaped("a\x00b\x1bc\ud800d\uffffe\tf") == "a\ufffdb\ufffdc\ufffdd\ufffde\tf"
    assert element("td", "", title='"><script>', class_=None, open=True) == (
        '<td title="&quot;&gt;&lt;script&gt;" open></td>'
    )


def test_labels_that_break_pictures(tmp_path):
    """Formulas, control characters and markup in a label are drawn as they stand."""
    for number, name in enumerate(["$x^{", "a$b$", "\x0bé\x85", "<g>&", "__"]):
        fake_run(tmp_path / str(number), strategy=name)
    report(tmp_path)
    shown = page_of(tmp_path)
    assert "$x^{" in shown.texts and "a$b$" in shown.texts and "<g>&" in shown.texts and "\ufffdé\ufffd" in shown.texts


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = mixed(tmp_path / "runs")
    report(folder)
    first = (folder / "report.html").read_bytes()
    code = "import sys; from test_report import report; from pathlib import Path; report(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, cwd=Path(__file__).parent)
    assert (folder / "report.html").read_bytes() == first  # under another hash seed


def test_it_is_readable_without_the_script(folder):
    shown = page_of(folder)
    assert shown.tags["button"] == 0  # the script makes them: without it nothing is there that does nothing
    assert all(rows and any(cell["text"] for cell in rows[0].values()) for rows in shown.tables.values())
    assert not re.search(r"display: ?none", "".join(re.findall("<style>(.*?)@media print", " ".join(shown.texts))))


def test_matrix_is_a_heat_map(tmp_path):
    report(sweep(tmp_path))
    matrix = page_of(tmp_path).tables["table-2"]  # after summary and curves
    assert [cell["text"] for cell in matrix[0].values()] == ["exp 1", "100.0", "", "100.0"]
    assert [cell["text"] for cell in matrix[1].values()] == ["exp 2", "60.0", "80.0", "70.0"]
    assert [cell["style"] for cell in matrix[1].values()] == [None, "--share:60.0%", "--share:80.0%", None]


def test_streams_are_drawn_apart(folder):
    text = page_of(folder).text
    assert "toy_shapes, class_instance" in text and "toy_shapes, class_iid" in text
    assert text.count("Accuracy over all classes seen: mean of runs") == 2


def test_one_run_has_its_classes_and_settings(tmp_path):
    report(fake_run(tmp_path / "a"))
    shown = page_of(tmp_path / "a")
    assert "cup, pear" in shown.text and "dog, car" in shown.text
    settings = {row["setting"]["text"]: row for row in shown.tables["settings-same"]}
    assert settings["replay_weight"]["value"]["text"] == "1.0"
    assert settings["replay_weight"]["meaning"]["text"] == "factor of the replay loss."
    assert "settings-differ" not in shown.tables


def test_differences_between_groups(folder):
    rows = page_of(folder).tables["settings-differ"]
    assert {row["replay_weight"]["text"] for row in rows} == {"1.0", "5.0"}
    assert "replay_weight" not in {row["setting"]["text"] for row in page_of(folder).tables["settings-same"]}


def test_what_is_left_out_is_said(tmp_path):
    sweep(tmp_path)
    (tmp_path / "finetune" / "result.json").unlink()
    (tmp_path / "crumb/run2/result.json").write_text("{")
    with pytest.raises(ValueError, match="the rest is written"):
        report(tmp_path)
    text = page_of(tmp_path).text
    assert "result.json cannot be used" in text and f"without result.json: {tmp_path / 'finetune'}" in text


def test_deviations_are_listed_or_said_to_be_none(folder, tmp_path):
    rows = {row["setting"]["text"]: row for row in page_of(folder).tables["deviations-table"]}
    assert rows["benchmark"]["groups"]["text"] == "all" and "class_iid" in rows["replay_weight"]["groups"]["text"]
    assert "is 5.0; in preset paper it is 1.0" in rows["replay_weight"]["deviation"]["text"]
    settings = as_dict(RunSettings(benchmark="core50", strategy="finetune").resolved())
    report(fake_run(tmp_path / "a", **{name: value for name, value in settings.items() if name != "run"}))
    assert "None: all settings are those of preset paper." in page_of(tmp_path / "a").text


def test_a_page_of_other_sections():
    shown = Page(page("T & T", "lead", [Section("one", "A < B", "<p>x</p>")]))
    assert "T & T" in shown.texts and "A < B" in shown.texts and "one" in shown.ids


# in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
# Chromium listens on descriptor 3 and answers on 4; the two pipes may lie elsewhere here.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3]]
[os.dup2(end, number) for end, number in zip(ends, (3, 4))]
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, driven with its DevTools protocol over two pipes: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path):
        theirs, self.to = os.pipe()
        self.answers, also_theirs = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1400,900", "about:blank"]
        command = [sys.executable, "-c", LAUNCH, str(theirs), str(also_theirs), CHROMIUM, *flags]
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(theirs, also_theirs), **quiet)
        os.close(theirs), os.close(also_theirs)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        self.watchdog = threading.Timer(120, self.process.kill)  # a read that waits for ever would hang the tests
        self.watchdog.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def receive(self) -> dict:
        while b"\0" not in self.rest:
            read = os.read(self.answers, 1 << 16)
            assert read, "chromium ended, or was stopped after two minutes"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, code: str):
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def seen(self, *methods: str) -> list[dict]:
        return [event["params"] for event in self.events if event["method"] in methods]

    def click(self, selector: str) -> None:
        """With the mouse, where the element is."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        code = f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
        x, y = self.evaluate(code + "return [box.x + box.width / 2, box.y + box.height / 2] })()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
        finally:
            self.process.wait(20)
            self.watchdog.cancel()
            os.close(self.to), os.close(self.answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


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


def test_opens_without_errors_and_without_requests(opened, folder):
    opened.evaluate("document.body.scrollHeight")
    requests = [event["request"]["url"] for event in opened.seen("Network.requestWillBeSent")]
    # The icon is an empty data: address, which is answered without a request.
    assert [url for url in requests if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    assert opened.seen("Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    assert [event["entry"]["text"] for event in opened.seen("Log.entryAdded")] == []
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0
    assert opened.evaluate("window.attacked") is None


def test_a_request_would_have_been_seen(opened, tmp_path):
    """The counterpart of the test above: it can fail."""
    (tmp_path / "a.html").write_text("<!DOCTYPE html><img src=none.png><script>console.error('x'); throw 1</script>")
    opened.open(tmp_path / "a.html")
    assert len(opened.seen("Network.requestWillBeSent")) == 2
    assert opened.seen("Runtime.exceptionThrown") and opened.seen("Runtime.consoleAPICalled")


def test_numbers_in_the_browser_are_those_of_the_csv(opened, folder):
    for name in ("final_accuracy", "accuracy_after_1", "accuracy_after_2", "train_seconds"):
        assert column(opened, "runs-table", name) == [line[name] for line in csv_of(folder)]
    sizes = [text.replace(",", "") for text in column(opened, "runs-table", "memory_bytes")]
    assert sizes == [line["memory_bytes"] for line in csv_of(folder)]


def test_tables_are_filled_and_figures_visible(opened):
    rows = opened.evaluate("[...document.querySelectorAll('table')].map(table => table.tBodies[0].rows.length)")
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
        means = [float(text.split(" ")[0]) for text in column(opened, "summary-table", "final_accuracy")]
        assert means == sorted([70.0, 25.0, 90.0, 55.0, 5.5], reverse=reverse)  # 5.50 before 25.00: as numbers
        assert opened.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == order
    opened.click("#summary-table th[data-name=runs] button")
    assert (
        opened.evaluate("document.querySelectorAll('#summary-table th:not([aria-sort=none])[aria-sort]').length") == 1
    )


def test_empty_cells_are_last_both_ways(opened):
    for _ in range(2):
        opened.click("#runs-table th[data-name=accuracy_after_1] button")
        texts = column(opened, "runs-table", "accuracy_after_1")
        assert texts[-1] == "" and "" not in texts[:-1]


def test_sorting_with_the_keyboard(opened):
    opened.evaluate("document.querySelector('#summary-table th[data-name=group] button').focus()")
    opened.press("Tab", 9)
    opened.press("Tab", 9)  # group, runs, final accuracy
    assert opened.evaluate("document.activeElement.textContent") == "final accuracy, %"
    opened.press("Enter", 13)
    assert column(opened, "summary-table", "final_accuracy")[0] == "5.50"
    opened.press("Enter", 13)
    assert column(opened, "summary-table", "final_accuracy")[0] == "90.00"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,000", "10", "9", "-1"], ["-1", "9", "10", "1,000"]),
        (["12.3 ± 4.5", "9.9 ± 50", ""], ["9.9 ± 50", "12.3 ± 4.5", ""]),
        (["none", "0.001", "3e-4", "class10", "class9"], ["3e-4", "0.001", "class9", "class10", "none"]),
    ],
)
def test_kinds_of_cells(browser, tmp_path, cells, expected):
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    head = '<table class="sortable" id="t"><thead><tr><th data-name="a">a</th></tr></thead>'
    (tmp_path / "a.html").write_text(page("a", "b", [Section("s", "S", f"{head}<tbody>{rows}</tbody></table>")]))
    browser.open(tmp_path / "a.html")
    browser.click("#t button")
    assert column(browser, "t", "a") == expected


def test_pointing_at_a_row_shows_its_curve(opened):
    opened.click("#summary-table tbody tr:first-child th")  # the mouse stays there
    lit = opened.evaluate("[...document.querySelectorAll('svg [data-group].lit')].map(node => node.dataset.group)")
    assert lit and set(lit) == {opened.evaluate("document.querySelector('#summary-table tbody tr').dataset.group")}


CONTRAST = """((a, b) => {
    const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(x => (x /= 255) <= 0.04045 ? x / 12.92
        : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const [dark, bright] = [light(a), light(b)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05) })"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_dark(opened, scheme):
    """WCAG AA asks for 4.5 between text and ground."""
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    for selector in ("td", "h2", "thead th", ".notes", "figcaption", "summary", "a"):
        pair = f"getComputedStyle(document.querySelector('main {selector}, nav {selector}')).color"
        ground = "getComputedStyle(document.querySelector('section')).backgroundColor"
        assert opened.evaluate(f"{CONTRAST}({pair}, {ground})") > 4.5, selector
    is_dark = opened.evaluate(f"{CONTRAST}(getComputedStyle(document.body).backgroundColor, 'rgb(0, 0, 0)') < 3")
    assert is_dark == (scheme == "dark")
    opened.call("Emulation.setEmulatedMedia", features=[])


def test_a_narrow_window_scrolls_tables_not_the_page(opened):
    opened.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    opened.call("Emulation.clearDeviceMetricsOverride")
