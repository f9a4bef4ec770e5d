"""A table as an Avalanche stream: protocols, orders, transforms, and the PyTorch dataset."""
