"""Twenty steps from a folder that transformers made: with the same batches and AdamW, losses are those of its class."""

import json

import jax
import numpy as np
import optax
import pytest
from flax import traverse_util

from convert.families import networks
from convert.from_hf import from_hf
from convert.model_files import any_format
from limba.models import EncoderOnlyModel
from tasks.vocabularies import TokenizerVocabulary
from tests.convert.encoders import conftest, run_in_transformers

STEPS, ROWS, LENGTH, PLACES, RATE = 20, 4, 12, 3, 3e-3
# The class, its configuration, and the padding of the folder; dropout is off.
CASES = {
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 28, "n_heads": 7, "n_layers": 2, "hidden_dim": 18, "max_position_embeddings": LENGTH},
        0,
    ),
    "eurobert": (
        "EuroBertForMaskedLM",
        {"hidden_size": 40, "num_attention_heads": 10, "num_key_value_heads": 5, "num_hidden_layers": 2}
        | {"intermediate_size": 36, "rope_theta": 250_000.0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 4},
        5,
    ),
    "nomic_bert": (
        "NomicBertForMaskedLM",
        {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 1, "intermediate_size": 44},
        0,
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory, forks5):
    """Folders with what transformers 5 lost on their batches."""
    home = tmp_path_factory.mktemp("steps")
    new = [
        (name, {"vocab_size": conftest.ROWS, "pad_token_id": pad_id} | settings, str(home / folder))
        for folder, (name, settings, pad_id) in CASES.items()
    ]
    for number, (folder, (_, _, pad_id)) in enumerate(CASES.items()):
        first = [*conftest.SPECIAL_TOKENS, "[X]"]
        first[0], first[pad_id] = first[pad_id], first[0]
        conftest.write_tokenizer(home / folder / "tokenizer.json", first)
        np.savez(home / folder / "batches.npz", **_batches(np.random.default_rng(number), pad_id))
    request = {"version": "5", "new": new, "trained": [str(home / folder) for folder in CASES], "rate": RATE}
    (home / "request.json").write_text(json.dumps(request))
    done = forks5.run(run_in_transformers.__file__, home / "request.json")
    assert done.returncode == 0, done.stderr[-3000:]
    return home


def _batches(rng, pad_id):
    """Rows with padding in the ids of a folder; some of the tokens before it are to be predicted."""
    tokens = rng.integers(6, conftest.NUM_TOKENS, (STEPS, ROWS, LENGTH))
    places = np.sort(rng.permuted(np.tile(np.arange(LENGTH - 4), (STEPS, ROWS, 1)), axis=-1)[..., :PLACES], axis=-1)
    targets = np.take_along_axis(tokens, places, -1)
    labels = np.full_like(tokens, -100)
    np.put_along_axis(labels, places, targets, -1)
    np.put_along_axis(tokens, places, 4, -1)
    tokens[:, 1, LENGTH - 4 :] = pad_id
    real = (tokens != pad_id).astype(int)
    return {"input_ids": tokens, "attention_mask": real, "labels": labels, "places": places, "targets": targets}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_pytorch(name, home, tmp_path):
    checkpoint = from_hf(home / name, tmp_path / "run", verify=False)
    opened = any_format.open_model(checkpoint)
    module = opened.head.network(networks.plain(opened.config))
    vocabulary = TokenizerVocabulary(str(tmp_path / "run/tokenizer.json"))
    factor = "NUM_REAL_TARGET_TOKENS"
    model = EncoderOnlyModel(module, vocabulary, optimizer_def=None, loss_normalizing_factor=factor)
    params = traverse_util.unflatten_dict({n: np.asarray(t) for n, t in opened.tensors.items()}, sep="/")
    optimizer = optax.adamw(RATE, weight_decay=0.01)

    @jax.jit
    def step(params, state, batch):
        (loss, _), gradients = jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, None)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    order = conftest.exchange(CASES[name][2])
    with np.load(home / name / "batches.npz") as batches:
        tokens, places, targets = (batches[key] for key in ("input_ids", "places", "targets"))
    state, losses = optimizer.init(params), []
    for number in range(STEPS):
        batch = {
            "encoder_input_tokens": order[tokens[number]],
            "masked_lm_positions": places[number],
            "decoder_target_tokens": order[targets[number]],
            "decoder_loss_weights": np.ones((ROWS, PLACES), np.int32),
        }
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
    theirs = np.load(home / name / "losses.npy")
    print(name, np.abs(theirs - losses).max(), theirs[0], theirs[-1])
    np.testing.assert_allclose(losses, theirs, atol=1e-4, rtol=0)
    moved = np.abs(params["token_embedder"]["embedding"] - np.asarray(opened.tensors["token_embedder/embedding"]))
    assert moved.max() > STEPS * RATE / 3
