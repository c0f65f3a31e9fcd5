"""Small random models with everything an export needs, and Hugging Face's classes to load it with."""

import dataclasses
import functools
import hashlib
import json
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["USE_TF"] = "0"  # transformers 4 would import TensorFlow, for nothing.

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from convert.model_files.model import ModelHints
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.cards import run_example
from limba.checkpoints import checkpointing, run_description
from limba.checkpoints.train_state import TrainState
from limba.models import EncoderDecoderModel, decoding
from limba.models.lora import LoRA
from limba.network.t5 import T5Config, Transformer
from limba.tasks.vocabularies import tokenizer_texts
from tests import forked
from tests.convert import vocabularies

REPOSITORY = Path(__file__).parents[2]
INPUTS_LENGTH, TARGETS_LENGTH = 160, 20

SMALL = {
    "vocab_size": 512,
    "emb_dim": 32,
    "num_heads": 3,
    "head_dim": 8,
    "mlp_dim": 48,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "dropout_rate": 0.0,
}
UNTIED = {"logits_via_embedding": False, "mlp_activations": ("gelu", "linear")}
FAMILIES = {
    "t5": {"logits_via_embedding": True, "mlp_activations": ("relu",)},
    "t5_1_1": UNTIED,
    "mt5": UNTIED,
    "umt5": UNTIED | {"relative_bias_per_layer": True},
    "byt5": UNTIED | {"vocab_size": 384},
}
# A family, and the network of T5X in whose layout its checkpoint is; T5X has no unrolled umT5, Limba does. Layouts do
# not matter to what the families differ in: one of each is enough.
KINDS = ("t5-t5", "t5-scalable_t5", "t5_1_1-t5", "mt5-scalable_t5", "umt5-t5", "umt5-scalable_t5", "byt5-t5")
# The check of an export imports transformers anew each time; tests compare the others with its classes themselves.
CHECKED = ("t5-scalable_t5", "umt5-scalable_t5")


# White space, full width, ligatures, combining and invisible characters, other scripts, unknown ones, control ones.
VARIED = [
    *[
        "",
        " ",
        "  ",
        "\n",
        "a\n\nb\tc",
        "  în față și în spate  ",
        "multe   spații   aici",
        "ＦＵＬＬ ﬁ ①",
        "日本語 ba",
    ],
    *["emoji 😀 x", "a▁b", "zero\u200bwidth", "nbsp\u00a0aici", "Ţ ţ ș Ș", "e\u0301 c", "con\x07trol", "3,14 „ce”…"],
    *["soft\u00adhyphen", "rând\r\nnou", "\ufeffbom", "A" * 50, "<extra_id_0", "ba <extra_id_100> ce"],
]
WITH_SENTINELS = [
    *["<extra_id_0>", "<extra_id_0> ba <extra_id_1>", "ba <extra_id_0> ce <extra_id_99>", " <extra_id_5>"],
    *["ba  <extra_id_0>  ce", "ba <extra_id_0>\n<extra_id_1> ce"],
]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A process that reads the example of a card has no limit of time, which a busy machine would reach."""
    monkeypatch.setattr(run_example, "_SECONDS", None)


@pytest.fixture(scope="session", autouse=True)
def _tokenizers_are_compared_once():
    """Whoever opens a folder with two tokenizers compares them on thousands of texts: here, often the same two."""
    compare, known = tokenizer_texts.differences_of_files, {}

    def of_content(vocabulary, folder):
        model_file, json_file = Path(vocabulary["sentencepiece_model_file"]), folder / "tokenizer.json"
        sums = [hashlib.sha256(file.read_bytes()).digest() for file in (model_file, json_file)]
        key = (*sums, vocabulary["extra_ids"])
        if key not in known:
            known[key] = compare(vocabulary, folder)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_texts, "differences_of_files", of_content)
        yield


@pytest.fixture(scope="session", autouse=True)
def _checks_in_forks(checks_in_forks):
    """For all tests of conversions."""


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return vocabularies.sentences(60)


@pytest.fixture(scope="session")
def texts(sentences) -> list[str]:
    """On these every tokenizer gives SentencePiece's ids."""
    return [*sentences, *VARIED, *WITH_SENTINELS]


@pytest.fixture(scope="session")
def reference(spiece_model) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=vocabularies.with_sentinels(spiece_model, 100))


@pytest.fixture(scope="session")
def spiece_model(tmp_path_factory) -> Path:
    return vocabularies.train(tmp_path_factory.mktemp("vocabulary") / "any_name.model")


@pytest.fixture(scope="session")
def spiece_of_few_rules(tmp_path_factory) -> Path:
    """Normalizes a few letters: gguf's reader takes two seconds for NFKC's table."""
    folder = tmp_path_factory.mktemp("few_rules")
    (folder / "rules.tsv").write_text("".join(f"{x:x}\t{x - 0xFEE0:x}\n" for x in range(0xFF21, 0xFF3B)))
    return vocabularies.train(folder / "any_name.model", normalization_rule_tsv=str(folder / "rules.tsv"))


class SentencePieceVocabulary:
    """What the engine reads of SeqIO's class of that name."""

    extra_ids = 100
    eos_id = 1
    vocab_size = vocabularies.NUM_PIECES + 100

    def __init__(self, sentencepiece_model_file: Path):
        self.sentencepiece_model_file = str(sentencepiece_model_file)


class ByteVocabulary:
    """What the engine reads of SeqIO's class of that name."""

    extra_ids = 125
    eos_id = 1
    vocab_size = 384


@pytest.fixture(scope="session")
def new_run(spiece_model) -> Callable[..., Path]:
    """Saves a random model as the checkpoint of a run: `new_run(directory, **fields of T5Config)`.

    With `adapters`, arguments of `LoRA`, it is a LoRA of it.

    `poison` puts a NaN into the tensors whose names contain it; `dtype` is that of the checkpoint. Without a
    `vocab_file` the vocabulary is bytes.
    """

    def save(
        directory: Path,
        *,
        poison: str | None = None,
        vocab_file=spiece_model,
        dtype: str = "float32",
        adapters: dict[str, Any] | None = None,
        **fields,
    ):
        config = T5Config(**(SMALL | fields))
        vocabulary: Any = SentencePieceVocabulary(vocab_file) if vocab_file else ByteVocabulary()
        module: Any = Transformer(config) if adapters is None else LoRA(Transformer(config), **adapters)
        model = EncoderDecoderModel(module, vocabulary, vocabulary, optimizer_def=None)
        shapes, _ = model.param_shapes_and_axes()
        rng = np.random.default_rng(7)
        # Gemma's embedding is multiplied by sqrt(emb_dim), and its norms by 1 + the parameter.
        of_embedding, of_norm = (1.0, 1.0) if config.gemma_layers is None else (config.emb_dim**-0.5, 0.0)

        def random_tensor(path, shape):
            name = "/".join(key.key for key in path)
            # Every tensor differs from every other, norms included, so that none can stand for another.
            spread = 0.3 if name.endswith("scale") else of_embedding if "embedding" in name else shape.shape[0] ** -0.5
            spread *= config.head_dim**-0.5 if "/query/" in name else 1.0
            values = rng.normal(of_norm if name.endswith("scale") else 0.0, spread, shape.shape).astype(np.float32)
            if poison and poison in name:
                values.flat[5] = np.nan
            return jnp.asarray(values)

        params = jax.tree_util.tree_map_with_path(random_tensor, shapes)
        state = TrainState(step=jnp.int32(10), params=params, opt_state={})
        dataset = types.SimpleNamespace(
            name="small", task_feature_lengths={"inputs": INPUTS_LENGTH, "targets": TARGETS_LENGTH}, batch_size=2
        )
        run_files = {"run.json": json.dumps(run_description.run_info(model, dataset, {})).encode()}
        checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig(dtype=dtype))
        checkpointer.save(state, None, run_files)
        checkpointer.wait()
        checkpointer.close()
        return directory

    return save


class Exported:
    """A random model of a family, through the doors: T5X's checkpoint of it, and the folder that was exported of that.

    Attributes:
      kind: one of `KINDS`.
      run: of Limba, where it comes from.
      t5x: the same as a checkpoint of T5X, which says nothing of itself.
      folder: of Hugging Face.
      report: of the export.
    """

    def __init__(self, kind: str, new_run: Callable[..., Path], vocab_file: Path, directory: Path):
        self.kind = kind
        self.family, self.network = kind.split("-")
        fields = SMALL | FAMILIES[self.family]
        self.in_bytes = self.family == "byt5"
        self.run = new_run(directory / "run", vocab_file=None if self.in_bytes else vocab_file, **fields)
        self.layout = None if kind == "umt5-t5" else self.network
        format_ = "classic" if self.network == "t5" else "orbax"
        self.t5x = to_t5x(self.run, directory / "t5x", format_=format_, network=self.layout, verify=False)
        hints = ModelHints(family="byt5") if self.in_bytes else ModelHints(vocab=str(vocab_file), extra_ids=100)
        if self.family == "mt5":
            hints = dataclasses.replace(hints, family="mt5")
        self.folder = directory / "export"
        self.report = to_hf(self.t5x, self.folder, hints=hints, verify=kind in CHECKED)
        self.config = T5Config(**checkpointing.load_run_info(self.run)["network"])
        self.params = checkpointing.load_params(self.run)
        rng = np.random.default_rng(1)
        self.inputs = rng.integers(3, fields["vocab_size"], (3, INPUTS_LENGTH), np.int32)
        self.inputs[1, INPUTS_LENGTH // 2 :] = 0
        self.targets = rng.integers(3, fields["vocab_size"], (3, TARGETS_LENGTH), np.int32)
        self.decoder_inputs = np.pad(self.targets[:, :-1], ((0, 0), (1, 0)))
        vocabulary = types.SimpleNamespace(eos_id=1)
        self.model = EncoderDecoderModel(
            Transformer(self.config),
            vocabulary,
            vocabulary,
            optimizer_def=None,
            decode_fn=decoding.temperature_sample,  # greedy, as it comes
        )
        self.batch = {
            "encoder_input_tokens": self.inputs,
            "decoder_input_tokens": self.decoder_inputs,
            "decoder_target_tokens": self.targets,
        }

    @functools.cache  # noqa: B019  # several tests compare with them
    def logits(self) -> np.ndarray:
        return np.asarray(jax.jit(self.model.logits)(self.params, self.batch))

    @functools.cache  # noqa: B019
    def greedy_tokens(self) -> np.ndarray:
        return np.asarray(jax.jit(self.model.predict_batch)(self.params, self.batch))


class _AllExported(dict[str, Exported]):
    """Makes an export when it is first asked for: most files of tests need one of them."""

    def __init__(self, make: Callable[[str], Exported]):
        self._make = make

    def __missing__(self, kind: str) -> Exported:
        return self.setdefault(kind, self._make(kind))


@pytest.fixture(scope="session")
def all_exported(new_run, spiece_model, tmp_path_factory) -> dict[str, Exported]:
    """An export of each of `KINDS` of T5."""
    return _AllExported(lambda kind: Exported(kind, new_run, spiece_model, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="session", params=KINDS)
def exported(request, all_exported) -> Exported:
    return all_exported[request.param]


@pytest.fixture(scope="session")
def flax_t5():
    """Hugging Face's Flax T5 on a current JAX, by the lines of docs/conversion.md that a reader pastes for it."""
    from transformers.models.t5 import modeling_flax_t5

    page = Path(__file__).parents[2] / "docs" / "conversion.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)
    exec(compile(block, str(page), "exec"), {})
    return modeling_flax_t5.FlaxT5ForConditionalGeneration


@pytest.fixture(scope="session")
def python5() -> str:
    """The interpreter of an environment with transformers 5 and torch. Without one these tests fail."""
    python = os.environ.get("LIMBA_HF5_PYTHON") or str(REPOSITORY / ".venv-hf5/bin/python")
    if not Path(python).exists():
        pytest.fail(
            f"There is no {python}. tests/run.sh makes that environment; LIMBA_HF5_PYTHON may name another interpreter "
            "with transformers 5 and torch."
        )
    return python


@pytest.fixture(scope="session")
def forks5(request, python5, tmp_path_factory):
    """`run(script, *arguments)`, or `-c` and code, there, in forks of one process, which all workers share."""
    folder = forked.session_folder(request, tmp_path_factory, "forks5")
    server = forked.Server(folder, ["torch", "transformers.models.t5.modeling_t5"], python=python5)

    def run(*words, env=os.environ):
        # A PYTHONPATH would bring this environment's packages along.
        environment = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        return server.run([*map(str, words)], environment, folder)

    yield types.SimpleNamespace(run=run)
    server.close()
