"""What several methods train with: strategies, CRUMB's plugin, replay settings, checkpoints, ledger, pretraining."""
