"""Names of backbones, and what those of timm say of a network. Imports timm when it is asked about one of timm's."""

import difflib
from functools import lru_cache
from types import ModuleType
from typing import Any

from crumb_avalanche.models.preprocessing import Preprocessing

PREFIX = "timm:"  # of the names of timm's networks


def is_timm(backbone: str) -> bool:
    """Whether a backbone is one of timm's."""
    return backbone.startswith(PREFIX)


def import_timm() -> ModuleType:
    """Return timm.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"{PREFIX}NAME needs timm: pip install 'crumb-avalanche[timm]'") from error
    return timm


@lru_cache(maxsize=64)
def config_of(backbone: str) -> Any:
    """Return timm's ``PretrainedCfg`` of ``timm:NAME``.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm has no network of that name.
    """
    timm, name = import_timm(), backbone.removeprefix(PREFIX)
    network = name.partition(".")[0]
    if not timm.is_model(name):
        near = difflib.get_close_matches(network, timm.list_models(), 5, 0.5)
        nearest = f"the nearest names are {', '.join(near)}" if near else "none is near"
        raise ValueError(f"timm has no network {name!r}; {nearest}: timm.list_models('*WORD*') finds others")
    try:
        return timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    except RuntimeError as error:
        raise ValueError(f"{error} timm has weights {', '.join(timm.list_pretrained(f'{network}.*'))}") from error


def full_name(backbone: str) -> str:
    """Return ``timm:NETWORK.TAG`` of ``timm:NETWORK``, and other names as they are.

    Which weights are the default of a network may change with timm's version; the tag names them.

    Raises:
        ImportError: timm is needed and not installed.
        ValueError: timm has no network of that name.
    """
    if not is_timm(backbone) or "." in backbone:
        return backbone
    tag = config_of(backbone).tag
    return f"{backbone}.{tag}" if tag else backbone


def preprocessing_of(backbone: str) -> Preprocessing:
    """Return what a backbone expects of its images, as timm gives it for its own; errors as for ``full_name``."""
    if not is_timm(backbone):
        return Preprocessing()
    config = config_of(backbone)
    from timm.data import resolve_data_config

    found = resolve_data_config({}, pretrained_cfg=config.to_dict())
    return Preprocessing(found["input_size"][-1], found["interpolation"], tuple(found["mean"]), tuple(found["std"]))


def source_of(backbone: str) -> str:
    """Say where the published weights of one of timm's networks come from; errors as for ``full_name``."""
    licence = config_of(backbone).license
    return f"timm's weights of {backbone}" + (f" ({licence})" if licence else "")
