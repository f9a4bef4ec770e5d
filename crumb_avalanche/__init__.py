"""CRUMB, compositional replay using memory blocks, as an extension of Avalanche.

Names are looked up on first use: Avalanche takes seconds to import, and the codebook needs only torch.
"""

from importlib import import_module

from crumb_avalanche._version import __version__

_HOMES = {
    "Codebook": "codebook",
    "SplitModel": "split_model",
    "split_at": "traced_split",
    "split_backbone": "backbones",
    "load_weights": "weights",
    "CodeBuffer": "storage_policy",
    "ImageBuffer": "storage_policy",
    "MapBuffer": "storage_policy",
    "EveryJth": "storage_rules",
    "ClassBalancedReservoir": "storage_rules",
    "ReferenceRule": "storage_rules",
    "CRUMBPlugin": "crumb",
    "CRUMBStrategy": "crumb",
    "SeenClassesPlugin": "streaming",
    "StreamStrategy": "streaming",
    "ClampGradients": "streaming",
    "EpochSchedule": "streaming",
    "DivergenceGuard": "streaming",
    "FeatureCache": "feature_cache",
    "SmallCNN": "backbones",
    "LedgerMetric": "ledger",
    "prepare": "preparation",
    "pretrain": "pretraining",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'crumb_avalanche' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"crumb_avalanche.{_HOMES[name]}"), name)


def __dir__():
    return __all__
