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

from convert.compare import encoder_outputs
from convert.families import heads
from convert.families.heads import Head
from convert.model_files import any_format
from convert.model_files.model import EncoderModel
from convert.to_hf import to_hf
from limba.checkpoints import checkpointing, run_description
from limba.checkpoints.train_state import TrainState
from limba.models import (
    ElectraModel,
    EncoderClassifier,
    EncoderMultiLabelClassifier,
    EncoderOnlyModel,
    EncoderRegressor,
)
from limba.models.lora import LoRA
from limba.network.encoders.encoder import EncoderConfig
from tasks.vocabularies import LabelVocabulary, MultiLabelVocabulary, NumberVocabulary, TokenizerVocabulary
from tests.convert.encoders import run_in_transformers

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
_GATED = ROTARY | {"mlp_activations": ("silu", "linear"), "attention_bias": False, "mlp_bias": False}
EURO = _GATED | {
    "rotary_base": 250_000.0,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 6,
    "norm": "rms_norm",
    "norm_position": "pre",
    "embedding_norm": False,
    "head_activation": None,
    "logits_bias": False,
    "logits_via_embedding": False,
}
NOMIC = _GATED | {"rotary_base": 1000.0, "head_activation": "silu"}
VARIANTS = {
    "bert": {"num_token_types": 2},
    "relative_key_query": {"position_embedding_type": "relative_key_query"},
    "roberta_prelayernorm": {"norm_position": "pre", "num_token_types": 2},
    "roberta": {"num_token_types": 1, "family": "roberta"},
    "xlm_roberta": {"num_token_types": 0, "family": "xlm_roberta"},
    "mpnet": {"position_embedding_type": "absolute_and_t5_buckets"},
    "distilbert": {"family": "distilbert", "norm_epsilon": 1e-12},
    "eurobert": EURO | {"scan_layers": True},
    "nomic_bert": NOMIC | {"num_token_types": 2},
    "t5_buckets": {"position_embedding_type": "t5_buckets", "mlp_activations": ("gelu",)},
    "electra": {"num_token_types": 2, "embedding_size": 16, "family": "electra"},
    "deberta_v2": {"position_embedding_type": "disentangled", "num_buckets": 8, "max_distance": 20, "num_layers": 3},
    "roformer": ROTARY | {"num_token_types": 2, "scan_layers": True},
    # Layer 0 comes first, unrolled; then a period of two.
    "modernbert": MODERN | {"num_layers": 3, "scan_layers": True},
}
OF_4_ALONE = ("relative_key_query",)
# Whose classes version 4 of transformers does not have.
OF_5_ALONE = ("eurobert", "nomic_bert")

# Classifiers: the variant, and the head that its class has. All families but ModernBERT have BERT's class of tokens.
LABELS = ("glad", "calm", "sad")
_ROW, _TOKENS = Head(heads.SEQUENCE, LABELS, "tanh"), Head(heads.TOKENS, LABELS)
_MODERN_HEAD = {"activation": "gelu", "use_norm": True, "dense_bias": False}
CLASSIFIERS = {
    "bert rows": ("bert", _ROW),
    "bert number": ("bert", Head(heads.SEQUENCE, ("similarity",), "tanh")),
    "bert tokens": ("bert", _TOKENS),
    "bert several": ("bert", Head(heads.SEQUENCE, LABELS, "tanh", problem_type=heads.MULTI_LABEL)),
    "roberta rows": ("roberta", _ROW),
    "xlm_roberta tokens": ("xlm_roberta", _TOKENS),
    "mpnet rows": ("mpnet", _ROW),
    "mpnet numbers": ("mpnet", Head(heads.SEQUENCE, LABELS, "tanh", problem_type=heads.REGRESSION)),
    "mpnet tokens": ("mpnet", _TOKENS),
    "distilbert rows": ("distilbert", Head(heads.SEQUENCE, LABELS, "relu")),
    "eurobert rows": ("eurobert", Head(heads.SEQUENCE, LABELS, "gelu_erf", pooling="late")),
    "nomic_bert rows": ("nomic_bert", _ROW),
    "electra rows": ("electra", Head(heads.SEQUENCE, LABELS, "gelu_erf")),
    "deberta_v2 rows": ("deberta_v2", Head(heads.SEQUENCE, LABELS, "gelu")),
    "roformer rows": ("roformer", Head(heads.SEQUENCE, LABELS, "gelu_erf")),
    "modernbert rows": ("modernbert", Head(heads.SEQUENCE, LABELS, pooling="mean", **_MODERN_HEAD)),
    "modernbert tokens": ("modernbert", Head(heads.TOKENS, LABELS, **(_MODERN_HEAD | {"dense_bias": True}))),
}
# The heads of a masked language model and of sentence pairs.
PAIRS = {"bert pairs": ("bert", heads.OF_PAIRS)}
# That of replaced tokens; the run has the generator, too.
DETECTORS = {"electra detector": ("electra", heads.OF_DETECTOR)}


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
    """Saves a random encoder as the checkpoint of a run: `new_encoder(directory, head, **fields of EncoderConfig)`.

    With `adapters`, arguments of `LoRA`, it is a LoRA of it.
    """

    def save(directory: Path, head: Head = heads.OF_MASKED_LM, adapters=None, **fields) -> Path:
        config = EncoderConfig(**(SIZES | {"num_layers": 2, "max_positions": 48} | fields))
        vocabulary = TokenizerVocabulary(str(tokenizer_file))
        module = head.network(config) if adapters is None else LoRA(head.network(config), **adapters)
        if head.labels:
            kind = {
                heads.REGRESSION: (EncoderRegressor, NumberVocabulary),
                heads.MULTI_LABEL: (EncoderMultiLabelClassifier, MultiLabelVocabulary),
            }.get(head.problem, (EncoderClassifier, LabelVocabulary))
            model = kind[0](module, vocabulary, kind[1](head.labels), optimizer_def=None)
        else:
            kind = ElectraModel if head.kind == heads.DETECTOR else EncoderOnlyModel
            model = kind(module, vocabulary, optimizer_def=None)
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


# ------------------------------------------------- exports, and libraries -------------------------------------------


@pytest.fixture(scope="module")
def exported(request, new_encoder, tmp_path_factory, checks_in_forks) -> dict[str, tuple[Path, dict]]:
    """Folder and report of each encoder in the module's `EXPORTED`, by name; the run lies beside the folder."""
    home = tmp_path_factory.mktemp("exports")
    found = {}
    for name in request.module.EXPORTED:
        if name in VARIANTS:
            run = new_encoder(home / f"run_{name}", **VARIANTS[name])
        else:
            variant, head = (CLASSIFIERS | PAIRS | DETECTORS)[name]
            run = new_encoder(home / f"run_{name}", head, **({"num_layers": 1} | VARIANTS[variant]))
        found[name] = (home / name, to_hf(run, home / name))
    return found


def batch(name: str, folder: Path) -> tuple[dict[str, np.ndarray], EncoderModel]:
    """Tokens with the folder's ids and padding, and the run that the folder is of."""
    model = any_format.open_model(folder.parent / f"run_{name}")
    made = encoder_outputs.check_batch(model.config, np.arange(5, 40))
    order = exchange(model.pad_id)
    inputs = {"input_ids": order[made["tokens"]], "attention_mask": (made["tokens"] != 0).astype(np.int32)}
    if model.config.num_token_types > 1:
        assert made["token_types"].max() == 1
        inputs["token_type_ids"] = made["token_types"]
    return inputs, model


@pytest.fixture(scope="module")
def in_5(exported, forks5, tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    """What transformers 5 computes."""
    folders = {name: folder for name, (folder, _) in exported.items() if name not in OF_4_ALONE}
    for name, folder in folders.items():
        np.savez(folder / "tokens.npz", **batch(name, folder)[0])
    request = tmp_path_factory.mktemp("request") / "request.json"
    request.write_text(json.dumps({"version": "5", "folders": [str(folder) for folder in folders.values()]}))
    done = forks5.run(run_in_transformers.__file__, request)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: dict(np.load(folder / "in_5.npz")) for name, folder in folders.items()}


def largest(report: dict, which: str) -> dict[str, float]:
    """The largest differences of logits, by library."""
    rows = report["comparisons"][which]
    label = "logits, B in " if which == "safetensors" else "logits, A in "
    found = {row["what"].removeprefix(label): row["value"] for row in rows if row["what"].startswith(label)}
    return {library: value for library, value in found.items() if value is not None}
