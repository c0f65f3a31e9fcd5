"""Networks by transformers' defaults: `model_type` of run_mlm.py in place of a config.json."""

import json

import pytest
from transformers import CONFIG_MAPPING

from convert.families.config_files import encoder_config, t5_config
from convert.families.encoders import roberta
from convert.families.table import encoder_families
from convert.model_files.hf import hub_models
from limba.addons.run import starting_model
from tests.convert import vocabularies
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer
from tests.convert.families.config_files import transformers_defaults

# Of DeBERTa-v2 transformers' default is a network that Limba does not have.
_TYPES = [*dict.fromkeys(x.model_type for x in encoder_families().values() if x.model_type != "deberta-v2")]


@pytest.mark.parametrize("kind", _TYPES)
def test_all_that_a_config_json_says_is_transformers_default(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps(starting_model.default_content(kind)))
    said = encoder_config.read(tmp_path / "config.json").explicit
    assert said["hidden_size"] == {"electra": 256}.get(kind, 768)
    if kind in CONFIG_MAPPING:
        of_class = CONFIG_MAPPING[kind]()  # It has some keys under a second name, too.
        assert {key: getattr(of_class, key) for key in said} == said
    else:
        of_class = json.loads(transformers_defaults.FILE.read_text())["5"][kind]["defaults"]
        shared = said.keys() & of_class.keys()
        assert {key: said[key] for key in shared} == {key: of_class[key] for key in shared} and len(shared) >= 10


def test_a_t5_and_other_types(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(starting_model.default_content("t5")))
    content = t5_config.read(tmp_path / "config.json")
    of_class = CONFIG_MAPPING["t5"]().to_dict()
    assert {key: of_class[key] for key in content} == content and content["d_ff"] == 2048
    for kind in ("gpt2", "albert"):
        with pytest.raises(
            ValueError, match=f"model_type is '{kind}'; a network .* is of t5, mt5, umt5, bert, .*modernbert"
        ):
            starting_model.default_config(kind, "t")
    with pytest.raises(ValueError, match="needs a tokenizer: tokenizer_name"):
        starting_model.default_config("roberta", None)


def test_the_embedding_has_a_row_for_each_token(tmp_path, monkeypatch):
    write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    tokens = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    for rows, expected in ((50265, 50265), (tokens - 5, tokens)):
        monkeypatch.setitem(roberta.FAMILY.defaults, "vocab_size", rows)
        starting_model.default_config.cache_clear()
        file = starting_model.default_config("roberta", str(tmp_path))
        assert json.loads(file.read_text())["vocab_size"] == expected
        network = starting_model.open_model(None, str(file), str(tmp_path)).encoder
        assert (network.vocab_size, network.num_layers, network.max_positions) == (expected, 12, 510)


@pytest.mark.parametrize("kind", ["t5", *_TYPES])
def test_rows_without_a_token_are_named_with_the_cure(tmp_path, caplog, kind):
    if kind == "t5":
        tokenizer, tokens = vocabularies.train(tmp_path / "spiece.model"), vocabularies.NUM_PIECES + 100
    else:
        tokenizer = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS).parent
        tokens = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    rows = starting_model.default_content(kind)["vocab_size"]
    cure = f"{'pad_token_id=0,' if kind in ('modernbert', 'eurobert') else ''}vocab_size={tokens}"
    starting_model.default_config(kind, str(tokenizer), "initializer_factor=1.0" if kind == "t5" else "")
    said = f"has {tokens:,} tokens: {rows - tokens:,} of the {rows:,} rows of the embedding are never used"
    given = "initializer_factor=1.0," if kind == "t5" else ""
    assert said in caplog.text and f"--config_overrides {given}{cure}.\n" in caplog.text
    caplog.clear()
    file = starting_model.default_config(kind, str(tokenizer), cure)
    model = starting_model.open_model(None, str(file), str(tokenizer))
    assert model.network.vocab_size == tokens and "never used" not in caplog.text
    starting_model.default_config(kind, str(tokenizer), f"vocab_size={tokens + 500}")
    assert "never used" not in caplog.text  # It was asked for.


def test_overrides_of_the_defaults(tmp_path):
    """As `update_from_string` of transformers."""
    write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    given = "hidden_size=24,num_attention_heads=3,hidden_act=relu,hidden_dropout_prob=0.2,num_hidden_layers=1"
    theirs = CONFIG_MAPPING["bert"]()
    theirs.update_from_string(given)
    file = starting_model.default_config("bert", str(tmp_path), given)
    network = starting_model.open_model(None, str(file), str(tmp_path)).encoder
    assert (network.emb_dim, network.num_heads) == (theirs.hidden_size, theirs.num_attention_heads) == (24, 3)
    assert (network.mlp_activations, network.dropout_rate) == ((theirs.hidden_act,), theirs.hidden_dropout_prob)
    with pytest.raises(ValueError, match=r"config_overrides has 'hidden_size'; it is key=value"):
        starting_model.default_config("bert", str(tmp_path), "hidden_size,num_hidden_layers=1")
    file = starting_model.default_config("bert", str(tmp_path), "n_embd=8")
    with pytest.raises(ValueError, match="n_embd"):
        starting_model.open_model(None, str(file), str(tmp_path))


def test_a_tokenizer_that_is_no_folder_here_may_be_meant_so(tmp_path, monkeypatch, caplog):
    """The log says it before a hub is asked, and the error names both."""
    monkeypatch.chdir(tmp_path)
    hub = hub_models.client()
    asked = []

    def refuse(self, name):
        asked.append((name, caplog.text))
        raise hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(hub.HfApi, "model_info", refuse)
    caplog.set_level("INFO")
    for name in ("vocab", "runs/vocab"):
        with pytest.raises(
            OSError, match=rf"tokenizer_name is '{name}', and there is no file or folder {tmp_path}/{name}"
        ):
            starting_model.default_config("bert", name)
        assert (
            f"There is no file or folder {tmp_path}/{name}: {hub.constants.ENDPOINT} is asked for {name}."
            in asked[-1][1]
        )
    assert [name for name, _ in asked] == ["vocab", "runs/vocab"]
