"""``crumb report``: show finished runs as tables and pictures."""

from crumb_avalanche.report.report import main

__all__ = ["main"]
