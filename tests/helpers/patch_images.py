"""Images of four coloured patches, a class by its colours."""

import numpy as np

SIZE = 32
COLOURS = np.random.default_rng(7).integers(0, 256, (60, 4, 3))


def images(number, count=6, seed=0):
    """Noisy images of four patches whose colours are a class's own; ``(count, 32, 32, 3)`` uint8."""
    random = np.random.default_rng(1000 * seed + number)
    patches = np.kron(COLOURS[number].reshape(2, 2, 3), np.ones((16, 16, 1)))
    return np.clip(patches + random.normal(0, 25, (count, SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
