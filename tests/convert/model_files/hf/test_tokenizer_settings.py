"""What a folder says of its tokenizer comes back: from-hf, a training's checkpoints, to-hf."""

import json
import types
from pathlib import Path

import pytest
import tokenizers

from convert.from_hf import from_hf
from convert.model_files.hf import folder_tokenizer, hf_tokenizer, tokenizer_settings
from convert.to_hf import to_hf
from limba.checkpoint_files import run_folder
from limba.checkpoints import run_description
from tasks.pretraining import masked_text
from tasks.vocabularies import sentencepiece_models
from tests.convert import vocabularies

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# Keys of tokenizer_config.json that a round trip changes, each for a reason.
OWN = {"legacy", "added_tokens_decoder", "model_input_names"}


def saved_by_transformers(exported: Path, out: Path, **settings) -> Path:
    """A T5's folder, with the tokenizer as transformers 4 saves it with these settings."""
    from transformers import AutoTokenizer

    out.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (out / name).write_bytes((exported / name).read_bytes())
    AutoTokenizer.from_pretrained(exported, **settings).save_pretrained(out)
    return out


def config_of(folder: Path) -> dict:
    return json.loads((folder / "tokenizer_config.json").read_text("utf-8"))


def differing(a: dict, b: dict) -> set[str]:
    return {key for key in {*a, *b} if a.get(key) != b.get(key)}


@pytest.fixture(scope="module")
def there_and_back(new_run, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("settings")
    run = new_run(root / "first", vocab_size=640, num_encoder_layers=1, num_decoder_layers=1)
    to_hf(run, root / "first hf", verify=False)
    folder = saved_by_transformers(
        root / "first hf",
        root / "hf",
        model_max_length=77,
        padding_side="left",
        truncation_side="left",
        sep_token="<sep>",
        chat_template=TEMPLATE,
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    checkpoint = from_hf(folder, root / "run", verify=False)
    to_hf(checkpoint, root / "back", verify=False)
    return {"hf": folder, "run": root / "run", "checkpoint": checkpoint, "back": root / "back"}


def test_the_settings_come_back(there_and_back):
    before, after = config_of(there_and_back["hf"]), config_of(there_and_back["back"])
    assert differing(before, after) <= OWN, differing(before, after)
    assert after["model_max_length"] == 77 and after["sep_token"] == "<sep>" and after["padding_side"] == "left"
    names = ("special_tokens_map.json", "chat_template.jinja")
    maps = [json.loads((there_and_back[x] / names[0]).read_text()) for x in ("hf", "back")]
    texts = [{k: v["content"] if isinstance(v, dict) else v for k, v in of.items()} for of in maps]
    assert differing(*texts) == set()
    assert (there_and_back["back"] / names[1]).read_text() == TEMPLATE


def test_transformers_gives_both_the_same_tokenizer(there_and_back):
    from transformers import AutoTokenizer

    before, after = (AutoTokenizer.from_pretrained(there_and_back[name]) for name in ("hf", "back"))
    assert type(after) is type(before) and type(after).__name__ == "T5TokenizerFast"
    for name in (
        "model_max_length",
        "padding_side",
        "truncation_side",
        "sep_token",
        "chat_template",
        "all_special_tokens",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert {token: str(x) for token, x in after.added_tokens_decoder.items()} == {
        token: str(x) for token, x in before.added_tokens_decoder.items()
    }
    texts = [*vocabularies.sentences(20), "ba <extra_id_0> ce <sep> ba"]
    assert after(texts).input_ids == before(texts).input_ids
    message = [{"role": "user", "content": "ba ce"}]
    assert after.apply_chat_template(message, tokenize=False) == "ba ce"


def test_they_travel_with_a_training(there_and_back, tmp_path, monkeypatch):
    """A training's own checkpoints, wherever its vocabulary's file lies."""
    file = there_and_back["run"] / "tokenizer.json"
    file = file if file.is_file() else there_and_back["run"] / "spiece.model"
    record = run_folder.load_run_info(there_and_back["checkpoint"])["vocabulary"]
    info = {"vocabulary": run_folder.with_vocabulary_file(record, str(file)), "network": {}}
    monkeypatch.setattr(run_description, "run_info", lambda *_: info)
    lengths = {"initial_step": 0, "total_steps": 1, "rows_per_epoch": None}
    dataset = types.SimpleNamespace(module=None)
    files = run_description.run_files(None, dataset, {}, None, **lengths)  # type: ignore[arg-type]
    folder = tmp_path / run_folder.FOLDER
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    kept = tokenizer_settings.of_checkpoint(tmp_path)
    assert kept.config["model_max_length"] == 77 and kept.files == {"chat_template.jinja": TEMPLATE}
    assert kept.config["sep_token"] == "<sep>"


def test_the_run_s_length_wins_over_the_source_s(spiece_model, tmp_path):
    settings = tokenizer_settings.Settings({"model_max_length": 512, "tokenizer_class": "T5Tokenizer"})
    tokenizer = hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model))
    hf_tokenizer.write(tokenizer, tmp_path, settings, inputs_length=64)
    assert (config_of(tmp_path)["model_max_length"], config_of(tmp_path)["tokenizer_class"]) == (64, "T5Tokenizer")
    hf_tokenizer.write(tokenizer, tmp_path, settings)
    assert config_of(tmp_path)["model_max_length"] == 512
    hf_tokenizer.write(tokenizer, tmp_path)
    assert "model_max_length" not in config_of(tmp_path)


@pytest.mark.parametrize("general", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_the_general_class_stays_the_general_one(spiece_model, general, tmp_path):
    """Version 4 does not know the name that version 5 gives it."""
    settings = tokenizer_settings.Settings({"tokenizer_class": general})
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model)), tmp_path, settings)
    assert config_of(tmp_path)["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_an_export_of_a_run_says_its_length(new_run, tmp_path):
    to_hf(new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1), tmp_path / "hf", verify=False)
    found = config_of(tmp_path / "hf")
    assert (found["model_max_length"], found["extra_ids"], found["tokenizer_class"]) == (160, 100, "T5TokenizerFast")
    assert found["additional_special_tokens"][:2] == ["<extra_id_0>", "<extra_id_1>"]


def test_what_transformers_5_saves_needs_no_extra_ids(spiece_model, tmp_path):
    """Its general class names the special tokens `extra_special_tokens`, padding and EOS among them."""
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model)), tmp_path)
    for name in ("spiece.model", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    special = ["<pad>", "</s>", *(f"<extra_id_{i}>" for i in range(100))]
    config = {
        "backend": "tokenizers",
        "tokenizer_class": "TokenizersBackend",
        "extra_special_tokens": special,
        "model_max_length": 200,
        "is_local": True,
        "local_files_only": False,
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    record = folder_tokenizer.read(tmp_path)
    vocabulary = masked_text.open_vocabulary(record)
    assert sentencepiece_models.sentinel_ids(vocabulary) == tuple(range(511, 411, -1))
    (tmp_path / "out").mkdir()
    settings = tokenizer_settings.of_folder(tmp_path)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), tmp_path / "out", settings)
    after = config_of(tmp_path / "out")
    assert after["additional_special_tokens"] == special[2:] and "extra_special_tokens" not in after
    assert after["model_max_length"] == 200 and not {"backend", "is_local", "local_files_only"} & {*after}


@pytest.fixture(scope="module")
def only_json(spiece_model, tmp_path_factory) -> hf_tokenizer.Tokenizer:
    """A tokenizer.json that is the vocabulary: an export of it has no SentencePiece model."""
    folder = tmp_path_factory.mktemp("json")
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model)), folder)
    return hf_tokenizer.from_json(folder / "tokenizer.json")


@pytest.mark.parametrize("tokenizer_class", ["T5Tokenizer", "T5TokenizerFast", "MT5TokenizerFast"])
def test_a_folder_without_a_sentencepiece_model_loads(only_json, tokenizer_class, tmp_path):
    """Version 4 makes a fast T5 tokenizer with `add_prefix_space` or `from_slow` of spiece.model alone."""
    from transformers import AutoTokenizer

    (tmp_path / "source").mkdir()
    config = {"tokenizer_class": tokenizer_class, "add_prefix_space": True, "from_slow": True, "sp_model_kwargs": {}}
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(config))
    hf_tokenizer.write(only_json, tmp_path, tokenizer_settings.of_folder(tmp_path / "source"))
    assert config_of(tmp_path)["tokenizer_class"] == tokenizer_class and not (tmp_path / "spiece.model").exists()
    loaded, texts = AutoTokenizer.from_pretrained(tmp_path), [*vocabularies.sentences(20), " ba  ce"]
    expected = tokenizers.Tokenizer.from_file(str(only_json.model_file)).encode_batch(texts)
    assert loaded(texts).input_ids == [encoding.ids for encoding in expected]


def test_the_general_class_keeps_the_space_before_a_text(only_json, tmp_path):
    """It goes by this key, for tokenizers of bytes."""
    settings = tokenizer_settings.Settings({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True})
    hf_tokenizer.write(only_json, tmp_path, settings)
    assert config_of(tmp_path)["add_prefix_space"] is True


def test_damaged_settings_are_named(tmp_path):
    folder = tmp_path / run_folder.FOLDER
    folder.mkdir()
    file = folder / run_folder.TOKENIZER_SETTINGS
    for content in ("{", '{"config": {}}', '{"config": {}, "files": {"../x": "y"}}'):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer_settings\.json"):
            tokenizer_settings.of_checkpoint(tmp_path)


def test_another_vocabulary_than_the_folder_s_has_no_settings_of_it(there_and_back, spiece_model, tmp_path):
    from convert.model_files.any_format import ModelHints

    hints = ModelHints(vocab=str(spiece_model), extra_ids=100)
    checkpoint = from_hf(there_and_back["hf"], tmp_path / "run", hints=hints, verify=False)
    assert not (tmp_path / "run" / run_folder.TOKENIZER_SETTINGS).exists()
    assert tokenizer_settings.of_checkpoint(checkpoint) == tokenizer_settings.NONE


@pytest.mark.parametrize("name", ["chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json"])
def test_a_link_to_elsewhere_is_not_copied(name, tmp_path):
    """A folder from elsewhere would make a file of the user's public, in an export that is uploaded."""
    secret = tmp_path / "docker.json"
    secret.write_text('{"auths": {"registry": "token"}}')
    folder = tmp_path / "models--org--name/snapshots/main"
    folder.mkdir(parents=True)
    for target in (secret, Path("../../../docker.json")):
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match=rf"{name} is a link to .*docker.json, outside of its folder; put a copy"):
            tokenizer_settings.of_folder(folder)
        (folder / name).unlink()
    # The cache of the hub, and links inside of a folder.
    (tmp_path / "models--org--name/blobs").mkdir()
    (tmp_path / "models--org--name/blobs/abc").write_text('{"model_max_length": 7}')
    (folder / name).symlink_to("../../blobs/abc")
    found = tokenizer_settings.of_folder(folder)
    assert found.files or found.config == {"model_max_length": 7}
    (folder / "own.json").write_text("{}")
    (folder / name).unlink()
    (folder / name).symlink_to("own.json")
    assert tokenizer_settings.of_folder(folder).config == {}
