"""Toy shapes: outlines, scenes, and the stream that is made of them."""

from benchmarks_toybox_ilab.datasets.toy_shapes import benchmark as benchmark  # registers the stream
