"""The README and the pages of the site: length, links, commands, flags and tables."""

import ast
import configparser
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pytest
import yaml
from page_commands import ROOT, blocks, commands, pages, prose, script_flags
from site_parts import commands as command_pages
from site_parts import (
    csv_tables,
    figures,
    links,
    marks,
    notebooks,
    paper_tables,
    reference,
    result_tables,
)

from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.cli.parser import command_and_settings
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs.plan import RunPlan

README = ROOT / "README.md"
# Programs of others that pages call, and flags of theirs that pages name.
PROGRAMS = set(
    [
        "cd",
        "cp",
        "docker",
        "mkdir",
        "mkdocs",
        "mosquitto",
        "mosquitto_pub",
        "mosquitto_sub",
        "node",
        "npm",
        "pip",
        "pipx",
        "pre-commit",
        "pytest",
        "ray",
        "rattler-build",
        "tar",
    ]
)
FOREIGN_FLAGS = set(
    [
        "--address",
        "--check",
        "--config",
        "--head",
        "--help",
        "--hypothesis-profile",
        "--keep-cr",
        "--name",
        "--print-config",
        "--skip",
        "--strict",
        "--version",
    ]
)


def read_pages() -> dict[str, str]:
    texts = {}
    for path in pages():
        texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return texts


PAGES = [path.relative_to(ROOT).as_posix() for path in pages()]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES)


@pytest.fixture(scope="module")
def texts():
    return read_pages()


@pytest.fixture(scope="module")
def built():
    """The pages that only the site has, by their paths in it."""
    return {**command_pages.pages(), **notebooks.pages(), **reference.pages()}


# The README


@pytest.fixture(scope="module")
def readme():
    return README.read_text(encoding="utf-8")


def test_the_readme_is_short(readme):
    assert readme.count("\n") <= 120


def test_lines_of_the_readme_are_short(readme):
    long = [line for line in readme.splitlines() if len(line) > 120]
    assert [line for line in long if line[0] != "|" and "](" not in line] == []


def test_the_readme_has_the_test_command(readme):
    # The check of the project runs this line.
    assert 'pip install -e ".[test]" && pytest' in readme.splitlines()


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_the_table_of_rooms_has_all_rooms(package):
    table = result_tables.rooms()
    for init in (ROOT / package).glob("*/__init__.py"):
        assert f"| `{package}/{init.parent.name}/` | " in table


# Text


@EVERY_PAGE
def test_a_list_has_an_empty_line_before_it(texts, page):
    """Without one, MkDocs shows it as part of the paragraph."""
    glued = re.compile(r"^(?![-*|>#<\s]).*\n(?=[-*] )", re.MULTILINE)
    assert glued.findall(prose(texts[page])) == []


@EVERY_PAGE
def test_a_page_has_at_most_1400_words_besides_tables(texts, page):
    without_tables = marks.MARK.sub("", texts[page])
    without_targets = re.sub(r"\]\([^)]*\)", "", without_tables)
    words = [word for word in without_targets.split() if re.search(r"\w", word)]
    assert len(words) <= 1400


# Links


def slug(heading: str) -> str:
    """The anchor of a heading, as MkDocs makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings."""
    return set(map(slug, re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)))


def dead_links(page: str, text: str, texts: dict[str, str]) -> list[str]:
    """Relative links of a page that lead nowhere in the repository."""
    dead = []
    for match in links.LINK.finditer(prose(text)):
        target = match[2]
        anchor = (match[3] or "")[1:]
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent.joinpath(target).resolve()
        if not path.is_file():
            dead.append(target)
            continue
        linked = texts.get(path.relative_to(ROOT).as_posix(), "")
        if anchor and anchor not in anchors(linked):
            dead.append(f"{target}#{anchor}")
    for anchor in re.findall(r"\]\(#([^)]*)\)", prose(text)):
        if anchor not in anchors(text):
            dead.append(f"#{anchor}")
    return dead


@EVERY_PAGE
def test_links_lead_to_files(texts, page):
    assert dead_links(page, texts[page], texts) == []


@pytest.mark.parametrize(
    ("link", "dead"),
    [
        ("[a](none.md)", ["none.md"]),
        ("[b](how.md#nowhere)", ["how.md#nowhere"]),
        ("[c](how.md#start)", []),
        ("[d](notebooks/repeat_a_table.py)", []),
        ("[e](#here)", ["#here"]),
        ("[only the site has it](cli/run.md)", ["cli/run.md"]),
    ],
)
def test_dead_links_are_found(texts, link, dead):
    assert dead_links("docs/x.md", link, texts) == dead


@pytest.mark.parametrize(("path", "page"), links.MADE_OF.items())
def test_a_page_is_made_of_the_file(built, path, page):
    assert (ROOT / path).is_file()
    assert page in built


NAMED_FILE = re.compile(
    r"\btests/[\w/]+\.\w+"
    r"|(?<=`)(?:examples|experiments|docs|crumb_avalanche|benchmarks_toybox_ilab)"
    r"/[a-z0-9_/]+\.\w+"
)


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# The page on contributing to Avalanche names files of Avalanche.
@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/contrib.md"])
def test_named_files_exist(texts, page):
    paths = NAMED_FILE.findall(texts[page])
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_pages_that_an_example_names_exist(name):
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    named = re.findall(r"\bdocs/\w+\.md", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


# Commands


@EVERY_PAGE
def test_commands_of_crumb_parse(texts, page):
    for words in commands(texts[page]):
        if words[0] != "crumb":
            continue
        try:
            command, values = command_and_settings(words[1:])
            settings = COMMANDS[command].settings(**values)
            if command == "run":
                RunPlan.of(settings)
        except (SystemExit, ValueError) as error:
            pytest.fail(f"{' '.join(words)}: {error}")


def test_pages_have_commands_of_crumb(texts):
    words = [words for text in texts.values() for words in commands(text)]
    assert sum(command[0] == "crumb" for command in words) > 50


@EVERY_PAGE
def test_snippets_are_python(texts, page):
    for code in blocks(texts[page], "python"):
        ast.parse(code)


@EVERY_PAGE
def test_programs_are_known(texts, page):
    programs = {words[0] for words in commands(texts[page])}
    assert programs <= PROGRAMS | {"crumb", "python", "pip", "uv"}


@EVERY_PAGE
def test_scripts_have_the_flags(texts, page):
    for words in commands(texts[page]):
        if words[0] != "python":
            continue
        folder, _, script = words[1].partition("/")
        assert folder == "experiments", words
        flags = [word for word in words[2:] if word.startswith("--")]
        for flag in flags:
            assert flag.replace("_", "-") in script_flags(script), words


@pytest.fixture(scope="module")
def extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return set(setup["options.extras_require"])


@EVERY_PAGE
def test_installed_extras_exist(texts, page, extras):
    for words in commands(texts[page]):
        if words[0] in {"pip", "uv"}:
            bracketed = re.findall(r"\[(.*?)\]", " ".join(words))
            assert set(re.findall(r"[\w-]+", " ".join(bracketed))) <= extras, words


# Flags


@pytest.fixture(scope="module")
def known_flags():
    """Flags of `crumb`, of the experiments, of methods, and of programs of others."""
    flags = FOREIGN_FLAGS | {"--method.NAME", "--help-all"}
    for parser in command_pages.subparsers().values():
        for action in parser._actions:
            flags.update(command_pages.names_of(action))
    for script in (ROOT / "experiments").glob("*.py"):
        flags |= script_flags(script.name)
    for entry in STRATEGIES.values():
        for field in dataclasses.fields(entry.settings):
            flags.add(f"--method.{field.name}")
    return flags


@EVERY_PAGE
def test_flags_in_the_text_exist(texts, page, known_flags):
    codes = re.findall(r"`([^`\n]+)`", prose(texts[page]))
    flags = re.findall(r"(?<![\w-])--[a-z][\w.-]*", "\n".join(codes))
    unknown = [flag for flag in flags if flag not in known_flags]
    assert [flag for flag in unknown if flag.replace("_", "-") not in known_flags] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_stands_on_a_page(built, command):
    page = built[f"cli/{command}.md"]
    actions = command_pages.subparsers()[command]._actions
    positional = {action.dest for action in actions if not action.option_strings}
    for field in dataclasses.fields(COMMANDS[command].settings):
        flag = f"`--{field.name.replace('_', '-')}`"
        assert field.name in positional or flag in page


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_written_as_in_a_terminal(built, command):
    page = built[f"cli/{command}.md"]
    assert not re.search(r"^crumb .*'", page, re.MULTILINE)


# The reference, the navigation and the tables


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_every_exported_name_is_in_the_reference(built, package):
    for name, target in reference.exported()[package].items():
        assert f"`{name}`" in built["api/index.md"]
        room = target.removeprefix(f"{package}.").split(".")[0]
        module = target.rpartition(".")[0]
        if name in reference.public(reference.source(module)):
            assert f"::: {module}\n" in built[f"api/{package}/{room}.md"]


def navigation_entries(part):
    """The pages of a part of the navigation: a page, a list, or a dictionary."""
    if isinstance(part, str):
        return [part]
    inner_parts = part.values() if isinstance(part, dict) else part
    entries = []
    for inner in inner_parts:
        entries += navigation_entries(inner)
    return entries


def test_every_page_is_once_in_the_navigation(texts, built):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    expected = list(built)
    for page in texts:
        if page.startswith("docs/"):
            expected.append(page.removeprefix("docs/"))
        else:
            expected.append(links.site_path(page))
    assert sorted(navigation_entries(settings["nav"])) == sorted(expected)


@dataclass(frozen=True)
class Marked:
    """A mark of a page.

    Attributes:
        kind: "figure", or the name of a table.
        arguments: the name of the figure, or arguments of the table.
        lines: what stands below it.
        following: the first line after that.
    """

    kind: str
    arguments: list[str]
    lines: str
    following: str


def marks_of(text: str) -> list[Marked]:
    """The marks of a page."""
    of_page = []
    for match in marks.MARK.finditer(text):
        following, _, _ = text[match.end() :].lstrip("\n").partition("\n")
        of_page.append(Marked(match[1], match[2].split(), match[3], following))
    return of_page


MARKS = [mark for text in read_pages().values() for mark in marks_of(text)]
TABLES = [mark for mark in MARKS if mark.kind != "figure"]
FIGURES = [mark for mark in MARKS if mark.kind == "figure"]


def name_of(mark: Marked) -> str:
    """The name of a test of a mark."""
    return " ".join([mark.kind, *mark.arguments])


def test_every_table_is_shown():
    assert {mark.kind for mark in TABLES} == set(result_tables.TABLES)


def test_every_figure_is_shown():
    assert {mark.arguments[0] for mark in FIGURES} == set(figures.FIGURES)


AGAIN = "write the pages again: python docs/write_pages.py"


@pytest.mark.parametrize("mark", MARKS, ids=name_of)
def test_a_page_has_what_its_marks_name(mark):
    """The table of the recorded runs, or the picture with its caption."""
    assert mark.lines == marks.lines_below(mark.kind, mark.arguments), AGAIN


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_picture_is_of_the_recorded_runs(name):
    recorded = (marks.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    version = f"Matplotlib v{matplotlib.__version__},"
    if version not in recorded:
        pytest.skip("another version of Matplotlib draws other lines")
    assert recorded == figures.picture(name), AGAIN


def test_every_picture_is_of_a_figure():
    assert {path.stem for path in marks.PICTURES.iterdir()} == set(figures.FIGURES)


@pytest.mark.parametrize("mark", TABLES, ids=name_of)
def test_a_table_has_rows_and_columns(mark):
    rows = mark.lines.splitlines()
    assert len(rows) > 3
    assert len({row.count("|") for row in rows}) == 1


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        ("-9", "5", "**holds**"),
        ("-20", "-5", "not shown"),
        ("-20", "-11", "**does not hold**"),
    ],
)
def test_a_claim_of_size_is_judged_by_its_interval(low, high, verdict):
    line = {
        "effect": low,
        "effect_low": low,
        "effect_high": high,
        "effect_of_runs": "1 2",
        "verdict": "lower",
    }
    assert paper_tables.judged([line], "at least -10")[-1] == verdict


# The README has the page of its commands and runs further below.
@pytest.mark.parametrize(
    "mark", [mark for mark in MARKS if mark.kind != "readme"], ids=name_of
)
def test_the_line_after_a_mark_names_its_data(mark, monkeypatch):
    opened = []

    def noting(path, *rest, **more):
        opened.append(Path(path).name)
        return open(path, *rest, **more)

    monkeypatch.setattr(csv_tables, "open", noting, raising=False)
    marks.lines_below(mark.kind, mark.arguments)
    recorded = {path for path in opened if path.endswith(".csv")}
    named = set(re.findall(r"\[([\w.]+\.csv)\]", mark.following))
    assert named <= recorded
    if recorded:
        assert named


def test_the_site_has_tables_without_marks_and_figures_of_its_own():
    text = (
        "Text.\n<!-- build: rooms -->\n| a |\n| :-- |\n\n"
        "<!-- build: figure memory -->\n![Figure memory](x.svg)\n\nMore.\n"
    )
    site_text = marks.shown(text)
    assert site_text.startswith("Text.\n\n| a |\n| :-- |\n\n<figure")
    assert "build:" not in site_text and "x.svg" not in site_text
    assert site_text.endswith("</figure>\n\nMore.\n")
