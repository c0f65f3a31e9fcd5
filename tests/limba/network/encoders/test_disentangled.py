"""DeBERTa's attention: buckets of distances as in transformers, what excludes it, and training beside PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.network.encoders import disentangled, encoder
from tests.limba.network.encoders import encoder_weights
from tests.limba.network.encoders.test_variants import make_their_model

_SIZES = {"vocab_size": 61, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "num_layers": 2}


@pytest.mark.parametrize("sizes", [(256, 512), (8, 20), (16, 512), (32, 128)])
def test_buckets_are_those_of_transformers(sizes):
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = np.arange(-700, 701)
    theirs = make_log_bucket_position(torch.from_numpy(distances), *sizes).long().numpy()
    np.testing.assert_array_equal(disentangled.buckets(distances, *sizes), theirs)


def test_sizes_that_have_no_buckets_are_refused():
    disentangled_fields = _SIZES | {"position_embedding_type": "disentangled"}
    for fields, words in (
        ({"num_buckets": 7, "max_distance": 128}, "num_buckets is 7 and max_distance 128; with disentangled"),
        ({"num_buckets": 16, "max_distance": 9}, "num_buckets is 16 and max_distance 9"),
    ):
        with pytest.raises(ValueError, match=words):
            encoder.EncoderConfig(**(disentangled_fields | fields))
    assert encoder.EncoderConfig(**disentangled_fields).longest_row is None


def test_twenty_steps_have_the_losses_of_transformers():
    import torch

    of_class = encoder_weights.DEBERTA_V2
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    theirs, tensors = make_their_model(of_class, seed=2, num_layers=2, **rates)
    theirs.train()
    module = encoder.MaskedLanguageModel(encoder.EncoderConfig(**(_SIZES | of_class.fields), norm_epsilon=0.01))
    rng = np.random.default_rng(5)
    tokens, targets = rng.integers(1, 61, (2, 20, 4, 30)).astype(np.int32)
    tokens[:, 1, 22:] = 0
    is_target = (rng.random(tokens.shape) < 0.2) & (tokens > 0)
    shapes = jax.eval_shape(functools.partial(module.init, enable_dropout=False), jax.random.key(0), tokens[0])
    params = encoder_weights.params(of_class, tensors, shapes["params"])
    optimizer = optax.adamw(1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)
    of_torch = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens, targets, is_target):
        def loss_of(params):
            logits = module.apply({"params": params}, tokens, enable_dropout=False)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return jnp.sum(losses * is_target) / jnp.sum(is_target)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    found = []
    for row in zip(tokens, targets, is_target, strict=True):
        params, state, ours = step(params, state, *row)
        inputs = {"input_ids": row[0], "attention_mask": row[0] != 0, "labels": np.where(row[2], row[1], -100)}
        loss = theirs(**{name: torch.tensor(x, dtype=torch.long) for name, x in inputs.items()}).loss
        of_torch.zero_grad()
        loss.backward()
        of_torch.step()
        found.append((float(ours), float(loss.detach())))
    ours, of_transformers = np.array(found).T
    np.testing.assert_allclose(ours, of_transformers, atol=1e-4)
    assert ours[-1] < ours[0]
