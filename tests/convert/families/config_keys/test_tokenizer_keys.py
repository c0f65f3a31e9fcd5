"""Each key of tokenizer_config.json is known, or an error; what contradicts the vocabulary that is read is refused."""

import json
import shutil

import pytest

from convert.families.config_keys import tokenizer_keys
from convert.model_files import t5_vocabularies
from convert.model_files.hf import tokenizer_folder
from convert.model_files.model import ModelHints

# What transformers 4.57 and 5.23 write for a T5 and a BERT, and what files on the hub have beside it.
T5 = {"add_prefix_space": None, "backend": "tokenizers", "eos_token": "</s>", "extra_ids": 100, "legacy": True} | {
    "clean_up_tokenization_spaces": False,
    "extra_special_tokens": {},
    "is_local": True,
    "local_files_only": False,
    "model_max_length": 512,
    "pad_token": {"content": "<pad>", "lstrip": False},
    "sp_model_kwargs": {},
    "special_tokens_map_file": None,
    "tokenizer_class": "T5Tokenizer",
    "tokenizer_file": None,
    "unk_id": 2,
    "unk_token": "<unk>",
    "name_or_path": "google/t5",
}
BERT = {"do_basic_tokenize": True, "do_lower_case": True, "never_split": None, "strip_accents": None} | {
    "clean_up_tokenization_spaces": True,
    "cls_token": "[CLS]",
    "mask_token": {"content": "[MASK]", "lstrip": True},
    "model_max_length": 512,
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "tokenize_chinese_chars": True,
    "tokenizer_class": "BertTokenizer",
    "unk_token": "[UNK]",
}


@pytest.fixture
def t5_folder(tmp_path, spiece_model):
    def write(**keys):
        shutil.copy(spiece_model, tmp_path / "spiece.model")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(T5 | keys))
        return tmp_path

    return write


@pytest.fixture
def bert_folder(tmp_path):
    """With a tokenizer.json whose normalizer has these settings."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    def write(lowercase=True, accents=None, chinese=True, **keys):
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
        tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(True, chinese, accents, lowercase)
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:5]])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        config = {key: x for key, x in (BERT | keys).items() if x != "missing"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def test_what_transformers_writes_passes(t5_folder, bert_folder):
    vocabulary = t5_vocabularies.of_folder(t5_folder(), ModelHints())
    assert vocabulary is not None and vocabulary["extra_ids"] == 100
    tokenizer_folder.check_settings(bert_folder(), ())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"pad_token": "</s>"}, "pad_token is '</s>', the end of a text too"),
        ({"pad_token": "[PAD]"}, r"pad_token is '\[PAD\]', which the vocabulary does not have"),
        ({"eos_token": {"content": "<end>"}}, "eos_token is '<end>', and in the vocabulary it is '</s>'"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is a table of 1; SentencePiece draws one of"),
        ({"split_special_tokens": True}, "split_special_tokens is True; special tokens in a text are taken apart"),
        ({"add_prefix_space": False}, "add_prefix_space is False; no space is put before a text"),
        ({"add_bos_token": True}, "add_bos_token is True; a token before each text"),
        ({"do_lower_case": True}, "do_lower_case is True; text in small letters"),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, "tokenizer_class is 'XLMRobertaTokenizer'; its ids may be others"),
        ({"auto_map": {"AutoTokenizer": ["x.X", None]}}, "auto_map is a table of 1; the class is code"),
        ({"reverse_text": True}, "reverse_text is True. Limba does not know this key, .*_keys reverse_text"),
    ],
)
def test_another_tokenizer_of_a_t5_is_refused(t5_folder, keys, words):
    folder = t5_folder(**keys)
    with pytest.raises(ValueError, match=words) as error:
        t5_vocabularies.of_folder(folder, ModelHints())
    assert str(error.value).startswith(f"{folder}/tokenizer_config.json: ")
    assert t5_vocabularies.of_folder(folder, ModelHints(ignore_config_keys=tuple(keys))) is not None
    assert t5_vocabularies.of_folder(folder, ModelHints(vocab=str(folder / "spiece.model"))) is not None


@pytest.mark.parametrize(
    ("settings", "keys", "words"),
    [
        ({"lowercase": False}, {}, "do_lower_case is True, which BertTokenizer of transformers goes by, and lowercase"),
        ({"lowercase": False}, {"do_lower_case": "missing"}, "do_lower_case is True, which BertTokenizer"),
        ({"lowercase": False}, {"tokenizer_class": "missing"}, "do_lower_case is True, which BertTokenizer"),
        ({}, {"do_lower_case": False, "tokenizer_class": "MPNetTokenizerFast"}, "do_lower_case is False, which MPNetT"),
        ({}, {"strip_accents": False}, "strip_accents is False, which BertTokenizer .* strip_accents is True"),
        ({"accents": False}, {}, "strip_accents is True, which BertTokenizer .* strip_accents is False"),
        ({}, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False, .* handle_chinese_chars is True"),
        ({}, {"mask_token": "<mask>"}, r"mask_token is '<mask>', and in tokenizer\.json it is '\[MASK\]'"),
        ({}, {"reverse_text": True}, "reverse_text is True. Limba does not know this key"),
    ],
)
def test_another_tokenizer_of_a_bert_is_refused(bert_folder, settings, keys, words):
    with pytest.raises(ValueError, match=words):
        tokenizer_folder.check_settings(bert_folder(**settings, **keys), ())


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"lowercase": False}, {"do_lower_case": False}),
        ({"lowercase": False}, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ({"accents": False}, {"strip_accents": False}),
        ({"accents": False, "lowercase": False}, {"do_lower_case": False}),
        ({"chinese": False}, {"tokenize_chinese_chars": False}),
    ],
)
def test_settings_that_agree_pass(bert_folder, settings, keys):
    tokenizer_folder.check_settings(bert_folder(**settings, **keys), ())


@pytest.mark.parametrize(("kind", "is_refused"), [("bert", True), ("roberta", False), ("modernbert", False)])
def test_padding_at_the_left_is_refused_where_it_moves_positions(bert_folder, kind, is_refused):
    """An eval_loss of `limba run` was 2.130 where transformers' was 2.054."""
    folder = bert_folder(padding_side="left")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if is_refused:
        with pytest.raises(ValueError, match="padding_side is 'left', and the learned positions of a bert count"):
            tokenizer_folder.check_settings(folder, ())
    tokenizer_folder.check_settings(folder, ("padding_side",) if is_refused else ())


def test_a_folder_without_the_file_has_nothing_to_check(tmp_path):
    assert tokenizer_keys.read(tmp_path, tokenizer_keys.T5, ()) == {}
