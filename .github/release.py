"""Check that the present commit can be released, and print what to do next.

    python .github/release.py
    python .github/release.py --skip tests

The tests take most of the time; ``--skip`` leaves out some of the checks.
Needs the extras "test" and "docs", and the packages build and twine. It changes nothing
in the checkout, publishes nothing, and leaves sdist and wheel in dist/.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("crumb_avalanche", "benchmarks_toybox_ilab")
VERSION = re.compile(r"\d+\.\d+\.\d+")


class Failure(Exception):
    """A check found something."""


def run(*words: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output.

    Raises:
        Failure: it ended with another status than 0.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise Failure(
            f"{' '.join(words)} ended with "
            f"{done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def version(root: Path = ROOT) -> str:
    """Return the version of the package."""
    text = (root / "crumb_avalanche" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "(.*)"', text)[1]  # type: ignore[index]


def check_versions(root: Path = ROOT) -> str:
    """Package, citation and changelog name one version, with what is new."""
    now = version(root)
    if not VERSION.fullmatch(now):
        raise Failure(
            f"the version is {now!r}; a release has three numbers, such as 0.2.0"
        )
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))[
        "version"
    ]
    if cited != now:
        raise Failure(f"CITATION.cff has version {cited}, crumb_avalanche {now}")
    sections = re.split(
        r"^## ", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    title, _, text = sections[0].partition("\n")
    if title.split()[0] != now:
        raise Failure(
            f"the first section of CHANGELOG.md is {title!r}; rename it to {now}"
        )
    if text.count("\n- ") < 1:
        raise Failure(f"the section {now} of CHANGELOG.md is empty")
    return f"{now}, {text.count(chr(10) + '- ')} entries in the changelog"


def check_citation(root: Path = ROOT) -> str:
    """CITATION.cff has the keys that its schema, version 1.2.0, knows and requires."""
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    known = {
        "cff-version",
        "message",
        "title",
        "type",
        "license",
        "version",
        "authors",
        "preferred-citation",
    }
    required = {"cff-version", "message", "title", "authors"}
    if required - cited.keys() or cited.keys() - known - {
        "abstract",
        "date-released",
        "keywords",
        "repository-code",
    }:
        raise Failure(
            f"CITATION.cff has the keys {sorted(cited)}; {sorted(required)} are "
            "required"
        )
    for entry in (cited, cited["preferred-citation"]):
        if not entry["authors"] or not all(
            "name" in one or "family-names" in one for one in entry["authors"]
        ):
            raise Failure("an author in CITATION.cff has neither name nor family-names")
    return "required keys and authors"


def check_tree() -> str:
    """All changes are committed, and the version has no tag yet."""
    if changed := run("git", "status", "--porcelain"):
        raise Failure(f"commit or remove these first:\n{changed}")
    tag = f"v{version()}"
    if run("git", "tag", "--list", tag):
        raise Failure(f"the tag {tag} exists; raise the version")
    return run("git", "rev-parse", "--short", "HEAD").strip()


def built(place: Path) -> tuple[Path, Path]:
    """Build sdist and wheel of the committed files in a new folder."""
    source = place / "source"
    source.mkdir(parents=True)
    archive = place / "source.tar"
    run("git", "archive", "-o", str(archive), "HEAD")
    with tarfile.open(archive) as file:
        file.extractall(source, filter="data")
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    options = os.environ.get("BUILD_ARGS", "").split()
    words = [
        sys.executable,
        "-m",
        "build",
        *options,
        "--outdir",
        str(place / "dist"),
        str(source),
    ]
    run(*words, cwd=place, SOURCE_DATE_EPOCH=epoch, PYTHONHASHSEED=str(len(place.name)))
    return next((place / "dist").glob("*.tar.gz")), next((place / "dist").glob("*.whl"))


def check_files() -> str:
    """Two builds give the same wheel; twine accepts it, and its files are right."""
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = built(Path(folder, "one"))
        _, again = built(Path(folder, "another"))
        digests = [
            hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, again)
        ]
        if len(set(digests)) > 1:
            raise Failure(f"two builds of the wheel differ: {digests}")
        names = set(zipfile.ZipFile(wheel).namelist())
        needed = {
            "crumb_avalanche/py.typed",
            "benchmarks_toybox_ilab/py.typed",
            "crumb_avalanche/serve/page/page.html",
        }
        if absent := {name for name in needed if name not in names}:
            raise Failure(f"the wheel lacks {sorted(absent)}")
        if others := {name for name in names if not name.startswith(PACKAGES)}:
            raise Failure(f"the wheel holds {sorted(others)[:5]} beside the packages")
        run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        (ROOT / "dist").mkdir(exist_ok=True)
        for path in (sdist, wheel):
            shutil.copy(path, ROOT / "dist")
    return f"{wheel.name}, sha256 {digests[0]}"


def check_site() -> str:
    """The site builds without a warning, notebooks included."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
        return f"{len(list(Path(folder).rglob('*.html')))} pages"


def check_tests() -> str:
    """All tests pass, the slow ones too."""
    lines = [
        run(sys.executable, "-m", "pytest", *more).strip().splitlines()[-1]
        for more in ([], ["-m", "slow"])
    ]
    return "; ".join(lines)


CHECKS: dict[str, Callable[[], str]] = {
    "versions": check_versions,
    "citation": check_citation,
    "tree": check_tree,
    "files": check_files,
    "site": check_site,
    "tests": check_tests,
}


def main() -> int:
    """Do the checks; return 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--skip",
        nargs="*",
        default=[],
        choices=list(CHECKS),
        help="checks to leave out",
    )
    skipped = parser.parse_args().skip
    failed = False
    for name, check in CHECKS.items():
        if name in skipped:
            print(f"skipped  {name}")
            continue
        try:
            print(f"passed   {name}: {check()}", flush=True)
        except Failure as failure:
            failed = True
            print(f"FAILED   {name}: {failure}", flush=True)
    if failed or skipped:
        print("\nNot ready." if failed else "\nNot everything was checked.")
        return int(failed)
    print(
        f"\nReady. Next:\n  git tag -a v{version()} -m v{version()} && git push origin "
        f"v{version()}"
    )
    print("  python -m twine upload dist/*")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
