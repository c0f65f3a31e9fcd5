"""Dense, embedding, normalization and MLP layers, with T5X's fields, parameter names and logical axes.

Every parameter is declared with `flax.linen.partitioning.param_with_axes`, so its logical axes can be read from the
`params_axes` collection and mapped to the mesh by rules (`limba.partitioning.meshes`).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import partitioning as nn_partitioning
from jax.ad_checkpoint import checkpoint_name

from limba.addons import table as addons
from limba.devices import target
from limba.files.untrusted_files import shown
from limba.network import products

Array = jax.Array
DType = Any
Initializer = Callable[..., Array]

with_sharding_constraint = nn_partitioning.with_sharding_constraint


def param_with_axes(name: str, init_fn: Initializer, *init_args: Any, axes: tuple[Any, ...] = (), **more: Any) -> Any:
    """Flax's function of this name, with an error that says what to write.

    Raises:
      ValueError: if two dims have the same logical axis: they cannot be split over the same devices.
    """
    named = [axis for axis in axes if axis is not None]
    if twice := next((axis for axis in named if named.count(axis) > 1), None):
        first = axes.index(twice)
        remedy = tuple(None if axis == twice and i != first else axis for i, axis in enumerate(axes))
        raise ValueError(
            f"The parameter {name} has the logical axes {axes}, with {twice!r} twice. Two dims cannot be split over "
            f"the same devices: write {remedy}, where None leaves a dim whole."
        )
    return nn_partitioning.param_with_axes(name, init_fn, *init_args, axes=axes or None, **more)


# ----------------------------------------------------- layers ------------------------------------------------------


class DenseGeneral(nn.Module):
    """A product over some dims of the inputs; the parameters are float32.

    Attributes:
      features: size of the output dim, or of several.
      axis: the dim of the inputs that is contracted, or several.
      dtype: of the product.
      kernel_init: called with a kernel's shape as a matrix, `[contracted, features]`. T5X's default for MLP and logits
        is truncated, attention passes its own.
      kernel_axes: logical axes of the kernel. One name a dim makes a kernel of that many dims, such as
        `[embed, heads, kv]`; two names for more dims make a matrix, such as `[embed, joined_kv]`.
      use_bias: add a bias, whose axes are the kernel's without the contracted ones.
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    dtype: DType = jnp.float32
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    kernel_axes: tuple[str | None, ...] = ()
    use_bias: bool = False

    @nn.compact
    def __call__(
        self, inputs: Array, only_kernel: bool = False, multiply: Callable[[Array, Array], Array] | None = None
    ) -> Array:
        """The contracted dims go, `features` come last: `[batch, length, in] -> [batch, length, features]`.

        Args:
          only_kernel: return the kernel as a matrix instead.
          multiply: called with `[…, contracted]` and the kernel as a matrix, in place of `einsum`.
        """
        features, axis = ((x,) if isinstance(x, int) else tuple(x) for x in (self.features, self.axis))
        inputs = jnp.moveaxis(inputs, axis, tuple(range(-len(axis), 0)))
        kept, contracted = inputs.shape[: -len(axis)], inputs.shape[-len(axis) :]
        matrix = (math.prod(contracted), math.prod(features))
        one_name_a_dim = len(self.kernel_axes) == len(contracted) + len(features)
        kernel = param_with_axes(
            "kernel",
            lambda rng, shape, dtype: self.kernel_init(rng, matrix, dtype).reshape(shape),
            (*contracted, *features) if one_name_a_dim else matrix,
            jnp.float32,
            axes=self.kernel_axes,
        )
        if only_kernel:
            return kernel.reshape(matrix)
        dims = "blpqrs"[: len(kept)]
        multiply = multiply or functools.partial(products.einsum, f"{dims}d,df->{dims}f", dtype=self.dtype)
        product = multiply(inputs.reshape(*kept, matrix[0]), kernel.reshape(matrix))
        if self.use_bias:
            shape = features if one_name_a_dim else matrix[1:]
            axes = self.kernel_axes[len(contracted) if one_name_a_dim else -1 :]
            bias = param_with_axes("bias", nn.initializers.zeros, shape, jnp.float32, axes=axes)
            product = products.add_bias(product, bias.reshape(matrix[1]).astype(self.dtype))
        return product.reshape(*kept, *features)


class Embed(nn.Module):
    """A table of embeddings, `[vocab, embed]`.

    Attributes:
      num_embeddings, features: the table's shape.
      cast_input_dtype: a type that tokens are cast to first.
      dtype: of the embedded tokens.
      attend_dtype: of the logits that `attend` returns; `dtype` when None.
      embedding_init: of the table.
      one_hot: multiply by one-hot vectors instead of gathering rows. The numbers are the same; it is worth its FLOPs
        only where the vocabulary is sharded over the model axis of a TPU.
      axes: logical axes of the table, for tables whose rows are not a vocabulary.
    """

    num_embeddings: int
    features: int
    cast_input_dtype: DType | None = None
    dtype: DType = jnp.float32
    attend_dtype: DType | None = None
    embedding_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
    one_hot: bool = False
    axes: tuple[str, str] = ("vocab", "embed")

    def setup(self) -> None:
        shape = (self.num_embeddings, self.features)
        self.embedding = param_with_axes("embedding", self.embedding_init, shape, jnp.float32, axes=self.axes)

    def __call__(self, tokens: Array) -> Array:
        """`[batch, length] -> [batch, length, embed]`. Ids outside clamp; vocabularies are checked at start.

        Raises:
          ValueError: if the tokens are not integers.
        """
        if self.cast_input_dtype:
            tokens = tokens.astype(self.cast_input_dtype)
        if not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"Embed got tokens of type {tokens.dtype}; cast them to int32, or set cast_input_dtype.")
        if self.one_hot:
            one_hot = jax.nn.one_hot(tokens, self.num_embeddings, dtype=self.dtype)
            embedded = products.einsum("blv,ve->ble", one_hot, self.embedding, self.dtype)
        else:
            embedded = jnp.take(self.embedding, tokens, axis=0, mode="clip").astype(self.dtype)
        return with_sharding_constraint(embedded, ("batch", "length", "embed"))

    def attend(self, query: Array) -> Array:
        """Logits against every embedding: `[batch, length, embed] -> [batch, length, vocab]`."""
        return products.einsum("ble,ve->blv", query, self.embedding, self.attend_dtype or self.dtype)


def soft_capped(x: Array, cap: float) -> Array:
    """`cap * tanh(x / cap)`: nearly x where it is small, and never beyond `cap` (arXiv:2408.00118, section 2)."""
    return cap * jnp.tanh(x / cap)


class _RootMeanSquareNorm(nn.Module):
    epsilon: float = 1e-6
    dtype: DType = jnp.float32
    scale_init: Initializer = nn.initializers.ones
    axis: str = "embed"

    def _scale(self, width: int) -> Array:
        return param_with_axes("scale", self.scale_init, (width,), jnp.float32, axes=(self.axis,))

    def _normalize(self, x: Array, scale: Array) -> Array:
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normalized = (x * jax.lax.rsqrt(mean_square + self.epsilon)).astype(self.dtype)
        return normalized * scale.astype(self.dtype)


class LayerNorm(_RootMeanSquareNorm):
    """T5's layer norm: division by the root mean square over `embed`, no mean, no bias (arXiv:1910.07467)."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return self._normalize(x, self._scale(x.shape[-1]))


class ResidualLayerNorm(_RootMeanSquareNorm):
    """A residual and T5's layer norm behind it, with the parameter of the norm.

    Attributes:
      kernels: "auto" takes one kernel for both where the device has one, see `t5.T5Config`.
      zero_centered: multiply by 1 + the parameter, which begins as 0 (Gemma).
      axis: the logical axis of the parameter.
    """

    kernels: str = "auto"
    zero_centered: bool = False

    def _scale(self, width: int) -> Array:
        if not self.zero_centered:
            return super()._scale(width)
        return 1.0 + param_with_axes("scale", nn.initializers.zeros, (width,), jnp.float32, axes=(self.axis,))

    @nn.compact
    def __call__(self, x: Array, update: Array | None = None) -> tuple[Array, Array]:
        """`x + update`, or `x` without one, and its norm; all `[batch, length, embed]`.

        The sum is what the next residual adds to: with the one that came in, its gradient would need another pass.
        """
        scale = self._scale(x.shape[-1])
        if x.dtype == self.dtype and _has_norm_kernel(self.kernels, x):
            (layer_norm_gpu,) = addons.parts("layer_norm_gpu")  # Pallas takes 0.2 s, and CPUs do without.
            if layer_norm_gpu.is_right(x, update is not None, self.epsilon):
                is_cpu = target.platform() == "cpu"
                return layer_norm_gpu.add_and_norm(x, update, scale, self.epsilon, interpret=is_cpu)
        if update is not None:
            x = with_sharding_constraint(update + x, ("batch", "length", "embed"))
        return x, self._normalize(x, scale)


# The widest row that a program of the kernel holds, and how many numbers its int32 counts.
_WIDEST, _MOST_NUMBERS = 8192, 2**31


def _has_norm_kernel(choice: str, x: Array) -> bool:
    """On TPUs XLA fuses norms itself."""
    if not target.wants_kernels(choice) or target.platform() == "tpu" or not addons.has("layer_norm_gpu"):
        return False
    if x.shape[-1] > _WIDEST or x.size >= _MOST_NUMBERS:
        return False
    of_mesh = nn_partitioning.logical_to_mesh_axes(("batch", "length", "embed"))
    return of_mesh is None or of_mesh[-1] is None


class CenteredLayerNorm(nn.Module):
    """Layer norm with the mean taken off, as in BERT (arXiv:1607.06450); computed in float32.

    Attributes:
      epsilon: added to the variance.
      dtype: of the result.
      use_bias: add a bias after the scale; ModernBERT has none.
    """

    epsilon: float = 1e-12
    dtype: DType = jnp.float32
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1],)
        x = x.astype(jnp.float32)
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        scale = param_with_axes("scale", nn.initializers.ones, shape, jnp.float32, axes=("embed",))
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon) * scale
        if self.use_bias:
            normalized += param_with_axes("bias", nn.initializers.zeros, shape, jnp.float32, axes=("embed",))
        return normalized.astype(self.dtype)


def activation_function(name: str | Callable[[Array], Array]) -> Callable[[Array], Array]:
    """An activation by its name in `flax.linen`; "linear" is the identity, and a function stands for itself.

    Flax's "gelu" is the approximation by tanh; "gelu_erf" is the exact function, Hugging Face's "gelu".

    Raises:
      ValueError: if Flax has none of that name.
    """
    if callable(name):
        return name
    if name == "linear":
        return lambda x: x
    if name == "gelu_erf":
        return functools.partial(nn.gelu, approximate=False)
    function = getattr(nn.activation, name, None) if isinstance(name, str) and hasattr(nn, name) else None
    if not callable(function) or isinstance(function, type):
        raise ValueError(f"flax.linen has no activation {shown(name)}; try 'gelu', 'relu' or 'silu'.")
    return function


class MlpBlock(nn.Module):
    """The feed-forward block; several activations are multiplied (gated linear units, arXiv:2002.05202)."""

    intermediate_dim: int = 2048
    activations: Sequence[str | Callable[[Array], Array]] = ("relu",)
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    intermediate_dropout_rate: float = 0.1
    dtype: DType = jnp.float32
    kernels: str = "auto"
    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array, decode: bool = False, deterministic: bool = False) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`; decoding makes no difference."""
        del decode
        dense = functools.partial(DenseGeneral, dtype=self.dtype, kernel_init=self.kernel_init, use_bias=self.use_bias)
        branches = []
        for i in range(len(self.activations)):
            wi_name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            wi = dense(self.intermediate_dim, kernel_axes=("embed", "mlp"), name=wi_name)
            branches.append(wi(inputs))

        activations = tuple(self.activations)
        wo = dense(inputs.shape[-1], kernel_axes=("mlp", "embed"), name="wo")
        drop = nn.Dropout(self.intermediate_dropout_rate, broadcast_dims=(-2,))
        if len(branches) > 1 and target.wants_kernels(self.kernels):
            kept = None
            if self.intermediate_dropout_rate > 0.0 and not deterministic:
                batch, _, mlp = branches[0].shape
                kept = drop(jnp.ones((batch, 1, mlp), self.dtype), deterministic=False)

            def multiply(first: Array, kernel: Array) -> Array:
                product = _activated_product(activations, self.dtype, (first, *branches[1:]), kept, kernel)
                return checkpoint_name(product, products.PRODUCT_WITHOUT_BATCH_DIMS)

            return wo(branches[0], multiply=multiply)
        activate: Callable[[Sequence[Array]], Array] = functools.partial(_activated, activations)
        # Of one branch XLA decides whether it keeps what it would compute again: memory for time.
        if len(branches) == 1 and self.kernels != "xla":
            activate = jax.checkpoint(activate)
        hidden = drop(activate(branches), deterministic=deterministic)
        return wo(with_sharding_constraint(hidden, ("batch", "length", "mlp")))


def _activated(activations: Sequence[str | Callable[[Array], Array]], branches: Sequence[Array]) -> Array:
    """The product of the activations of all branches."""
    dtype = branches[0].dtype
    if target.platform() == "cpu":  # XLA does not fuse what is rounded to bf16 after each operation.
        branches = [x.astype(jnp.float32) for x in branches]
    functions = map(activation_function, activations)
    return functools.reduce(operator.mul, (f(x) for f, x in zip(functions, branches, strict=True))).astype(dtype)


_Residuals = tuple[tuple[Array, ...], Array | None, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _activated_product(
    activations: tuple[str | Callable[[Array], Array], ...],
    dtype: DType,
    branches: tuple[Array, ...],
    kept: Array | None,
    kernel: Array,
) -> Array:
    """The product of the hidden activations with the kernel, `[batch, length, mlp] -> [batch, length, embed]`.

    The backward pass computes the activations again, in one pass with their gradients: keeping them takes memory, and
    reading them from there more time.

    Args:
      kept: `[batch, 1, mlp]`, what dropout multiplies by; None for no dropout.
      kernel: `[mlp, embed]`.
    """
    hidden = _dropped(kept, _activated(activations, branches))
    return products.product("blm,me->ble", hidden, kernel.astype(dtype), dtype)


def _dropped(kept: Array | None, hidden: Array) -> Array:
    hidden = hidden if kept is None else hidden * kept
    return with_sharding_constraint(hidden, ("batch", "length", "mlp"))


def _activated_product_fwd(
    activations: tuple[str | Callable[[Array], Array], ...],
    dtype: DType,
    branches: tuple[Array, ...],
    kept: Array | None,
    kernel: Array,
) -> tuple[Array, _Residuals]:
    return _activated_product(activations, dtype, branches, kept, kernel), (branches, kept, kernel)


def _activated_product_bwd(
    activations: tuple[str | Callable[[Array], Array], ...], dtype: DType, residuals: _Residuals, g: Array
) -> tuple[tuple[Array, ...], None, Array]:
    branches, kept, kernel = residuals
    g = g.astype(dtype)
    of_hidden = products.product("ble,me->blm", g, kernel.astype(dtype), dtype)
    # Otherwise XLA finds that the forward pass has computed them already, and keeps them.
    branches, of_hidden = jax.lax.optimization_barrier((branches, of_hidden))
    hidden, gradients = jax.vjp(lambda *x: _dropped(kept, _activated(activations, x)), *branches)
    return gradients(of_hidden), None, products.product("blm,ble->me", hidden, g, kernel.dtype)


_activated_product.defvjp(_activated_product_fwd, _activated_product_bwd)
