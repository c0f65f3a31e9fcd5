"""The names of Limba's modules in gin files: `network.T5Config` is `limba.network.t5.T5Config`.

A module has the name of its file, except those of `MODULES`, most of which have T5X's name.
"""

import contextlib
import re
from collections.abc import Mapping

import gin

from limba.files import python_path
from limba.files.repository import PACKAGE
from limba.gin_config import t5x_names

_T5X_MODULES = ("t5x.checkpoints", "t5x.examples.t5.network", "t5x.gin_utils", "t5x.optimizers", "t5x.partitioning")
MODULES: Mapping[str, str] = {
    "answers": "limba.inference.answering",
    "data": "limba.data.contract",
    "models": "limba.models",
    "vocabularies": "tasks.vocabularies",
    **{module.rpartition(".")[2]: t5x_names.MODULES[module][0] for module in _T5X_MODULES},
}

# Of classes that gin files import from another module than their own.
_BY_MODULE = {"limba.network.encoders.config": "encoder"}

# In the value of a binding; scopes may come before the module.
_REFERENCE = re.compile(r"@([\w/]+\.\w+)")


def import_line(name: str) -> str:
    """The line with which a gin file imports the module of Limba that it calls `name`; "" if there is none."""
    if module := MODULES.get(name):
        package, _, file = module.rpartition(".")
        return f"from {package} import {file}" + ("" if file == name else f" as {name}")
    files = sorted(PACKAGE.rglob(f"{name}.py"), key=lambda file: len(file.parts))
    if not files:
        return ""
    package = ".".join(files[0].parent.relative_to(PACKAGE.parent).parts)
    return f"from {package} import {name}"


def with_imports(binding: str) -> str:
    """A binding of the command line as a gin file; "" if nothing in it can be imported.

    A function that gin knows already has its whole name there.
    """
    name, equals, value = binding.partition("=")
    selector, _, parameter = name.strip().rpartition(".")
    scope, slash, selector = selector.rpartition("/")
    known = None
    with contextlib.suppress(KeyError):  # several match
        known = gin.config._REGISTRY.get_match(selector)
    if known is None:
        imports = imports_for(binding)
    else:
        module = known.wrapped.__module__
        imports = f"import {module}\n{imports_for(f'={value}')}"
        binding = f"{scope}{slash}{module}.{known.wrapped.__qualname__}.{parameter} {equals}{value}"
    return f"from __gin__ import dynamic_registration\n{imports}\n{binding}" if imports else ""


def imports_for(binding: str) -> str:
    """The imports that `utils.DatasetConfig.seed = 1` or `X.decode_fn = @decoding.beam_search` needs, T5X's first."""
    name, _, value = binding.partition("=")
    names = [name.strip(), *_REFERENCE.findall(value)]
    modules = dict.fromkeys(name.rpartition("/")[2].partition(".")[0] for name in names)
    return "\n".join(filter(None, map(_t5x_import_line, modules)))


def _t5x_import_line(name: str) -> str:
    """`import_line` with T5X's module where there is one: it also has what Limba keeps in other modules."""
    if name in ("train_script", "eval_script", "infer_script"):
        return f"import __main__ as {name}"
    for package in ("t5x", "t5x.examples.t5"):
        if t5x_names.MODULES.get(f"{package}.{name}"):
            return f"from {package} import {name}"
    is_module = name.isidentifier() and python_path.find(name) is not None  # SeqIO, optax, the user's own
    return import_line(name) or (f"import {name}" if is_module else "")


def gin_name(of: type) -> str:
    """The name of a class in gin files: `network.T5Config`."""
    by_module = {module: name for name, module in MODULES.items()} | _BY_MODULE
    return f"{by_module.get(of.__module__, of.__module__.rpartition('.')[2])}.{of.__name__}"
