"""CRUMB, compositional replay using memory blocks, as an extension of Avalanche.

Names are looked up on first use: Avalanche takes seconds to import, and the codebook
needs only torch. They stand in `__init__.pyi`, which type checkers and editors read.
"""

import warnings

import lazy_loader

# Avalanche's GEM asks for a QP solver when it is imported; GEM here needs none.
warnings.filterwarnings("ignore", "no QP solver found")

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
