"""Words for a new classifier on a RoBERTa: their tokens are those of run_ner.py, with a blank before the first word."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
import transformers

from limba.addons.run import blank_before, starting_model
from tasks.vocabularies import TokenizerVocabulary

WORDS = ["the", "old", "cat", "don't", "U.S.", ",", "!", "É", "日本", "x-y", "3.5", "sleeps", "🙂", "''s", "n't"]
WORDS += ["a", "У", "ж", "7", "日", "Я-", "é́", "„"]
SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A RoBERTa with a byte-level tokenizer, as transformers writes them."""
    root = tmp_path_factory.mktemp("roberta")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=list(dict.fromkeys(SPECIAL.values())),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(*ends, add_prefix_space=False)
    named = {f"{role}_token": token for role, token in SPECIAL.items()}
    transformers.RobertaTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(root)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.RobertaConfig(**sizes, vocab_size=len(tokenizer.get_vocab()), max_position_embeddings=40)
    transformers.RobertaForMaskedLM(config).save_pretrained(root)
    return root


def test_tokens_and_first_pieces_are_those_of_run_ner(folder, tmp_path):
    """Also of first words of one character, whose piece begins with the blank that is put before the text."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
    spaced = blank_before.with_blank_before(folder / "tokenizer.json")
    content = json.loads(spaced.read_text())
    assert content["post_processor"] == json.loads(theirs.backend_tokenizer.to_str())["post_processor"]
    assert blank_before.with_blank_before(spaced) == spaced
    # A file that says of the blank only that it is put there: then offsets are without it.
    content["post_processor"]["add_prefix_space"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    choose = random.Random(3)
    texts = [choose.choices(WORDS, k=choose.randint(1, 7)) for _ in range(300)]
    for file in (spaced, tmp_path / "tokenizer.json"):
        for words, found in zip(texts, TokenizerVocabulary(str(file)).encode_words(texts), strict=True):
            expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
            word_ids = expected.word_ids()
            assert found == (expected["input_ids"], [word_ids.index(i) for i in range(len(words))]), words


def test_only_a_new_classifier_of_words_gets_the_blank(folder):
    model = starting_model.open_model(str(folder), None, None)
    own = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    for network, blank in (("TokenClassifier", True), ("SequenceClassifier", False), ("", False)):
        begun = model.for_rows_with(network)
        content = json.loads(Path(begun.opened.vocabulary["tokenizer_file"]).read_text())
        assert content["pre_tokenizer"] == own | {"add_prefix_space": blank}, network
        assert begun.opened.tokenizer_settings.others["add_prefix_space"] is blank
