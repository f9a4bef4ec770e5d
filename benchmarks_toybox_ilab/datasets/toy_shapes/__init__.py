"""Rendered toy shapes."""
