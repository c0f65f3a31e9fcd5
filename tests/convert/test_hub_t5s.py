"""T5's relatives as they lie on the hub: in, trained, decoded, out again, compared with transformers' own classes."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
import transformers

from convert.families import table
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing
from limba.models import EncoderDecoderModel, decoding
from tasks.pretraining import masked_text
from tests.convert import hub_t5s

# One of each map of layers, tokenizer and format of weights; LongT5 is an add-on.
NAMES = ["madlad", "codet5", "pile_t5", "prott5", "t5_encoder"]
# One of each map of layers and of each padding and end; benchmarks/families_beside_transformers.py trains all.
DECODED = ["madlad", "codet5", "pile_t5", "prott5"]
TRAINED = ["pile_t5", "prott5"]  # of umT5's class and of T5's
STEPS, RATE = 20, 1e-3
# What transformers makes a network of, besides `tie_word_embeddings`, which is true where it is left out.
SETTINGS = (
    *("pad_token_id", "eos_token_id", "decoder_start_token_id", "vocab_size", "d_model", "d_kv", "num_heads", "d_ff"),
    *("num_layers", "num_decoder_layers", "feed_forward_proj", "layer_norm_epsilon"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
)


@functools.cache
def _home(root: str, name: str) -> Path:
    home = Path(root) / name
    hub_t5s.write(name, home / "hf", hub_t5s.NAMES.index(name) % 2)
    from_hf(home / "hf", home / "run", verify=False)
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder `hf` of a family and its `run`: `home(name)`. The families have sizes of two seeds."""
    return functools.partial(_home, str(tmp_path_factory.mktemp("hub")))


def model_of(run: Path) -> tuple[EncoderDecoderModel, Any, Any]:
    """The model of a run without dropout, its parameters, and its vocabulary."""
    info = checkpointing.load_run_info(run)
    vocabulary: Any = masked_text.open_vocabulary(info["vocabulary"])
    config = table.t5_config_class(run_folder.network_class(info)).from_json(
        info["network"] | {"dropout_rate": 0.0, "dtype": "float32"}
    )
    model = EncoderDecoderModel(
        config.network(), vocabulary, vocabulary, optimizer_def=None, decode_fn=decoding.temperature_sample, z_loss=0.0
    )
    return model, checkpointing.load_params(run), vocabulary


def in_folder(ids: np.ndarray, pad_id: int) -> torch.Tensor:
    """The folder's ids of Limba's: padding is exchanged."""
    order = np.arange(ids.max() + pad_id + 2)
    order[[0, pad_id]] = pad_id, 0
    return torch.from_numpy(order[ids]).long()


def batch_of(vocabulary: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs and targets of several lengths, each with its end, of Limba's ids."""
    rng, size = np.random.default_rng(seed), vocabulary.vocab_size
    inputs, targets = (rng.integers(5, size, shape, np.int32) for shape in ((4, 12), (4, 7)))
    for rows in (inputs, targets):
        for row, length in zip(rows, (rows.shape[1] - 1, 4, 5, 2), strict=True):
            row[length], row[length + 1 :] = vocabulary.eos_id, 0
    decoder_inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": decoder_inputs,
        "decoder_loss_weights": (targets > 0).astype(np.float32),
    }


def torch_model(folder: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()


# ------------------------------------------------------- both ways ---------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(home, name, tmp_path):
    """The check of `from-hf` runs transformers' class; the export has the folder's tensors, ids and tokens."""
    folder = home(name) / "hf"
    checkpoint = from_hf(folder, tmp_path / "run")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    rows = {row["what"]: row for rows in report["comparisons"].values() for row in rows}
    assert rows["logits, A in PyTorch"]["value"] < 1e-5 and rows["logits, A in NumPy"]["value"] < 1e-5
    assert rows["greedy tokens, A in PyTorch"]["value"] == 0
    assert rows["tokens that differ, A"]["holds"], rows
    # Equal tensors and settings are the same model, which was compared above; an encoder's class is another one.
    to_hf(tmp_path / "run", tmp_path / "back", formats=("safetensors",), verify=name == "t5_encoder")
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "back", folder))
    assert ours["model_type"] == theirs["model_type"]
    assert name == "t5_encoder" or ours["architectures"] == theirs["architectures"]
    for key in SETTINGS:
        assert ours[key] == theirs[key], key
    assert ours.get("tie_word_embeddings", True) == theirs.get("tie_word_embeddings", True)
    stored, again = (any_format.open_model(path).folder.stored for path in (folder, tmp_path / "back"))
    assert stored.keys() == again.keys()
    for key in stored:
        np.testing.assert_array_equal(np.asarray(stored[key], np.float32), np.asarray(again[key]), err_msg=key)
    tokenizers = [transformers.AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "back")]
    for text in ("Bacade gătu 12.", "A L G", "def f(x):"):
        rows = [tokenizer(text).input_ids for tokenizer in tokenizers]
        assert rows[0] == rows[1], (text, rows)


# ------------------------------------------------------- decoding ----------------------------------------------------


@pytest.mark.parametrize("name", DECODED)
def test_tokens_one_by_one_are_those_of_generate(home, name):
    """Limba decodes with its cache; transformers begins with the folder's id, and ends with its own."""
    place = home(name)
    model, params, vocabulary = model_of(place / "run")
    theirs, batch = torch_model(place / "hf"), batch_of(vocabulary)
    pad_id = json.loads((place / "hf/config.json").read_text())["pad_token_id"]
    ours = np.asarray(jax.jit(model.predict_batch)(params, batch))
    inputs = in_folder(batch["encoder_input_tokens"], pad_id)
    mask = torch.from_numpy(batch["encoder_input_tokens"] != 0).long()
    # Without its cache, which in version 4 is as long as the encoder is deep.
    found = theirs.generate(inputs, attention_mask=mask, max_new_tokens=ours.shape[1], num_beams=1, use_cache=False)
    found = found[:, 1:].numpy()
    np.testing.assert_array_equal(in_folder(ours, pad_id).numpy()[:, : found.shape[1]], found)


# ------------------------------------------------------- training ----------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_have_the_losses_of_transformers(home, name):
    """The same batches, AdamW with the same settings; -100 where transformers does not look."""
    place = home(name)
    model, params, vocabulary = model_of(place / "run")
    pad_id = json.loads((place / "hf/config.json").read_text())["pad_token_id"]
    batches = [batch_of(vocabulary, seed) for seed in range(STEPS)]
    optimizer = optax.adamw(RATE, eps=1e-8, weight_decay=0.01)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, batch):
        (_, metrics), gradients = jax.value_and_grad(lambda p: (_mean(model, p, batch), None), has_aux=True)(params)
        del metrics
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, _mean(model, params, batch)

    ours = []
    for batch in batches:
        params, state, loss = step(params, state, batch)
        ours.append(float(loss))
    np.testing.assert_allclose(ours, _losses_of_torch(place / "hf", batches, pad_id), rtol=0, atol=1e-4)
    assert ours[-1] < ours[0]


def _mean(model: EncoderDecoderModel, params: Any, batch: dict[str, np.ndarray]) -> jax.Array:
    """The mean cross entropy of the targets."""
    _, metrics = model.loss_fn(params, batch, None)
    found = metrics["nats_per_target_token"]
    return found.total / found.count


def _losses_of_torch(folder: Path, batches: list[dict[str, np.ndarray]], pad_id: int) -> list[float]:
    theirs = torch_model(folder)
    optimizer = torch.optim.AdamW(theirs.parameters(), RATE, eps=1e-8, weight_decay=0.01)
    found = []
    for batch in batches:
        labels = in_folder(batch["decoder_target_tokens"], pad_id)
        labels[torch.from_numpy(batch["decoder_target_tokens"] == 0)] = -100
        mask = torch.from_numpy(batch["encoder_input_tokens"] != 0).long()
        loss = theirs(
            input_ids=in_folder(batch["encoder_input_tokens"], pad_id), attention_mask=mask, labels=labels
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
