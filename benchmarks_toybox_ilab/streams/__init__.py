"""Protocols, orders and the PyTorch dataset of a stream."""
