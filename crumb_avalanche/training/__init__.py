"""What several methods train with.

CRUMB's plugin, checkpoints, ledger of bytes, pretraining, replay settings.
"""
