"""One file a data set: layout, table, generator; and their registry.

Importing it registers all.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
