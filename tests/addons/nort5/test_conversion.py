"""NorT5's folders: there and back, the check in NumPy, what is refused, engines, training onward and fine-tuning."""

import json
import math

import gin
import numpy as np
import pytest

from convert.compare import numpy_t5
from convert.families import table
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.nort5 import nort5, numpy_nort5
from limba.addons.nort5.nort5_family import FAMILY
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.inference import text_batches
from tasks.vocabularies import T5TokenizerVocabulary
from tests.addons.nort5 import nort5_folder, test_nort5


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of HPLT's, `hf`, as a run, `run`."""
    home = tmp_path_factory.mktemp("nort5")
    nort5_folder.write(home / "hf")
    from_hf(home / "hf", home / "run", verify=False)
    return home


def test_a_folder_there_and_back_has_the_same_tensors_ids_and_keys(home, tmp_path, capsys):
    report = to_hf(home / "run", tmp_path / "out")
    rows = {row["what"]: row for row in report["comparisons"]["safetensors"]}
    assert rows["logits, B in NumPy"]["value"] < 3e-5 and rows["logits, B in NumPy"]["holds"]
    assert rows["parameters that differ"]["value"] == rows["tokens that differ, B"]["value"] == 0
    assert "copy configuration_nort5.py and modeling_nort5.py" in capsys.readouterr().err

    given, written = (json.loads((path / "config.json").read_text()) for path in (home / "hf", tmp_path / "out"))
    settings = ("max_length", "max_new_tokens", "initializer_range")
    assert written | {"auto_map": given["auto_map"]} == {key: x for key, x in given.items() if key not in settings}
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation == {"decoder_start_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (home / "hf/tokenizer.json").read_bytes()
    roles = json.loads((tmp_path / "out/special_tokens_map.json").read_text())
    assert roles["bos_token"] == "[BOS]" and roles["additional_special_tokens"] == [*nort5_folder.SENTINELS]
    card = (tmp_path / "out/README.md").read_text()
    assert "from_pretrained(folder, trust_remote_code=True)" in card and "HPLT-WP4" in card
    assert not list((tmp_path / "out").glob("*.py")), "HPLT's code stays where it is"
    before, after = (any_format.open_model(path).folder.stored for path in (home / "hf", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(np.asarray(before[name]), np.asarray(after[name])) for name in before)


def bound_network(file, bindings):
    gin.clear_config()
    gin_files.parse_gin_flags([str(file)], bindings)
    module = gin.get_configurable(nort5.Transformer)()
    gin.clear_config()
    return module


def test_a_run_says_its_network_and_its_gin_binds_it(home):
    info = checkpointing.load_run_info(home / "run/checkpoint_0")
    opened = any_format.open_model(home / "run")
    assert info["network_class"] == "NorT5Config" and opened.family is FAMILY
    assert isinstance(opened.config, nort5.NorT5Config) and opened.config.num_buckets == 6
    module = bound_network(home / "run/model.gin", [])
    assert module.config.num_buckets == 6 and module.config.decoder_start_token_id == 5


def test_numpy_computes_what_hplts_code_does():
    """On the numbers of `test_nort5`, recorded from that code."""
    cfg, batch = test_nort5.config(), test_nort5.batch()
    tensors = {name: saved_tensors.from_array(x) for name, x in test_nort5.numbers(cfg).items()}
    stored = {row.name: row.stored(tensors) for row in FAMILY.table(cfg, FAMILY.usual_head)}
    content = {"num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "pad_token_id": 0} | FAMILY.layer_keys(cfg)
    decoder_inputs = batch["decoder_input_tokens"].copy()
    decoder_inputs[:, 0] = 5
    found = numpy_nort5.logits(
        numpy_t5.TorchWeights(stored), content, batch["encoder_input_tokens"], decoder_inputs, lambda x: x
    )
    np.testing.assert_allclose(found[:, ::7, :3], test_nort5.RECORDED, atol=2e-6)


def test_sentinels_are_t5s_in_texts_and_hplts_in_the_file(home):
    vocabulary = T5TokenizerVocabulary(str(home / "hf/tokenizer.json"))
    ids = vocabulary.encode("the <extra_id_0> of <extra_id_2>")
    assert [i for i in ids if 7 <= i < 106] == [7, 9]
    assert vocabulary.decode([7, *vocabulary.encode("file"), 8, 6, 50]) == "<extra_id_0> file<extra_id_1>"
    assert vocabulary.eos_id == 6 and vocabulary.frame[:2] == ([2], [3])
    (row,) = vocabulary.rows(["a <extra_id_1>"])
    assert (
        row.ids[0] == 2 and row.ids[-2:] == [8, 3] and vocabulary.as_targets(row).ids[0 :: len(row.ids) - 1] == [5, 6]
    )


def test_a_tokenizer_without_an_end_of_its_own_ends_with_sep_and_a_warning_says_so(tmp_path, capsys):
    special = nort5_folder.SPECIAL[:5]
    nort5_folder.write(tmp_path / "hf", special=special)
    opened = any_format.open_model(tmp_path / "hf")
    assert "eos_token_id is 6, and in the vocabulary it is 3" in capsys.readouterr().err
    assert opened.folder.content["eos_token_id"] == 3 and opened.config.decoder_start_token_id == 5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": 25}, "hidden_size is 25 and num_attention_heads 3"),
        ({"position_bucket_size": 0}, "position_bucket_size is 0"),
        ({"position_bucket_size": 2**30}, "position_bucket_size is 1073741824"),
        ({"layer_norm_eps": 2**31}, "layer_norm_eps is 2147483648"),
        ({"share_attention": True}, "share_attention is True. Limba does not know this key"),
        ({"architectures": ["NorT5Model"]}, "model_type is missing"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small'"),
    ],
    ids=str,
)
def test_another_config_is_one_message(home, tmp_path, keys, message):
    content = json.loads((home / "hf/config.json").read_text()) | keys
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        from_hf(tmp_path / "config.json", tmp_path / "run", verify=False)


def test_what_has_no_such_network_refuses_it_by_name(home, tmp_path):
    from limba.addons.engines import to_ct2, to_gguf, to_onnx

    for convert in (to_ct2.to_ct2, to_onnx.to_onnx, to_gguf.to_gguf, to_t5x):
        with pytest.raises(ValueError, match=r"is (a )?NorT5, "):
            convert(home / "run", tmp_path / "out")
    uneven = test_nort5.config(num_encoder_layers=1)
    assert "1 encoder and 2 decoder layers" in table.no_class(uneven) and not table.no_class(test_nort5.config())


def test_gin_files_have_the_sizes_of_hplts_configurations():
    fields = ("emb_dim", "num_heads", "num_encoder_layers", "num_decoder_layers", "mlp_dim", "head_dim")
    sizes = {
        "tiny": (8, 2, 2, 2, 16, 4),
        "xs": (192, 3, 12, 12, 512, 64),
        "small": (384, 6, 12, 12, 1024, 64),
        "base": (768, 12, 12, 12, 2048, 64),
        "large": (1024, 16, 24, 24, 2730, 64),
    }
    for size, wanted in sizes.items():
        module = bound_network(f"gin/models/nort5/{size}.gin", ["DROPOUT_RATE = 0.0", "VOCABULARY_FILE = 'x.json'"])
        assert tuple(getattr(module.config, name) for name in fields) == wanted, size
    base = nort5.NorT5Config(vocab_size=32_768, emb_dim=768, num_heads=12, num_encoder_layers=12, num_decoder_layers=12)
    assert sum(math.prod(x) for x in FAMILY.shapes(base, FAMILY.usual_head).values()) == 248_860_928, "as HPLT's class"


def test_answers_of_a_decoder_that_begins_with_a_sentinel_fill_the_first_blank(home):
    vocabulary = T5TokenizerVocabulary(str(home / "hf/tokenizer.json"))
    row = np.array([*vocabulary.encode("file"), 8, *vocabulary.encode("text"), 9, 6])
    texts = text_batches.Sequences(vocabulary, vocabulary, 8, start=7)
    assert texts.answer("a <extra_id_0> and <extra_id_1>", row)[1] == "a file and text"
    without = text_batches.Sequences(vocabulary, vocabulary, 8, start=5)
    assert without.answer("a <extra_id_0> and <extra_id_1>", row)[1] == "a <extra_id_0> and text"
