"""Sentinels anywhere in a tokenizer are found by their names: from-hf, span corruption, decoded text and to-hf."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from convert.model_files.hf import folder_tokenizer, hf_tokenizer, tokenizer_json, tokenizer_settings
from limba.addons.surgery.check import main as check_main
from limba.inference import blanks
from tasks import objectives
from tasks.pretraining import masked_text
from tasks.vocabularies import SentencePieceVocabulary, sentencepiece_models
from tests.convert import vocabularies
from tests.convert.vocabularies import NUM_PIECES

SPECIAL = list(hf_tokenizer.SPECIAL_TOKENS)
ASCENDING = [f"<extra_id_{i}>" for i in range(100)]
SCATTERED = sorted(ASCENDING)  # <extra_id_0>, <extra_id_1>, <extra_id_10>, …
# What stands behind the pieces, and which vocabulary a run takes.
BEHIND = {
    "descending": ASCENDING[::-1],
    "ascending": ASCENDING,
    "scattered": SCATTERED,
    "descending, then others": [*ASCENDING[::-1], "<sep>", "<user>"],
    "others between": [*ASCENDING[:50], "<sep>", *ASCENDING[50:]],
}


def trained(special: list[str]) -> tokenizers.Tokenizer:
    """As many people train one: a Unigram of `tokenizers`, whose special tokens are its first."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(vocabularies.sentences(2000), trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> tokenizers.Tokenizer:
    return trained(SPECIAL)


def folder_of(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def assert_sentinels_by_name(record: dict, folder: Path) -> None:
    """Span corruption, decoding and previews use the ids that the folder's own file gives the names."""
    vocabulary = masked_text.open_vocabulary(record)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert_ids([theirs.token_to_id(name) for name in ASCENDING], vocabulary)


def assert_ids(wanted: list[int], vocabulary) -> None:
    sentencepiece_models.check_vocabulary(vocabulary)
    assert list(sentencepiece_models.sentinel_ids(vocabulary)) == wanted
    ids = sentencepiece_models.ids_of(vocabulary)
    assert (ids.num_sentinels, ids.first_sentinel) == (100, wanted[0])
    text = " ".join(vocabularies.sentences(20))
    tokens = np.array([vocabulary.encode(text)[:120]], np.int32)
    for objective in (objectives.SpanCorruption(), objectives.IidDenoising()):
        made = objective.corrupt(tokens, np.array([120]), objectives.example_seeds(0, 0, 1), ids)
        found = [id_ for id_ in made.inputs[0].tolist() if id_ in wanted]
        assert len(found) > 3 and found == wanted[: len(found)]
        answers = [id_ for id_ in made.targets[0].tolist() if id_ in wanted]
        assert answers == wanted[: len(answers)] and len(answers) >= len(found)
    row = np.array([*vocabulary.encode("ba"), wanted[0], *vocabulary.encode("ce"), wanted[1], 1, 0])
    decoded = blanks.decode_row(vocabulary, row).replace("<", " <")  # Some files set no space before a sentinel.
    assert decoded.split() == ["ba", "<extra_id_0>", "ce", "<extra_id_1>"]
    assert blanks.row_text(vocabulary, row) == "ba ___ ce ___ </s>"


@pytest.mark.parametrize("order", BEHIND)
def test_tokens_added_behind_the_pieces_of_a_trained_tokenizer(without, order, tmp_path, capsys):
    tokenizer = tokenizers.Tokenizer.from_str(without.to_str())
    tokenizer.add_special_tokens(BEHIND[order])
    record = folder_tokenizer.read(folder_of(tokenizer, tmp_path))
    assert record["vocab_size"] == 300 + len(BEHIND[order])
    assert_sentinels_by_name(record, tmp_path)
    assert not capsys.readouterr().err


def test_special_tokens_of_the_trainer_stand_before_the_pieces(tmp_path):
    record = folder_tokenizer.read(folder_of(trained([*SPECIAL, *ASCENDING]), tmp_path))
    assert_sentinels_by_name(record, tmp_path)
    assert sentencepiece_models.sentinel_ids(masked_text.open_vocabulary(record))[:3] == (3, 4, 5)


@pytest.mark.parametrize("order", BEHIND)
@pytest.mark.parametrize("has_model", [True, False])
def test_the_folder_of_a_sentencepiece_model(spiece_model, order, has_model, tmp_path):
    """tokenizer.json as transformers makes it of the model, whose added tokens are then in any order."""
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model, 0)), tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(BEHIND[order])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").unlink()
    if not has_model:
        (tmp_path / "spiece.model").unlink()
    record = folder_tokenizer.read(tmp_path)
    # T5's order stays a SentencePiece model, which is several times as fast.
    assert record["class"] == ("SentencePieceVocabulary" if order == "descending" else "T5TokenizerVocabulary")
    assert_sentinels_by_name(record, tmp_path)


def decoder_of(tokens: list[str], first: int) -> dict:
    return {str(first + i): {"content": token, **tokenizer_json.FLAGS} for i, token in enumerate(tokens)}


@pytest.mark.parametrize("order", ["ascending", "scattered", "others between"])
def test_the_slow_tokenizer_s_folder_has_no_tokenizer_json(spiece_model, order, tmp_path):
    """Only tokenizer_config.json names the ids; transformers' slow tokenizer is the reference."""
    from transformers import T5Tokenizer

    shutil.copy(spiece_model, tmp_path / "spiece.model")
    config = {
        "tokenizer_class": "T5Tokenizer",
        "legacy": False,
        "extra_ids": 100,
        "additional_special_tokens": BEHIND[order],
        "added_tokens_decoder": decoder_of(BEHIND[order], NUM_PIECES),
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = masked_text.open_vocabulary(folder_tokenizer.read(tmp_path))
    theirs = T5Tokenizer.from_pretrained(tmp_path)
    assert_ids(theirs.convert_tokens_to_ids(ASCENDING), vocabulary)
    texts = [*vocabularies.sentences(30), "ba <extra_id_0>, ce <extra_id_99>.", "<extra_id_7> ba"]
    assert [vocabulary.encode(text) for text in texts] == theirs(texts, add_special_tokens=False).input_ids


def test_what_a_tokenizer_json_cannot_carry_is_refused_with_the_reason(spiece_model, tmp_path):
    bpe = vocabularies.train(tmp_path / "spiece.model", model_type="bpe")
    config = {"added_tokens_decoder": decoder_of(ASCENDING, NUM_PIECES)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"gives 100 tokens ids .* <extra_id_0> 412, .* only a unigram model becomes"):
        folder_tokenizer.read(tmp_path)
    shutil.copy(spiece_model, bpe)
    config = {"added_tokens_decoder": decoder_of(ASCENDING, NUM_PIECES + 5)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"<extra_id_0> 417, .* they are not one after the other"):
        folder_tokenizer.read(tmp_path)


def test_a_sentencepiece_model_with_symbols_of_the_user_s_in_front(tmp_path, capsys):
    file = vocabularies.train(tmp_path / "spiece.model", user_defined_symbols=ASCENDING, vocab_size=500)
    record = hf_tokenizer.describe(file)
    assert (record["extra_ids"], record["vocab_size"]) == (0, 500)
    assert_ids(list(range(3, 103)), SentencePieceVocabulary(str(file)))
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), tmp_path)
    exported = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [exported.token_to_id(name) for name in ASCENDING] == list(range(3, 103))
    assert check_main([str(file)]) == 1
    said = capsys.readouterr().out
    disagree = [line for line in said.splitlines() if line.startswith("DISAGREES")]
    assert "SentencePiece  training  HF fast  HF slow" in said and len(disagree) == 4
    assert disagree[0].startswith("DISAGREES: <extra_id_0> is 499 in HF slow, and 3 in training.")
    assert all("HF slow" in line for line in disagree)  # It counts down from the last id, whatever the files say.


def test_a_gap_is_named_before_the_conversion(without, tmp_path, capsys):
    tokenizer = tokenizers.Tokenizer.from_str(without.to_str())
    tokenizer.add_special_tokens(ASCENDING[1:])
    record = folder_tokenizer.read(folder_of(tokenizer, tmp_path))
    said = capsys.readouterr().err
    assert (
        "has <extra_id_1> and no <extra_id_0>: span corruption takes sentinels in their order, and can use none" in said
    )
    with pytest.raises(ValueError, match=r"has no token <extra_id_0>, and masked spans need sentinels\. Add 100 with"):
        sentencepiece_models.check_vocabulary(masked_text.open_vocabulary(record))
    tokenizer.add_special_tokens(["<extra_id_0>", "<extra_id_101>"])
    (tmp_path / "more").mkdir()
    folder_tokenizer.read(folder_of(tokenizer, tmp_path / "more"))
    assert "has <extra_id_101> and no <extra_id_100>" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["ascending", "scattered", "descending, then others"])
def test_a_file_s_sentinels_go_back_as_special_tokens(without, order, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = tokenizers.Tokenizer.from_str(without.to_str())
    tokenizer.add_special_tokens(BEHIND[order])
    record = folder_tokenizer.read(folder_of(tokenizer, tmp_path))
    (tmp_path / "out").mkdir()
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), tmp_path / "out")
    (tmp_path / "out/config.json").write_text('{"model_type": "t5"}')
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported.convert_tokens_to_ids(ASCENDING) == [tokenizer.token_to_id(name) for name in ASCENDING]
    assert {*ASCENDING} <= {*exported.all_special_tokens}
    ids = exported("ba <extra_id_0> ce <extra_id_99>").input_ids
    assert "<extra" in exported.decode(ids) and "<extra" not in exported.decode(ids, skip_special_tokens=True)
    assert folder_tokenizer.read(tmp_path / "out")["vocab_size"] == record["vocab_size"]


def test_t5s_class_stays_for_a_file_that_it_wrote_itself(without, tmp_path):
    """Its sentinels count up, as the class adds those that tokenizer.json lacks."""
    from transformers import AutoTokenizer, T5TokenizerFast

    tokenizer = tokenizers.Tokenizer.from_str(without.to_str())
    tokenizer.normalizer = None
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
    T5TokenizerFast(tokenizer_object=tokenizer, model_max_length=88).save_pretrained(tmp_path)
    record = folder_tokenizer.read(tmp_path)
    assert_sentinels_by_name(record, tmp_path)
    assert sentencepiece_models.sentinel_ids(masked_text.open_vocabulary(record))[:2] == (300, 301)
    (tmp_path / "out").mkdir()
    settings = tokenizer_settings.of_folder(tmp_path)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), tmp_path / "out", settings)
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(exported).__name__ == "T5TokenizerFast" and exported.model_max_length == 88
    assert exported.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"]) == [300, 399]
    # Version 5's class would not make small letters.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"normalizer": {"type": "Lowercase"}}))
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "tokenizer.json").rename(other / "tokenizer.json")
    (other / "out").mkdir()
    hf_tokenizer.write(hf_tokenizer.from_json(other / "tokenizer.json"), other / "out", settings)
    assert json.loads((other / "out/tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_cache_keeps_the_order():
    ids = objectives.VocabularyIds(512, 2, 1, sentinel_ids=[5, 9])
    assert ids.sentinels(2).tolist() == [5, 9] and ids.first_sentinel == 5
    assert objectives.VocabularyIds(512, 100, 1).sentinels(3).tolist() == [511, 510, 509]


def test_mt5_s_own_pieces_are_the_last(spiece_model, tmp_path):
    (tmp_path / "mt5.model").write_bytes(vocabularies.with_sentinels(spiece_model, 100))
    own = SentencePieceVocabulary(str(tmp_path / "mt5.model"))
    assert sentencepiece_models.ids_of(own).sentinel_ids is None  # They count down, as SeqIO's.
    assert sentencepiece_models.sentinel_ids(own) == tuple(range(511, 411, -1))
    assert isinstance(
        masked_text.open_vocabulary(hf_tokenizer.describe(tmp_path / "mt5.model")), SentencePieceVocabulary
    )
