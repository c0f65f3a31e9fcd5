"""Folders with vocab.txt, vocab.json and merges.txt, or sentencepiece.bpe.model give the tokens that transformers makes
of them."""

import json

import pytest
import sentencepiece
import transformers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer

from convert.model_files import encoder_vocabularies
from convert.model_files.hf import older_tokenizers, tokenizer_folder, tokenizer_settings
from convert.model_files.model import ModelHints
from limba.addons.surgery import check as check_vocabulary
from tests.convert import vocabularies

DEBERTA, GENERAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), "PreTrainedTokenizerFast"
TEXTS = [
    "Élan vital, THE end.",
    "狐は犬を跳び越える ß",
    "a [MASK] b<mask> c",
    "  two  blanks zz\n",
    "Übung – „Äpfel“ 12.5%",
]


@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"add_prefix_space": True}]
)
@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_tokens_are_those_of_transformers(kind, settings, tmp_path):
    trained = BertWordPieceTokenizer(lowercase=settings.get("do_lower_case", True))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "bytes":
        trained, special = ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(TEXTS * 9, vocab_size=420, special_tokens=special)
    trained.save_model(str(tmp_path))
    if kind == "wordpiece":
        with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as file:
            file.write("\u2028\nzz\n")  # The first is a token, and no end of a line.
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.BertTokenizerFast if kind == "wordpiece" else transformers.RobertaTokenizerFast
    theirs = theirs.from_pretrained(str(tmp_path))
    file, pad = encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    assert pad == theirs.pad_token_id and tokenizer_folder.special_ids(file)["pad"] == 0
    ours, other = Tokenizer.from_file(str(file)), {0: pad, pad: 0}
    for text in TEXTS:
        assert [other.get(i, i) for i in ours.encode(text).ids] == theirs(text)["input_ids"], text


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": False}])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_tokens_of_unigrams_are_those_of_transformers(kind, settings, rule, tmp_path):
    """With fairseq's order of the special tokens; of CamemBERT too, which has another one."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9),
        model_prefix=str(tmp_path / "sentencepiece.bpe"),
        vocab_size=70,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        user_defined_symbols=["vital"],
        minloglevel=2,
    )
    (tmp_path / "sentencepiece.bpe.vocab").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs.is_fast and type(theirs).__name__ in ("XLMRobertaTokenizerFast", "CamembertTokenizerFast")
    file, pad = encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    assert pad == theirs.pad_token_id == 1
    ours, other = Tokenizer.from_file(str(file)), {0: 1, 1: 0}
    assert ours.get_vocab_size() == len(theirs)
    for text in [*TEXTS, "a  <mask>  vital\u00a0c ", "<s> a</s>", ""]:
        assert [other.get(i, i) for i in ours.encode(text).ids] == theirs(text)["input_ids"], text
    pair = ours.encode("a b", "c")
    assert [other.get(i, i) for i in pair.ids] == theirs("a b", "c")["input_ids"]


@pytest.mark.parametrize("settings", [{"vocab_type": "spm"}, {"do_lower_case": True, "split_by_punct": True}])
def test_tokens_of_deberta_are_those_of_transformers(settings, tmp_path):
    """In a few hundred texts; and an export keeps them in version 5, whose own class normalizes otherwise."""
    special = {f"{role}_piece": piece for role, piece in zip(("pad", "bos", "eos", "unk"), DEBERTA, strict=True)}
    sentences = vocabularies.sentences(400)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences, *TEXTS * 9]),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=400,
        **dict(zip(("pad_id", "bos_id", "eos_id", "unk_id"), range(4), strict=True)),
        **special,
        minloglevel=2,
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(theirs).__name__ == "DebertaV2TokenizerFast"
    file, pad = encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    ours = Tokenizer.from_file(str(file))
    assert pad == 0 and ours.get_vocab_size() == len(theirs) == 401 and theirs.mask_token_id == 400
    odd = ["[MASK]", " [MASK] ", "  ", "\n", "[SEP]", "[UNK]", "（", "ﬁ", "Ⅷ.", "e\u0301", "\u00a0", "’t-"]
    texts = [*TEXTS, "", *(text.replace(" ", odd[i % len(odd)], 1) for i, text in enumerate(sentences[:300]))]
    assert [ours.encode(text).ids for text in texts] == theirs(texts)["input_ids"]
    pair = ours.encode("a b", "c")
    assert (pair.ids, pair.type_ids) == tuple(theirs("a b", "c")[key] for key in ("input_ids", "token_type_ids"))

    (tmp_path / "out").mkdir()
    named = tokenizer_settings.Settings({"tokenizer_class": "DebertaV2TokenizerFast"})
    tokenizer_folder.write(file, tmp_path / "out", 0, 40, False, named)
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text())["tokenizer_class"] == GENERAL


def test_a_model_of_sentencepiece_that_is_none_is_named(tmp_path):
    file = tmp_path / "sentencepiece.bpe.model"
    file.write_bytes(b"\xff\x00nothing")
    with pytest.raises(ValueError, match=r"sentencepiece.bpe.model is damaged"):
        encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9), model_prefix=str(file.with_suffix("")), model_type="bpe", vocab_size=80
    )
    with pytest.raises(ValueError, match=r"is no unigram model of SentencePiece.*save_pretrained\(OUT\)"):
        encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())


def test_a_vocabulary_without_its_special_tokens_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\na\n##b\n")
    with pytest.raises(ValueError, match=r"vocab.txt has no token \[UNK\], \[SEP\], \[CLS\], \[MASK\]"):
        encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    (tmp_path / "vocab.txt").unlink()
    ids = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    with pytest.raises(ValueError, match=r"merges.txt is damaged: 'a b c' is no pair"):
        encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_older_files_that_give_other_tokens_than_tokenizer_json_are_named(kind, tmp_path, capsys):
    trained, special = BertWordPieceTokenizer(), ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "bytes":
        trained, special = ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(TEXTS * 9, vocab_size=420, special_tokens=special)
    trained.save_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert" if kind == "wordpiece" else "roberta"}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(older_tokenizers.content(tmp_path))
    assert older_tokenizers.differences(tmp_path) == ""
    assert check_vocabulary.main([str(tmp_path)]) == 0
    (tmp_path / "tokenizer.json").rename(tmp_path / "kept.json")
    capsys.readouterr()
    assert check_vocabulary.main([str(tmp_path)]) == 0
    assert "training  transformers 4.57.6" in capsys.readouterr().out
    (tmp_path / "kept.json").rename(tmp_path / "tokenizer.json")

    if kind == "wordpiece":
        name, file = "vocab.txt", tmp_path / "vocab.txt"
        words = file.read_text("utf-8").split("\n")
        words[words.index("e")], words[words.index("d")] = "d", "e"
        file.write_text("\n".join(words), "utf-8")
    else:  # With the last pair of bytes first, words fall into other pieces.
        name, file = "vocab.json and merges.txt", tmp_path / "merges.txt"
        first, *pairs = file.read_text("utf-8").splitlines()
        file.write_text("\n".join([first, *pairs[::-1]]) + "\n", "utf-8")
    capsys.readouterr()
    encoder_vocabularies.of_folder(tmp_path, 0 if kind == "wordpiece" else 1, ModelHints())
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {tmp_path} has two tokenizers: ")
    assert f"in tokenizer.json than in {name}: " in said
    assert check_vocabulary.main([str(tmp_path)]) == 1
    assert f"DISAGREES: {tmp_path} has two tokenizers" in capsys.readouterr().out

    # What nothing reads may be damaged.
    file.write_text("x", "utf-8")
    assert older_tokenizers.differences(tmp_path) == ""


def test_a_model_of_sentencepiece_beside_another_tokenizer_json_is_named(tmp_path):
    options = {"vocab_size": 70, "hard_vocab_limit": False, "minloglevel": 2}
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    for texts in (TEXTS[:2], TEXTS):
        prefix = str(tmp_path / "sentencepiece.bpe")
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts * 9), model_prefix=prefix, **options)
        if texts != TEXTS:
            (tmp_path / "tokenizer.json").write_bytes(older_tokenizers.content(tmp_path))
            assert older_tokenizers.differences(tmp_path) == ""
    assert "other tokens in tokenizer.json than in sentencepiece.bpe.model" in older_tokenizers.differences(tmp_path)
