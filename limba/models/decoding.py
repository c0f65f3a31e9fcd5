"""Autoregressive decoding: beam search, greedy decoding and sampling, with T5X's signatures and numbers.

A decoder is called as `decode_fn(inputs=, cache=, tokens_to_logits=, eos_id=, num_decodes=, decode_rng=, cache_offset=,
…)` and returns `(decodes [batch, num_decodes, length], scores [batch, num_decodes])`, best last. Rows of the network's
batch are `batch * num_decodes`, the decodes of one example side by side.

Sampling and greedy decoding are here; `limba.models.beam_search` has beam search.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.core
import flax.struct
import jax
import jax.numpy as jnp

from limba.models.beam_search import beam_search
from limba.network.decoding_state import (
    NEG_INF,
    Array,
    DecodingState,
    PyTree,
    TokensToLogits,
    cache_map,
    flat_batch_beam_expand,
    pick,
)

__all__ = ["NEG_INF", "DecodingState", "SamplingLoopState", "TokensToLogits", "beam_search", "temperature_sample"]

# Below this temperature decoding is greedy.
MIN_TEMPERATURE = 1e-4


@flax.struct.dataclass
class SamplingLoopState:
    """The loop of `temperature_sample`, as its callbacks see it.

    Sequences have the first 0, the prompt and the tokens so far; the last column is scratch for rows that are done
    before others.
    """

    step: Array  # steps done
    cur_index: Array  # position in each row, [rows]
    sequences: Array  # [rows, length + 2]
    cache: PyTree
    cur_token: Array  # [rows, 1]
    ended: Array  # [rows, 1]
    rng: Array  # of the next step
    log_prob: Array  # of the tokens so far, [rows]


def temperature_sample(
    inputs: Array,
    cache: PyTree,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    decode_rng: Array | None = None,
    num_decodes: int = 1,
    temperature: float | Array = 1.0,
    topk: int | Array = 1,
    topp: float | Array = 0.0,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    state_callback_fn: Callable[[SamplingLoopState], SamplingLoopState] | None = None,
    logit_callback_fn: Callable[[Array, SamplingLoopState], Array] | None = None,
) -> tuple[Array, Array]:
    """Draws `num_decodes` continuations of each row; greedy by default, and for a temperature of 0.

    Args:
      inputs: prompts after a first 0, `[batch, length]`; 0 where a token is to be chosen. Prompts are kept as they are.
      cache, tokens_to_logits: the network's cache for `batch` rows, and its step.
      eos_id: ends a row; what follows is 0.
      decode_rng: None is `jax.random.PRNGKey(0)`.
      num_decodes: continuations of each row.
      temperature: of the softmax, one or `[batch]`.
      topk: sample among the k most likely tokens; 0 means all.
      topp: sample among the fewest tokens with this probability mass; 0 means all. Not with `topk`.
      cache_offset: the batch axis of cache entries: 1 under scanned layers.
      initial_index: `[batch]`: the cache holds the prompt up to this position, decoding starts there.
      max_decode_steps: tokens after the prompt at most.
      max_decode_steps_hard_limit: bound on `max_decode_steps`, which may be an array.
      rescale_log_probs: scores under the truncated and tempered distribution (greedy ones are then all 0) instead of
        the network's.
      state_callback_fn: called before each step and after the last.
      logit_callback_fn: changes the logits of a step.

    Returns:
      Tokens int32 `[batch, num_decodes, length]` without the first 0, and their log probabilities
      `[batch, num_decodes]` in increasing order; prompts do not count.

    Raises:
      ValueError: if both `topk` and `topp` are given, one is below 0, or `max_decode_steps` exceeds the length.
    """
    if not (_is_traced(topk) or _is_traced(topp)) and topk and topp:
        raise ValueError(f"Decode with topk ({topk}) or with topp ({topp}), not with both; set the other to 0.")
    for name, value in {"temperature": temperature, "topk": topk, "topp": topp}.items():
        if isinstance(value, int | float) and value < 0:
            raise ValueError(f"temperature_sample.{name} is {value}; it is at least 0.")
    batch, length = inputs.shape
    cache = flax.core.unfreeze(cache)
    if num_decodes > 1:
        expand = functools.partial(flat_batch_beam_expand, beam_size=num_decodes)
        cache = cache_map(functools.partial(expand, offset=cache_offset), cache, initial_index is not None)
        inputs = expand(inputs)
        initial_index = None if initial_index is None else expand(initial_index)
        temperature = expand(jnp.asarray(temperature)) if jnp.ndim(temperature) == 1 else temperature
    last_index = _last_index(inputs, max_decode_steps, max_decode_steps_hard_limit)
    state = _first_state(inputs, cache, initial_index, decode_rng)
    # A prompt may contain EOS (inputs of a decoder-only network do), so only an additional one ends a row.
    prompt_eos = jnp.sum(state.sequences == eos_id, axis=1)

    def decode_one(state: SamplingLoopState) -> SamplingLoopState:
        state = state if state_callback_fn is None else state_callback_fn(state)
        step_rng, rng = jax.random.split(state.rng)
        logits, cache = tokens_to_logits(
            DecodingState(state.cur_index, state.sequences[:, :-2], state.cur_token, state.cache)
        )
        logits = logits if logit_callback_fn is None else logit_callback_fn(logits, state)
        token, log_prob = _choose(logits, step_rng, temperature, topk, topp, rescale_log_probs)
        state = dataclasses.replace(state, cache=flax.core.unfreeze(cache), rng=rng)
        return _advance(state, token, log_prob, last_index, eos_id, prompt_eos)

    state = jax.lax.while_loop(lambda state: ~jnp.all(state.ended), decode_one, state)
    state = state if state_callback_fn is None else state_callback_fn(state)
    tokens, scores = state.sequences[:, 1:-1].reshape(batch, num_decodes, length), state.log_prob.reshape(batch, -1)
    order = jnp.argsort(scores, axis=1)
    return pick(tokens, order), pick(scores, order)


def _last_index(inputs: Array, max_decode_steps: int | Array | None, hard_limit: int | None) -> int | Array:
    """The position after the last one that may be decoded: one, or `[rows]`."""
    length = inputs.shape[1]
    if max_decode_steps is None:
        return length
    if hard_limit:
        max_decode_steps = jnp.minimum(max_decode_steps, hard_limit)
    if not _is_traced(max_decode_steps) and max_decode_steps > length:
        raise ValueError(f"max_decode_steps is {max_decode_steps}, more than the length of {length} tokens.")
    return jnp.minimum(length, jnp.sum(inputs != 0, axis=1) + max_decode_steps)


def _first_state(
    inputs: Array, cache: PyTree, initial_index: Array | None, decode_rng: Array | None
) -> SamplingLoopState:
    """Rows at their first position, or at the end of a prompt that the cache holds."""
    rows = inputs.shape[0]
    sequences = jnp.pad(inputs, ((0, 0), (0, 2)))
    if initial_index is None:
        index, token = jnp.zeros((rows,), jnp.int32), jnp.zeros((rows, 1), jnp.int32)
    else:
        index, token = initial_index, jnp.take_along_axis(sequences, initial_index[:, None], axis=1)
    return SamplingLoopState(
        step=jnp.int32(0),
        cur_index=index,
        sequences=sequences,
        cache=cache,
        cur_token=token,
        ended=jnp.zeros((rows, 1), bool),
        rng=jax.random.PRNGKey(0) if decode_rng is None else decode_rng,
        log_prob=jnp.zeros((rows,), jnp.float32),
    )


def _advance(
    state: SamplingLoopState, token: Array, log_prob: Array, last_index: int | Array, eos_id: int, prompt_eos: Array
) -> SamplingLoopState:
    """Writes the chosen token of each row, `[rows]`, or the prompt's token, which costs nothing."""
    # A row that is done before others writes into the scratch column.
    index = jnp.minimum(state.cur_index, last_index)
    given = jnp.take_along_axis(state.sequences, index[:, None] + 1, axis=1)[:, 0]
    ended = state.ended[:, 0]
    log_prob = jnp.where((given == 0) & ~ended, log_prob, 0.0)
    token = jnp.where(ended, 0, jnp.where(given == 0, token, given))
    positions = jnp.arange(state.sequences.shape[1])
    sequences = jnp.where(positions == index[:, None] + 1, token[:, None], state.sequences)
    ended |= jnp.sum(sequences == eos_id, axis=1) > prompt_eos
    ended |= index >= last_index - 1
    return dataclasses.replace(
        state,
        step=state.step + 1,
        cur_index=index + 1,
        sequences=sequences,
        cur_token=token[:, None],
        ended=ended[:, None],
        log_prob=state.log_prob + log_prob,
    )


def _choose(
    logits: Array,
    rng: Array,
    temperature: float | Array,
    topk: int | Array,
    topp: float | Array,
    rescale_log_probs: bool,
) -> tuple[Array, Array]:
    """The next token of each row and its log probability, both `[rows]`."""
    logits = jnp.asarray(logits, jnp.float32)
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    truncated = _is_traced(topk) or _is_traced(topp) or topk != 1
    hot = temperature > MIN_TEMPERATURE  # a bool, or an array where temperature is one
    if not truncated or hot is False:
        return best, _certain(best, logits) if rescale_log_probs else _log_prob_of(best, logits)
    divisor = jnp.maximum(temperature, MIN_TEMPERATURE)
    scaled = _keep_likely(logits / (divisor[:, None] if divisor.ndim else divisor), topk, topp)
    token = jax.random.categorical(rng, scaled).astype(jnp.int32)
    scores = _log_prob_of(token, scaled if rescale_log_probs else logits)
    if hot is True:
        return token, scores
    greedy_scores = _certain(best, logits) if rescale_log_probs else _log_prob_of(best, logits)
    return jnp.where(hot, token, best), jnp.where(hot, scores, greedy_scores)


def _keep_likely(logits: Array, topk: int | Array, topp: float | Array) -> Array:
    """Makes every token outside the top k, or outside the nucleus of mass p (arXiv:1904.09751), impossible.

    Tokens as likely as the last one kept are kept too. A traced option of 0 keeps all, as a plain 0 does.
    """
    # Numbers whose order as integers is that of the logits.
    bits = jax.lax.bitcast_convert_type(logits, jnp.uint32)
    keys = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
    kept: Array = jnp.ones_like(logits, bool)
    if _is_traced(topk) or topk:
        kept &= (topk <= 0) | _fewest(keys, lambda mask: jnp.sum(mask, axis=-1) >= topk)
    if _is_traced(topp) or topp:
        likely = jax.nn.softmax(logits)
        kept &= (topp <= 0) | _fewest(keys, lambda mask: jnp.sum(likely * mask, axis=-1) >= topp)
    # Not NEG_INF: at a low temperature the logits that are kept can be below it.
    return jnp.where(kept, logits, -jnp.inf)


def _fewest(keys: Array, enough: Callable[[Array], Array]) -> Array:
    """The mask of the largest keys of each row, as few as are enough.

    Found by bisection: 32 sums over the vocabulary cost a sixth of sorting it on a CPU.
    """

    def decide_bit(i: Array, threshold: Array) -> Array:
        higher = threshold | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        return jnp.where(enough(keys >= higher[:, None]), higher, threshold)

    threshold = jax.lax.fori_loop(0, 32, decide_bit, jnp.zeros(keys.shape[:1], jnp.uint32))
    return keys >= threshold[:, None]


def _certain(token: Array, logits: Array) -> Array:
    """The log probability of the only token that may be chosen, which is 0; NaN if its logit is not finite."""
    return jnp.where(jnp.isfinite(jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]), 0.0, jnp.nan)


def _log_prob_of(token: Array, logits: Array) -> Array:
    # Not the logit less `logsumexp`: of a likely token that is the difference of two large numbers, with few bits left.
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)
