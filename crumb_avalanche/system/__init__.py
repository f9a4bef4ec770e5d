"""Files, locks, processes, RNG state and memory of the operating system."""
