"""Methods in gin files, as T5X's have them: `models.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 4`.

For the first binding of a method gin registers its class again, under the name that this file has for it. Where that is
another name than before (T5X's and Limba's are two), all bindings of the class are lost. Here it keeps its name. gin
also refuses a class that inherits such a method; here the method keeps the bindings that it has.
"""

import inspect
from typing import Any

from gin import config as gin_config

_register = gin_config.ParseContext._register
_find_registered_methods = gin_config._find_registered_methods


def install() -> None:
    """Changes gin's registration of methods. Does nothing the second time."""
    gin_config.ParseContext._register = _register_under_known_name
    gin_config._find_registered_methods = _find_inherited_methods_too


def _register_under_known_name(context: Any, names: list[str], values: list[Any]) -> Any:
    method, owner = values[-1], values[-2] if len(values) > 1 else None
    known = gin_config._inverse_lookup(owner) if inspect.isfunction(method) and inspect.isclass(owner) else None
    if known is None:
        return _register(context, names, values)
    module, selector = known.import_source
    source = module, f"{selector}.{names[-1]}"
    again = {"avoid_class_mutation": True}
    gin_config._make_configurable(method, name=names[-1], module=known.selector, import_source=source, **again)
    gin_config._make_configurable(
        owner, name=known.name, module=known.module, import_source=known.import_source, **again
    )
    made = gin_config._inverse_lookup(owner)
    for reference in gin_config.iterate_references(gin_config._CONFIG, to=known.wrapper):
        reference._configurable = made
        reference._scoped_configurable_fn = gin_config._decorate_with_scope(made, reference.scopes)
    return gin_config._INVERSE_REGISTRY[method]


def _find_inherited_methods_too(made: type, selector: str) -> dict[str, Any]:
    known = gin_config._INVERSE_REGISTRY
    inherited = {
        method: found
        for method, found in known.items()
        if found.is_method and found.module != selector and getattr(made, found.name, None) is method
    }
    for method in inherited:
        del known[method]
    try:
        methods = _find_registered_methods(made, selector)
    finally:
        known.update(inherited)
    return methods | {found.name: found.wrapper for found in inherited.values()}
