"""Optimizer definitions: what a model's `optimizer_def` must offer, any optax optimizer as one, and mixtures of them.

The learning rate is the Trainer's, always (`limba.optimizers.optax_rates`). A rate given to a constructor of optax's
is never multiplied in: it is used where there is no Trainer; where there is one, `warn_of_other_rates` names it.
"""

import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import traverse_util
from jax.sharding import PartitionSpec

from limba.optimizers import argument_checks, optax_rates

Array = jax.Array
PyTree = Any

logger = logging.getLogger(__name__)


class OptimizerDef(Protocol):
    """Optax's protocol with the learning rate and the step passed in, plus logical axes for the state."""

    def set_param_axes(self, param_axes: PyTree) -> None:
        """Tells the logical axes of the parameters, before `init`."""
        ...

    def init(self, params: PyTree) -> PyTree: ...

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        """Updates to add to the parameters, and the new state."""
        ...

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        """Logical axes for every leaf of the state; None is replicated."""
        ...


def warn_of_other_rates(
    optimizer_def: OptimizerDef, learning_rate_fn: Callable[[Array], Array], params: PyTree
) -> list[optax.ScalarOrSchedule]:
    """Says which learning rates optax's constructors were given that are not the Trainer's, and so are not used.

    T5X applies those instead, and only logs the Trainer's. A rate of 1 is what one gives where a rate must be given.
    """
    steps = np.array([0, 1, 10, 100, 1_000, 10_000, 100_000], np.int32)

    def rates(rate: optax.ScalarOrSchedule) -> np.ndarray:
        return np.array([float(rate(step) if callable(rate) else rate) for step in steps])

    other = [
        rate
        for rate in (optimizer_def.own_rates(params) if hasattr(optimizer_def, "own_rates") else ())
        if (callable(rate) or rate != 1.0) and not np.allclose(rates(rate), rates(learning_rate_fn), rtol=1e-4)
    ]
    for rate in other:
        logger.warning(
            "An optax optimizer was built with learning_rate = %s. It is not used: the updates follow "
            "Trainer.learning_rate_fn, which begins at %.3g and is %.3g at step 10,000. To train with the optimizer's "
            "rate, as T5X does, bind it as Trainer.learning_rate_fn.",
            f"a schedule from {rates(rate)[0]:.3g} to {rates(rate)[-1]:.3g}" if callable(rate) else rate,
            rates(learning_rate_fn)[0],
            rates(learning_rate_fn)[-2],
        )
    return other


# ----------------------------------------------------- optax --------------------------------------------------------


class OptaxWrapper:
    """Any optax transformation under the Trainer's schedule.

    The Trainer's rate takes the place of the one the transformation was built with. Where a transformation has no
    such place (`chain([optax.scale_by_adam(), optax.scale(-1.0)])`), its updates are multiplied by the Trainer's rate.

    The state is optax's own; in a checkpoint it has T5X's names, with the places of a chain as numbers:
    `state/param_states/1/0/mu/<parameter>`.
    """

    def __init__(self, optax_optimizer: optax.GradientTransformation):
        self.optax_optimizer = optax_optimizer
        self._param_axes: dict[tuple[str, ...], tuple[str | None, ...]] = {}

    def set_param_axes(self, param_axes: PyTree) -> None:
        flat = traverse_util.flatten_dict(param_axes)
        self._param_axes = {path: tuple(axes) for path, axes in flat.items()}

    def init(self, params: PyTree) -> PyTree:
        with optax_rates.within(optax_rates.Training(self._param_axes)):
            return self.optax_optimizer.init(params)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        del step  # Optax keeps its own count.
        with optax_rates.within(optax_rates.Training(self._param_axes, learning_rate)) as training:
            updates, state = self.optax_optimizer.update(grads, state, params)
        if not training.replaced:
            updates = jax.tree.map(lambda u: learning_rate * u, updates)
        return updates, state

    def own_rates(self, params: PyTree) -> list[optax.ScalarOrSchedule]:
        """The rates that the transformation was built with, in whose place `update` applies the Trainer's."""
        with optax_rates.within(optax_rates.Training(self._param_axes, jnp.float32(0.0))) as training:
            jax.eval_shape(lambda p: self.optax_optimizer.update(p, self.optax_optimizer.init(p), p), params)
        return training.replaced

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        """Leaves that lie under the path of a parameter and have its shape are sharded as it, all others replicated."""
        shapes = {path: x.shape for path, x in traverse_util.flatten_dict(params).items()}
        axes = traverse_util.flatten_dict(param_axes)

        def axes_of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
            names = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
            parameter = next((names[i:] for i in range(len(names)) if names[i:] in shapes), None)
            return axes[parameter] if parameter and leaf.shape == shapes[parameter] else PartitionSpec()

        return jax.tree_util.tree_map_with_path(axes_of, jax.eval_shape(self.init, params))


def wrap_optax_optimizer(optax_optimizer: Callable[..., optax.GradientTransformation]) -> Callable[..., OptaxWrapper]:
    """A constructor of optax, or one like it, as a constructor of definitions. Its `learning_rate` may be left out.

    It raises ValueError for a number that cannot be meant, such as `b1 = 1`.
    """
    takes_rate = "learning_rate" in inspect.signature(optax_optimizer).parameters

    @functools.wraps(optax_optimizer)
    def wrapped(*args: Any, **kwargs: Any) -> OptaxWrapper:
        if takes_rate and not args:
            kwargs.setdefault("learning_rate", 1.0)
        given = {name: x for name, x in kwargs.items() if name in argument_checks.OPTAX and not callable(x)}
        ranges = {name: argument_checks.OPTAX[name] for name in given}
        argument_checks.check_numbers(optax_optimizer.__name__.lstrip("_"), ranges, given)
        return OptaxWrapper(optax_optimizer(*args, **kwargs))

    return wrapped


def as_optimizer_def(optimizer: Any) -> OptimizerDef:
    """A definition as it is; a transformation of optax wrapped, so that gin may bind `OPTIMIZER = @optax.adamw()`.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(optimizer, optax.GradientTransformation):
        return OptaxWrapper(optimizer)
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise ValueError(
            f"optimizer_def (OPTIMIZER) is {optimizer!r}; it is an optimizer, such as @adafactor.Adafactor() or "
            "@optimizers.adamw(), or a file of gin/optimizers."
        )
    return optimizer


def refuse_inside(where: str, optimizers: Sequence[Any]) -> None:
    """Raises ValueError if one of the optimizers that another holds has to be around it, as `AveragedOptimizer`."""
    if any(getattr(optimizer, "is_outermost", False) for optimizer in optimizers):
        raise ValueError(
            f"{where} holds an averaging.AveragedOptimizer; bind it the other way round, with {where} as "
            "AveragedOptimizer.optimizer."
        )


def _chain(transformations: "Sequence[optax.GradientTransformation | OptaxWrapper]") -> optax.GradientTransformation:
    """One after the other, as `optax.chain`, in one argument that gin can bind."""
    return optax.chain(*[t.optax_optimizer if isinstance(t, OptaxWrapper) else t for t in transformations])


def _param_axes(path: tuple[Any, ...]) -> tuple[str | None, ...] | None:
    """Logical axes of the parameter at a path of `tree_map_with_path`, if a definition runs and knows them."""
    training = optax_rates.current()
    return None if training is None else training.param_axes.get(tuple(key.key for key in path))


# What a network with scanned layers calls the dims that hold its layers.
_LAYER_AXES = ("layers", "stack")


def _adamw_scale(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    min_scale: float = 1e-3,
    weight_decay: float = 0.0,
    vocab_rate: float = 1.0,
    vocab_warmup_steps: int = 0,
    base_width: int | None = None,
) -> optax.GradientTransformation:
    """nanoT5's AdamWScale: AdamW whose steps are multiplied by the RMS of the parameter, as Adafactor's are.

    `step = max(min_scale, rms(param)) * sqrt(1 - b2^t) / (1 - b1^t) * mu / (sqrt(nu) + eps) + weight_decay * param`,
    times the learning rate; the RMS is per layer where layers are scanned. Source: nanoT5's `AdamWScale`
    (github.com/PiotrNawrot/nanoT5), which decays the parameter after its step instead of before.

    Args:
      min_scale: a parameter takes steps as one of this RMS does at least, so that kernels which begin at 0 learn.
      vocab_rate: multiplies the steps of the parameters that have the axis `vocab`, embeddings and logits.
      vocab_warmup_steps: over which `vocab_rate` grows from 0, for tables that begin with what the corpus says: the
        columns of rare pieces see no target of their own for many steps, and Adam moves them as far as the others.
      base_width: of the network whose learning rate this is. A kernel of `inputs` rows takes steps that are
        `sqrt(base_width / inputs)` as large; with the RMS of its values that makes `1 / inputs`, the rule for Adam by
        which one rate fits all widths (muP, arXiv:2203.03466, table 3). None leaves steps as they are.

    Raises:
      ValueError: for a `base_width` that is no width.
    """
    if base_width is not None and not base_width > 0:
        raise ValueError(f"adamw_scale.base_width is {base_width!r}; it is the emb_dim of the network that was tuned.")

    def init(params: PyTree) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zeros, nu=zeros)

    def update(grads: PyTree, state: optax.ScaleByAdamState, params: PyTree) -> tuple[PyTree, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = optax.tree.update_moment(grads, state.mu, b1, 1)
        nu = optax.tree.update_moment(grads, state.nu, b2, 2)
        correction = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        of_vocab: Any = vocab_rate
        if vocab_warmup_steps:
            of_vocab *= jnp.minimum(1.0, count / vocab_warmup_steps)

        def step(path: tuple[Any, ...], param: Array, m: Array, v: Array) -> Array:
            axes = _param_axes(path) or (None,) * param.ndim
            dims = tuple(i for i, axis in enumerate(axes) if axis not in _LAYER_AXES)
            rms = jnp.sqrt(jnp.mean(jnp.square(param), axis=dims, keepdims=True))
            rate = of_vocab if "vocab" in axes else 1.0
            if base_width is not None and path[-1].key == "kernel" and len(dims) > 1:
                rate *= (base_width / math.prod(param.shape[i] for i in dims[: _input_dims(axes, dims)])) ** 0.5
            return rate * jnp.maximum(rms, min_scale) * correction * m / (jnp.sqrt(v) + eps)

        return jax.tree_util.tree_map_with_path(step, params, mu, nu), optax.ScaleByAdamState(count, mu, nu)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def _muon(
    learning_rate: optax.ScalarOrSchedule,
    beta: float = 0.95,
    ns_steps: int = 5,
    nesterov: bool = True,
    consistent_rms: float | None = 0.2,
    weight_decay: float = 0.0,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Muon for the kernels of attention and MLP, AdamW for embeddings, norms, relative biases and logits.

    Kernels are orthogonalized as the matrices that they are: `[embed, heads * kv]` also where a network keeps heads and
    kv apart, and each layer of scanned layers by itself. With `consistent_rms` 0.2 the updates have the RMS of AdamW's
    (arXiv:2502.16982), so that one learning rate fits both halves; None is optax's scaling by width.
    """
    return optax.contrib.muon(
        learning_rate,
        ns_steps=ns_steps,
        beta=beta,
        nesterov=nesterov,
        consistent_rms=consistent_rms,
        weight_decay=weight_decay,
        adam_b1=adam_b1,
        adam_b2=adam_b2,
        adam_weight_decay=adam_weight_decay,
        muon_weight_dimension_numbers=lambda params: jax.tree_util.tree_map_with_path(_matrix_dims, params),
    )


def _input_dims(axes: Sequence[str | None], dims: Sequence[int]) -> int:
    """How many of a kernel's dims are those of its inputs: kernels read [embed, ...] or write [..., embed]."""
    return 1 if axes[dims[0]] == "embed" else len(dims) - 1


def _matrix_dims(path: tuple[Any, ...], param: Array) -> optax.contrib.MuonDimensionNumbers | None:
    """Which dims of a kernel are the rows and which the columns of its matrix; None for all other parameters."""
    axes = _param_axes(path) or (None,) * param.ndim
    dims = tuple(i for i, axis in enumerate(axes) if axis not in _LAYER_AXES)
    if path[-1].key != "kernel" or "vocab" in axes or path[-2].key == "logits_dense" or len(dims) < 2:
        return None
    split = _input_dims(axes, dims)
    return optax.contrib.MuonDimensionNumbers(reduction_axis=dims[:split], output_axis=dims[split:])


chain = wrap_optax_optimizer(_chain)
adabelief = wrap_optax_optimizer(optax.adabelief)
adagrad = wrap_optax_optimizer(optax.adagrad)
adam = wrap_optax_optimizer(optax.adam)
adamw = wrap_optax_optimizer(optax.adamw)
adamw_scale = wrap_optax_optimizer(_adamw_scale)
lamb = wrap_optax_optimizer(optax.lamb)
lars = wrap_optax_optimizer(optax.lars)
lion = wrap_optax_optimizer(optax.lion)
muon = wrap_optax_optimizer(_muon)
noisy_sgd = wrap_optax_optimizer(optax.noisy_sgd)
radam = wrap_optax_optimizer(optax.radam)
rmsprop = wrap_optax_optimizer(optax.rmsprop)
sgd = wrap_optax_optimizer(optax.sgd)
yogi = wrap_optax_optimizer(optax.yogi)


# -------------------------------------------------- several at once -------------------------------------------------


def match_any(regexes: Sequence[str]) -> Callable[[str, Any], bool]:
    """A filter for `MultiOptimizer`: whether any expression matches a parameter's whole path, `/encoder/…/kernel`."""
    compiled = [re.compile(regex) for regex in regexes]
    return lambda path, _: any(regex.fullmatch(path) for regex in compiled)


class MultiOptimizer:
    """Optimizers for parts of the parameters, chosen by path; parameters that none chooses are not trained.

    The state of an optimizer that keeps a tree like the parameters, as Adafactor does, lies at the parameters' own
    paths, as in T5X's checkpoints. Other states, as optax's, lie under `optimizer_<i>`, with `i` the place of the
    optimizer in the list.

    Attributes:
      traversals_and_optimizers: pairs of a `flax.traverse_util.ModelParamTraversal`, or a filter such as it takes
        (`filter(path, value) -> bool`, path with a leading slash), and an optimizer definition or optax transformation.

    Raises:
      ValueError: in `init`, if two choose the same parameter or one chooses none.
    """

    def __init__(self, traversals_and_optimizers: Sequence[tuple[Any, Any]]):
        self._choices = [choice for choice, _ in traversals_and_optimizers]
        self.sub_optimizers = [as_optimizer_def(optimizer) for _, optimizer in traversals_and_optimizers]
        refuse_inside(type(self).__name__, self.sub_optimizers)

    def set_param_axes(self, param_axes: PyTree) -> None:
        for optimizer, paths in zip(self.sub_optimizers, self._paths(param_axes), strict=True):
            optimizer.set_param_axes(_subtree(param_axes, paths))

    def init(self, params: PyTree) -> PyTree:
        parts = self._paths(params)
        states = [opt.init(_subtree(params, paths)) for opt, paths in zip(self.sub_optimizers, parts, strict=True)]
        return self._merge(states, parts)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        parts = self._paths(params)
        updates = traverse_util.flatten_dict(jax.tree.map(jnp.zeros_like, params))
        states = []
        for i, (optimizer, paths) in enumerate(zip(self.sub_optimizers, parts, strict=True)):
            own = state.get(f"optimizer_{i}")
            own = _subtree(state, paths) if own is None else own
            trees = (_subtree(grads, paths), own, _subtree(params, paths))
            new_updates, new_state = optimizer.update(*trees, learning_rate=learning_rate, step=step)
            updates |= traverse_util.flatten_dict(new_updates)
            states.append(new_state)
        return traverse_util.unflatten_dict(updates), self._merge(states, parts)

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        parts = self._paths(params)
        axes = [
            optimizer.state_axes(_subtree(params, paths), _subtree(param_axes, paths))
            for optimizer, paths in zip(self.sub_optimizers, parts, strict=True)
        ]
        return self._merge(axes, parts)

    def own_rates(self, params: PyTree) -> list[optax.ScalarOrSchedule]:
        """Those of all optax optimizers in it."""
        parts = zip(self.sub_optimizers, self._paths(params), strict=True)
        wrapped = [(opt, paths) for opt, paths in parts if hasattr(opt, "own_rates")]
        return [rate for opt, paths in wrapped for rate in opt.own_rates(_subtree(params, paths))]

    def trained_paths(self, params: PyTree) -> list[tuple[str, ...]]:
        """The parameters that one of the optimizers chooses."""
        return [path for paths in self._paths(params) for path in paths]

    def _paths(self, tree: PyTree) -> list[list[tuple[str, ...]]]:
        """The paths of each optimizer's parameters."""
        names = traverse_util.unflatten_dict({path: path for path in traverse_util.flatten_dict(tree)})
        traversals = [c if hasattr(c, "iterate") else traverse_util.ModelParamTraversal(c) for c in self._choices]
        parts = [list(traversal.iterate(names)) for traversal in traversals]
        chosen = [path for paths in parts for path in paths]
        if twice := sorted({"/".join(path) for path in chosen if chosen.count(path) > 1}):
            raise ValueError(f"Several optimizers of MultiOptimizer choose the same parameters: {twice[:5]}.")
        for i, paths in enumerate(parts):
            if not paths:
                every = ["/" + "/".join(path) for path in traverse_util.flatten_dict(tree)]
                raise ValueError(f"Optimizer {i} of MultiOptimizer chooses no parameter. There are {every[:5]} ...")
        return parts

    def _merge(self, states: Sequence[PyTree], parts: Sequence[list[tuple[str, ...]]]) -> PyTree:
        merged: dict[tuple[str, ...], Any] = {}
        for i, (state, paths) in enumerate(zip(states, parts, strict=True)):
            if _like_params(state, paths):
                merged |= {path: _at(state, path) for path in paths}
            else:
                merged[(f"optimizer_{i}",)] = state
        return traverse_util.unflatten_dict(merged)


def _at(tree: PyTree, path: tuple[str, ...]) -> Any:
    return functools.reduce(lambda subtree, name: subtree[name], path, tree)


def _subtree(tree: PyTree, paths: list[tuple[str, ...]]) -> PyTree:
    return traverse_util.unflatten_dict({path: _at(tree, path) for path in paths})


def _like_params(state: PyTree, paths: list[tuple[str, ...]]) -> bool:
    return isinstance(state, dict) and set(state) == {path[0] for path in paths}
