"""Autoregressive decoding: beam search, greedy decoding and sampling, with T5X's signatures and numbers.

A decoder is called as `decode_fn(inputs=, cache=, tokens_to_logits=, eos_id=, num_decodes=, decode_rng=, cache_offset=,
…)` and returns `(decodes [batch, num_decodes, length], scores [batch, num_decodes])`, best last. Rows of the network's
batch are `batch * num_decodes`, the decodes of one example side by side.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.core
import flax.struct
import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any

# Stands for "impossible". Finite, because scores are added to it; its value is part of beam search's numbers.
NEG_INF = -1.0e7

# Below this temperature decoding is greedy.
MIN_TEMPERATURE = 1e-4

# Cache entries that have no batch dimension. An index gets one when a prompt has been prefilled.
_INDEX_ENTRIES = ("cache_index",)
_SHARED_ENTRIES = ("cached_bias", "position_embedder_index")


@flax.struct.dataclass
class DecodingState:
    """What one step of decoding may know.

    Attributes:
      cur_index: the position that is fed: a scalar in beam search, `[rows]` in sampling.
      sequences: tokens so far, `[rows, length]`, after the first 0.
      cur_token: tokens to feed, `[rows, 1]`.
      cache: the network's cache.
    """

    cur_index: Array
    sequences: Array
    cur_token: Array
    cache: PyTree


# One step of the network: logits `[rows, vocab]` of the next token, and the new cache.
TokensToLogits = Callable[[DecodingState], tuple[Array, PyTree]]


# ----------------------------------------------------- sampling ------------------------------------------------------


@flax.struct.dataclass
class SamplingLoopState:
    """The loop of `temperature_sample`, as its callbacks see it.

    Attributes:
      step: steps done.
      cur_index: position in each row, `[rows]`.
      sequences: `[rows, length + 2]`: the first 0, the prompt and the tokens so far; the last column is scratch for
        rows that are done before others.
      cache: the network's cache.
      cur_token: `[rows, 1]`.
      ended: `[rows, 1]`.
      rng: of the next step.
      log_prob: of the tokens so far, `[rows]`.
    """

    step: Array
    cur_index: Array
    sequences: Array
    cache: PyTree
    cur_token: Array
    ended: Array
    rng: Array
    log_prob: Array


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
      cache: the network's cache for `batch` rows.
      tokens_to_logits: the network's step.
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
      ValueError: if both `topk` and `topp` are given, or `max_decode_steps` exceeds the length.
    """
    if not (_is_traced(topk) or _is_traced(topp)) and topk and topp:
        raise ValueError(f"Decode with topk ({topk}) or with topp ({topp}), not with both; set the other to 0.")
    batch, length = inputs.shape
    if max_decode_steps is not None and max_decode_steps_hard_limit:
        max_decode_steps = jnp.minimum(max_decode_steps, max_decode_steps_hard_limit)
    if max_decode_steps is not None and not _is_traced(max_decode_steps) and max_decode_steps > length:
        raise ValueError(f"max_decode_steps is {max_decode_steps}, more than the length of {length} tokens.")

    cache = flax.core.unfreeze(cache)
    if num_decodes > 1:
        expand = functools.partial(flat_batch_beam_expand, beam_size=num_decodes)
        cache = cache_map(functools.partial(expand, offset=cache_offset), cache, initial_index is not None)
        inputs = expand(inputs)
        initial_index = None if initial_index is None else expand(initial_index)
        if jnp.ndim(temperature) == 1:
            temperature = expand(jnp.asarray(temperature))
    rows = batch * num_decodes

    last_index: int | Array = length
    if max_decode_steps is not None:
        last_index = jnp.minimum(length, jnp.sum(inputs != 0, axis=1) + max_decode_steps)
    sequences = jnp.pad(inputs, ((0, 0), (0, 2)))
    positions = jnp.arange(length + 2)
    # A prompt may contain EOS (inputs of a decoder-only network do), so only an additional one ends a row.
    prompt_eos_count = jnp.sum(sequences == eos_id, axis=1)

    def unfinished(state: SamplingLoopState) -> Array:
        return ~jnp.all(state.ended)

    def decode_one(state: SamplingLoopState) -> SamplingLoopState:
        if state_callback_fn is not None:
            state = state_callback_fn(state)
        step_rng, rng = jax.random.split(state.rng)
        logits, cache = tokens_to_logits(
            DecodingState(state.cur_index, state.sequences[:, :-2], state.cur_token, state.cache)
        )
        if logit_callback_fn is not None:
            logits = logit_callback_fn(logits, state)
        token, log_prob = _choose(logits, step_rng, temperature, topk, topp, rescale_log_probs)

        # A row that is done before others writes into the scratch column.
        index = jnp.minimum(state.cur_index, last_index)
        given = jnp.take_along_axis(state.sequences, index[:, None] + 1, axis=1)[:, 0]
        ended = state.ended[:, 0]
        log_prob = jnp.where((given == 0) & ~ended, log_prob, 0.0)
        token = jnp.where(ended, 0, jnp.where(given == 0, token, given))
        sequences = jnp.where(positions == index[:, None] + 1, token[:, None], state.sequences)
        ended |= (jnp.sum(sequences == eos_id, axis=1) > prompt_eos_count) | (index >= last_index - 1)
        return SamplingLoopState(
            state.step + 1,
            index + 1,
            sequences,
            flax.core.unfreeze(cache),
            token[:, None],
            ended[:, None],
            rng,
            state.log_prob + log_prob,
        )

    if initial_index is None:
        index, token = jnp.zeros((rows,), jnp.int32), jnp.zeros((rows, 1), jnp.int32)
    else:
        index, token = initial_index, jnp.take_along_axis(sequences, initial_index[:, None], axis=1)
    state = SamplingLoopState(
        step=jnp.int32(0),
        cur_index=index,
        sequences=sequences,
        cache=cache,
        cur_token=token,
        ended=jnp.zeros((rows, 1), bool),
        rng=jax.random.PRNGKey(0) if decode_rng is None else decode_rng,
        log_prob=jnp.zeros((rows,), jnp.float32),
    )
    state = jax.lax.while_loop(unfinished, decode_one, state)
    if state_callback_fn is not None:
        state = state_callback_fn(state)

    tokens = state.sequences[:, 1:-1].reshape(batch, num_decodes, length)
    scores = state.log_prob.reshape(batch, num_decodes)
    order = jnp.argsort(scores, axis=1)
    return _pick(tokens, order), _pick(scores, order)


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
        return best, jnp.zeros(best.shape) if rescale_log_probs else _log_prob_of(best, logits)
    scaled = _keep_likely(logits / _column(jnp.maximum(temperature, MIN_TEMPERATURE)), topk, topp)
    token = jax.random.categorical(rng, scaled).astype(jnp.int32)
    scores = _log_prob_of(token, scaled if rescale_log_probs else logits)
    if hot is True:
        return token, scores
    greedy_scores = jnp.zeros(best.shape) if rescale_log_probs else _log_prob_of(best, logits)
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
    return jnp.where(kept, logits, NEG_INF)


def _fewest(keys: Array, enough: Callable[[Array], Array]) -> Array:
    """The mask of the largest keys of each row, as few as are enough.

    Found by bisection: 32 sums over the vocabulary cost a sixth of sorting it on a CPU.
    """

    def decide_bit(i: Array, threshold: Array) -> Array:
        higher = threshold | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        return jnp.where(enough(keys >= higher[:, None]), higher, threshold)

    threshold = jax.lax.fori_loop(0, 32, decide_bit, jnp.zeros(keys.shape[:1], jnp.uint32))
    return keys >= threshold[:, None]


def _log_prob_of(token: Array, logits: Array) -> Array:
    chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _column(x: Array) -> Array:
    """A scalar as it is; `[rows]` as `[rows, 1]`."""
    return x if x.ndim == 0 else x[:, None]


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


# ---------------------------------------------------- beam search ----------------------------------------------------


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
      cache: the network's cache for `batch` rows.
      tokens_to_logits: the network's step.
      eos_id: ends a beam.
      num_decodes: beams.
      alpha: 0 ignores lengths; larger prefers long ones.
      max_decode_len: tokens of an output, None the length of `inputs`.
      max_decode_step: steps at most; -1 is no limit.
      min_log_prob: stop when every live beam is less likely than this.
      decode_rng: not used.
      cache_offset: the batch axis of cache entries: 1 under scanned layers.
      initial_index: `[batch]`: the cache holds the prompt up to this position, decoding starts there.

    Returns:
      Tokens int32 `[batch, num_decodes, max_decode_len]` without the first 0, and scores `[batch, num_decodes]` in
      increasing order. A slot without a finished beam, beside others that have one, is all 0 with score `NEG_INF`.
    """
    del decode_rng
    batch, beams = inputs.shape[0], num_decodes
    length = inputs.shape[1] if max_decode_len is None else max_decode_len
    prefilled = initial_index is not None
    prompt_lengths = jnp.zeros((batch,), jnp.int32) if initial_index is None else initial_index
    cache = cache_map(lambda x: flat_batch_beam_expand(x, beams, cache_offset), flax.core.unfreeze(cache), prefilled)
    live_seqs = jnp.zeros((batch, beams, length + 1), jnp.int32)
    if prefilled:
        # The search sees the prompt's last token only; the rest is put before its results.
        prompt_ends = jnp.max(jnp.arange(inputs.shape[1]) * (inputs != 0), axis=1)
        last_token = jnp.take_along_axis(inputs, prompt_ends[:, None], axis=1)
        live_seqs = live_seqs.at[:, :, 0].set(last_token)
        forced = jnp.zeros((batch, length + 1), jnp.int32)
    else:
        forced = jnp.pad(inputs, ((0, 0), (0, max(0, length + 1 - inputs.shape[1]))))
    longest_penalty = brevity_penalty(alpha, length + 1)

    def unfinished(state: BeamState) -> Array:
        # Beams are sorted, so the last live one is the best.
        best_live = state.live_logprobs[:, -1] / longest_penalty
        worst_finished = jnp.min(jnp.where(state.finished_flags, state.finished_scores, NEG_INF), axis=1)
        decided = jnp.all(worst_finished > best_live)
        hopeless = jnp.all(best_live < min_log_prob / longest_penalty) & (state.cur_index > 0)
        out_of_steps = (max_decode_step > 0) & (state.cur_index >= max_decode_step)
        at_end = state.cur_index + jnp.min(prompt_lengths) >= length
        return ~(at_end | decided | hopeless | out_of_steps)

    def grow(state: BeamState) -> BeamState:
        flat = state.live_seqs.reshape(batch * beams, -1)
        token = jax.lax.dynamic_slice_in_dim(flat, state.cur_index, 1, axis=1)
        logits, cache = tokens_to_logits(DecodingState(state.cur_index, flat, token, state.cache))
        log_probs = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)).reshape(batch, beams, -1)
        vocab = log_probs.shape[-1]
        log_probs = (log_probs + state.live_logprobs[:, :, None]).reshape(batch, beams * vocab)
        # Twice as many candidates as beams: should the best all end here, as many are left to go on.
        log_probs, candidates = jax.lax.top_k(log_probs, 2 * beams)
        parents, tokens = candidates // vocab, candidates % vocab
        # Inside a prompt one beam lives, and costs nothing: equal beams would crowd out others later.
        given = jax.lax.dynamic_slice_in_dim(forced, state.cur_index + 1, 1, axis=1)
        inside = jnp.where(jnp.arange(2 * beams) == 0, 0.0, NEG_INF)
        log_probs = jnp.where(given == 0, log_probs, inside)
        tokens = jnp.where(given == 0, tokens, given)
        sequences = _pick(state.live_seqs, parents)
        sequences = jax.lax.dynamic_update_slice_in_dim(
            sequences, tokens[:, :, None].astype(jnp.int32), state.cur_index + 1, axis=2
        )
        ends = tokens == eos_id

        live_log_probs = log_probs + ends * NEG_INF
        live = _best_last(live_log_probs, beams)
        if beams > 1:
            survivors = (jnp.arange(batch)[:, None] * beams + _pick(parents, live)).reshape(-1)
            cache = cache_map(lambda x: jnp.take(x, survivors, axis=cache_offset), cache, prefilled)

        scores = log_probs / brevity_penalty(alpha, prompt_lengths[:, None] + state.cur_index + 1)
        scores = jnp.concatenate([state.finished_scores, scores + ~ends * NEG_INF], axis=1)
        finished = _best_last(scores, beams)
        return BeamState(
            cur_index=state.cur_index + 1,
            live_logprobs=_pick(live_log_probs, live),
            finished_scores=_pick(scores, finished),
            live_seqs=_pick(sequences, live),
            finished_seqs=_pick(jnp.concatenate([state.finished_seqs, sequences], axis=1), finished),
            finished_flags=_pick(jnp.concatenate([state.finished_flags, ends], axis=1), finished),
            cache=flax.core.unfreeze(cache),
        )

    state = BeamState(
        cur_index=jnp.int32(0),
        live_logprobs=jnp.where(jnp.arange(beams) == 0, 0.0, jnp.full((batch, beams), NEG_INF)),
        finished_scores=jnp.full((batch, beams), NEG_INF),
        live_seqs=live_seqs,
        finished_seqs=jnp.zeros_like(live_seqs),
        finished_flags=jnp.zeros((batch, beams), bool),
        cache=cache,
    )
    state = jax.lax.while_loop(unfinished, grow, state)
    any_finished = jnp.any(state.finished_flags, axis=1)
    tokens = jnp.where(any_finished[:, None, None], state.finished_seqs, state.live_seqs)[:, :, 1:]
    scores = jnp.where(any_finished[:, None], state.finished_scores, state.live_logprobs)
    if prefilled:
        tokens = jax.vmap(_after_prompt)(tokens, inputs, prompt_ends)
    return tokens, scores


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


def _pick(x: Array, indices: Array) -> Array:
    """`x[b, indices[b, i]]`: entries along axis 1 of `[batch, beams, …]` for `[batch, count]` indices."""
    return jax.vmap(lambda row, i: row[i])(x, indices)


# ------------------------------------------------------- cache -------------------------------------------------------


def cache_map(fn: Callable[[Array], Array], cache: PyTree, apply_to_index: bool = False) -> PyTree:
    """Maps over the cache entries that have a batch dimension; indices only have one after a prefilled prompt."""
    skipped = _SHARED_ENTRIES if apply_to_index else _SHARED_ENTRIES + _INDEX_ENTRIES

    def apply(path: tuple, entry: Array) -> Array:
        return entry if getattr(path[-1], "key", None) in skipped else fn(entry)

    return cast(Mapping, jax.tree_util.tree_map_with_path(apply, cache))


def flat_batch_beam_expand(x: Array, beam_size: int, offset: int = 0) -> Array:
    """Repeats each example `beam_size` times, side by side, along the batch axis `offset`."""
    return jnp.repeat(x, beam_size, axis=offset)
