"""Which expert gets which tokens of a group, up to the experts' capacity: tokens choose experts, or experts tokens.

An expert has `capacity` slots; slot `e * capacity + n` is the n-th of expert e. A group has `length` tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

TOKENS_CHOOSE, PRIORITIZED, EXPERTS_CHOOSE = "tokens_choose", "tokens_choose_prioritized", "experts_choose"
KINDS = (TOKENS_CHOOSE, PRIORITIZED, EXPERTS_CHOOSE)


class Choices(NamedTuple):
    """The experts of each token, the likeliest first.

    Attributes:
      experts: `[group, choice, length]`.
      weights: how likely the router found them, which their outputs are multiplied by, `[group, choice, length]`.
      slots: where the token is in the expert, `[group, choice * length]`; `experts * capacity` for one that came when
        its expert was full.
      sources: which of the `choice * length` each slot holds, `[group, experts * capacity]`; `choice * length` for an
        empty one.
    """

    experts: Array
    weights: Array
    slots: Array
    sources: Array


def tokens_choose(
    logits: Array, probabilities: Array, num_selected: int, capacity: int, is_prioritized: bool = False
) -> Choices:
    """Each token goes to its likeliest experts; first choices have precedence over second ones.

    Args:
      logits: of the router, `[group, length, expert]`.
      probabilities: their softmax.
      is_prioritized: tokens whose first choice is likelier have precedence (arXiv:2106.05974, "batch prioritized
        routing"); else it is the first tokens of the group, so that a token depends on no later one.
    """
    groups, length, num_experts = logits.shape
    left, experts = logits, []
    # A maximum, and not `top_k`, stays on the device that has the group.
    for _ in range(num_selected):
        experts.append(jnp.argmax(left, axis=-1))
        left = jnp.where(experts[-1][..., None] == jnp.arange(num_experts), -jnp.inf, left)
    chosen = jnp.stack(experts, axis=1)
    weights = jnp.stack([jnp.take_along_axis(probabilities, x[..., None], axis=-1)[..., 0] for x in experts], axis=1)
    if not is_prioritized:
        return Choices(chosen, weights, *places(chosen.reshape(groups, -1), num_experts, capacity))
    order = jnp.argsort(-weights[:, :1], axis=-1)
    ordered = jnp.take_along_axis(chosen, order, axis=-1).reshape(groups, -1)
    slots, sources = places(ordered, num_experts, capacity)
    back = jnp.argsort(order, axis=-1)
    slots = jnp.take_along_axis(slots.reshape(chosen.shape), back, axis=-1).reshape(groups, -1)
    numbers = (jnp.arange(num_selected)[:, None] * length + order).reshape(groups, -1)
    sources = jnp.take_along_axis(numbers, sources, axis=1, mode="fill", fill_value=num_selected * length)
    return Choices(chosen, weights, slots, sources)


def experts_choose(probabilities: Array, capacity: int) -> tuple[Array, Array]:
    """Each expert takes the `capacity` tokens that are likeliest to choose it (arXiv:2202.09368).

    A token may have several experts, or none, and what it gets depends on later tokens.

    Args:
      probabilities: of the router, `[group, length, expert]`.

    Returns:
      The tokens of each expert and their probabilities, `[group, expert, capacity]`.
    """
    weights, tokens = jax.lax.top_k(jnp.swapaxes(probabilities, 1, 2), capacity)
    return tokens, weights


def places(choice: Array, num_experts: int, capacity: int) -> tuple[Array, Array]:
    """Where each of a sequence of choices goes, and what each slot gets; the first ones have precedence.

    Args:
      choice: experts, `[group, length]`.

    Returns:
      `slots` `[group, length]` and `sources` `[group, num_experts * capacity]`, as `Choices` has them.
    """
    length = choice.shape[1]
    is_chosen = (choice[..., None] == jnp.arange(num_experts)).astype(jnp.int32)
    number = jnp.sum(jnp.cumsum(is_chosen, axis=1) * is_chosen, axis=-1) - 1
    slots = jnp.where(number < capacity, choice * capacity + number, num_experts * capacity)
    counts = jnp.sum(is_chosen, axis=1)
    # A sort and a gather, not a scatter: they stay on the device that has the group.
    order = jnp.argsort(choice, axis=1)
    of_expert = jnp.arange(capacity)
    sorted_places = (jnp.cumsum(counts, axis=1) - counts)[..., None] + of_expert
    sources = jnp.take_along_axis(order, sorted_places.reshape(len(choice), -1), axis=1, mode="clip")
    is_full = (of_expert < counts[..., None]).reshape(len(choice), -1)
    return slots, jnp.where(is_full, sources, length)


@jax.custom_vjp
def moved(x: Array, sources: Array, targets: Array) -> Array:
    """Of `[group, n, embed]` the vectors with the numbers `sources` `[group, m]`, in this order; zeros for number n.

    No vector is taken twice: `targets` `[group, n]` says where each went, m for nowhere. So the gradient is gathered as
    well, which is faster than a scatter.
    """
    del targets
    return jnp.take_along_axis(x, sources[..., None], axis=1, mode="fill", fill_value=0)


moved.defvjp(
    lambda x, sources, targets: (moved(x, sources, targets), (sources, targets)),
    lambda numbers, g: (moved(g, numbers[1], numbers[0]), None, None),
)


def added(x: Array, tokens: Array, length: int) -> Array:
    """`[group, length, embed]`, with the vectors of `[group, m, embed]` added up at `tokens` `[group, m]`."""
    zeros = jnp.zeros((length, x.shape[-1]), x.dtype)
    return jax.vmap(lambda vectors, places: zeros.at[places].add(vectors))(x, tokens)
