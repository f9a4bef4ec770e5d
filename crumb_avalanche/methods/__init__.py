"""One file a method: plugin, losses, or class statistics in closed form.

And what methods share, and the registry.
"""
