"""Modules that the scripts of experiments/ share."""
