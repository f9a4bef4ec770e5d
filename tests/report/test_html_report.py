"""``report.html``, by the standard library's parser and in headless Chromium."""

import re
from collections import Counter
from pathlib import Path

import pytest
from camera_browser import PROGRAM, Chromium
from fake_runs import ATTACK, csv_of, fake_run, mixed, page_of, page_with, report
from markupsafe import escape

from crumb_avalanche.report.page import environment

FINALS = ["70.00 ± 10.00", "25.00", "90.00", "55.00", "5.50"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A report of groups of all kinds, in a folder whose name is HTML."""
    folder = mixed(tmp_path_factory.mktemp("report") / "<b>$x&amp;")
    report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    """Its page, which fails by itself where tags cross."""
    return page_of(folder)


@pytest.fixture(scope="module")
def text(folder):
    """The HTML of its page."""
    return (folder / "report.html").read_text()


def test_all_groups_are_in_the_summary(page):
    assert Counter(page.column_of("summary-table", "final_accuracy")) == Counter(FINALS)


def test_every_number_of_the_csv_is_shown(folder, page):
    texts = []
    for row in page.tables["runs-table"]:
        values = {}
        for name, cell in row.items():
            values[name] = cell["text"] if cell["value"] is None else cell["value"]
        texts.append(values)
    assert texts == csv_of(folder)


@pytest.mark.parametrize("name", ["final_accuracy", "memory_bytes", "train_seconds"])
def test_numbers_are_shown_as_in_the_csv(folder, page, name):
    visible = []
    for text in page.column_of("runs-table", name):
        visible.append(float(text.replace(",", "")))
    assert visible == [float(line[name]) for line in csv_of(folder)]


def test_it_is_html_in_ascii(text):
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert text.isascii()


def test_all_ids_are_its_own(page):
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []


def test_used_ids_are_there(page):
    assert page.used <= set(page.ids)
    assert len(page.used) > 10


@pytest.mark.parametrize(
    ("tag", "count"),
    [
        ("svg", 4),
        ("h1", 1),
        ("main", 1),
        ("title", 1),
        ("script", 1),
        ("img", 0),
        ("b", 0),
    ],
)
def test_tags_are_counted(page, tag, count):
    assert page.tags[tag] == count


def test_attributes_have_one_line(page):
    assert all(value is None or "\n" not in value for _, _, value in page.attributes)


def test_no_link_leaves_the_page(page):
    asking = ("src", "href", "srcset", "data", "action")
    links = [value for _, key, value in page.attributes if key in asking]
    assert {link.partition("#")[0] for link in links} == {"", "data:,"}


@pytest.mark.parametrize("words", ["url(", "@import", "http"])
def test_the_style_asks_for_nothing(text, words):
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    assert words not in style


def test_the_policy_forbids_requests(text):
    assert "http:" not in text
    assert "https:" not in text
    assert "default-src 'none'" in text


def test_what_comes_from_a_run_is_escaped(text):
    assert ATTACK not in text
    assert escape(ATTACK) in text


def test_nothing_from_a_run_is_a_script(page):
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]


def test_values_of_a_run_are_kept(page):
    values = [row["pretrained"]["value"] for row in page.tables["runs-table"]]
    assert ATTACK in values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\"><a b='c'>&", "&#34;&gt;&lt;a b=&#39;c&#39;&gt;&amp;"),
        (
            "a\x00b\x1bc\ud800d\uffffe\u202ef",
            r"a\x00b\x1bc\ud800d\uffffe\u202ef",
        ),
    ],
    ids=["markup", "not seen"],
)
def test_hostile_texts_are_escaped(text, shown):
    cell = environment().from_string('<td title="{{ text }}">{{ text }}</td>')
    assert cell.render(text=text) == f'<td title="{shown}">{shown}</td>'


@pytest.fixture
def bound(tmp_path):
    """A joint learner; its config names the protocol that it was started with."""
    folder = tmp_path / "bound"
    return fake_run(folder, strategy="offline", protocol="class_instance")


@pytest.fixture
def iid(tmp_path):
    return fake_run(tmp_path / "iid", protocol="class_iid")


def test_a_bound_is_beside_the_only_protocol(tmp_path, bound, iid):
    report(bound, iid, output=tmp_path / "one")
    page = page_of(tmp_path / "one")
    assert "toy_shapes, class_instance" not in page.text
    # The caption of the figure, and that of the table.
    assert page.text.count("Accuracy over all classes seen") == 2


@pytest.mark.parametrize(
    ("column", "values"),
    [("group", {"crumb", "offline"}), ("protocol", {"class_iid"})],
)
def test_a_bound_has_the_only_protocol(tmp_path, bound, iid, column, values):
    report(bound, iid, output=tmp_path / "one")
    assert {line[column] for line in csv_of(tmp_path / "one")} == values


@pytest.fixture
def both(tmp_path, bound, iid):
    """A report of a joint learner beside runs of two protocols."""
    instance = fake_run(tmp_path / "instance", protocol="class_instance")
    report(bound, iid, instance, output=tmp_path / "both")
    return tmp_path / "both"


@pytest.mark.parametrize("table", ["curves-table-0", "curves-table-1"])
def test_a_bound_is_beside_every_protocol(both, table):
    groups = page_of(both).column_of(table, "group")
    assert any("offline" in group for group in groups)


def test_each_protocol_has_one_table(both):
    assert "curves-table-2" not in page_of(both).tables


def test_a_bound_of_two_protocols_is_joint(both):
    assert {line["group"] for line in csv_of(both)} == {
        "crumb, protocol=class_iid",
        "crumb, protocol=class_instance",
        "offline, protocol=joint",
    }


@pytest.fixture
def one_run(tmp_path):
    """The page of one run."""
    report(fake_run(tmp_path / "a"))
    return page_of(tmp_path / "a")


@pytest.mark.parametrize("classes", ["cup, pear", "dog, car"])
def test_a_run_has_its_classes(one_run, classes):
    assert classes in one_run.text


def test_settings_have_values_and_meanings(one_run):
    rows = one_run.tables["settings-same"]
    (row,) = [row for row in rows if row["setting"]["text"] == "replay_weight"]
    assert row["value"]["text"] == "5.0"
    meaning = row["meaning"]["text"]
    assert meaning.startswith("factor of the replay loss; default 5")


def test_one_run_differs_in_no_setting(one_run):
    assert "settings-differ" not in one_run.tables


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (0, ["exp 1", "100.0", "", "100.0"]),
        (1, ["exp 2", "60.0", "80.0", "70.0"]),
    ],
)
def test_a_matrix_has_its_accuracies(one_run, row, texts):
    matrix = one_run.tables["table-2"]  # after summary and curves
    assert [cell["text"] for cell in matrix[row].values()] == texts


def test_a_matrix_is_shaded(one_run):
    styles = [cell["style"] for cell in one_run.tables["table-2"][1].values()]
    assert styles == [None, "--share:60.0%", "--share:80.0%", None]


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
    return browser.evaluate(
        f"""(() => {{
            const table = document.getElementById({table!r});
            const heads = [...table.tHead.rows[0].cells];
            const index = heads.findIndex(head => head.dataset.name === {name!r});
            return [...table.tBodies[0].rows].map(row => row.cells[index].textContent);
        }})()"""
    )


def test_it_opens_without_errors_or_requests(opened, folder):
    opened.evaluate("document.body.scrollHeight")
    methods = {event["method"] for event in opened.events}
    failures = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
    assert not failures & methods
    requests = [
        event["params"]["request"]["url"]
        for event in opened.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    # The icon is an empty data: address, which is answered without a request.
    urls = [url for url in requests if not url.startswith("data:")]
    assert urls == [(folder / "report.html").as_uri()]


def test_it_loads_no_resource(opened):
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0


def test_no_script_of_a_run_runs(opened):
    assert opened.evaluate("window.attacked") is None


def test_all_tables_are_filled(opened):
    tables = "[...document.querySelectorAll('table')]"
    rows = opened.evaluate(f"{tables}.map(table => table.tBodies[0].rows.length)")
    assert len(rows) >= 10
    assert min(rows) > 0


def test_all_figures_are_visible(opened):
    figures = "[...document.querySelectorAll('figure svg')]"
    sizes = opened.evaluate(
        f"{figures}.map(svg => [svg.getBoundingClientRect().width, "
        "svg.getBoundingClientRect().height, svg.getBBox().width])"
    )
    assert len(sizes) == 4
    assert min(map(min, sizes)) > 200


def test_all_curves_are_visible(opened):
    figures = "[...document.querySelectorAll('figure svg')]"
    widths = opened.evaluate(
        f"{figures}.map(svg => [...svg.querySelectorAll('[data-group] path')]"
        ".map(path => path.getBoundingClientRect().width))"
    )
    assert min(map(max, widths)) > 20


def test_a_matrix_has_shades(opened):
    cells = "[...document.querySelectorAll('.matrix td[style]')]"
    colours = opened.evaluate(
        f"{cells}.map(cell => getComputedStyle(cell).backgroundColor)"
    )
    assert len(set(colours)) > 1


@pytest.mark.parametrize(
    ("clicks", "order"), [(1, "ascending"), (2, "descending")], ids=str
)
def test_a_click_sorts_and_another_reverses(opened, clicks, order):
    head = "#summary-table th[data-name=final_accuracy]"
    for _ in range(clicks):
        opened.click(f"{head} button")
    cells = column(opened, "summary-table", "final_accuracy")
    means = [float(text.split(" ")[0]) for text in cells]
    # 5.50 before 25.00: as numbers
    assert means == sorted([70.0, 25.0, 90.0, 55.0, 5.5], reverse=clicks == 2)
    state = f"document.querySelector('{head}').getAttribute('aria-sort')"
    assert opened.evaluate(state) == order


def test_one_column_at_a_time_sorts(opened):
    opened.click("#summary-table th[data-name=final_accuracy] button")
    opened.click("#summary-table th[data-name=runs] button")
    sorting = "#summary-table th:not([aria-sort=none])[aria-sort]"
    assert opened.evaluate(f"document.querySelectorAll('{sorting}').length") == 1


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
def test_kinds_of_cells_are_sorted(browser, tmp_path, cells, expected):
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    head = '<thead><tr><th data-name="a">a</th></tr></thead>'
    table = f'<table class="sortable" id="t">{head}<tbody>{rows}</tbody></table>'
    (tmp_path / "a.html").write_text(page_with(table))
    browser.open(tmp_path / "a.html")
    browser.click("#t button")
    assert column(browser, "t", "a") == expected


CONTRAST = """((a, b) => {
    const light = text => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(x =>
            (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const [dark, bright] = [light(a), light(b)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05) })"""


def colour(selector: str, style: str) -> str:
    """A style of the first element of a kind, in JavaScript."""
    return f"getComputedStyle(document.querySelector('{selector}')).{style}"


@pytest.fixture(params=["light", "dark"])
def scheme(opened, request):
    """The colours that a person prefers."""
    preference = {"name": "prefers-color-scheme", "value": request.param}
    opened.send("Emulation.setEmulatedMedia", features=[preference])
    return request.param


@pytest.mark.parametrize(
    "selector", ["td", "h2", "thead th", ".notes", "figcaption", "summary", "a"]
)
def test_texts_stand_out(opened, scheme, selector):
    """WCAG AA asks for 4.5 between text and ground."""
    ink = colour(f"main {selector}, nav {selector}", "color")
    ground = colour("section", "backgroundColor")
    assert opened.evaluate(f"{CONTRAST}({ink}, {ground})") > 4.5


def test_a_dark_page_is_dark(opened, scheme):
    body = "getComputedStyle(document.body).backgroundColor"
    is_dark = opened.evaluate(f"{CONTRAST}({body}, 'rgb(0, 0, 0)') < 3")
    assert is_dark == (scheme == "dark")


def test_a_narrow_window_scrolls_tables_alone(opened):
    opened.send(
        "Emulation.setDeviceMetricsOverride",
        width=400,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    width = opened.evaluate("document.documentElement.scrollWidth")
    opened.send("Emulation.clearDeviceMetricsOverride")
    assert width <= 400
