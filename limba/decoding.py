"""Autoregressive decoding: greedy, and sampling with temperature, top-k and top-p."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any

# One decoding step: (token [rows, 1], cache) -> (logits [rows, vocab], cache).
TokensToLogits = Callable[[Array, PyTree], tuple[Array, PyTree]]

_NEGATIVE_INFINITY = -1e9


def temperature_sample(
    cache: PyTree,
    tokens_to_logits: TokensToLogits,
    num_rows: int,
    max_decode_length: int,
    eos_id: int,
    decode_rng: Array | None = None,
    temperature: float = 1.0,
    topk: int = 1,
    topp: float = 0.0,
) -> tuple[Array, Array]:
    """Decodes each row until EOS or `max_decode_length`.

    Args:
      cache: the network's cache, already made for `num_rows` rows, at position 0.
      tokens_to_logits: the network's step.
      num_rows: rows decoded side by side.
      max_decode_length: tokens at most, EOS included.
      eos_id: ends a row; what follows is 0.
      decode_rng: needed unless decoding is greedy.
      temperature: of the softmax; 0 is greedy.
      topk: sample among the k most likely tokens; 1 is greedy, 0 means all.
      topp: sample among the smallest set of tokens with this probability mass; 0 means all. Not with `topk`.

    Returns:
      Tokens int32 `[num_rows, max_decode_length]` and the log probability of each row, float32 `[num_rows]`.

    Raises:
      ValueError: if both `topk` and `topp` are given, or sampling lacks an rng.
    """
    greedy = temperature == 0.0 or topk == 1
    if topk and topp:
        raise ValueError(f"Decode with topk ({topk}) or with topp ({topp}), not with both; set the other to 0.")
    if not greedy and decode_rng is None:
        raise ValueError("Sampling needs a decode_rng; set topk = 1 for greedy decoding.")

    def choose(logits: Array, step: Array) -> tuple[Array, Array]:
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        if decode_rng is None or greedy:
            token = jnp.argmax(logits, axis=-1)
        else:
            scaled = _keep_likely(logits.astype(jnp.float32) / temperature, topk, topp)
            token = jax.random.categorical(jax.random.fold_in(decode_rng, step), scaled)
        chosen = jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]
        return token.astype(jnp.int32), chosen

    def unfinished(carry):
        step, _, _, _, ended, _ = carry
        return (step < max_decode_length) & ~jnp.all(ended)

    def decode_one(carry):
        step, token, tokens, scores, ended, cache = carry
        logits, cache = tokens_to_logits(token[:, None], cache)
        token, log_prob = choose(logits, step)
        token = jnp.where(ended, 0, token)
        scores = jnp.where(ended, scores, scores + log_prob)
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, token, step, axis=1)
        return step + 1, token, tokens, scores, ended | (token == eos_id), cache

    start = (
        jnp.int32(0),
        jnp.zeros((num_rows,), jnp.int32),
        jnp.zeros((num_rows, max_decode_length), jnp.int32),
        jnp.zeros((num_rows,), jnp.float32),
        jnp.zeros((num_rows,), bool),
        cache,
    )
    _, _, tokens, scores, _, _ = jax.lax.while_loop(unfinished, decode_one, start)
    return tokens, scores


def _keep_likely(logits: Array, topk: int, topp: float) -> Array:
    """Makes every token outside the top k, or outside the nucleus of mass p (arXiv:1904.09751), impossible."""
    if topk:
        threshold = jax.lax.top_k(logits, topk)[0][:, -1:]
        return jnp.where(logits < threshold, _NEGATIVE_INFINITY, logits)
    if topp:
        descending = -jnp.sort(-logits, axis=-1)
        mass_before = jnp.cumsum(jax.nn.softmax(descending), axis=-1) - jax.nn.softmax(descending)
        kept = jnp.sum(mass_before < topp, axis=-1, keepdims=True)
        threshold = jnp.take_along_axis(descending, kept - 1, axis=-1)
        return jnp.where(logits < threshold, _NEGATIVE_INFINITY, logits)
    return logits
