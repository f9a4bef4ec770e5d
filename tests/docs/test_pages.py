"""The README and the pages of the site: length, links, commands, flags, tables and snippets."""

import ast
import configparser
import dataclasses
import re

import pytest
import yaml
from page_commands import ROOT, blocks, commands, pages, prose, script_flags
from site_parts import commands as command_pages
from site_parts import figures, links, notebooks, reference, result_tables

from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.cli.parser import parsed
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs.plan import RunPlan

README = ROOT / "README.md"
MARK = re.compile(r"^<!-- build: (\w+)((?: \w+)*) -->$", re.MULTILINE)
# Programs of others that pages call, and flags of theirs that pages name.
PROGRAMS = "rattler-build docker mosquitto mosquitto_pub mosquitto_sub pip pipx pytest mkdocs pre-commit tar npm node "
PROGRAMS += "mkdir cp cd"
FOREIGN_FLAGS = {
    "--keep-cr",
    "--hypothesis-profile",
    "--strict",
    "--help",
    "--version",
    "--config",
    "--print-config",
}
FOREIGN_FLAGS |= {"--check", "--skip"}


@pytest.fixture(scope="module")
def texts():
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in pages()
    }


@pytest.fixture(scope="module")
def made():
    """Pages that are made when the site is built."""
    return {**command_pages.pages(), **notebooks.pages(), **reference.pages()}


def test_the_readme_is_short_and_its_table_is_that_of_the_recorded_runs():
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    long = [
        line
        for line in text.splitlines()
        if len(line) > 120 and not line.startswith("|") and "](" not in line
    ]
    assert not long, "\n".join(long)
    assert 'pip install -e ".[test]" && pytest' in text.splitlines(), (
        "the line that the check of the project runs"
    )
    assert result_tables.readme() in text, (
        "python docs/site_parts/result_tables.py readme  prints it"
    )


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_the_table_of_rooms_has_all_rooms(package):
    table = result_tables.rooms()
    for path in (ROOT / package).iterdir():
        if path.is_dir() and (path / "__init__.py").exists():
            assert f"| `{package}/{path.name}/` | " in table


def test_lists_have_an_empty_line_before_them(texts):
    """Without one, MkDocs shows them as part of the paragraph."""
    glued = re.compile(r"^(?![-*|>#<\s]).*\n(?=[-*] )", re.MULTILINE)
    assert {
        name: found
        for name, text in texts.items()
        if (found := glued.findall(prose(text)))
    } == {}


def slugs(text: str) -> set[str]:
    """Anchors of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    plain = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings
    ]
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip())
        for heading in plain
    }


def dead_links(
    name: str, text: str, texts: dict[str, str], made: dict[str, str]
) -> list[str]:
    """Relative links of a page that lead nowhere."""
    dead = []
    for match in links.LINK.finditer(prose(text)):
        target, anchor = match[2], (match[3] or "")[1:]
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / name).parent.joinpath(target).resolve()
        inside = path.relative_to(ROOT).as_posix()
        page = (
            made.get(inside.removeprefix("docs/"))
            if inside.startswith("docs/")
            else None
        )
        page = texts.get(inside) if page is None else page
        if not path.is_file() and page is None:
            dead.append(target)
        elif anchor and anchor not in slugs(page or ""):
            dead.append(f"{target}#{anchor}")
    dead += [
        f"#{anchor}"
        for anchor in re.findall(r"\]\(#([^)]*)\)", prose(text))
        if anchor not in slugs(text)
    ]
    return dead


def test_links_and_names_of_files_lead_somewhere(texts, made):
    file = r"\btests/[\w/]+\.\w+|(?<=`)(?:examples|experiments|docs|crumb_avalanche|benchmarks_toybox_ilab)/[a-z0-9_/]+\.\w+"
    named = {
        (name, path) for name, text in texts.items() for path in re.findall(file, text)
    }
    others = ("docs/contrib.md",)  # names files of Avalanche
    assert {
        (name, path)
        for name, path in named
        if not (ROOT / path).exists() and name not in others
    } == set()
    assert {
        name: dead
        for name, text in texts.items()
        if (dead := dead_links(name, text, texts, made))
    } == {}
    text = "[a](none.md) [b](how.md#nowhere) [c](how.md#start) [d](cli/run.md#your-data) [e](#here)\n"
    assert dead_links("docs/x.md", text, texts, made) == [
        "none.md",
        "how.md#nowhere",
        "#here",
    ]


def test_commands_of_crumb_parse(texts):
    count = 0
    for name, text in texts.items():
        for words in commands(text):
            if words[0] != "crumb":
                continue
            try:
                command, values = parsed(words[1:])
                settings = COMMANDS[command].settings(**values)
                assert command != "run" or RunPlan.of(settings).strategy
            except (SystemExit, ValueError) as error:
                pytest.fail(f"{name}: {' '.join(words)}: {error}")
            count += 1
    assert count > 50


def test_other_commands_exist_and_snippets_are_python(texts):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    for name, text in texts.items():
        for code in blocks(text, "python"):
            ast.parse(code)
        for words in commands(text):
            what = f"{name}: {' '.join(words)}"
            if words[0] == "python":
                flags = script_flags(words[1].removeprefix("experiments/"))
                unknown = [
                    word
                    for word in words[2:]
                    if word.startswith("--") and word.replace("_", "-") not in flags
                ]
                assert words[1].startswith("experiments/") and not unknown, what
            elif words[0] in {"pip", "uv"}:
                named = re.findall(
                    r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(words)))
                )
                assert set(named) <= extras, what
            else:
                assert words[0] in {"crumb", *PROGRAMS.split()}, what


def test_flags_in_the_text_exist(texts):
    actions = [
        action
        for parser in command_pages.subparsers().values()
        for action in parser._actions
    ]
    known = {flag for action in actions for flag in command_pages.names_of(action)}
    known |= {
        flag
        for script in (ROOT / "experiments").glob("*.py")
        for flag in script_flags(script.name)
    }
    methods = {
        f"--method.{item.name}"
        for entry in STRATEGIES.values()
        for item in dataclasses.fields(entry.settings)
    }
    unknown = {
        (name, flag)
        for name, text in texts.items()
        for code in re.findall(r"`([^`\n]+)`", prose(text))
        for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*", code)
        if flag.replace("_", "-") not in known | FOREIGN_FLAGS
        and flag not in methods | {"--method.NAME"}
    }
    assert not unknown


def test_every_setting_stands_on_a_page(made):
    for command in COMMANDS:
        actions = command_pages.subparsers()[command]._actions
        assert not re.search(r"^crumb .*'", made[f"cli/{command}.md"], re.MULTILINE), (
            "names as in a terminal"
        )
        positional = {action.dest for action in actions if not action.option_strings}
        for item in dataclasses.fields(COMMANDS[command].settings):
            flag = f"`--{item.name.replace('_', '-')}`"
            assert item.name in positional or flag in made[f"cli/{command}.md"], (
                f"{command}: {item.name}"
            )


def test_every_exported_name_is_in_the_reference(made):
    for package, names in reference.exported().items():
        for name, target in names.items():
            assert f"`{name}`" in made["api/index.md"]
            room = target.removeprefix(f"{package}.").split(".")[0]
            module = target.rpartition(".")[0]
            if name in reference.public(reference.source(module)):
                assert f"::: {module}\n" in made[f"api/{package}/{room}.md"]


def test_every_page_is_in_the_navigation(texts, made):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def entries(part):
        if isinstance(part, str):
            return [part]
        return [
            entry
            for one in (part.values() if isinstance(part, dict) else part)
            for entry in entries(one)
        ]

    shown = entries(settings["nav"])
    written = {name.removeprefix("docs/") for name in texts if name.startswith("docs/")}
    outside = {links.site_path(name) for name in texts if not name.startswith("docs/")}
    assert len(shown) == len(set(shown))
    assert set(shown) == written | outside | set(made)


def test_a_page_has_at_most_1500_words(texts):
    def made(match):
        return (
            ""
            if match[1] == "figure"
            else result_tables.TABLES[match[1]](*match[2].split())
        )

    words = {}
    for name, text in texts.items():
        shown = re.sub(
            r"\]\([^)]*\)", "", MARK.sub(made, text)
        )  # without the targets of links
        words[name] = sum(bool(re.search(r"\w", word)) for word in shown.split())
    assert {name: count for name, count in words.items() if count > 1500} == {}


def test_every_table_is_made_and_shown(texts):
    named = [
        (kind, arguments.split())
        for text in texts.values()
        for kind, arguments in MARK.findall(text)
    ]
    assert {kind for kind, _ in named} | {"readme"} == {"figure", *result_tables.TABLES}
    assert {arguments[0] for kind, arguments in named if kind == "figure"} == set(
        figures.FIGURES
    )
    for kind, arguments in named:
        if kind in result_tables.TABLES:
            rows = result_tables.TABLES[kind](*arguments).splitlines()
            assert len(rows) > 3 and len({row.count("|") for row in rows}) == 1
