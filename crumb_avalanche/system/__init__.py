"""Files, locks, processes, random states and memory of the operating system."""
