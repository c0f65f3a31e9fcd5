"""What the files beside an encoder's tokenizer.json, or its older files, add to it, as transformers reads them."""

import json

import pytest
import transformers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer

from convert.model_files import encoder_vocabularies
from convert.model_files.hf import tokenizer_folder, tokenizer_settings
from convert.model_files.model import ModelHints
from tasks.vocabularies import TokenizerVocabulary

TEXTS = ["The house is big.", "a <e1> b hello<e2>[E1]  x", "Hello <mask> [MASK] end", "é ü", "", "Azq zq b"]
_FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
BERT, ROBERTA = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_MAP = {f"{role}_token": token for role, token in zip(("cls", "pad", "sep", "unk", "mask"), ROBERTA, strict=True)}
_ADDED = {"added_tokens.json": {"<e2>": 301, "<e1>": 300}}
_ZQ = {"added_tokens_decoder": {"300": _FLAGS | {"content": "zq", "normalized": True, "special": False}}}
_E1 = {"additional_special_tokens": ["[E1]"]}
_OF_ROBERTA = {"tokenizer_class": "RobertaTokenizer"}
# Kind, special tokens, whether there is a tokenizer.json, the files beside it.
CASES = {
    "added_tokens.json": ("wordpiece", BERT, False, _ADDED | {"special_tokens_map.json": {}}),
    "added_tokens_decoder": ("wordpiece", BERT, False, {"tokenizer_config.json": _ZQ}),
    "special tokens": ("wordpiece", BERT, False, {"added_tokens.json": {"[E1]": 300}, "special_tokens_map.json": _E1}),
    "names of the map": ("wordpiece", ROBERTA, False, {"special_tokens_map.json": _MAP}),
    "MPNet's names": (
        "wordpiece",
        ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
        False,
        {"tokenizer_config.json": {"tokenizer_class": "MPNetTokenizer"}},
    ),
    "a mask that leaves the blank": (
        "bytes",
        ROBERTA,
        False,
        {"special_tokens_map.json": {"mask_token": _FLAGS | {"content": "<mask>"}}} | _ADDED,
    ),
    # Version 5 of transformers writes unk_id beside XLM-R's and CamemBERT's.
    "add_prefix_space": ("bytes", ROBERTA, True, {"tokenizer_config.json": {"add_prefix_space": True, "unk_id": 0}}),
    "no add_prefix_space": (
        "spaced",
        ROBERTA,
        True,
        {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}},
    ),
    "added to tokenizer.json": ("bytes", ROBERTA, True, {"tokenizer_config.json": _ZQ | _E1}),
}


def _write(folder, kind, special, has_json, files):
    trained = (
        BertWordPieceTokenizer() if kind == "wordpiece" else ByteLevelBPETokenizer(add_prefix_space=kind == "spaced")
    )
    trained.train_from_iterator(TEXTS[:-1] * 9, vocab_size=300, special_tokens=special)
    trained.save_model(str(folder))
    model_type = "bert" if kind == "wordpiece" else "roberta"
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    file = folder / ("vocab.txt" if kind == "wordpiece" else "vocab.json")
    words = file.read_text("utf-8").split("\n")[:-1] if kind == "wordpiece" else [*json.loads(file.read_text("utf-8"))]
    words += [f"filler{i}" for i in range(300 - len(words))]
    is_lines = kind == "wordpiece"
    file.write_text("\n".join(words) + "\n" if is_lines else json.dumps({x: i for i, x in enumerate(words)}), "utf-8")
    if has_json:
        trained.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        size = trained.get_vocab_size() if has_json else 300
        (folder / name).write_text(json.dumps(content).replace('"300"', f'"{size}"'))


@pytest.mark.parametrize("case", CASES)
def test_texts_have_the_tokens_of_transformers(case, tmp_path):
    _write(tmp_path, *CASES[case])
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    pad = theirs.pad_token_id
    file = run_folder_file(encoder_vocabularies.of_folder(tmp_path, pad, ModelHints()))
    ours, other = Tokenizer.from_file(file), {0: pad, pad: 0}
    assert ours.get_vocab_size() == len(theirs)
    for text in TEXTS:
        found = [other.get(i, i) for i in ours.encode(text, add_special_tokens=False).ids]
        assert found == theirs(text, add_special_tokens=False)["input_ids"], text


def run_folder_file(found):
    return found[0]["tokenizer_file"]


def test_a_pair_has_between_its_texts_what_transformers_sets(tmp_path):
    """Two </s> in RoBERTa, one [SEP] in BERT; without a frame in the file one, too."""
    for kind, special, marks in (("bytes", ROBERTA, 2), ("wordpiece", BERT, 1)):
        folder = tmp_path / kind
        folder.mkdir()
        _write(folder, kind, special, False, {})
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        theirs.save_pretrained(folder)
        vocabulary = TokenizerVocabulary(str(folder / "tokenizer.json"))
        (row,) = vocabulary.rows([("the house", "big")])
        assert row.ids == theirs("the house", "big")["input_ids"]
        assert row.ids.count(theirs.sep_token_id) == marks + 1
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    (folder / "unframed.json").write_text(json.dumps(content | {"post_processor": None}))
    (row,) = TokenizerVocabulary(str(folder / "unframed.json")).rows([("the house", "big")])
    assert row.ids.count(3) == 2


def test_tokens_with_flags_of_special_tokens_map_travel_as_texts(tmp_path):
    """Version 4 refuses them in tokenizer_config.json."""
    _write(tmp_path, "bytes", ROBERTA, True, {"special_tokens_map.json": {"bos_token": _FLAGS | {"content": "<s>"}}})
    settings = tokenizer_settings.of_folder(tmp_path)
    file = run_folder_file(encoder_vocabularies.of_folder(tmp_path, 1, ModelHints()))
    (tmp_path / "out").mkdir()
    tokenizer_folder.write(file, tmp_path / "out", 1, 9, False, settings)
    assert transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out")).bos_token_id == 0


def test_what_contradicts_itself_is_refused(tmp_path):
    _write(tmp_path, "wordpiece", BERT, False, {"added_tokens.json": {"<e1>": 305}})
    with pytest.raises(ValueError, match="give '<e1>' the id 305, and there it is 300"):
        encoder_vocabularies.of_folder(tmp_path, 0, ModelHints())
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": [1]}')
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is damaged: added_tokens_decoder is a list of 1; "):
        encoder_vocabularies.of_folder(tmp_path, 0, ModelHints())


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "HerbertTokenizerFast"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_classes_that_take_words_apart_otherwise_are_refused(name, file, tmp_path):
    _write(tmp_path, "wordpiece" if "Bert" in name else "bytes", BERT if "Bert" in name else ROBERTA, False, {})
    (tmp_path / file).write_text(json.dumps({"tokenizer_class": name}))
    with pytest.raises(ValueError, match=f"tokenizer_class is '{name.removesuffix('Fast')}'.*writes a tokenizer.json"):
        encoder_vocabularies.of_folder(tmp_path, 0, ModelHints())


def test_jieba_of_roformer_is_named(tmp_path, capsys):
    _write(tmp_path, "wordpiece", BERT, False, {"config.json": {"model_type": "roformer"}})
    encoder_vocabularies.of_folder(tmp_path, 0, ModelHints())
    assert "RoFormer's: transformers splits texts with jieba first" in capsys.readouterr().err
    # Limba's exports have the general class, which reads tokenizer.json as it is.
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    encoder_vocabularies.of_folder(tmp_path, 0, ModelHints())
    assert capsys.readouterr().err == ""
