"""What all methods train with: Avalanche strategies and plugins, checkpoints, ledger, pretraining."""
