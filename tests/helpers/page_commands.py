"""Commands in the shell blocks of Markdown pages, with the variables of the page filled
in.
"""

import functools
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE
)  # indented in a tab
SEPARATORS = {";", "&&", "|", "do", "done"}


def pages() -> list[Path]:
    """All Markdown pages of the repository that people read."""
    names = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "experiments/README.md",
    ]
    return [ROOT / name for name in names] + sorted((ROOT / "docs").glob("*.md"))


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return [
        textwrap.dedent(code)
        for _, name, code in BLOCK.findall(text)
        if name == language
    ]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return BLOCK.sub("", text)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; of a loop the first turn."""
    variables: dict[str, str] = {}

    def filled(line: str) -> str:
        line = re.sub(r'"\$\{(\w+)\[@\]\}"', r"$\1", line)  # all words of an array
        return re.sub(r"\$(\w+)", lambda match: variables.get(match[1], match[0]), line)

    for code in blocks(text, "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            array = re.fullmatch(r"\s*(\w+)=\((.*)\)", line)
            if assigned := array or re.fullmatch(r'\s*(\w+)="(.*)"', line):
                variables[assigned[1]] = filled(assigned[2])
                continue
            if loop := re.match(r"\s*for (\w+) in (\S+) ?[^;]*; do", line):
                variables[loop[1]] = loop[2]
                line = line[loop.end() :]
            words: list[str] = []
            lexer = shlex.shlex(filled(line), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            for word in [*lexer, ";"]:
                if word not in SEPARATORS:
                    words.append(word)
                elif words:
                    yield words
                    words = []


@functools.cache
def script_flags(script: str) -> set[str]:
    """Flags that a script of experiments/ names, itself or by the common options.

    This takes no import; ``test_site.py`` parses the same commands with the scripts'
    parsers.
    """
    folder = ROOT / "experiments"
    paths, flags = [folder / script], set()
    text = paths[0].read_text()
    modules = ("common_options", "bench", "open_set")
    paths += [
        folder / "support" / f"{module}.py"
        for module in modules
        if f"support.{module}" in text
    ]
    for path in paths:
        flags.update(re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text()))
    return flags
