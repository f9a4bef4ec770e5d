"""Flags and ``config.yaml`` files of earlier versions, translated to the present settings."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.methods.method_settings import BEFORE, METHOD_SETTINGS, CrumbSettings, method_settings
from crumb_avalanche.runs.presets import DEFAULTS, PRESETS
from crumb_avalanche.runs.settings import RunSettings, as_dict, flat

RENAMED = {"storing_rule": "selection_rule"}
COMPILE = "compile"  # was a setting before there were other runtimes
OF_CRUMB = tuple(asdict(CrumbSettings()))  # were settings of every strategy, though only CRUMB used them
FILE = "strategy_config"  # a YAML file with the settings of the method
DERIVED = ("budget", "capacity")  # fields of a plan that are not settings
DECIDED = ("classes_per_experience", "batch_size")  # None in older files meant the benchmark's value


def present_arguments(arguments: list[str]) -> list[str]:
    """Replace flags of earlier versions in a command line, with a note on stderr for each.

    Args:
        arguments: flags with underscores; see ``underscored``.

    Raises:
        ValueError: a settings file cannot be read.
    """
    present, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--")
        if not flag.startswith("--") or name not in (*RENAMED, *OF_CRUMB, FILE, COMPILE, "config"):
            present.append(argument)
            continue
        if not equals and rest:
            value = rest.pop(0)
        if name == "config":
            present += ["--config", _present_config(value)]
        elif name == COMPILE:
            present.append(f"--runtime={_runtime(value)}")
            _note(flag, present[-1])
        elif name == FILE:
            values = read_method(value)
            present += [f"--method.{key}={json.dumps(setting)}" for key, setting in values.items()]
            _note(flag, " ".join(f"--method.{key} {json.dumps(setting)}" for key, setting in values.items()))
        else:
            flag = f"--{RENAMED[name]}" if name in RENAMED else f"--method.{name}"
            present.append(f"{flag}={value}")
            _note(f"--{name}", flag)
    return present


def _note(old: str, new: str) -> None:
    old, new = old.replace("_", "-"), new.replace("_", "-")
    print(f"note: {old} is deprecated; give {new or 'nothing: the file is empty'}", file=sys.stderr)


def _present_config(path: str) -> str:
    """Return a configuration file translated to YAML text; the path itself if nothing in it needs translation."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no file of settings ({error}); write a line 'name: value' for each") from error
    except (OSError, ValueError, yaml.YAMLError):
        return path  # the parser raises an error that says why
    if not isinstance(values, dict) or not {*RENAMED, *OF_CRUMB, FILE, COMPILE, *DERIVED} & values.keys():
        return path
    beside = Path(path).with_name("result.json")
    result = None
    if values.get(FILE) is not None and not Path(values[FILE]).is_file() and beside.is_file():
        with suppress(ValueError, RecursionError):  # damaged: the missing file is reported
            result = json.loads(beside.read_text(encoding="utf-8"))
    return yaml.safe_dump(present_settings(values, result), sort_keys=False)


def present_settings(values: dict[str, Any], result: dict | None = None) -> dict[str, Any]:
    """Translate the settings of a ``config.yaml`` to their present names, and drop derived fields.

    Args:
        values: content of the file, as any version wrote it; unknown names are kept.
        result: ``result.json`` of the same run; its settings of the method are used instead of a ``strategy_config``.

    Raises:
        ValueError: a settings file cannot be read.
    """
    present = {RENAMED.get(name, name): value for name, value in values.items()}
    if COMPILE in present:
        present["runtime"] = _runtime(present.pop(COMPILE))
    strategy = present.get("strategy")
    of_crumb = {name: present.pop(name) for name in OF_CRUMB if name in present}
    file = present.pop(FILE, None)
    if result is not None and "strategy_settings" in result:
        method = dict(result["strategy_settings"])
    else:
        method = {} if file is None else read_method(file)
    if strategy in (None, "crumb"):
        method = {**of_crumb, **method}
    if result is not None or set(DERIVED) & values.keys():  # written by a run, not by hand
        method = {**BEFORE.get(str(strategy), {}), **method}
    if method or "method" in present:
        present["method"] = {**method, **(present.get("method") or {})}
    return {name: value for name, value in present.items() if name not in DERIVED}


def _runtime(compiled: Any) -> str:
    return "compiled" if str(compiled).lower() == "true" else "torch"


def recorded_settings(values: dict[str, Any], result: dict) -> dict[str, Any]:
    """Return the settings of a finished run in the form of a present plan, with the method's and benchmark's values.

    Args:
        values: content of its ``config.yaml``.
        result: content of its ``result.json``.
    """
    # The file of the method's settings may be missing or changed since: those in the result take precedence.
    older = {name: value for name, value in values.items() if name != FILE or "strategy_settings" not in result}
    try:
        present = present_settings(older, result)
    except ValueError:
        present = present_settings({name: value for name, value in older.items() if name != FILE}, result)
    benchmark = BENCHMARKS.get(present.get("benchmark", ""))
    for name in DECIDED:
        if benchmark is not None and name in present and present[name] is None:
            present[name] = getattr(benchmark, name)
    present.setdefault("runtime", "torch")  # the only one before there was the setting
    method = present.get("method", {})
    known = present.get("strategy") in METHOD_SETTINGS
    if known and set(method) <= set(asdict(METHOD_SETTINGS[present["strategy"]]())):
        present["method"] = asdict(method_settings(present["strategy"], method))
    return present


def usual_settings(benchmark: str, preset: str, strategy: str | None = None) -> dict[str, Any]:
    """Return the settings of a run that sets these only; those of the method are named ``method.NAME``."""
    usual = as_dict(RunSettings()) | DEFAULTS | PRESETS.get(preset, {}) | {"preset": preset}
    usual["method"] = asdict(METHOD_SETTINGS[strategy]()) if strategy in METHOD_SETTINGS else {}
    if benchmark in BENCHMARKS:
        usual |= {name: getattr(BENCHMARKS[benchmark], name) for name in DECIDED}
    return flat(usual)


def read_method(path: str) -> dict[str, Any]:
    """Read settings from a YAML file.

    Raises:
        ValueError: the file is missing or holds no mapping.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no strategy config {file}; give the method's settings as --method.NAME VALUE")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds {values!r}; it must hold settings, one 'name: value' per line")
    return values
