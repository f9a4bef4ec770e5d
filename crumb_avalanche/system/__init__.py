"""Atomic and tensor files, locks, processes, progress bars, RNG states, ranges of settings: what knows no network."""
