"""``crumb report``: tables and pictures of finished runs."""

from crumb_avalanche.report.report import main

__all__ = ["main"]
