"""BARTs and mBARTs: there and back beside transformers' classes, packed rows, sizes, and what is refused."""

import functools
import json
import math
import shutil

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.bart import bart, bart_family
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.models import EncoderDecoderModel, decoding
from tasks.pretraining import masked_text
from tests.addons.bart import bart_folder
from tests.convert import test_hub_t5s
from tests.limba import small

SEEDS = {"bart": 0, "mbart": 1}
# What transformers makes a network of.
SETTINGS = (
    *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("encoder_attention_heads", "decoder_attention_heads", "activation_function", "max_position_embeddings"),
    *("scale_embedding", "pad_token_id", "eos_token_id", "decoder_start_token_id", "architectures"),
)


@functools.cache
def _home(root, name):
    return bart_folder.write(name, root / name, SEEDS[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a family: `folder(name)`."""
    return functools.partial(_home, tmp_path_factory.mktemp("bart"))


@pytest.mark.parametrize("name", bart_folder.CLASSES)
def test_there_and_back(folder, name, tmp_path, capsys):
    """The check of `from-hf` runs transformers' class, and decodes beside its `generate` with Limba's cache."""
    checkpoint = from_hf(folder(name), tmp_path / "run")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    rows = {row["what"]: row for rows in report["comparisons"].values() for row in rows}
    assert rows["logits, A in PyTorch"]["value"] < 1e-5 and rows["logits, A in NumPy"]["value"] < 1e-5
    assert rows["greedy tokens, A in PyTorch"]["value"] == rows["tokens that differ, A"]["value"] == 0
    said = capsys.readouterr().err
    assert "/generation_config.json: forced_bos_token_id 0" in said and "/config.json" not in said
    to_hf(tmp_path / "run", tmp_path / "back", verify=False)
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "back", folder(name)))
    assert {key: ours[key] for key in SETTINGS} == {key: theirs[key] for key in SETTINGS}
    stored, again = (any_format.open_model(path).folder.stored for path in (folder(name), tmp_path / "back"))
    assert stored.keys() == again.keys() and len(stored) > 60
    for key in stored:
        np.testing.assert_array_equal(np.asarray(stored[key]), np.asarray(again[key]), err_msg=key)


def test_tokens_one_by_one_are_those_of_generate(folder, tmp_path):
    """Limba decodes with its cache, by beams too; places are counted in it."""
    from_hf(folder("mbart"), tmp_path / "run", verify=False)
    info, params = checkpointing.load_run_info(tmp_path / "run"), checkpointing.load_params(tmp_path / "run")
    vocabulary = masked_text.open_vocabulary(info["vocabulary"])
    network = bart.BartConfig(**info["network"] | {"dropout_rate": 0.0, "dtype": "float32"}).network()
    batch = test_hub_t5s.batch_of(vocabulary)
    theirs = test_hub_t5s.torch_model(folder("mbart"))
    theirs.generation_config.forced_bos_token_id = theirs.generation_config.forced_eos_token_id = None
    inputs = test_hub_t5s.in_folder(batch["encoder_input_tokens"], 1)
    mask = test_hub_t5s.torch.from_numpy(batch["encoder_input_tokens"] != 0).long()
    for decode, beams in ((decoding.temperature_sample, 1), (decoding.beam_search, 3)):
        model = EncoderDecoderModel(network, vocabulary, vocabulary, optimizer_def=None, decode_fn=decode, z_loss=0.0)
        predict = functools.partial(model.predict_batch, num_decodes=beams)
        ours = np.asarray(jax.jit(predict)(params, batch))
        found = theirs.generate(
            inputs, attention_mask=mask, max_new_tokens=ours.shape[1], num_beams=beams, length_penalty=0.0
        )
        found = found[:, 1:].numpy()
        np.testing.assert_array_equal(test_hub_t5s.in_folder(ours, 1).numpy()[:, : found.shape[1]], found)


def test_packed_texts_have_the_logits_that_each_has_alone():
    """Places count from the beginning of a text."""
    cfg = bart.BartConfig(
        vocab_size=20, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_encoder_layers=1, num_decoder_layers=1,
        max_positions=12, dropout_rate=0.0,
    )  # fmt: skip
    module, rng = cfg.network(), np.random.default_rng(0)
    texts = [[rng.integers(3, 20, (1, length)) for length in lengths] for lengths in ((4, 3), (5, 6))]
    alone = [(i, np.pad(t, ((0, 0), (1, 0)))[:, :-1], t) for i, t in texts]
    init = lambda: module.init(jax.random.key(0), *alone[0], enable_dropout=False)  # noqa: E731
    params = jax.tree.map(lambda x: 1 + rng.normal(size=x.shape).astype(x.dtype), jax.eval_shape(init)["params"])
    apply = functools.partial(small.call, module, params)
    packed = [np.concatenate([rows[i] for rows in alone], 1) for i in range(3)]
    of_inputs, of_targets = (
        np.concatenate([np.full((1, rows[i].shape[1]), n + 1) for n, rows in enumerate(alone)], 1) for i in (0, 2)
    )
    places = np.concatenate([np.arange(rows[2].shape[1]) for rows in alone])[None]
    segments = {"encoder_segment_ids": of_inputs, "decoder_segment_ids": of_targets}
    found = apply(*packed, **segments, decoder_positions=places)
    wanted = np.concatenate([apply(*rows) for rows in alone], 1)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(wanted).max() > 1


def test_dropout_within_feed_forward_alone_drops():
    cfg = bart.BartConfig(
        vocab_size=20, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_encoder_layers=1, num_decoder_layers=1,
        dropout_rate=0.0, activation_dropout_rate=0.5,
    )  # fmt: skip
    module, rows = cfg.network(), jnp.ones((1, 4), jnp.int32)
    params = module.init(jax.random.PRNGKey(0), rows, rows, rows, enable_dropout=False)["params"]
    encode = functools.partial(module.apply, {"params": params}, rows, method="encode")
    rng = {"dropout": jax.random.PRNGKey(1)}
    assert np.abs(encode(rngs=rng, enable_dropout=True) - encode(enable_dropout=False)).max() > 1e-6


def bound_network(file, bindings):
    gin.clear_config()
    gin_files.parse_gin_flags([str(file)], bindings)
    module = gin.get_configurable(bart.Transformer)()
    gin.clear_config()
    return module


@pytest.mark.parametrize(
    ("size", "count"), [("base", 139_420_416), ("large", 406_291_456), ("mbart_large", 610_851_840)]
)
def test_gin_files_have_as_many_parameters_as_the_models_of_the_hub(size, count):
    module = bound_network(f"gin/models/bart/{size}.gin", ["DROPOUT_RATE = 0.1", "VOCABULARY_FILE = 'x.json'"])
    shapes = bart_family.FAMILY.shapes(module.config, bart_family.FAMILY.usual_head)
    assert sum(math.prod(shape) for shape in shapes.values()) == count


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"d_model": 25}, "d_model is 25 and encoder_attention_heads"),
        ({"decoder_ffn_dim": 5}, "encoder_ffn_dim is .* and decoder_ffn_dim 5; the two are one"),
        ({"scale_embedding": "no"}, "scale_embedding is 'no'; it is true or false"),
        ({"normalize_before": True}, "normalize_before is True; it says where norms stand"),
        ({"activation_function": "tanh"}, "feed_forward_proj is 'tanh'"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"shift": 2}, "shift is 2. Limba does not know this key"),
        ({"architectures": ["BartForSequenceClassification"]}, "BartForSequenceClassification"),
    ],
    ids=str,
)
def test_another_config_is_one_message(folder, tmp_path, keys, message):
    content = json.loads((folder("bart") / "config.json").read_text()) | keys
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        from_hf(tmp_path / "config.json", tmp_path / "run", verify=False)


def test_a_bias_of_logits_that_is_not_zero_is_refused(folder, tmp_path):
    shutil.copytree(folder("bart"), tmp_path / "hf")
    stored = safetensors.numpy.load_file(tmp_path / "hf/model.safetensors")
    stored["final_logits_bias"] = stored["final_logits_bias"] + np.float32(0.5)
    safetensors.numpy.save_file(stored, tmp_path / "hf/model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="final_logits_bias is not zero"):
        from_hf(tmp_path / "hf", tmp_path / "run", verify=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mlp_activations": ("gelu", "linear")}, "one product and no gate"),
        ({"head_dim": 3}, "their product is emb_dim"),
        ({"logits_via_embedding": False}, "every BART has True"),
        ({"kernels": "fused"}, "set kernels = 'auto'"),
    ],
    ids=str,
)
def test_what_no_bart_has_is_one_message(fields, message):
    sizes = {"vocab_size": 20, "emb_dim": 8, "num_heads": 2, "head_dim": 4} | fields
    with pytest.raises(ValueError, match=message):
        bart.BartConfig(**sizes)


def test_a_row_that_is_longer_than_the_table_of_positions_is_refused():
    cfg = bart.BartConfig(vocab_size=20, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, max_positions=5)
    rows = jnp.ones((1, 6), jnp.int32)
    with pytest.raises(ValueError, match=r"have 6 tokens, and BartConfig\.max_positions is 5"):
        cfg.network().init(jax.random.PRNGKey(0), rows, rows[:, :5], rows[:, :5], enable_dropout=False)


def test_what_has_no_such_network_refuses_it_by_name(folder, tmp_path):
    from limba.addons.engines import to_ct2, to_gguf, to_onnx

    from_hf(folder("bart"), tmp_path / "run", verify=False)
    for convert in (to_ct2.to_ct2, to_onnx.to_onnx, to_gguf.to_gguf, to_t5x):
        with pytest.raises(ValueError, match=r"is (a )?BART, "):
            convert(tmp_path / "run", tmp_path / "out")
