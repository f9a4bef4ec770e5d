"""The toy shapes, rendered when read."""
