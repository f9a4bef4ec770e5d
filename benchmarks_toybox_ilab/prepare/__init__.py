"""Prepare data sets: from downloads to frames."""
