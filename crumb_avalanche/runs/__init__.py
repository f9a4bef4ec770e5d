"""Runs: settings, plan, session, result folder."""
