"""A new T5 with a tokenizer.json without sentinels gets those that transformers' T5 tokenizers add to it."""

import json
import logging
from pathlib import Path

import pytest
import tokenizers

from limba.addons.run import starting_model
from tests.convert import vocabularies

SPECIAL = ["<pad>", "</s>", "<unk>"]
NETWORK = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def trained() -> tokenizers.Tokenizer:
    """As the README of transformers' Flax scripts trains one; 300 tokens."""
    parts = tokenizers.normalizers, tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.normalizer = parts[0].Sequence([parts[0].Nmt(), parts[0].NFKC(), parts[0].Lowercase()])
    tokenizer.pre_tokenizer = parts[1].Sequence([parts[1].Metaspace(), parts[1].Digits(True), parts[1].Punctuation()])
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(vocabularies.sentences(1000), trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def folder_of(tokenizer, folder, config, vocab_size=300):
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(NETWORK | {"vocab_size": vocab_size}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({}, 100),
        ({"tokenizer_class": "T5TokenizerFast", "extra_ids": 20}, 20),
        ({"tokenizer_class": "T5TokenizerFast", "additional_special_tokens": ["<sep>"]}, 101),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, 0),
    ],
    ids=["no class", "20", "another token", "another class"],
)
def test_the_ids_are_those_of_transformers(trained, config, added, tmp_path):
    from transformers import AutoTokenizer

    folder = folder_of(trained, tmp_path, config)
    theirs = AutoTokenizer.from_pretrained(folder)
    model = starting_model.open_model(None, folder, folder)
    assert model.vocabulary["vocab_size"] == model.network.vocab_size == len(theirs) == 300 + added
    ours = tokenizers.Tokenizer.from_file(model.vocabulary["tokenizer_file"])
    assert ours.get_vocab() == theirs.get_vocab()
    texts = ["ba <extra_id_0>, ce", *vocabularies.sentences(20)]
    assert [ours.encode(text).ids for text in texts] == theirs(texts).input_ids


def test_the_embedding_gets_their_rows_and_a_line_says_so(trained, tmp_path, caplog):
    folder = folder_of(trained, tmp_path, {})
    with caplog.at_level(logging.INFO):
        model = starting_model.open_model(None, folder, None)
    assert f"{folder}/tokenizer.json has no sentinels: 100 tokens are added behind its 300" in caplog.text
    assert "The embedding has 400 rows; vocab_size of the config.json is 300." in caplog.text
    model.write(tmp_path / "initial")
    assert "VOCAB_SIZE = 400\n" in (tmp_path / "initial/model.gin").read_text()
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "initial/tokenizer.json"))
    assert [written.token_to_id(f"<extra_id_{number}>") for number in (0, 99)] == [300, 399]


def test_more_rows_than_tokens_stay(trained, tmp_path):
    folder = folder_of(trained, tmp_path, {}, vocab_size=512)
    assert starting_model.open_model(None, folder, folder).network.vocab_size == 512


@pytest.mark.slow
def test_transformers_5_reads_the_same_ids(trained, forks5, tmp_path):
    folder = folder_of(trained, tmp_path, {})
    (tmp_path / "request.json").write_text(json.dumps({folder: ["<extra_id_0> <extra_id_99>"]}))
    script = Path(__file__).parents[2] / "convert/model_files/hf/tokenize_in_transformers5.py"
    done = forks5.run(script, tmp_path / "request.json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "out.json").read_text())[folder]
    assert result["class"] == "T5Tokenizer" and [id_ for id_ in result["ids"][0] if id_ >= 300] == [300, 399]
