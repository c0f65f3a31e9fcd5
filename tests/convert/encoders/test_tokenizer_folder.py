"""A tokenizer with two ids exchanged gives the same tokens, of every kind of model."""

import dataclasses
import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from convert.exports import encoder_export
from convert.families import heads
from convert.model_files import any_format
from convert.model_files.hf import tokenizer_folder, tokenizer_settings
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer


def _bpe():
    """As ModernBERT's: its special tokens come behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.RobertaProcessing(sep=("[SEP]", 6), cls=("[CLS]", 5))
    tokenizer.enable_padding(pad_id=3, pad_token="[PAD]")
    return tokenizer


def _unigram():
    pieces = [("[UNK]", 0.0), ("[PAD]", 0.0), ("a", -1.0), ("b", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 5)]
    )
    return tokenizer


@pytest.mark.parametrize(("tokenizer", "padding"), [(_bpe(), 3), (_unigram(), 1)])
def test_exchanged_ids(tokenizer, padding):
    content = json.loads(tokenizer.to_str())
    changed = tokenizer_folder.with_exchanged_ids(content, 0, padding, "here")
    new = Tokenizer.from_str(json.dumps(changed))
    other = {0: padding, padding: 0}
    assert new.token_to_id("[PAD]") == 0
    for text in ("abba", "a[MASK]b", "ba"):
        old, found = tokenizer.encode(text), new.encode(text)
        assert found.tokens == old.tokens
        assert found.ids == [other.get(i, i) for i in old.ids]
    assert json.loads(tokenizer.to_str()) == content


def test_a_token_that_is_missing_is_named(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS[:4])
    with pytest.raises(ValueError, match=r"no \[MASK\]"):
        tokenizer_folder.describe(file)


def test_special_tokens_are_put_around_texts(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    ids = tokenizer_folder.write(file, tmp_path, pad_id=1, most_tokens=9, has_pairs=True)
    assert ids == {"pad": 1, "unk": 0, "cls": 2, "sep": 3, "mask": 4}
    written = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pair = written.encode("w7", "w8 new")
    assert (pair.ids, pair.type_ids) == ([2, 7, 3, 8, 0, 3], [0, 0, 0, 1, 1, 1])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "[MASK]" and "token_type_ids" in config["model_input_names"]


@pytest.mark.parametrize("tokenizer_class", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_what_a_folder_says_of_its_tokenizer_comes_back(new_encoder, tokenizer_class, tmp_path):
    """A run of ours, whose folder somebody changes; every key that the round trip changes has a name here."""
    from convert.from_hf import from_hf
    from convert.to_hf import to_hf

    to_hf(new_encoder(tmp_path / "run", num_layers=1), tmp_path / "hf", verify=False)
    file = tmp_path / "hf/tokenizer_config.json"
    first = json.loads(file.read_text())
    assert (first["model_max_length"], first["tokenizer_class"]) == (48, "PreTrainedTokenizerFast")
    assert {x["content"] for x in first["added_tokens_decoder"].values()} >= {"[PAD]", "[CLS]", "[SEP]", "[MASK]"}
    own = {
        "tokenizer_class": tokenizer_class,
        "model_max_length": 40,
        "truncation_side": "left",
        "extra_special_tokens": ["w5", "w6"],
        "chat_template": "{{ messages }}",
        "name_or_path": "somewhere",
    }
    file.write_text(json.dumps(first | own))
    (tmp_path / "hf/chat_template.jinja").write_text("{{ messages }}")
    checkpoint = from_hf(tmp_path / "hf", tmp_path / "back", verify=False)
    to_hf(checkpoint, tmp_path / "again", verify=False)
    again = json.loads((tmp_path / "again/tokenizer_config.json").read_text())
    before = first | own
    changed = {key for key in {*before, *again} if before.get(key) != again.get(key)}
    assert changed == {"name_or_path", "extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"}
    assert {x["content"] for x in again["added_tokens_decoder"].values() if x["special"]} >= {"w5", "w6"}
    assert again["additional_special_tokens"] == ["w5", "w6"]
    assert (tmp_path / "again/chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize(
    ("kept", "of_run", "of_labels", "of_masks"),
    [
        (10**30, 24, 24, 48),  # A table of 48 positions: transformers looks beyond its end.
        (10**30, 96, 48, 48),
        (None, 24, 24, 48),
        (40, 24, 24, 40),
        (40, None, 40, 40),
        (10**30, None, 10**30, 10**30),  # A conversion alone brings back what was there.
    ],
)
def test_a_row_is_as_long_as_those_of_the_run_and_never_longer_than_the_positions(
    new_encoder, tmp_path, kept, of_run, of_labels, of_masks
):
    model = any_format.open_checkpoint(new_encoder(tmp_path / "run", num_layers=1))
    settings = tokenizer_settings.Settings({} if kept is None else {"model_max_length": kept})
    info = {} if of_run is None else {"feature_lengths": {"inputs": of_run, "targets": 1}}
    model = dataclasses.replace(model, info=info, tokenizer_settings=settings)
    assert encoder_export.row_length(model) == of_masks
    with_labels = dataclasses.replace(model, head=heads.Head(heads.SEQUENCE, ("a", "b"), "tanh"))
    assert encoder_export.row_length(with_labels) == of_labels
    if of_run is not None:
        rotary = dataclasses.replace(model.config, position_embedding_type="rotary")  # which has no table
        assert encoder_export.row_length(dataclasses.replace(with_labels, config=rotary)) == of_run
