"""Finished runs as tables, figures and a page."""
