"""Patch for ``save_checkpoint`` of avalanche-lib 0.6, which fails with torch 2.14 or newer.

::

    strategy, done = maybe_load_checkpoint(strategy, "checkpoint.pkl")
    for experience in benchmark.train_stream[done:]:
        strategy.train(experience)
        with patched_dill():
            save_checkpoint(strategy, "checkpoint.pkl")

The strategies of this package also have ``state_dict`` and ``load_state_dict``, without pickle.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def patched_dill() -> Iterator[None]:
    """Let dill find the classes of ``torch.optim`` by name in the ``with`` block.

    Defect: Avalanche's ``save_checkpoint`` pickles with dill, which looks a class up through the attributes of its
    packages. ``torch.optim`` deletes the attributes of its modules, such as ``torch.optim.sgd``, so dill pickles the
    optimiser's class by value, with all that its module refers to. One of these cannot be pickled in torch 2.14 and
    newer: ``PicklingError: Can't pickle sentinel``.

    The missing attributes exist in the block only. Put the block around ``save_checkpoint``, and around
    ``maybe_load_checkpoint`` if you give it ``unique_objects``, which it pickles, too.
    """
    prefix = f"{torch.optim.__name__}."
    modules = {name.removeprefix(prefix): module for name, module in sys.modules.items() if name.startswith(prefix)}
    missing = {name: module for name, module in modules.items() if "." not in name and not hasattr(torch.optim, name)}
    vars(torch.optim).update(missing)
    try:
        yield
    finally:
        for name in missing:
            delattr(torch.optim, name)
