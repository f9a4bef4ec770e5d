"""Classifiers in closed form from running class statistics."""
