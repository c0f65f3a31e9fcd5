"""Folders of T5s whose padding is not 0: which id it has, and what contradicts it."""

import json

import numpy as np
import pytest

from convert.families.config_files import t5_config
from convert.model_files import t5_vocabularies
from convert.model_files.hf import hf_tokenizer, special_tokens
from convert.model_files.model import NO_HINTS, ModelHints
from tasks.pretraining import masked_text
from tests.convert import hub_t5s

CONFIG = {"model_type": "t5", "vocab_size": 512, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


@pytest.fixture
def madlad(tmp_path):
    """The tokenizer of MADLAD-400, <unk> 0, <s> 1 and </s> 2, and a config.json: `madlad(**keys)`."""

    def write(generation=None, tokenizer=None, **keys):
        hub_t5s._madlad(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | (tokenizer or {})
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"pad_token_id": 1, "eos_token_id": 2} | keys))
        if generation:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return write


def read(folder, hints=NO_HINTS):
    file = folder / "config.json"
    return t5_vocabularies.of_config(file, t5_config.read(file, hints.ignore_config_keys), folder, hints)


def test_the_two_ids_are_exchanged(madlad):
    folder = madlad(decoder_start_token_id=0)
    record, content = read(folder)
    special = hf_tokenizer.from_vocabulary(record).special
    assert [token.id for token in special] == [0, 2, 1] and [token.name for token in special] == [
        "<s>",
        "</s>",
        "<unk>",
    ]
    assert content["pad_token_id"] == 1 and content["eos_token_id"] == 2
    assert t5_config.network_config(folder / "config.json", content).decoder_start_token_id == 1  # <unk>, as 0 there
    vocabulary = masked_text.open_vocabulary(record)
    theirs = hf_tokenizer.open_model(folder / "spiece.model", 0)
    text = "Bacade 狐 gătu."  # one character is unknown
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_proto=theirs.model).encode(text)
    assert [t5_config.in_folder(id_, 1) for id_ in vocabulary.encode(text)] == pieces and 0 in pieces
    assert vocabulary.eos_id == 2 and vocabulary.tokenizer.pad_id() == 0


def test_a_model_that_is_exchanged_twice_is_itself(madlad):
    folder = madlad()
    model = (folder / "spiece.model").read_bytes()
    once = special_tokens.exchanged_model(model, 1)
    assert once != model
    twice = special_tokens.exchanged_model(once, 1)
    from sentencepiece import sentencepiece_model_pb2

    a, b = (sentencepiece_model_pb2.ModelProto.FromString(x) for x in (model, twice))
    assert a.pieces == b.pieces and b.trainer_spec.pad_piece == "<s>"
    # What `limba run` gives beside a folder has Limba's ids already.
    (folder / "of_run.model").write_bytes(once)
    hints = ModelHints(vocab=str(folder / "of_run.model"), extra_ids=0)
    record, content = read(folder, hints)
    assert content["pad_token_id"] == 1 and record["sentencepiece_model_file"] == hints.vocab
    with pytest.raises(ValueError, match="a T5 needs the padding 0"):
        read(folder, ModelHints(vocab=str(folder / "spiece.model")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pad_token_id": 3}, "config.json: pad_token_id is 3, and in the vocabulary it is 1; they do not belong"),
        ({"eos_token_id": 5}, "config.json: eos_token_id is 5, and in the vocabulary it is 2; they do not belong"),
        ({"pad_token_id": "1"}, "config.json: pad_token_id is '1'; it is an id of the vocabulary"),
        ({"eos_token_id": [2, 3]}, "config.json: eos_token_id is a list of 2; Limba has one"),
        ({"generation": {"eos_token_id": 1}}, "generation_config.json: eos_token_id is 1, and in config.json it is 2"),
        ({"tokenizer": {"pad_token": "[PAD]"}}, r"pad_token is '\[PAD\]', which the vocabulary does not have"),
        ({"tokenizer": {"pad_token": "</s>"}}, "pad_token is '</s>', the end of a text too"),
        ({"tokenizer": {"eos_token": "<s>"}}, "eos_token is '<s>', and in the vocabulary it is '</s>'"),
        ({"tokenizer": {"pad_token": "<unk>"}}, "the padding 0, and an end of its own"),
    ],
)
def test_contradictions_are_named(madlad, arguments, words):
    folder = madlad(**arguments)
    with pytest.raises(ValueError, match=words):
        read(folder)


def test_the_defaults_of_the_class_do_not_contradict(madlad, capsys):
    _, content = read(madlad(pad_token_id=0, eos_token_id=1))
    assert content["pad_token_id"] == 1 and content["eos_token_id"] == 2
    said = capsys.readouterr().err
    assert "config.json: pad_token_id is 0, and in the vocabulary it is 1. Limba and its exports take" in said
    assert "config.json: eos_token_id is 1, and in the vocabulary it is 2. Limba and its exports take" in said


def test_ignored_ids_are_the_vocabularys(madlad, capsys):
    keys = ("pad_token_id", "eos_token_id")
    _, content = read(madlad(pad_token_id=3, eos_token_id=5), ModelHints(ignore_config_keys=keys))
    assert (content["pad_token_id"], content["eos_token_id"]) == (1, 2) and capsys.readouterr().err == ""


def test_padding_that_is_the_unknown_token_needs_bytes(tmp_path):
    """Llama's has them; without, the network would not see unknown characters."""
    hub_t5s._llama(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"pad_token_id": 0, "eos_token_id": 2}))
    record, _ = read(tmp_path)
    special = hf_tokenizer.from_vocabulary(record).special
    assert special.pad == special.unk == (0, "<unk>") and special.eos == (2, "</s>")
    vocabulary = masked_text.open_vocabulary(record)
    assert 0 not in vocabulary.encode("狐 ba") and vocabulary.decode([*vocabulary.encode("ba ce"), 2]) == "ba ce"
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["byte_fallback"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has '<unk>' for padding and for unknown characters"):
        read(tmp_path)


@pytest.mark.parametrize(("bos", "eos"), [(False, True), (True, True), (True, False), (None, None)])
def test_the_keys_of_llama_set_its_frame(tmp_path, bos, eos):
    """Whatever tokenizer.json says, as version 4 of transformers does."""
    from transformers import AutoTokenizer

    hub_t5s._llama(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    keys = {"add_bos_token": bos, "add_eos_token": eos}
    config = {key: x for key, x in (config | keys).items() if key not in keys or x is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": 2}))
    vocabulary = masked_text.open_vocabulary(read(tmp_path)[0])
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["Bacade gătu.", "a <extra_id_0> b"]
    np.testing.assert_equal([row.ids for row in vocabulary.rows(texts)], [theirs(text).input_ids for text in texts])
