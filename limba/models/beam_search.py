"""Beam search with T5X's signature and numbers."""

import dataclasses
import functools
import logging
from typing import NamedTuple

import flax.core
import flax.struct
import jax
import jax.numpy as jnp

from limba.network.decoding_state import (
    NEG_INF,
    Array,
    DecodingState,
    PyTree,
    TokensToLogits,
    continue_beams,
    expand_to_beams,
    pick,
)

logger = logging.getLogger(__name__)

# More beams than anyone searches with on purpose.
_MANY = 64


@flax.struct.dataclass
class BeamState:
    """The loop of `beam_search`: beams that still grow ("live") and the best that have ended ("finished").

    Beams are sorted by increasing score. Sequences are `[batch, beams, length + 1]` and begin with a token that was
    given; scores and flags are `[batch, beams]`. `cur_index` counts steps; the cache's rows are `batch * beams`.
    """

    cur_index: Array
    live_logprobs: Array
    finished_scores: Array
    live_seqs: Array
    finished_seqs: Array
    finished_flags: Array
    cache: PyTree


@functools.cache  # A search is traced more than once.
def _warn_of_beams(num_decodes: int) -> None:
    logger.warning(
        "%d beams: each line is decoded as %d lines are, and compared with all their continuations. 4 to 10 beams are "
        "usual.",
        num_decodes,
        num_decodes,
    )


def beam_search(
    inputs: Array,
    cache: PyTree,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    num_decodes: int = 4,
    alpha: float = 0.6,
    max_decode_len: int | None = None,
    max_decode_step: int = -1,
    min_log_prob: float = NEG_INF,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
) -> tuple[Array, Array]:
    """Beam search with the length penalty of arXiv:1609.08144, section 7.

    A finished beam's score is its log probability over `((5 + length) / 6) ** alpha`, EOS counted. The search ends
    early when no live beam, were it certain from now on, could beat the worst finished one. An example without any
    finished beam returns its live ones, with plain log probabilities.

    Args:
      inputs: prompts after a first 0, `[batch, length]`; 0 where a token is to be chosen.
      cache, tokens_to_logits: the network's cache for `batch` rows, and its step.
      alpha: 0 ignores lengths; larger prefers long ones.
      max_decode_len: tokens of an output, None the length of `inputs`.
      max_decode_step: steps at most; -1: no limit.
      min_log_prob: stop when every live beam is less likely than this.
      cache_offset: the batch axis of cache entries: 1 under scanned layers.
      initial_index: `[batch]`: the cache holds the prompt up to this position, decoding starts there.

    Returns:
      Tokens int32 `[batch, num_decodes, max_decode_len]` without the first 0, and scores `[batch, num_decodes]` in
      increasing order. A slot without a finished beam, beside others that have one, is all 0 with score `NEG_INF`.
      Where the logits of a live beam were NaN, the best score is inf.
    """
    del decode_rng
    if num_decodes > _MANY:
        _warn_of_beams(num_decodes)
    length = inputs.shape[1] if max_decode_len is None else max_decode_len
    prefilled = initial_index is not None
    prompt_lengths = jnp.zeros(inputs.shape[:1], jnp.int32) if initial_index is None else initial_index
    cache = expand_to_beams(flax.core.unfreeze(cache), num_decodes, cache_offset, prefilled)
    # With a prefilled cache, the search sees the prompt's last token only; the rest is put before its results.
    prompt_ends = jnp.max(jnp.arange(inputs.shape[1]) * (inputs != 0), axis=1) if prefilled else None
    forced = jnp.zeros_like(inputs) if prefilled else inputs
    forced = jnp.pad(forced, ((0, 0), (0, max(0, length + 1 - inputs.shape[1]))))
    longest_penalty = brevity_penalty(alpha, length + 1)

    def unfinished(state: BeamState) -> Array:
        out_of_steps = (max_decode_step > 0) & (state.cur_index >= max_decode_step)
        at_end = state.cur_index + jnp.min(prompt_lengths) >= length
        return ~(at_end | out_of_steps | _is_decided(state, longest_penalty, min_log_prob))

    def grow(state: BeamState) -> BeamState:
        log_probs, cache = _next_log_probs(state, tokens_to_logits)
        candidates = _best_candidates(state, log_probs, forced, eos_id)
        state = _keep_finished(state, candidates, brevity_penalty(alpha, prompt_lengths[:, None] + state.cur_index + 1))
        state, parents = _keep_live(state, candidates)
        cache = flax.core.unfreeze(cache)
        if num_decodes > 1:
            cache = continue_beams(cache, parents, cache_offset, prefilled)
        return dataclasses.replace(state, cur_index=state.cur_index + 1, cache=cache)

    state = _first_state(inputs, prompt_ends, cache, num_decodes, length)
    state = jax.lax.while_loop(unfinished, grow, state)
    tokens, scores = _results(state)
    if prompt_ends is not None:
        tokens = jax.vmap(_after_prompt)(tokens, inputs, prompt_ends)
    return tokens, scores


def _first_state(inputs: Array, prompt_ends: Array | None, cache: PyTree, beams: int, length: int) -> BeamState:
    """One live beam an example. It begins with 0, or with the last token of a prefilled prompt."""
    batch = inputs.shape[0]
    sequences = jnp.zeros((batch, beams, length + 1), jnp.int32)
    live_seqs = sequences
    if prompt_ends is not None:
        live_seqs = sequences.at[:, :, 0].set(jnp.take_along_axis(inputs, prompt_ends[:, None], axis=1))
    return BeamState(
        cur_index=jnp.int32(0),
        live_logprobs=jnp.where(jnp.arange(beams) == 0, 0.0, jnp.full((batch, beams), NEG_INF)),
        finished_scores=jnp.full((batch, beams), NEG_INF),
        live_seqs=live_seqs,
        finished_seqs=sequences,
        finished_flags=jnp.zeros((batch, beams), bool),
        cache=cache,
    )


def _is_decided(state: BeamState, longest_penalty: Array, min_log_prob: float) -> Array:
    """Whether no live beam of any example can still get among the finished ones, or all are less likely than wanted."""
    # Beams are sorted, so the last live one is the best.
    best_live = state.live_logprobs[:, -1] / longest_penalty
    worst_finished = jnp.min(jnp.where(state.finished_flags, state.finished_scores, NEG_INF), axis=1)
    hopeless = jnp.all(best_live < min_log_prob / longest_penalty) & (state.cur_index > 0)
    return jnp.all(worst_finished > best_live) | hopeless


def _next_log_probs(state: BeamState, tokens_to_logits: TokensToLogits) -> tuple[Array, PyTree]:
    """Log probabilities of all continuations, `[batch, beams, vocab]`, and the new cache."""
    batch, beams, _ = state.live_seqs.shape
    flat = state.live_seqs.reshape(batch * beams, -1)
    token = jax.lax.dynamic_slice_in_dim(flat, state.cur_index, 1, axis=1)
    logits, cache = tokens_to_logits(DecodingState(state.cur_index, flat, token, state.cache))
    log_probs = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)).reshape(batch, beams, -1)
    log_probs += state.live_logprobs[:, :, None]
    # What is not a number comes first, and stays there: where NaN is sorted to depends on its sign.
    return jnp.where(jnp.isnan(log_probs), jnp.inf, log_probs), cache


class _Candidates(NamedTuple):
    """The best continuations of the live beams: `[batch, 2 * beams]`, the best first."""

    log_probs: Array  # of all tokens so far
    parents: Array  # the live beams that they continue
    sequences: Array  # with the new token, [batch, 2 * beams, length + 1]
    ends: Array  # whether the new token is EOS


def _best_candidates(state: BeamState, log_probs: Array, forced: Array, eos_id: int) -> _Candidates:
    """The best of all continuations; inside a prompt (`forced` is not 0 there) the prompt's token."""
    batch, beams, vocab = log_probs.shape
    # Twice as many candidates as beams: if the best of them all end here, enough are left to continue.
    log_probs, candidates = jax.lax.top_k(log_probs.reshape(batch, beams * vocab), 2 * beams)
    parents, tokens = candidates // vocab, candidates % vocab
    # Inside a prompt one beam lives, and costs nothing: equal beams would crowd out others later.
    given = jax.lax.dynamic_slice_in_dim(forced, state.cur_index + 1, 1, axis=1)
    inside = jnp.where(jnp.arange(2 * beams) == 0, 0.0, NEG_INF)
    log_probs = jnp.where(given == 0, log_probs, inside)
    tokens = jnp.where(given == 0, tokens, given)
    sequences = jax.lax.dynamic_update_slice_in_dim(
        pick(state.live_seqs, parents), tokens[:, :, None].astype(jnp.int32), state.cur_index + 1, axis=2
    )
    return _Candidates(log_probs, parents, sequences, tokens == eos_id)


def _keep_finished(state: BeamState, candidates: _Candidates, penalty: Array) -> BeamState:
    """The best beams that have ended, before this step or in it."""
    scores = candidates.log_probs / penalty + ~candidates.ends * NEG_INF
    scores = jnp.concatenate([state.finished_scores, scores], axis=1)
    best = _best_last(scores, state.finished_scores.shape[1])
    return dataclasses.replace(
        state,
        finished_scores=pick(scores, best),
        finished_seqs=pick(jnp.concatenate([state.finished_seqs, candidates.sequences], axis=1), best),
        finished_flags=pick(jnp.concatenate([state.finished_flags, candidates.ends], axis=1), best),
    )


def _keep_live(state: BeamState, candidates: _Candidates) -> tuple[BeamState, Array]:
    """The best beams that have not ended, and the beams that they continue, `[batch, beams]`."""
    log_probs = candidates.log_probs + candidates.ends * NEG_INF
    best = _best_last(log_probs, state.live_logprobs.shape[1])
    return dataclasses.replace(
        state, live_logprobs=pick(log_probs, best), live_seqs=pick(candidates.sequences, best)
    ), pick(candidates.parents, best)


def _results(state: BeamState) -> tuple[Array, Array]:
    """The finished beams without the first token, and their scores; of an example without any, the live ones."""
    any_finished = jnp.any(state.finished_flags, axis=1)
    tokens = jnp.where(any_finished[:, None, None], state.finished_seqs, state.live_seqs)[:, :, 1:]
    return tokens, jnp.where(any_finished[:, None], state.finished_scores, state.live_logprobs)


def _after_prompt(tokens: Array, prompt: Array, prompt_end: Array) -> Array:
    """`tokens` `[beams, length]` after the `prompt_end` tokens that follow the first 0 of `prompt` `[length]`."""
    position = jnp.arange(tokens.shape[1])
    continued = jnp.take(tokens, jnp.maximum(position - prompt_end, 0), axis=1)
    given = jnp.take(prompt, position + 1, mode="clip")
    return jnp.where(position < prompt_end, given, continued)


def brevity_penalty(alpha: float, length: int | Array) -> Array:
    """What a log probability of `length` tokens is divided by."""
    return jnp.power((5.0 + length) / 6.0, alpha)


def _best_last(scores: Array, count: int) -> Array:
    """Indices of the `count` highest scores of each row in increasing order, `[batch, count]`."""
    return jnp.flip(jax.lax.top_k(scores, count)[1], axis=1)
