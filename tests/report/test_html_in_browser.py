"""``report.html`` opened in headless Chromium, where there is one."""

import pytest
from camera_browser import PROGRAM, Chromium
from html_pages import page_with


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


def test_opens_without_errors_and_requests_with_tables_filled_and_figures_visible(opened, folder):
    opened.evaluate("document.body.scrollHeight")
    seen: dict[str, list] = {}
    for event in opened.events:
        seen.setdefault(event["method"], []).append(event.get("params"))
    requests = [one["request"]["url"] for one in seen["Network.requestWillBeSent"]]
    # The icon is an empty data: address, which is answered without a request.
    assert [url for url in requests if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    assert not {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"} & set(seen), seen
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0
    assert opened.evaluate("window.attacked") is None
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
    sorted_by = "document.querySelectorAll('#summary-table th:not([aria-sort=none])[aria-sort]').length"
    assert opened.evaluate(sorted_by) == 1


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
    (tmp_path / "a.html").write_text(page_with(f"{head}<tbody>{rows}</tbody></table>"))
    browser.open(tmp_path / "a.html")
    browser.click("#t button")
    assert column(browser, "t", "a") == expected


CONTRAST = """((a, b) => {
    const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(x => (x /= 255) <= 0.04045 ? x / 12.92
        : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const [dark, bright] = [light(a), light(b)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05) })"""


def test_texts_stand_out_in_light_and_dark_and_a_narrow_window_scrolls_tables_alone(opened):
    """WCAG AA asks for 4.5 between text and ground."""
    for scheme in ("light", "dark"):
        opened.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for selector in ("td", "h2", "thead th", ".notes", "figcaption", "summary", "a"):
            pair = f"getComputedStyle(document.querySelector('main {selector}, nav {selector}')).color"
            ground = "getComputedStyle(document.querySelector('section')).backgroundColor"
            assert opened.evaluate(f"{CONTRAST}({pair}, {ground})") > 4.5, selector
        body = "getComputedStyle(document.body).backgroundColor"
        assert opened.evaluate(f"{CONTRAST}({body}, 'rgb(0, 0, 0)') < 3") == (scheme == "dark")
    opened.send("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    opened.send("Emulation.clearDeviceMetricsOverride")
