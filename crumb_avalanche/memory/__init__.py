"""Replay buffers: what is kept of an image, which images are kept, and how it is packed."""
