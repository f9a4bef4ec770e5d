"""What all methods train with: strategies, plugins, CRUMB's own, replay settings, checkpoints, ledger, pretraining."""
