"""One file a method: plugin, augmentation, losses, or class statistics in closed form; shared parts; the registry."""
