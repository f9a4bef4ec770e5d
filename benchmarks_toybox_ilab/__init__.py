"""Online streams of video frames for Avalanche.

Data sets are tables of frames, which protocols order. Names are looked up on first use,
so that tables can be used without importing torch and Avalanche, which takes seconds.
They stand in `__init__.pyi`, which type checkers and editors read.
"""

import warnings

import lazy_loader

# Avalanche imports its GEM, which streams do not need, with every other part.
warnings.filterwarnings("ignore", "no QP solver found")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
