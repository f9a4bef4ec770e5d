"""CRUMB, compositional replay using memory blocks, as an extension of Avalanche.

Names are looked up on first use: Avalanche takes seconds to import, and the codebook needs only torch.
"""

from importlib import import_module

from crumb_avalanche._version import __version__

_HOMES = {
    "Codebook": "models.codebook",
    "SplitModel": "models.split_model",
    "split_at": "models.split_at",
    "split_backbone": "models.backbones",
    "load_weights": "models.weights",
    "CodeBuffer": "training.storage_policies",
    "ImageBuffer": "training.storage_policies",
    "MapBuffer": "training.storage_policies",
    "EveryJth": "memory.selection",
    "ClassBalancedReservoir": "memory.selection",
    "ReferenceRule": "memory.selection",
    "CRUMBPlugin": "training.crumb",
    "CRUMBStrategy": "training.crumb",
    "SeenClassesPlugin": "training.plugins",
    "StreamStrategy": "training.stream_strategy",
    "ClampGradients": "training.plugins",
    "EpochSchedule": "training.plugins",
    "DivergenceGuard": "training.plugins",
    "PatchedAGEM": "training.avalanche_fixes",
    "FeatureCache": "training.feature_cache",
    "SmallCNN": "models.networks",
    "Learner": "learner.learner",
    "LedgerMetric": "training.ledger",
    "patched_dill": "training.avalanche_fixes",
    "build_strategy": "methods.registry",
    "recommended_strategy": "methods.registry",
    "calibrate": "models.calibration",
    "pretrain": "training.pretraining",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'crumb_avalanche' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"crumb_avalanche.{_HOMES[name]}"), name)


def __dir__():
    return __all__
