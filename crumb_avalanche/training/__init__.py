"""Strategies and plugins for Avalanche."""
