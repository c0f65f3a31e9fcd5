"""Folders of T5s to whose tokenizer somebody added tokens, such as braces and line breaks for JSON and code."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from convert.model_files.hf import folder_tokenizer, hf_tokenizer
from tasks.pretraining import masked_text
from tests.convert import vocabularies
from tests.convert.vocabularies import NUM_PIECES

NUM_IDS = NUM_PIECES + 100
TEXTS = [
    *(
        "ba {bace} lo\nno  \n x",
        '{"a": 1, "b": [2]}',
        "{ } \n",
        "a <extra_id_0> b{<extra_id_1>c }",
        "  {x",
        "\n\n{ }  {",
    ),
    *(text.replace(" ", " { ", 1).replace("a", "}\n") for text in vocabularies.sentences(30)),
]
SCRIPT = Path(__file__).with_name("tokenize_in_transformers5.py")


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    return vocabularies.train(tmp_path_factory.mktemp("added") / "spiece.model")


@pytest.fixture(params=["now", "version 3"])
def slow(request, spiece, tmp_path):
    """A folder without a tokenizer.json, and its class of version 4; version 3 named the added tokens alone."""
    from transformers import T5Tokenizer

    folder = tmp_path / "slow"
    folder.mkdir()
    shutil.copy(spiece, folder)
    if request.param == "now":
        tokenizer = T5Tokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["{", "}", "\n"])
        tokenizer.save_pretrained(folder)
    else:
        (folder / "added_tokens.json").write_text(json.dumps({"{": NUM_IDS, "}": NUM_IDS + 1, "\n": NUM_IDS + 2}))
    return folder, T5Tokenizer.from_pretrained(folder)


def _fast(spiece, folder, *tokens):
    """Version 4's fast class with these tokens, saved there."""
    from transformers import T5TokenizerFast

    tokenizer = T5TokenizerFast(vocab_file=str(spiece))
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(folder)
    return tokenizer


def _exported(folder, record):
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "t5"}')
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record), folder)
    return folder


def test_without_a_tokenizer_json_ids_are_those_of_its_class(slow, tmp_path):
    from transformers import AutoTokenizer

    folder, tokenizer = slow
    record = folder_tokenizer.read(folder)
    assert (record["class"], record["vocab_size"]) == ("T5TokenizerVocabulary", NUM_IDS + 3)
    vocabulary = masked_text.open_vocabulary(record)
    wanted = tokenizer(TEXTS, add_special_tokens=False).input_ids
    assert [list(vocabulary.encode(text)) for text in TEXTS] == wanted
    assert {NUM_IDS, NUM_IDS + 1, NUM_IDS + 2} <= {*itertools.chain(*wanted)}
    exported = AutoTokenizer.from_pretrained(_exported(tmp_path / "export", record))
    assert exported(TEXTS, add_special_tokens=False).input_ids == wanted
    assert exported.decode(exported("{\n}").input_ids, skip_special_tokens=True) == "{\n}"


@pytest.mark.slow
def test_the_export_has_the_same_ids_in_transformers_5(slow, forks5, tmp_path):
    folder, tokenizer = slow
    export = _exported(tmp_path / "export", folder_tokenizer.read(folder))
    (tmp_path / "request.json").write_text(json.dumps({str(export): TEXTS}))
    done = forks5.run(SCRIPT, tmp_path / "request.json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "out.json").read_text())[str(export)]["ids"] == tokenizer(TEXTS).input_ids


@pytest.mark.parametrize("normalized", [True, False])
def test_a_tokenizer_json_with_added_tokens_is_the_vocabulary(spiece, tmp_path, normalized):
    """Version 4 finds "{" before or after it normalized the text, which drops the space before it, or not."""
    from transformers import AddedToken, AutoTokenizer

    tokens = AddedToken("{", normalized=normalized), AddedToken("\n", normalized=False)
    tokenizer = _fast(spiece, tmp_path, *tokens)
    record = folder_tokenizer.read(tmp_path)
    vocabulary = masked_text.open_vocabulary(record)
    wanted = tokenizer(TEXTS, add_special_tokens=False).input_ids
    assert [list(vocabulary.encode(text)) for text in TEXTS] == wanted
    exported = AutoTokenizer.from_pretrained(_exported(tmp_path / "export", record))
    assert exported(TEXTS, add_special_tokens=False).input_ids == wanted


def test_a_token_of_which_nothing_is_left_is_named(spiece, tmp_path):
    """The library panics on every text."""
    _fast(spiece, tmp_path, "\n")
    message = r"nothing is left of the added token '\\n' \(id 512\) .*AddedToken\('\\n', normalized=False\)"
    with pytest.raises(ValueError, match=message):
        folder_tokenizer.read(tmp_path)


def test_ids_with_a_gap_are_named(spiece, tmp_path):
    shutil.copy(spiece, tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"{": NUM_IDS, "}": NUM_IDS + 2}))
    with pytest.raises(ValueError, match=r"{ 512, } 514; .* cannot carry these ids either: they are not one after"):
        folder_tokenizer.read(tmp_path)
