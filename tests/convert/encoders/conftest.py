"""Small random encoders: checkpoints of Limba, and folders that transformers saved."""

import json
import types
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from limba.checkpoints import checkpointing, run_description
from limba.checkpoints.train_state import TrainState
from limba.encoders.encoder import EncoderConfig, MaskedLanguageModel
from limba.models import EncoderOnlyModel
from tasks.vocabularies import TokenizerVocabulary

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_TOKENS, ROWS = 60, 64
# An epsilon that shows where another one is taken.
SIZES = {"vocab_size": ROWS, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "norm_epsilon": 0.01}
ROTARY = {"position_embedding_type": "rotary"}
MODERN = ROTARY | {
    "rotary_base": 160_000.0,
    "local_rotary_base": 10_000.0,
    "norm_position": "pre",
    "first_attention_norm": False,
    "global_attention_every": 2,
    "local_attention_window": 8,
    "mlp_activations": ("gelu_erf", "linear"),
}
VARIANTS = {
    "bert": {"num_token_types": 2},
    "relative_key_query": {"position_embedding_type": "relative_key_query"},
    "roberta_prelayernorm": {"norm_position": "pre", "num_token_types": 2},
    "mpnet": {"position_embedding_type": "absolute_and_t5_buckets"},
    "t5_buckets": {"position_embedding_type": "t5_buckets", "mlp_activations": ("gelu",)},
    "roformer": ROTARY | {"num_token_types": 2, "scan_layers": True},
    # Layer 0 comes first, unrolled; then a period of two.
    "modernbert": MODERN | {"num_layers": 3, "scan_layers": True},
}


def exchange(pad_id: int) -> np.ndarray:
    """Ids of an export whose padding is `pad_id` by Limba's, and Limba's by those."""
    order = np.arange(ROWS)
    order[[0, pad_id]] = pad_id, 0
    return order


def write_tokenizer(file: Path, first: list[str]) -> Path:
    """A tokenizer of words, w5 has the id 5; `first` are its special tokens."""
    words = [*first, *(f"w{i}" for i in range(len(first), NUM_TOKENS))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in first])
    file.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(file))
    return file


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", SPECIAL_TOKENS)


@pytest.fixture(scope="session")
def new_encoder(tokenizer_file) -> Callable[..., Path]:
    """Saves a random encoder as the checkpoint of a run: `new_encoder(directory, **fields of EncoderConfig)`."""

    def save(directory: Path, **fields) -> Path:
        config = EncoderConfig(**(SIZES | {"num_layers": 2, "max_positions": 48} | fields))
        vocabulary = TokenizerVocabulary(str(tokenizer_file))
        model = EncoderOnlyModel(MaskedLanguageModel(config), vocabulary, optimizer_def=None)
        shapes, _ = model.param_shapes_and_axes()
        rng = np.random.default_rng(7)

        def random_tensor(path, shape):
            center = 0.8 if path[-1].key == "scale" else 0.03
            return jnp.asarray(rng.normal(center, 0.2, shape.shape).astype(np.float32))

        params = jax.tree_util.tree_map_with_path(random_tensor, shapes)
        dataset = types.SimpleNamespace(name="small", task_feature_lengths={"inputs": 48}, batch_size=2)
        info = run_description.run_info(model, dataset, {})
        content = tokenizer_file.read_bytes()
        run_files = {"run.json": json.dumps(info).encode(), "tokenizer.json": content}
        checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig())
        checkpointer.save(TrainState(step=jnp.int32(10), params=params, opt_state={}), None, run_files)
        checkpointer.wait()
        checkpointer.close()
        return directory

    return save
