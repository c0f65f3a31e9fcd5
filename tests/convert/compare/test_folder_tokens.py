"""The check reads a folder's tokenizer with transformers: it finds what Limba's own readers would get wrong."""

import dataclasses
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from convert import __main__
from convert.compare import folder_tokens
from convert.families import heads
from convert.families.table import find_encoder, find_t5
from convert.model_files import encoder_vocabularies, t5_vocabularies
from convert.model_files.hf import tokenizer_folder
from convert.model_files.model import NO_HINTS, EncoderModel, Folder, T5Model
from convert.to_hf import to_hf
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config
from tasks.pretraining import masked_text
from tasks.vocabularies import beside_tokenizer, framed_rows, tokenizer_files

pytest.importorskip("transformers")
TEXT = "the big house"


@pytest.fixture(scope="module")
def robertas(tmp_path_factory):
    """A RoBERTa's tokenizer: bytes, a blank before each text, two </s> between texts; padding is 1."""
    folder = tmp_path_factory.mktemp("roberta")
    pieces = [*pre_tokenizers.ByteLevel.alphabet(), "Ġt", "he", "Ġthe"]
    named = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab = {piece: id_ for id_, piece in enumerate([*named, *sorted(pieces)])}
    opened = Tokenizer(models.BPE(vocab, [("Ġ", "t"), ("h", "e"), ("Ġt", "he")], unk_token="<unk>"))
    opened.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    opened.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    opened.add_special_tokens(named)
    opened.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta", "pad_token_id": 1}))
    config = {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _encoder(folder):
    """The model of a folder as far as its tokenizer goes."""
    vocabulary, pad_id = encoder_vocabularies.of_folder(folder, 1, NO_HINTS)
    network = EncoderConfig(
        vocab_size=300, emb_dim=8, num_heads=1, head_dim=8, mlp_dim=8, num_layers=1, max_positions=9, family="roberta"
    )
    family = find_encoder(dataclasses.replace(network, num_token_types=1), heads.OF_MASKED_LM)
    of_folder = Folder({}, {}, "safetensors", pad_id, tokenizer=folder)
    return EncoderModel(
        folder, "Hugging Face", family, network, heads.OF_MASKED_LM, {}, vocabulary, 0, folder=of_folder
    )


# A broken reader, and what the row says.
BROKEN_ENCODERS = {
    "pad": (
        [(tokenizer_folder, "special_ids", lambda file: {"pad": 3, "cls": 1, "sep": 2, "mask": 4})],
        "pad is 0 in Limba, and 1 there",
    ),
    "template": ([(framed_rows, "has_template", lambda content: False)], "'the house' and 'a dog 12' is"),
    "side": ([(framed_rows, "cuts_left", lambda content: True)], "is [0, "),
    "prefix": ([(beside_tokenizer, "_set_space", lambda content, config: False)], "'the big house' is [0, "),
}


def test_the_tokens_of_a_whole_reader_are_transformers(robertas, checks_in_forks):
    (row,) = folder_tokens.compare("A", _encoder(robertas), TEXT)
    assert (row.what, row.value, row.holds) == ("tokens that differ, A", 0, True), row
    assert row.note.startswith("of 5 texts and special tokens in RobertaTokenizerFast of transformers 4")


@pytest.mark.parametrize("kind", BROKEN_ENCODERS)
def test_a_broken_reader_of_encoders_is_found(kind, robertas, monkeypatch, checks_in_forks):
    patches, words = BROKEN_ENCODERS[kind]
    for place, name, value in patches:
        monkeypatch.setattr(place, name, value)
    opened = (tokenizer_files._framing, tokenizer_files._cutting)
    for function in opened:
        function.cache_clear()
    (row,) = folder_tokens.compare("A", _encoder(robertas), TEXT)
    for function in opened:
        function.cache_clear()
    assert not row.holds and words in row.note, row


class _Prefixed:
    """A vocabulary that puts something before each text."""

    def __init__(self, inner, before):
        self.inner, self.before = inner, before

    def encode(self, text):
        return [*self.before, *self.inner.encode(text)]

    def rows(self, texts, most):
        inner = self.inner.rows(texts, None if most is None else most - len(self.before))
        return [row._replace(ids=[*self.before, *row.ids]) for row in inner]


@pytest.fixture(scope="module")
def t5s(new_run, tmp_path_factory, checks_in_forks):
    """A run of a T5, and its export."""
    home = tmp_path_factory.mktemp("t5")
    run = new_run(home / "run", num_encoder_layers=1, num_decoder_layers=1)
    to_hf(run, home / "hf", formats=["safetensors"], verify=False)
    return home


def test_a_broken_reader_of_t5s_is_found(t5s, monkeypatch):
    config = T5Config(vocab_size=512, emb_dim=32, num_heads=3, head_dim=8, mlp_dim=48)
    vocabulary = t5_vocabularies.of_folder(t5s / "hf", NO_HINTS)
    folder = Folder({}, {}, "safetensors", tokenizer=t5s / "hf")
    family = find_t5(config, vocabulary, None)
    model = T5Model(t5s, "Hugging Face", family, config, heads.OF_T5, {}, vocabulary, 0, folder=folder)
    (row,) = folder_tokens.compare("A", model, TEXT)
    assert row.value == 0, row
    whole = masked_text.open_vocabulary
    monkeypatch.setattr(masked_text, "open_vocabulary", lambda record: _Prefixed(whole(record), [3]))
    (row,) = folder_tokens.compare("A", model, TEXT)
    assert row.value == 8 and "'the big house' is [3, " in row.note  # Whole and cut; the fifth text is a pair.
    # Of a vocabulary that the user gives in place of the folder's, the folder says nothing.
    of_user = dataclasses.replace(model, folder=dataclasses.replace(folder, tokenizer=None))
    assert [*folder_tokens.compare("A", of_user, TEXT)] == []


def test_what_is_not_compared_says_so(robertas, t5s, monkeypatch, checks_in_forks):
    model = _encoder(robertas)
    monkeypatch.setattr(folder_tokens.transformers_library, "version", lambda: None)
    (row,) = folder_tokens.compare("A", model, TEXT)
    assert (row.value, row.note) == (None, "transformers is not installed")


def test_from_hf_keeps_nothing_of_a_broken_reader(t5s, tmp_path, monkeypatch, capsys):
    """Both sides of the comparison of the run with the folder have the same wrong tokens."""
    whole = masked_text.open_vocabulary
    monkeypatch.setattr(masked_text, "open_vocabulary", lambda record: _Prefixed(whole(record), [3]))
    assert __main__.main(["from-hf", str(t5s / "hf"), str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "nothing was kept: tokens that differ, A: 8" in error and not list(tmp_path.glob("run/checkpoint*"))
