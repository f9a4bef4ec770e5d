"""Online streams of video frames for Avalanche: data sets as tables of frames, and protocols that order them.

Names are imported on first use, so tables can be used without importing torch and
Avalanche, which takes seconds. They stand in `__init__.pyi`, which type checkers and
editors read.
"""

import importlib
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_LINES = [
    line.split() for line in _STUB.splitlines() if line.startswith("from ")
]  # from MODULE import NAME as NAME
_HOMES = {words[3]: words[1] for words in _LINES}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # later look-ups skip this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
