"""Strategies by name: ``registry`` has CRUMB, its bounds and its plain-replay siblings."""
