"""CRUMB, compositional replay using memory blocks, as an extension of Avalanche.

Names are looked up on first use: Avalanche takes seconds to import, and the codebook
needs only torch. They stand in `__init__.pyi`, which type checkers and editors read.
"""

from importlib import import_module
from pathlib import Path

__version__ = "0.2.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_LINES = [
    line.split() for line in _STUB.splitlines() if line.startswith("from ")
]  # from MODULE import NAME as NAME
_HOMES = {words[3]: words[1] for words in _LINES}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(
            f"module 'crumb_avalanche' has no attribute {name!r}; "
            f"it has {', '.join(__all__)}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return __all__
