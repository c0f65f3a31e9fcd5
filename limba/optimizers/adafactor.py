"""Adafactor (arXiv:1804.04235) with T5X's numbers and state names.

The statistics of a matrix are kept as two vectors, so the optimizer needs almost no memory. Which two dims of a tensor
are factored follows its shape (rank 2 and below) or its logical axes (scanned layers, rank 3 and above).
"""

import collections
import dataclasses
import enum
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from limba.devices import target
from limba.optimizers import argument_checks

Array = jax.Array
PyTree = Any


class HeuristicRule(enum.Enum):
    """The value in a `factor_map` of parameters that are factored by their shape."""

    token = 1


HEURISTIC_RULE = HeuristicRule.token


class HParamMap:
    """A hyperparameter by the parameter it is for: the value of the first expression found in the parameter's path.

    Attributes:
      rules: pairs of a regular expression and a value.
    """

    def __init__(self, rules: Iterable[tuple[str, Any]]):
        self._rules = [(re.compile(expression), value) for expression, value in rules]

    def __getitem__(self, path: str) -> Any:
        """Raises KeyError if no expression is found in `path`."""
        for expression, value in self._rules:
            if expression.search(path):
                return value
        expressions = [expression.pattern for expression, _ in self._rules]
        raise KeyError(f"No rule of the HParamMap {expressions} is for {path}; end it with ('.*', …).")


class FactorDim(enum.Enum):
    """What factoring does to a dim: reduced into `v_row`/`v_col`, kept apart (BATCH), or unfactored (NONE)."""

    BATCH = "batch"
    ROW = "row"
    COLUMN = "column"
    NONE = "none"


def factor_name_to_factordim(name: str | FactorDim) -> FactorDim:
    """`'row'`, `'col'`, `'column'`, `'batch'`, `'none'`, `'unfactorized'` in any case, as gin files write them.

    Raises:
      ValueError: for another name.
    """
    if isinstance(name, FactorDim):
        return name
    canonical = {"col": "column", "unfactorized": "none"}.get(name.lower(), name.lower())
    try:
        return FactorDim(canonical)
    except ValueError:
        raise ValueError(f"{name!r} is not a way to factor a dim; choose 'row', 'column', 'batch' or 'none'.") from None


def _dims_of(rule: tuple[FactorDim, ...], kind: FactorDim) -> tuple[int, ...]:
    return tuple(i for i, factor_dim in enumerate(rule) if factor_dim is kind)


def standard_logical_factor_rules() -> Mapping[str, FactorDim]:
    """How each logical axis is factored, as T5X's rules of the same name."""
    return {
        "vocab": FactorDim.COLUMN,
        "embed": FactorDim.ROW,
        "mlp": FactorDim.COLUMN,
        "heads": FactorDim.COLUMN,
        "kv": FactorDim.COLUMN,
        "joined_kv": FactorDim.COLUMN,
        "relpos_buckets": FactorDim.NONE,
        "abspos_buckets": FactorDim.NONE,
        "token_types": FactorDim.NONE,
        "layers": FactorDim.BATCH,
        "stack": FactorDim.BATCH,
        "expert": FactorDim.BATCH,
        "q_wi_fused": FactorDim.COLUMN,
        "o_wo_fused": FactorDim.COLUMN,
        "multiquery_heads": FactorDim.COLUMN,
        "kv_fused": FactorDim.COLUMN,
        "layer_norm_scale": FactorDim.NONE,
        "mlp_activations": FactorDim.COLUMN,
    }


@flax.struct.dataclass
class ParamState:
    """Statistics of one parameter; slots that are not in use are `zeros((1,))`."""

    m: Array  # momentum, as the parameter
    v: Array  # second moment of an unfactored parameter, as the parameter
    v_row: Array  # mean over the COLUMN dims (for matrices: over the larger dim)
    v_col: Array  # mean over the ROW dims (for matrices: over the smaller dim)


@flax.struct.dataclass
class _Factoring:
    """The dims of one parameter that each statistic averages over, and the dims of one layer."""

    row_reduced: tuple[int, ...] = flax.struct.field(pytree_node=False)
    col_reduced: tuple[int, ...] = flax.struct.field(pytree_node=False)
    layer_dims: tuple[int, ...] = flax.struct.field(pytree_node=False)

    @property
    def factored(self) -> bool:
        return bool(self.row_reduced and self.col_reduced)


# Values of a parameter that costs less to copy than to start kernels for.
_SMALL = 65_536


@flax.struct.dataclass
class _Scales:
    """What is reduced from a gradient and a parameter.

    Attributes:
      means: of the squared gradient: over rows and over columns; without factoring the squares themselves.
      roots: their product with the gradient is the direction of the update.
      direction, param: RMS of the direction and of the parameter, by layer.
    """

    means: tuple[Array, ...]
    roots: tuple[Array, ...]
    direction: Array
    param: Array


class Adafactor:
    """The optimizer definition that gin binds as `@adafactor.Adafactor()`.

    It follows optax's protocol with extra arguments: `init(params)` and
    `update(grads, state, params, learning_rate=…, step=…)`. One step, all in float32, with `t` the 0-based step:

    - `beta2 = 1 - (max(0, t - step_offset) + 1)^-decay_rate`, `g2 = grad^2 + epsilon1`
    - factored: `v_row`, `v_col` are running means of `g2` over one dim each,
      `y = grad * (v_row / mean(v_row))^-1/2 * v_col^-1/2`; else `y = grad * v^-1/2`
    - `y /= max(1, rms(y) / clipping_threshold)`
    - `update = learning_rate * max(rms(param), epsilon2) * y`, with momentum `m = beta1 * m + (1 - beta1) * update`
    - `param = (1 - wd) * param - update`, where `wd` is `weight_decay_rate`, times
      `learning_rate ^ weight_decay_rate_lr_exponent` if that is given

    `rms` and the clipping are per layer for scanned layers.

    Attributes:
      learning_rate: used only where none is passed to `update`; the Trainer passes its schedule.
      factored: keep row and column statistics where possible.
      multiply_by_parameter_scale: scale updates by the RMS of the parameter; an `HParamMap` decides for each.
      weight_decay_rate: of all parameters; an `HParamMap` has one for each.
      beta1: momentum if it is not None, which needs a state as large as the parameters.
      min_dim_size_to_factor: matrices with a smaller dim are not factored.
      factor_map: for parameters without logical axes: an `HParamMap` of tuples with a `FactorDim` for each dim, or of
        `HEURISTIC_RULE`.
      logical_factor_rules: logical axis to `FactorDim` (or its name); needed for rank 3 and above.
      global_norm_clip_threshold: clips the gradient's global norm before the statistics.
      max_parameter_scale: an upper bound of the parameter scale.
      skip_nan_updates: parameters and statistics that would not be finite keep their value. (T5X lets infinities
        into the statistics, from which they never leave.)

    Raises:
      ValueError: for a `factor_map` together with `factored = False`, and for a number that cannot be meant.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        factored: bool = True,
        multiply_by_parameter_scale: bool | HParamMap = True,
        beta1: float | None = None,
        decay_rate: float = 0.8,
        step_offset: int = 0,
        clipping_threshold: float | None = 1.0,
        weight_decay_rate: float | HParamMap | None = None,
        min_dim_size_to_factor: int = 128,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        dtype_momentum: Any = jnp.float32,
        factor_map: HParamMap | None = None,
        logical_factor_rules: Mapping[str, FactorDim | str] | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        global_norm_clip_threshold: float | None = None,
        max_parameter_scale: float | None = None,
        skip_nan_updates: bool = False,
    ):
        if factor_map is not None and not factored:
            raise ValueError("Adafactor.factor_map is given while Adafactor.factored is False; drop one of them.")
        self.learning_rate = learning_rate
        self.factored = factored
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        self.beta1 = beta1
        self.decay_rate = decay_rate
        self.step_offset = step_offset
        self.clipping_threshold = clipping_threshold
        self.weight_decay_rate = weight_decay_rate
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.epsilon1 = epsilon1
        self.epsilon2 = epsilon2
        self.dtype_momentum = jnp.dtype(dtype_momentum)
        self.factor_map = factor_map
        of_name, rules = factor_name_to_factordim, logical_factor_rules
        self.logical_factor_rules = None if rules is None else {axis: of_name(rule) for axis, rule in rules.items()}
        self.weight_decay_rate_lr_exponent = weight_decay_rate_lr_exponent
        self.global_norm_clip_threshold = global_norm_clip_threshold
        self.max_parameter_scale = max_parameter_scale
        self.skip_nan_updates = skip_nan_updates
        self._param_axes: dict[str, tuple[str | None, ...]] = {}
        one_rate = None if isinstance(weight_decay_rate, HParamMap) else weight_decay_rate
        checked = vars(self) | {"weight_decay_rate": one_rate}
        argument_checks.check_numbers("Adafactor", argument_checks.ADAFACTOR, checked)

    def set_param_axes(self, param_axes: PyTree) -> None:
        """Tells the logical axes of every parameter: a tree as the parameters, with `PartitionSpec` leaves."""
        flat = traverse_util.flatten_dict(param_axes, sep="/")
        self._param_axes = {name: tuple(axes) for name, axes in flat.items()}

    # ------------------------------------------------ optax protocol ------------------------------------------------

    def init(self, params: PyTree) -> PyTree:
        """A tree as `params`, with a `ParamState` for each parameter."""
        new_alike = _traced_once(self._new_state)
        return _map_named(lambda name, p: new_alike((self._factoring(name, p.shape), p.shape)), params)

    def update(
        self,
        grads: PyTree,
        state: PyTree,
        params: PyTree,
        *,
        learning_rate: Array | float | None = None,
        step: Array,
    ) -> tuple[PyTree, PyTree]:
        """Additive updates and the new statistics. Raises ValueError if no learning rate is known."""
        learning_rate = self.learning_rate if learning_rate is None else learning_rate
        if learning_rate is None:
            raise ValueError("Adafactor has no learning rate: bind Trainer.learning_rate_fn.")
        if self.global_norm_clip_threshold:
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)))
            threshold = self.global_norm_clip_threshold
            scale = threshold * jnp.minimum(1.0 / threshold, 1.0 / norm)
            grads = jax.tree.map(lambda g: g * scale, grads)

        step = jnp.asarray(step, jnp.float32)
        beta2 = self._beta2(step)
        scales = self._scales(params, grads, state, beta2)
        update_alike = _traced_once(self._update_param)

        def update_one(name: str, param: Array, *others: Any) -> Any:
            key = self._factoring(name, param.shape), self._is_scaled(name)
            return update_alike(key, param, *others, self._weight_decay(name, learning_rate), beta2, learning_rate)

        updates, new_state = _split_pairs(_map_named(update_one, params, grads, state, scales))
        if self.skip_nan_updates:
            updates = jax.tree.map(lambda u: jnp.where(jnp.isfinite(u), u, 0.0), updates)
            new_state = jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new, old), new_state, state)
        return updates, new_state

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        """Logical axes of the state: `m` and a full `v` as their parameter, the vectors replicated."""

        def axes_of(name: str, param: Any, axes: Any) -> ParamState:
            full_v = not self._factoring(name, param.shape).factored
            slots: Any = (axes if self.beta1 is not None else None, axes if full_v else None, None, None)
            return ParamState(*slots)

        return _map_named(axes_of, params, param_axes)

    # ------------------------------------------------ one parameter -------------------------------------------------

    def _factoring(self, name: str, shape: Sequence[int]) -> _Factoring:
        every_dim = tuple(range(len(shape)))
        if not self.factored:
            return _Factoring((), (), every_dim)
        rule = self._factor_rule(name, shape)
        batch_dims = _dims_of(rule, FactorDim.BATCH)
        if len(shape) <= 2 and not batch_dims:
            return self._factoring_by_size(shape, every_dim)
        if len(rule) != len(shape):
            raise ValueError(
                f"Adafactor cannot factor {name} of shape {tuple(shape)}: it has no logical axes. Declare them with "
                "param_with_axes, or set Adafactor.factored = False."
            )
        layer_dims = tuple(i for i in every_dim if i not in batch_dims)
        rows, columns = _dims_of(rule, FactorDim.ROW), _dims_of(rule, FactorDim.COLUMN)
        if not (rows and columns):
            return _Factoring((), (), layer_dims)
        if unfactored := _dims_of(rule, FactorDim.NONE):
            raise ValueError(
                f"Adafactor's rules make {name} of shape {tuple(shape)} both factored and, in its dims {unfactored}, "
                "unfactored; say ROW, COLUMN or BATCH for every dim."
            )
        return _Factoring(row_reduced=columns, col_reduced=rows, layer_dims=layer_dims)

    def _factor_rule(self, name: str, shape: Sequence[int]) -> tuple[FactorDim, ...]:
        """The rule of each dim; empty for a parameter that is factored by its shape."""
        if self.logical_factor_rules is None or not self._param_axes:
            rule = self.factor_map[name] if self.factor_map else HEURISTIC_RULE
            return () if rule is HEURISTIC_RULE or rule is None else tuple(map(factor_name_to_factordim, rule))
        axes = self._param_axes.get(name, ())
        unknown = [axis for axis in axes if axis not in self.logical_factor_rules]
        if not unknown:
            return tuple(self.logical_factor_rules[axis] for axis in axes if axis is not None)
        if len(shape) > 2:
            raise ValueError(
                f"Adafactor cannot factor {name} {tuple(shape)}: no rule for its logical axes {unknown}. Bind "
                "Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules() or add them."
            )
        return ()

    def _factoring_by_size(self, shape: Sequence[int], layer_dims: tuple[int, ...]) -> _Factoring:
        """Matrices: `v_row` averages over the larger dim, `v_col` over the smaller one."""
        if len(shape) < 2 or min(shape) < self.min_dim_size_to_factor:
            return _Factoring((), (), layer_dims)
        smaller, larger = (int(i) for i in np.argsort(shape, kind="stable"))
        return _Factoring(row_reduced=(larger,), col_reduced=(smaller,), layer_dims=layer_dims)

    def _new_state(self, key: tuple[_Factoring, tuple[int, ...]]) -> ParamState:
        dims, shape = key
        unused = lambda: jnp.zeros((1,), jnp.float32)  # noqa: E731
        without = lambda reduced: tuple(n for i, n in enumerate(shape) if i not in reduced)  # noqa: E731
        return ParamState(
            m=jnp.zeros(shape, self.dtype_momentum) if self.beta1 is not None else unused(),
            v=unused() if dims.factored else jnp.zeros(shape, jnp.float32),
            v_row=jnp.zeros(without(dims.row_reduced), jnp.float32) if dims.factored else unused(),
            v_col=jnp.zeros(without(dims.col_reduced), jnp.float32) if dims.factored else unused(),
        )

    def _beta2(self, step: Array) -> Array:
        # Steps before the offset count as the first one; a negative base would make NaN.
        return 1.0 - (jnp.maximum(step - self.step_offset, 0.0) + 1.0) ** (-self.decay_rate)

    def _scales(self, params: PyTree, grads: PyTree, state: PyTree, beta2: Array) -> PyTree:
        """A `_Scales` for each parameter.

        On GPUs parameters that are alike are reduced as one array: each of a T5's two hundred would have some ten
        kernels of its own, which take longer to start than to run.
        """
        if target.platform() != "gpu":
            of_alike = _traced_once(self._scales_of)
            scales_of = lambda name, p, *others: of_alike(self._factoring(name, p.shape), p, *others, beta2)  # noqa: E731
            return _map_named(scales_of, params, grads, state)
        keys, arguments = {}, {}

        def collect(name: str, param: Array, grad: Array, state: ParamState) -> str:
            dims = self._factoring(name, param.shape)
            # Without factoring the statistics are as large as the parameters, and copying them is no gain.
            is_small = dims.factored or param.size < _SMALL
            keys[name] = dims, param.shape, self._param_axes.get(name), None if is_small else name
            # Each parameter is read by one kernel, which sums up its rows.
            arguments[name] = grad, state, jnp.sum(jnp.square(param.astype(jnp.float32)), axis=-1, keepdims=True)
            return name

        def scales(key: Any, grad: Array, state: ParamState, rows: Array) -> _Scales:
            dims, shape, *_ = key
            total = jnp.sum(rows, axis=dims.layer_dims, keepdims=True)
            of_param = jnp.sqrt(total / np.prod([shape[dim] for dim in dims.layer_dims]))
            return self._scales_of_gradient(dims, grad, state, of_param, beta2)

        names = _map_named(collect, params, grads, state)
        found = _map_alike(scales, keys, arguments)
        return jax.tree.map(found.__getitem__, names)

    def _scales_of(self, dims: _Factoring, param: Array, grad: Array, state: ParamState, beta2: Array) -> _Scales:
        return self._scales_of_gradient(dims, grad, state, _rms(param.astype(jnp.float32), dims.layer_dims), beta2)

    def _scales_of_gradient(
        self, dims: _Factoring, grad: Array, state: ParamState, of_param: Array, beta2: Array
    ) -> _Scales:
        grad = grad.astype(jnp.float32)
        means, roots = self._means_and_roots(dims, grad, state, beta2)
        return _Scales(means, roots, _rms(_product(grad, roots), dims.layer_dims), of_param)

    def _means_and_roots(
        self, dims: _Factoring, grad: Array, state: ParamState, beta2: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """See `_Scales`."""
        square = jnp.square(grad) + self.epsilon1
        if not dims.factored:
            return (square,), ((beta2 * state.v + (1.0 - beta2) * square) ** -0.5,)
        of_rows, of_columns = (jnp.mean(square, axis=reduced) for reduced in (dims.row_reduced, dims.col_reduced))
        row = jnp.expand_dims(beta2 * state.v_row + (1.0 - beta2) * of_rows, dims.row_reduced)
        column = jnp.expand_dims(beta2 * state.v_col + (1.0 - beta2) * of_columns, dims.col_reduced)
        row_mean = jnp.mean(row, axis=dims.col_reduced, keepdims=True)
        return (of_rows, of_columns), ((row / row_mean) ** -0.5, column**-0.5)

    def _update_param(
        self,
        key: tuple[_Factoring, bool],  # and whether the size of the parameter counts
        param: Array,
        grad: Array,
        state: ParamState,
        scales: _Scales,
        decay: Array | float | None,
        beta2: Array,
        learning_rate: Array | float,
    ) -> tuple[Array, ParamState]:
        dims, is_scaled = key
        param32 = param.astype(jnp.float32)
        slots = ("v_row", "v_col") if dims.factored else ("v",)
        new = {
            slot: beta2 * getattr(state, slot) + (1.0 - beta2) * mean
            for slot, mean in zip(slots, scales.means, strict=True)
        }
        state = dataclasses.replace(state, **new)
        y = _product(grad.astype(jnp.float32), scales.roots)
        if self.clipping_threshold is not None:
            y = y / jnp.maximum(1.0, scales.direction / self.clipping_threshold)
        scale: Array | float = learning_rate
        if is_scaled:
            parameter_scale = jnp.maximum(scales.param, self.epsilon2)
            if self.max_parameter_scale is not None:
                parameter_scale = jnp.minimum(parameter_scale, self.max_parameter_scale)
            scale = learning_rate * parameter_scale
        update = scale * y
        if self.beta1 is not None:
            momentum = self.beta1 * state.m + (1.0 - self.beta1) * update
            state = dataclasses.replace(state, m=momentum.astype(self.dtype_momentum))
            update = momentum
        if decay is not None:
            update = update + decay * param32
        return -update, state

    def _is_scaled(self, name: str) -> bool:
        scaled = self.multiply_by_parameter_scale
        return bool(scaled[name] if isinstance(scaled, HParamMap) else scaled)

    def _weight_decay(self, name: str, learning_rate: Array | float) -> Array | float | None:
        if isinstance(self.weight_decay_rate, HParamMap):
            exponent = self.weight_decay_rate_lr_exponent or 0.0
            return self.weight_decay_rate[name] * learning_rate**exponent
        if self.weight_decay_rate_lr_exponent:
            return (self.weight_decay_rate or 1.0) * learning_rate**self.weight_decay_rate_lr_exponent
        return self.weight_decay_rate


def _product(grad: Array, roots: tuple[Array, ...]) -> Array:
    for root in roots:
        grad = grad * root
    return grad


def _rms(x: Array, dims: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=dims, keepdims=True))


def _split_pairs(pairs: PyTree) -> tuple[PyTree, PyTree]:
    """Two trees of one whose leaves are pairs."""
    is_pair = lambda x: isinstance(x, tuple) and len(x) == 2  # noqa: E731
    first, second = (jax.tree.map(lambda pair: pair[i], pairs, is_leaf=is_pair) for i in (0, 1))  # noqa: B023
    return first, second


def _map_named(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Maps `function(name, leaf, *subtrees)` over the parameters; names are paths joined by `/`."""

    def named(path: tuple[Any, ...], leaf: Any, *others: Any) -> Any:
        return function("/".join(str(getattr(key, "key", key)) for key in path), leaf, *others)

    return jax.tree_util.tree_map_with_path(named, tree, *rest)


# A T5 has two hundred parameters of eight shapes, and tracing takes a millisecond for each of them: parameters that are
# alike are traced once, or computed as one array.
def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(key, *arguments)`, traced once for a key and the shapes of its arguments, which are trees of arrays.

    Its operations become those of the program around it, as if it had been traced there each time.
    """
    return jax.jit(function, static_argnums=0, inline=True)


def _map_alike(
    function: Callable[..., Any], keys: Mapping[str, Hashable], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """`function(key, *arguments)` of each name; those of one key in one call, over a new first axis.

    On a device that starts each program by itself these are fewer and larger programs.

    Args:
      arguments: trees of arrays, which have the same shapes where keys are equal.
    """
    alike: dict[Hashable, list[str]] = collections.defaultdict(list)
    for name, key in keys.items():
        alike[key].append(name)
    results: dict[str, Any] = {}
    for key, names in alike.items():
        if len(names) == 1:
            results[names[0]] = function(key, *arguments[names[0]])
            continue
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *(arguments[name] for name in names))
        of_all = jax.vmap(lambda *parts, key=key: function(key, *parts))(*stacked)
        for number, name in enumerate(names):
            results[name] = jax.tree.map(operator.itemgetter(number), of_all)
    return results
