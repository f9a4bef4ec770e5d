"""Do every script of experiments/ with --quick, then build the site.

Print the seconds of each.

    python tests/quick_to_site.py build/job

It takes under an hour on one core; the same command resumes.

What a step prints goes to a file of its name in the folder. Exit code 1 if a step
failed.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT / name) for name in ("tests/helpers", "tests/experiments", "experiments")
]


def steps(folder: Path) -> dict[str, list[str]]:
    """The commands by name, with the options that the tests give to the scripts."""
    from test_scripts import FIGURES, QUICK

    scripts = {
        name: ["--quick", "--output", str(folder / name), *more]
        for name, (more, _) in QUICK.items()
    }
    scripts |= {name: ["--json", *more] for name, (more, _) in FIGURES.items()}
    scripts["verdicts"] = ["--output", str(folder / "verdicts")]
    commands = {
        name: [str(ROOT / "experiments" / f"{name}.py"), *more]
        for name, more in scripts.items()
    }
    return commands | {
        "site": [
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(folder / "site"),
        ]
    }


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    times, failed = folder / "seconds.csv", 0
    process = (
        dict(line.split(",") for line in times.read_text().splitlines())
        if times.exists()
        else {}
    )
    for name, command in steps(folder).items():
        if name not in process:
            start = time.monotonic()
            with open(folder / f"{name}.txt", "w") as said:
                ended = subprocess.run(
                    [sys.executable, *command],
                    cwd=ROOT,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            process[name] = f"{time.monotonic() - start:.0f}"
            if ended.returncode:
                process[name] += f" failed: see {said.name}"
                failed += 1
            else:
                with open(times, "a") as file:
                    file.write(f"{name},{process[name]}\n")
        print(f"{name:24}{process[name]:>6}", flush=True)
    print(f"{'all':24}{sum(int(text.split()[0]) for text in process.values()):>6}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve()))
