"""Extension of griffe: show the generators of Avalanche benchmarks with what their decorator adds to them."""

import importlib
import inspect
import re
from typing import Any

from griffe import Docstring, Extension, Function, Parameter, ParameterKind, Parameters

KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_KEYWORD: ParameterKind.var_keyword,
}


class Generators(Extension):
    """Replaces signature and docstring of a function with the decorator ``generator`` by those at run time."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Replace them if it is such a function; griffe calls this for every one."""
        if not any(str(decorator.value).startswith("generator(") for decorator in func.decorators):
            return
        generator = getattr(importlib.import_module(func.parent.path), func.name)
        written = func.docstring
        options = {"parser": written.parser, "parser_options": written.parser_options}
        func.docstring = Docstring(generator.__doc__, lineno=written.lineno, parent=func, **options)
        func.parameters = Parameters(*map(_parameter, inspect.signature(generator).parameters.values()))
        func.returns = "FrameBenchmark"


def _parameter(one: inspect.Parameter) -> Parameter:
    default = None if one.default is one.empty else repr(one.default)
    if one.kind is one.VAR_KEYWORD:
        default = "{}"
    annotation = re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", inspect.formatannotation(one.annotation))  # names without modules
    return Parameter(one.name, annotation=annotation, kind=KINDS[one.kind], default=default)
