"""The fault campaign: one module for each family of faults.

``KINDS`` names the class of each kind and its share of all cases. Kills, disks, processes and whole commands cost more
than damaged files, and have smaller shares.
"""

from importlib import import_module

KINDS = {
    "settings": ("settings.Settings", 0.02),
    "checkpoint": ("tensor_files.Checkpoints", 0.11),
    "pretrained": ("tensor_files.Pretrained", 0.11),
    "weights": ("tensor_files.Weights", 0.10),
    "cache": ("cache.FeatureCacheFiles", 0.11),
    "learner-1": ("learners.RunLearnerFiles", 0.03),
    "learner-2": ("learners.LearnerFiles", 0.05),
    "result": ("run_folders.Results", 0.05),
    "config": ("run_folders.Configs", 0.05),
    "index": ("images.IndexFiles", 0.11),
    "images": ("images.Images", 0.06),
    "videos": ("images.Videos", 0.03),
    "archives": ("archives.Archives", 0.10),
    "disk": ("disks.Disks", 0.02),
    "processes": ("two_processes.TwoProcesses", 0.02),
    "serve": ("requests.Requests", 0.025),
    "kills": ("kills.Kills", 0.005),
}


def kind_named(name: str) -> type:
    """The class of a kind."""
    module, _, name = KINDS[name][0].rpartition(".")
    return getattr(import_module(f"support.faults.{module}"), name)


def cases_of(total: int) -> dict[str, int]:
    """The number of cases of each kind, at least one; together ``total``, if there is room for one of each."""
    counts = {name: max(1, int(total * share)) for name, (_, share) in KINDS.items()}
    counts["checkpoint"] += max(0, total - sum(counts.values()))
    return counts
