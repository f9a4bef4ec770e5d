"""Frames of a data set as a table."""
