"""T5Gemma: runs of Limba's, folders of Hugging Face, and transformers' own class in versions 4 and 5."""

import functools
import json
import shutil

import jax
import numpy as np
import optax
import pytest
from flax import traverse_util
from tokenizers import Tokenizer

from convert.compare import folder_settings
from convert.families import networks
from convert.families.config_files import t5_config
from convert.from_hf import from_hf
from convert.model_files import any_format, t5_vocabularies, trimmed_model
from convert.model_files.model import NO_HINTS
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.repair import hub_folder
from limba.addons.t5gemma.t5gemma import FAMILY
from limba.checkpoints import checkpointing
from limba.models import EncoderDecoderModel, decoding
from limba.network.gemma_layers import GemmaLayers
from limba.network.t5 import T5Config, Transformer
from tasks.pretraining import masked_text
from tests.addons.t5gemma import hub_gemmas, t5gemma_in_transformers
from tests.convert import conftest

# A window, caps and a scalar that change these few numbers; 4 heads of 8 for a width of 32, as transformers 5 wants.
GEMMA = GemmaLayers(
    num_kv_heads=2,
    rotary_base=500.0,
    norm_epsilon=1e-5,
    query_pre_attn_scalar=5.0,
    attn_logit_softcapping=3.0,
    final_logit_softcapping=9.0,
    sliding_window=7,
)
FIELDS = {"num_heads": 4, "mlp_activations": ("gelu", "linear"), "decoder_start_token_id": 2}
# What t5_modern has: none of the caps and windows, and in this one an output of its own.
MODERN = FIELDS | {"gemma_layers": GemmaLayers(num_kv_heads=1), "decoder_start_token_id": 1}
STEPS, ROWS, RATE = 20, 4, 1e-3
# Of a new network of transformers 5; its windows are as long as the rows (docs/conversion.md).
STACK = {
    "vocab_size": 512,
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 6,
    "intermediate_size": 40,
    "query_pre_attn_scalar": 7,
    "sliding_window": 64,
    "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 6.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 3000.0},
}
CONFIG = {
    "encoder": STACK | {"num_hidden_layers": 3},
    "decoder": STACK | {"num_hidden_layers": 2},
    "vocab_size": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    fields = FIELDS | {"logits_via_embedding": True, "gemma_layers": GEMMA, "num_encoder_layers": 2}
    return new_run(tmp_path_factory.mktemp("gemma"), **fields)


@pytest.fixture(scope="module")
def modern(new_run, tmp_path_factory):
    """The export of an untied `t5_modern`."""
    home = tmp_path_factory.mktemp("modern")
    to_hf(new_run(home / "run", **MODERN, logits_via_embedding=False), home / "export", verify=False)
    return home


def batch_of(start, seed=0):
    rng = np.random.default_rng(seed)
    inputs, targets = rng.integers(3, 512, (3, 24), np.int32), rng.integers(3, 512, (3, 12), np.int32)
    inputs[1, 15:] = 0
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    ours = {"encoder_input_tokens": inputs, "decoder_input_tokens": shifted, "decoder_target_tokens": targets}
    shifted = shifted.copy()
    shifted[:, 0] = start
    return ours, {"inputs": inputs, "decoder_inputs": shifted}


def model_of(opened, vocabulary=None):
    vocabulary = vocabulary or conftest.ByteVocabulary()
    module = Transformer(networks.plain(opened.config))
    model = EncoderDecoderModel(
        module,
        vocabulary,
        vocabulary,
        optimizer_def=None,
        decode_fn=functools.partial(decoding.temperature_sample, topk=1),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )
    return model, traverse_util.unflatten_dict({n: np.asarray(t) for n, t in opened.tensors.items()}, sep="/")


def test_the_check_of_an_export_has_four_implementations(run, tmp_path, capsys):
    report = to_hf(run, tmp_path / "out")
    rows = {row["what"]: row for row in report["comparisons"]["safetensors"]}
    for what in ("logits, B in PyTorch", "logits, B in NumPy", "greedy tokens, B in PyTorch"):
        assert rows[what]["holds"] and rows[what]["value"] is not None, rows
    assert max(rows[f"logits, B in {which}"]["value"] for which in ("PyTorch", "NumPy")) < 1e-5
    assert report["family"] == "t5gemma" and report["formats"] == ["safetensors"]
    stored = json.loads((tmp_path / "out/config.json").read_text())
    assert stored["encoder"]["layer_types"] == ["sliding_attention", "full_attention"]
    assert stored["decoder_start_token_id"] == stored["decoder"]["bos_token_id"] == 2

    # Back, and out again: the same files.
    checkpoint = from_hf(tmp_path / "out", tmp_path / "run", verify=False)
    record = checkpointing.load_run_info(checkpoint)["network"]
    assert GemmaLayers(**record["gemma_layers"]) == GEMMA
    gin = (tmp_path / "run/model.gin").read_text()
    assert "gemma_layers = @gemma_layers.GemmaLayers()" in gin and "gemma_layers.GemmaLayers:\n" in gin
    to_hf(tmp_path / "run", tmp_path / "again", verify=False)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def ask_transformers(home, fork, spiece_model, class_name, config, export):
    """Makes a folder by transformers 5, with what it lost on its batches; `export` gets its answer."""
    rng = np.random.default_rng(1)
    inputs, targets = rng.integers(6, 512, (STEPS, ROWS, 12)), rng.integers(6, 512, (STEPS, ROWS, 9))
    inputs[:, 1, 8:] = targets[:, 2, 5:] = 0
    np.savez(home / "batches.npz", inputs=inputs, targets=targets)
    shutil.copy(spiece_model, home / "spiece.model")
    start = json.loads((export / "config.json").read_text())["decoder_start_token_id"]
    np.savez(export / "batch.npz", **batch_of(start)[1])
    request = {"new": str(home), "class": class_name, "config": config, "rate": RATE, "export": str(export)}
    (home / "request.json").write_text(json.dumps(request))
    done = fork.run(t5gemma_in_transformers.__file__, home / "request.json")
    assert done.returncode == 0, done.stderr[-3000:]


def assert_steps_lose_the_same(home, opened, moving):
    """Twenty of Limba's on the batches of `ask_transformers`, in which the parameter `moving` moves."""
    model, params = model_of(opened)
    optimizer = optax.adamw(RATE, weight_decay=0.01)

    @jax.jit
    def step(params, state, batch):
        (loss, _), gradients = jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, None)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    batches = np.load(home / "batches.npz")
    state, losses = optimizer.init(params), []
    for inputs, targets in zip(batches["inputs"], batches["targets"], strict=True):
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
            "decoder_target_tokens": targets,
            "decoder_loss_weights": (targets > 0).astype(np.int32),
        }
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, np.load(home / "losses.npy"), atol=1e-4, rtol=0)
    moved = traverse_util.flatten_dict(params, sep="/")[moving] - np.asarray(opened.tensors[moving])
    assert np.abs(moved).max() > STEPS * RATE / 3


def assert_transformers_answers_the_same(run, export):
    """Its logits, and the tokens of `generate` with its cache."""
    answer = np.load(export / "answer.npz")
    assert json.loads(str(answer["complaints"])) == {}
    opened = any_format.open_checkpoint(run)
    # What a run leaves to defaults is the number that its export has.
    assert networks.plain(opened.config) == networks.plain(any_format.open_model(export).config)
    model, params = model_of(opened)
    batch, _ = batch_of(opened.config.decoder_start_token_id)
    np.testing.assert_allclose(jax.jit(model.logits)(params, batch), answer["logits"], atol=1e-5)
    wanted = batch | {"decoder_input_tokens": np.zeros((3, 8), np.int32)}
    tokens = np.asarray(jax.jit(model.predict_batch)(params, wanted))
    np.testing.assert_array_equal(tokens[:, : answer["tokens"].shape[1]], answer["tokens"])


@pytest.fixture(scope="module")
def home(tmp_path_factory, forks5, spiece_model, modern):
    """A folder that transformers 5 made; `modern` has its answer."""
    home = tmp_path_factory.mktemp("steps")
    ask_transformers(home, forks5, spiece_model, FAMILY.model_class, CONFIG, modern / "export")
    return home


def test_twenty_steps_beside_transformers_lose_the_same(home, tmp_path):
    opened = any_format.open_model(from_hf(home, tmp_path / "run", verify=False))
    assert (opened.config.num_encoder_layers, opened.config.num_decoder_layers) == (3, 2)
    assert_steps_lose_the_same(home, opened, "decoder/layers_1/post_cross_attention_layer_norm/scale")


def test_transformers_5_makes_of_an_export_what_limba_does(home, modern):
    assert_transformers_answers_the_same(modern / "run", modern / "export")


def test_another_vocabulary_changes_both_embeddings(run):
    model = any_format.open_checkpoint(run)
    kept = np.array([0, 1, 2, 40, 300])
    trimmed = trimmed_model.trimmed(model, kept, model.vocabulary)
    for name in ("token_embedder/embedding", "decoder/token_embedder/embedding"):
        np.testing.assert_array_equal(trimmed.tensors[name], np.asarray(model.tensors[name])[kept])
    np.testing.assert_array_equal(
        trimmed_model.output_rows(trimmed), trimmed.tensors["decoder/token_embedder/embedding"]
    )


def test_gemmas_tokenizer_is_read_with_its_ids(tmp_path):
    hub_gemmas.write_tokenizer(tmp_path)
    record = t5_vocabularies.of_folder(tmp_path, NO_HINTS)
    vocabulary = masked_text.open_vocabulary(record)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a ab é").ids
    assert [2, *vocabulary.encode("a ab é")] == theirs and vocabulary.frame[:2] == ([2], [])
    assert vocabulary.eos_id == 1


def test_repair_does_not_know_its_folders(modern):
    with pytest.raises(ValueError, match="is of T5Gemma, which `limba convert repair` does not know"):
        hub_folder.read(modern / "export")


def _both(content, **changes):
    for stack in ("encoder", "decoder"):
        content[stack].update(changes)


def test_a_folder_that_leaves_the_start_to_its_class_is_the_same_model(run, tmp_path):
    """As the hub's: its decoder begins with bos_token_id, which is 2 where no file says it."""
    to_hf(run, tmp_path / "out", verify=False)
    settings = [folder_settings.of_folder(tmp_path / "out")]
    for name in ("config.json", "generation_config.json"):
        file = tmp_path / "out" / name
        content = json.loads(file.read_text())
        del content["decoder_start_token_id"]
        content.get("decoder", {}).pop("bos_token_id", None)
        file.write_text(json.dumps(content))
    settings.append(folder_settings.of_folder(tmp_path / "out"))
    assert all(row.holds for row in folder_settings.compare(*settings))
    file = tmp_path / "out/config.json"
    assert t5_config.network_config(file, t5_config.read(file)).decoder_start_token_id == 2


def _read(folder, change):
    file = folder / "config.json"
    content = json.loads((file).read_text())
    change(content)
    copy = folder / "other.json"
    copy.write_text(json.dumps(content))
    return t5_config.network_config(copy, t5_config.read(copy))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x["encoder"].update(hidden_size=64), "hidden_size is 64 in encoder and 32 in decoder"),
        (lambda x: _both(x, hidden_activation="tanh"), "hidden_activation is 'tanh'; Limba has gelu"),
        (lambda x: x["encoder"].update(attention_bias=True), "encoder: attention_bias is True"),
        (lambda x: x["decoder"].update(my_key=1), "decoder: my_key is 1"),
        (
            lambda x: x["decoder"].update(layer_types=["full_attention", "sliding_attention"]),
            "every n-th layer of both",
        ),
        (lambda x: x["decoder"].update(num_hidden_layers=10_001), "decoder: num_hidden_layers is 10001"),
        (lambda x: x["encoder"].update(layer_types=["full_attention"] * 9), "encoder: layer_types has 9 names and num"),
        (lambda x: _both(x, final_logit_softcapping=10**40), "final_logit_softcapping is 1"),
        (lambda x: _both(x, rope_parameters={"rope_type": "linear"}), "rope_type is 'linear'"),
        (lambda x: x["decoder"].update(head_dim="8"), "decoder: head_dim is '8'"),
        (lambda x: x.pop("encoder"), "encoder is None; it is the configuration of T5Gemma's encoder"),
        (lambda x: x.update(architectures=["T5GemmaEncoderModel"]), "T5GemmaEncoderModel; convert the whole"),
    ],
)
def test_another_network_is_refused_by_its_key(modern, change, words):
    with pytest.raises(ValueError, match=words):
        _read(modern / "export", change)


def test_keys_that_a_stack_leaves_out_are_the_class_defaults(modern):
    def leave_out(content):
        for stack in ("encoder", "decoder"):
            for key in ("layer_types", "attn_logit_softcapping", "rope_theta", "rope_parameters", "rms_norm_eps"):
                del content[stack][key]
            content[stack]["final_logit_softcapping"] = None

    config = _read(modern / "export", leave_out)
    assert config.gemma_layers == GemmaLayers(
        num_kv_heads=1, query_pre_attn_scalar=8, attn_logit_softcapping=50.0, sliding_window=4096
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decoder_start_token_id": 0}, "begins with padding"),
        ({"num_heads": 3}, "transformers 5 wants a multiple of num_heads, 3"),
    ],
)
def test_what_the_class_does_not_hold_is_said(fields, words):
    config = T5Config(**conftest.SMALL | MODERN | {"gemma_layers": GemmaLayers()} | fields)
    assert FAMILY.fits(config, None)
    with pytest.raises(ValueError, match=words):
        t5_config.model_config(config, FAMILY, "float32", None)


def test_t5x_has_no_such_network(run, tmp_path):
    with pytest.raises(ValueError, match="is T5Gemma, and T5X has no such network"):
        to_t5x(run, tmp_path / "t5x")
