"""Folders whose tokenizer.json and spiece.model differ: the run tokenizes as transformers does, and says so."""

import json
import unicodedata

import numpy as np
import pytest
import tokenizers

from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.model_files.hf import folder_tokenizer, hf_tokenizer
from convert.model_files.model import ModelHints
from convert.to_hf import to_hf
from limba.checkpoint_files import run_folder
from tasks.pretraining import masked_text
from tasks.vocabularies import (
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    same_vocabulary,
    sentencepiece_models,
    tokenizer_texts,
)
from tests.convert import vocabularies

TEXTS = ["The house", "", " a", "a  b ", "a\tb\n", "BA ce", "ﬁ ½", "ștîă", "a 🦊 b", "x" * 80, "ba. Ce, 12"]


def metaspace(scheme):
    return lambda fast: fast["pre_tokenizer"].update(prepend_scheme=scheme)


def without(kind):
    def change(fast):
        steps = fast["normalizer"]["normalizers"]
        steps[:] = [step for step in steps if step["type"] != kind]

    return change


def with_first(step):
    return lambda fast: fast["normalizer"]["normalizers"].insert(0, step)


def other_scores(fast):
    """Short pieces are better than long ones."""
    for entry in fast["model"]["vocab"][3:-100]:
        entry[1] = -float(len(entry[0]) ** 2)


DIFFERENT = {
    "never": metaspace("never"),
    "spaces kept": without("Replace"),
    "charsmap left out": without("Precompiled"),
    "lower case": with_first({"type": "Lowercase"}),
    "accents stripped": with_first({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}),
    "stripped on the left": with_first({"type": "Strip", "strip_left": True, "strip_right": True}),
    "digits split": lambda fast: fast.update(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, fast["pre_tokenizer"]],
        }
    ),
    "other scores": other_scores,
}
# What a SentencePiece model can be told.
BY_SENTENCEPIECE = ("charsmap left out", "other scores")
# Of these no text that training reads is another one.
EQUAL = {"always": metaspace("always"), "first": metaspace("first"), "composed": with_first({"type": "NFC"})}


@pytest.fixture
def folder(spiece_model, tmp_path):
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model)), tmp_path)
    return tmp_path


def change_json(folder, change):
    file = folder / "tokenizer.json"
    fast = json.loads(file.read_text("utf-8"))
    change(fast)
    file.write_text(json.dumps(fast), "utf-8")
    return tokenizers.Tokenizer.from_file(str(file))


@pytest.mark.parametrize("tokenizer_class", ["T5TokenizerFast", "T5Tokenizer", "PreTrainedTokenizerFast"])
def test_add_prefix_space_makes_t5s_class_read_spiece_model(folder, tokenizer_class, capsys):
    """In version 4 of transformers; its general class reads tokenizer.json whatever the key says."""
    transformers = pytest.importorskip("transformers")
    change_json(folder, other_scores)
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text()) | {"tokenizer_class": tokenizer_class, "add_prefix_space": True}
    file.write_text(json.dumps(content))
    vocabulary = masked_text.open_vocabulary(folder_tokenizer.read(folder))
    is_t5s = tokenizer_class != "PreTrainedTokenizerFast"
    assert ("The run takes spiece.model, of which version 4" in capsys.readouterr().err) == is_t5s
    theirs, texts = transformers.AutoTokenizer.from_pretrained(str(folder)), vocabularies.sentences(20)
    assert [[*vocabulary.encode(text)] for text in texts] == theirs(texts, add_special_tokens=False).input_ids


def test_spiece_model_alone_with_a_null_for_add_prefix_space_is_named(folder, capsys):
    """Version 4 of transformers reads texts without a space before them then, and ours with one."""
    (folder / "tokenizer.json").unlink()
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text())
    assert folder_tokenizer.read(folder)["vocab_size"] == 512 and capsys.readouterr().err == ""
    file.write_text(json.dumps(content | {"tokenizer_class": "T5TokenizerFast", "add_prefix_space": None}))
    folder_tokenizer.read(folder)
    assert "add_prefix_space is null, and there is no tokenizer.json: the fast class" in capsys.readouterr().err


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_run_tokenizes_as_tokenizer_json_does(folder, name, capsys):
    reference = change_json(folder, DIFFERENT[name])
    record = folder_tokenizer.read(folder)
    said = capsys.readouterr().err
    assert f"warning: {folder} has two tokenizers: " in said
    assert "texts have other tokens in tokenizer.json than in spiece.model: '" in said
    assert f"The run takes tokenizer.json, as transformers does; --vocab {folder}/spiece.model takes the other." in said
    assert (record["class"] == run_folder.SENTENCEPIECE) == (name in BY_SENTENCEPIECE)
    assert record["vocab_size"] == 512
    vocabulary = masked_text.open_vocabulary(record)
    assert sentencepiece_models.num_sentinels(vocabulary) == 100
    sentencepiece_models.check_vocabulary(vocabulary)
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    texts = [*TEXTS, *vocabularies.sentences(20)]
    for text in texts:
        assert vocabulary.encode(text) == reference.encode(text, add_special_tokens=False).ids, text
    # Alone, without spiece.model, it is the same; nothing is said, because nothing differs.
    (folder / "spiece.model").unlink()
    alone = masked_text.open_vocabulary(folder_tokenizer.read(folder))
    assert same_vocabulary(alone, vocabulary) and not capsys.readouterr().err
    # And goes back as it came.
    out = folder / "again"
    out.mkdir()
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), out)
    again = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in [*TEXTS, "a <extra_id_0> b"]:
        assert again.encode(text).ids == [*reference.encode(text, add_special_tokens=False).ids, 1], text


@pytest.mark.parametrize("name", EQUAL)
def test_equal_files_are_taken_as_the_sentencepiece_model(folder, name, capsys):
    change_json(folder, EQUAL[name])
    record = folder_tokenizer.read(folder)
    assert record["sentencepiece_model_file"] == str(folder / "spiece.model") and not capsys.readouterr().err


def test_what_was_exported_is_what_was_trained(tmp_path, capsys):
    """Where no tokenizer.json can be equal; the export has warned of it."""
    model = vocabularies.train(tmp_path / "x.model", remove_extra_whitespaces=False)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)), tmp_path)
    record = folder_tokenizer.read(tmp_path)
    assert record["sentencepiece_model_file"] == str(tmp_path / "spiece.model") and not capsys.readouterr().err


@pytest.mark.parametrize("files", [("spiece.model", "tokenizer.json"), ("tokenizer.json",)], ids=["both", "json alone"])
def test_ties_are_no_other_tokens(files, tmp_path, capsys):
    """Also in a tokenizer.json that another program wrote."""
    model = vocabularies.with_ties(tmp_path / "x.model")
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)), tmp_path)
    change_json(tmp_path, metaspace("first"))
    if "spiece.model" not in files:
        (tmp_path / "spiece.model").unlink()
    theirs, ours = T5TokenizerVocabulary(str(tmp_path)), SentencePieceVocabulary(str(model), 100)
    assert any(theirs.encode("x" * n) != ours.encode("x" * n) for n in range(1, 200))
    record = folder_tokenizer.read(tmp_path)
    assert record["class"] == run_folder.SENTENCEPIECE and not capsys.readouterr().err
    assert same_vocabulary(masked_text.open_vocabulary(record), ours)


def test_a_tie_has_the_same_text_and_the_same_score(tmp_path):
    ours = SentencePieceVocabulary(str(vocabularies.with_ties(tmp_path / "x.model")), 100)
    is_tie, first = tokenizer_texts.ties_of(ours), vocabularies.NUM_PIECES - 4
    x, xx, xxxx = range(first + 1, first + 4)
    assert is_tie([x, xx, x], [xx, xx]) and is_tie([xxxx], np.array([x, x, xx]))
    assert not is_tie([x, xx], [xx, xx]) and not is_tie([first, x], [xx]) and not is_tie([x, 2], [2, xx])
    assert not is_tie([xx], [500, x]) and not tokenizer_texts.ties_of(None)([x], [x])
    less = SentencePieceVocabulary(str(vocabularies.with_ties(tmp_path / "y.model", longest=-16.41)), 100)
    assert not tokenizer_texts.ties_of(less)([xxxx], [xx, xx])
    found = tokenizer_texts.differences(["t", "u"], lambda _: [[x, x], [x]], lambda _: [[xx], [xx]], is_tie=is_tie)
    assert [text for text, *_ in found.found] == ["u"] and [text for text, *_ in found.ties] == ["t"]
    assert found.describe_ties("A", "B").startswith("1 of 2 texts have two segmentations of the same likelihood, of ")


@pytest.mark.parametrize("options", [{"user_defined_symbols": ["[NLU]", "<sep>"]}, {}], ids=["symbols", "usual"])
def test_tokenizer_json_alone_is_the_same_vocabulary(options, tmp_path):
    model = vocabularies.train(tmp_path / "x.model", **options)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)), tmp_path)
    (tmp_path / "spiece.model").unlink()
    alone = masked_text.open_vocabulary(folder_tokenizer.read(tmp_path))
    assert same_vocabulary(alone, SentencePieceVocabulary(str(model), 100))


def test_letters_apart_from_their_accents_have_the_same_ids(tmp_path):
    """tokenizer.json composes them first: the library's own normalization does not find Japanese and Korean ones."""
    text = [
        unicodedata.normalize("NFC", line) for line in ("ガギグゲゴ パピプ ダヂヅ", "각간갈 값갓강", "ấầẩ Ỗ ễ")
    ] * 40
    model = vocabularies.train(
        tmp_path / "x.model", text, vocab_size=60, hard_vocab_limit=False, character_coverage=1.0
    )
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)), tmp_path)
    ours, theirs = SentencePieceVocabulary(str(model), 100), T5TokenizerVocabulary(str(tmp_path))
    texts = tokenizer_texts.texts_of(ours)
    assert len(texts.decomposed) > 300 and unicodedata.normalize("NFD", "パ") in texts.decomposed
    encoders = [tokenizer_texts.encoder_of(vocabulary) for vocabulary in (theirs, ours)]
    spaced = [text for text in texts.with_sentinels if "(" not in text]  # SentencePiece needs a space there.
    for kind in (texts.plain, texts.decomposed, spaced):
        assert not tokenizer_texts.differences(kind, *encoders)


def test_marks_keep_their_order_and_half_width_letters_are_composed(tmp_path):
    """In tokenizer.json as in SentencePiece: Arabic and Hebrew as they are typed, Vietnamese with accents behind ê."""
    text = "م\u064fح\u064eم\u0651\u064eد שּׁ בּ\u05b8 שׁ\u05b8לוֹם tiê\u0301ng Viê\u0323t ガギ グゲゴ क़ि ड़ी ों"
    model = vocabularies.train(
        tmp_path / "x.model", [text] * 99, vocab_size=80, hard_vocab_limit=False, character_coverage=1.0
    )
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)), tmp_path)
    ours = SentencePieceVocabulary(str(model), 100)
    typed = [text for text in tokenizer_texts.texts_of(ours).decomposed if len(text) == 3 and text > "\u0500"]
    assert len(typed) > 40 and ours.encode("م\u0651\u064e") != ours.encode("م\u064e\u0651")
    encoders = map(tokenizer_texts.encoder_of, (T5TokenizerVocabulary(str(tmp_path)), ours))
    found = tokenizer_texts.differences([text, "ｶﾞｷﾞ", "a\u00a0\u093f", "½\u064e", *typed], *encoders)
    assert not found, found.describe("tokenizer.json", "SentencePiece")


def test_texts_are_of_all_kinds_and_the_same_each_time(spiece_model):
    vocabulary = SentencePieceVocabulary(str(spiece_model), 100)
    texts = tokenizer_texts.texts_of(vocabulary)
    assert texts == tokenizer_texts.texts_of(vocabulary)
    assert 1500 < len(texts.plain) < 10_000 and {"", " ", "a\tb", "  a  b  ", "🦊", "The house"} <= {*texts.plain}
    letters = {piece for i in range(412) if len(piece := vocabulary.tokenizer.id_to_piece(i)) == 1 and piece != "▁"}
    assert letters <= {*texts.plain}
    assert not any("<extra_id" in text or "</s>" in text for text in texts.plain)
    added = tokenizer_texts.Texts.of(["▁a", "<sep>", "</s>"], ["<sep>", "</s>", "<extra_id_0>"])
    assert "a<sep>b" in added.plain and not any("</s>" in text for text in added.plain)


def test_differences_show_short_texts_of_words():
    found = tokenizer_texts.differences(
        ["", "日本", "a long text of words", "a b", "c"], lambda texts: [[3]] * len(texts), lambda texts: [[4]] * 5, str
    )
    assert found.describe("x", "y").startswith("5 of 5 texts have other tokens in x than in y: 'a b' is [3] in x, and ")
    assert found and not tokenizer_texts.differences(["a"], lambda texts: [[3]], lambda texts: [[3]])


def test_a_run_with_a_tokenizer_json_goes_both_ways(new_run, tmp_path):
    small = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    to_hf(new_run(tmp_path / "run", **small), tmp_path / "hf", verify=False)
    reference = change_json(tmp_path / "hf", metaspace("never"))
    checkpoint = from_hf(tmp_path / "hf", tmp_path / "back", verify=False)
    assert (checkpoint / "run/tokenizer.json").read_bytes() == (tmp_path / "hf/tokenizer.json").read_bytes()
    assert not (tmp_path / "back/spiece.model").exists()
    gin_file = (tmp_path / "back/model.gin").read_text()
    assert f"VOCABULARY_FILE = '{tmp_path}/back/tokenizer.json'\nVOCABULARY = @vocabularies.T5Tok" in gin_file
    to_hf(checkpoint, tmp_path / "again", verify=False)
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "again/tokenizer.json"))
    assert again.encode("The house").ids == reference.encode("The house").ids
    assert "tokenizer.json, 512 ids" in (tmp_path / "again/README.md").read_text()
    # The other file, because the user says so.
    chosen = ModelHints(vocab=str(tmp_path / "hf/spiece.model"))
    from_hf(tmp_path / "hf", tmp_path / "other", hints=chosen, verify=False)
    assert (tmp_path / "other/spiece.model").read_bytes() == (tmp_path / "hf/spiece.model").read_bytes()
    with pytest.raises(
        ValueError, match=r"spiece\.model is another vocabulary than in training, which is .*tokenizer\.json"
    ):
        any_format.open_checkpoint(checkpoint, chosen)
