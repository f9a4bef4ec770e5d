"""The command ``crumb``: parse arguments, call the code of a subcommand, print."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from crumb_avalanche.cli.parser import COMMANDS, parser, present
from crumb_avalanche.system.atomic_file import DISK_FULL
from crumb_avalanche.system.setting_ranges import check_ranges
from crumb_avalanche.system.threads import limit_openmp_spin


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; print errors that the user can fix in one line.

    Returns:
        The exit code.
    """
    limit_openmp_spin()
    given = sys.argv[1:] if arguments is None else arguments
    name, values = given[0] if given else "", {}
    try:
        chosen = parser().parse_args(present(given))
        name = chosen.command
        values = chosen[name].as_dict()
        values.pop("config", None)
        settings = COMMANDS[name][0](**values)
        check_ranges(settings)
        with short_warnings():
            import_module(f"crumb_avalanche.cli.{name}").main(settings)
    except KeyboardInterrupt:
        kept = "what was finished is kept, and the same command resumes there"
        if name == "run":
            kept = "the same command resumes after the last finished experience, or later with --checkpoint-every"
            if not values.get("checkpoint", True):
                kept = "what was learned so far is in interrupted/ in the output folder"
        print(f"crumb {name}: stopped; {kept}", file=sys.stderr)
        return 130  # as shells have it
    except (ValueError, OSError, ImportError, TypeError, RuntimeError) as error:
        full = getattr(error, "errno", None) in DISK_FULL
        curable = isinstance(error, ValueError | ImportError | FileExistsError | PermissionError) or full
        curable |= isinstance(error, FileNotFoundError) and error.errno is None  # with a message of ours
        if type(error).__module__ == "builtins" and not curable:
            raise  # a bug, not bad input: show the traceback
        cure = "; make room on that disk and give the same command again" * full
        print(f"crumb {name}: {error}{cure}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings to the user as one line, without the line of code that warns."""
    usual = warnings.formatwarning

    def short(message: Warning | str, category: type[Warning], *place: object) -> str:
        return f"warning: {message}\n" if category is UserWarning else usual(message, category, *place)  # type: ignore[arg-type]

    warnings.formatwarning = short  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.formatwarning = usual


if __name__ == "__main__":
    raise SystemExit(main())
