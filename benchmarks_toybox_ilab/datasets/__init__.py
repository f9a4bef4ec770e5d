"""One file a data set: its layout, its table and its generator; importing this package registers all."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
