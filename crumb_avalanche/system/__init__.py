"""What knows no network: files, locks, processes, RNG states, ranges of settings."""
