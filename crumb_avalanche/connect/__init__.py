"""Adapters between a learner and other programs, each with an extra of its own."""
