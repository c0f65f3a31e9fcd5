"""A tokenizer with which the library panics, ends the process, or fails on every text: an error that names the file."""

import json

import pytest
from sentencepiece import sentencepiece_model_pb2

from convert.__main__ import main
from convert.families.config_keys import tokenizer_keys
from convert.model_files.hf import hf_tokenizer, padding_first, tokenizer_settings
from limba.files import rust_panics
from tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, TokenizerVocabulary
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer

_NOTHING = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
_BACKTRACKS = {"Regex": "(x+x+)+y"}
AT_ONCE = {
    "a template with a token that is not there": {
        "post_processor": {**_NOTHING, "single": [{"SpecialToken": {"id": "absent", "type_id": 0}}]}
    },
    "a character map that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA/////w=="}},
    "words that have no token": {
        "model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "z", "max_input_chars_per_word": 0}
        | {"continuing_subword_prefix": "##"}
    },
    "an expression that is none": {"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": "x"}},
}
ON_A_TEXT = {
    "normalizer": {"type": "Replace", "pattern": _BACKTRACKS, "content": "x"},
    "pre_tokenizer": {"type": "Split", "pattern": _BACKTRACKS, "behavior": "Isolated", "invert": False},
}


def _changed(folder, **steps):
    file = write_tokenizer(folder / "tokenizer.json", SPECIAL_TOKENS)
    file.write_text(json.dumps(json.loads(file.read_text()) | steps))
    return str(file)


NO_TOKENS = [
    ("tokenizer_config.json", {"pad_token": ["a"]}, "pad_token is a list of 1; it is a text or an object with one"),
    ("tokenizer_config.json", {"mask_token": {"text": "a"}}, "mask_token is a table of 1"),
    ("tokenizer_config.json", {"additional_special_tokens": [3]}, "additional_special_tokens is a list of 1"),
    (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"a": {"content": "b"}}},
        "added_tokens_decoder is a table of 1",
    ),
    ("tokenizer_config.json", {"added_tokens_decoder": {"1": "b"}}, "added_tokens_decoder is a table of 1"),
    ("special_tokens_map.json", {"sep_token": {}}, "sep_token is an empty table"),
    ("tokenizer.json", {"added_tokens": [{"id": 1}]}, "added_tokens is a list of 1"),
    ("tokenizer.json", {"added_tokens": [{"id": 10**40, "content": "a"}]}, "added_tokens is a list of 1"),
    ("tokenizer.json", {"added_tokens": [{"id": 1, "content": {}}]}, "added_tokens is a list of 1"),
    ("tokenizer.json", {"model": {"vocab": {"a": {}}}}, "model is a table of 1; it is a model whose vocab gives"),
    ("tokenizer.json", {"model": {"vocab": [["a"]]}}, "model is a table of 1"),
]


@pytest.mark.parametrize(("name", "content", "words"), NO_TOKENS)
def test_tokens_that_are_none_are_named_with_their_file(name, content, words, tmp_path):
    """Of a T5's folder as of an encoder's: readers go through tokens before a library has judged them."""
    write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    (tmp_path / "tokenizer_config.json").write_text("{}")  # The library alone reads a file without others beside it.
    before = json.loads((tmp_path / name).read_text()) if (tmp_path / name).is_file() else {}
    (tmp_path / name).write_text(json.dumps(before | content))
    readers = [lambda: TokenizerVocabulary(str(tmp_path / "tokenizer.json")).tokenizer]
    if name == "tokenizer.json":
        readers.append(lambda: hf_tokenizer.read_json(tmp_path / name))
    else:
        readers.append(lambda: tokenizer_settings.of_folder(tmp_path))
    if name == "tokenizer_config.json":
        readers.append(lambda: tokenizer_keys.of_t5(tmp_path, ()))
    for read in readers:
        with pytest.raises(ValueError, match=f"{name} is damaged: {words}"):
            read()


def test_flags_that_the_library_refuses_are_named_before_padding_is_exchanged(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    content = json.loads(file.read_text())
    content["added_tokens"][0]["lstrip"] = "x"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json with which .* expected a boolean"):
        padding_first.folder_with(tmp_path, 3)


@pytest.mark.parametrize("kind", AT_ONCE)
def test_what_fails_on_every_text_is_refused_at_once(kind, tmp_path):
    file = _changed(tmp_path, **AT_ONCE[kind])
    for vocabulary in (TokenizerVocabulary(file), T5TokenizerVocabulary(file)):
        with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json "):
            _ = vocabulary.tokenizer


_TEN_FOR_ONE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
_BETWEEN = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a"}
_CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
_LONG = {"id": 60, "content": "a" * 20_000, "special": True, "normalized": False}
_LONG |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
GROWING = {
    "the normalizer makes texts": {"normalizer": {"type": "Sequence", "normalizers": [_TEN_FOR_ONE] * 9}},
    "the normalizer makes": {"normalizer": {"type": "Sequence", "normalizers": [_BETWEEN] * 40}},
    "the decoder makes texts more than 1,000 times": {"decoder": {"type": "Sequence", "decoders": [_TEN_FOR_ONE] * 4}},
    "an added token of more than 10,000 characters": {"added_tokens": [_LONG]},
    "template puts 4,000 tokens around a text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_CLS] * 2000,
            "pair": [],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2, 2], "tokens": ["[CLS]", "[CLS]"]}},
        }
    },
}


@pytest.mark.parametrize("message", GROWING)
def test_what_makes_much_of_a_short_text_is_refused(message, tmp_path):
    with pytest.raises(ValueError, match=rf"tokenizer\.json.*{message}"):
        _ = TokenizerVocabulary(_changed(tmp_path, **GROWING[message])).tokenizer


@pytest.mark.parametrize("step", ON_A_TEXT)
def test_what_fails_on_a_text_names_the_file(step, tmp_path):
    vocabulary = TokenizerVocabulary(_changed(tmp_path, **{step: ON_A_TEXT[step]}))
    assert vocabulary.encode("w7 w8")
    long = "x" * 200
    calls = (
        lambda: vocabulary.encode(long),
        lambda: vocabulary.encode_batch([long.encode()]),
        lambda: vocabulary.rows([(long,)]),
        lambda: vocabulary.encode_words([[long]]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="takes too many steps") as error:
            call()
        assert str(tmp_path) in str(error.value)


def test_a_panic_elsewhere_is_one_message(monkeypatch, capsys):
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    assert rust_panics.is_panic(panic("x")) and not rust_panics.is_panic(KeyboardInterrupt())

    def fails(args):
        raise panic("no entry found for key")

    monkeypatch.setattr("convert.check.run", fails)
    assert main(["check", "a", "b"]) == 1
    assert capsys.readouterr().err == (
        "error: a library fails on its input (no entry found for key). A file that it reads is damaged, or made to "
        "do this.\n"
    )


_OUTSIDE, _ONE_LEAF = b"\xff\xff\xff\x7f" * 256, (1 << 31).to_bytes(4, "little") * 256
CHANGED_PIECES = {
    "has a piece of 60,000 bytes; pieces have at most 10,000": lambda model, _: model.pieces.add(piece="y" * 60_000),
    "normalizer_spec has 5 bytes, and a trie of 255. ": lambda model, table: table(b"\xff\0\0\0a"),
    "has 4 bytes, and a trie of 0": lambda model, table: table(b"\0" * 4),
    "normalizer_spec leads out of itself": lambda model, table: table(b"\0\4\0\0" + _OUTSIDE + b"a\0"),
    "normalizer_spec leads out of": lambda model, table: table(b"\0\4\0\0" + _ONE_LEAF),
    "makes 2,000 bytes of a character; at most 1,000": lambda model, table: table(
        b"\0\4\0\0" + _ONE_LEAF + b"a" * 2000
    ),
}


@pytest.mark.parametrize("message", CHANGED_PIECES)
def test_a_sentencepiece_model_that_ends_the_process_is_refused_before_it(message, tmp_path):
    model = sentencepiece_model_pb2.ModelProto()
    model.pieces.add(piece="a")
    CHANGED_PIECES[message](model, lambda table: setattr(model.normalizer_spec, "precompiled_charsmap", table))
    (file := tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=message):
        _ = SentencePieceVocabulary(str(file)).tokenizer
