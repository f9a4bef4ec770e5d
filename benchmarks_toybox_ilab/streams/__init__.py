"""From a table of frames to an Avalanche benchmark.

Orders and protocols, the plan of a stream, and frames as a PyTorch dataset.
"""
