"""Checksums of tensors, to compare what was read with what was written."""

from crumb_avalanche.system.tensor_file import checksum


def checksums(tensors):
    """The checksum of each tensor, by name."""
    return {name: checksum(name, tensor) for name, tensor in tensors.items()}
