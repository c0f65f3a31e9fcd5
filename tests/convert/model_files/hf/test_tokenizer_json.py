"""tokenizer.json gives a SentencePiece model's ids, and becomes the model again."""

import copy
import json

import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from convert.model_files.hf import tokenizer_json
from tests.convert import vocabularies

SPECIAL_TOKENS = {0: "<pad>", 1: "</s>", 2: "<unk>"}


def model_of(path) -> sentencepiece_pb2.ModelProto:
    return sentencepiece_pb2.ModelProto.FromString(path.read_bytes())


@pytest.fixture(scope="module")
def content(spiece_model) -> dict:
    """Of T5's kind of model, without sentinels."""
    return tokenizer_json.from_model(model_of(spiece_model), 0, SPECIAL_TOKENS)


def test_the_model_comes_back_as_it_was(spiece_model, content):
    model = model_of(spiece_model)
    back = tokenizer_json.to_model(json.loads(json.dumps(content)), 0, "x")
    assert [(p.piece, p.score, p.type) for p in back.pieces] == [(p.piece, p.score, p.type) for p in model.pieces]
    assert back.normalizer_spec.precompiled_charsmap == model.normalizer_spec.precompiled_charsmap
    for field in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        assert getattr(back.normalizer_spec, field) == getattr(model.normalizer_spec, field)


@pytest.mark.parametrize("options", [{"split_by_whitespace": False}, {"add_dummy_prefix": False}], ids=str)
def test_other_models(options, texts, tmp_path):
    """Pieces of several words; no space before a text, where texts that begin with a space are the known difference."""
    file = vocabularies.train(tmp_path / "x.model", **options)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
    written = tokenizer_json.from_model(model_of(file), 0, SPECIAL_TOKENS)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(written))
    back = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer_json.to_model(written, 0, "x").SerializeToString()
    )
    for text in texts:
        if text[:1] not in (" ", "\ufeff"):
            assert tokenizer.encode(text).ids == [*reference.encode(text), 1], text
        assert back.encode(text) == reference.encode(text), text
    spans = [i for i in range(reference.vocab_size()) if "▁" in reference.id_to_piece(i)[1:]]
    assert bool(spans) == (options == {"split_by_whitespace": False})


def test_the_form_of_the_first_t5s(spiece_model, content, texts):
    """As `t5-small` has it on the hub."""
    old = copy.deepcopy(content)
    (old["normalizer"],) = (x for x in old["normalizer"]["normalizers"] if x["type"] == "Precompiled")
    spaces = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    old["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}
    back = sentencepiece.SentencePieceProcessor(model_proto=tokenizer_json.to_model(old, 0, "x").SerializeToString())
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spiece_model))
    for text in texts:
        assert back.encode(text) == reference.encode(text), text


def test_symbols_defined_by_the_user_stay_so(content):
    changed = copy.deepcopy(content)
    changed["added_tokens"].append({"id": 50, "content": content["model"]["vocab"][50][0], "special": False})
    assert tokenizer_json.to_model(changed, 0, "x").pieces[50].type == tokenizer_json.Piece.USER_DEFINED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}}}, "x holds a BPE model, and only a Unigram"),
        ({"normalizer": {"type": "NFKC"}}, "x normalizes with NFKC, which"),
        ({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, "x splits texts with .*Digits"),
        ({"pre_tokenizer": None}, "x treats white space in another way"),
        ({"normalizer": None}, "x treats white space in another way"),
    ],
    ids=["BPE", "NFKC", "Digits", "no Metaspace", "spaces kept"],
)
def test_what_sentencepiece_cannot_is_refused(content, changes, message):
    with pytest.raises(ValueError, match=rf"{message}.*--vocab FILE"):
        tokenizer_json.to_model(content | changes, 0, "x")
