"""Replay buffers: what is stored of an image, of which images, and how packed."""
