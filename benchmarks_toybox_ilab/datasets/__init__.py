"""One file a data set: layout, table, generator; their registry, streams of Avalanche. Importing it registers all."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
