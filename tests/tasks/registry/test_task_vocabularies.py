"""A task whose vocabulary is not the model's, and the remedy that is named."""

import pytest
import tokenizers

from limba.data import contract
from tasks import pretraining
from tasks.objectives import PrefixLM
from tasks.registry import task_vocabularies
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary, T5TokenizerVocabulary, TokenizerVocabulary
from tests import quickstart_corpus

CONFIG = contract.DatasetConfig("moods_of_kinds", {"inputs": 8, "targets": 4}, "train", 1)


@pytest.fixture
def files(tmp_path):
    """A SentencePiece model and a T5's tokenizer.json."""
    quickstart_corpus.write(tmp_path)
    tokens = {token: number for number, token in enumerate(("<pad>", "</s>", "<unk>", "a", "<extra_id_0>"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(tokens, unk_token="<unk>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "runs/quickstart/vocab/spiece.model"), str(tmp_path / "tokenizer.json")


def refused(vocabulary, expected):
    register_supervised_task(
        "moods_of_kinds", SupervisedDataset("{text}", "mood"), data_files={"train": "moods.csv"}, vocabulary=vocabulary
    )
    with pytest.raises(ValueError, match=r"^Task 'moods_of_kinds' makes inputs with") as error:
        task_vocabularies.check_task_vocabularies(CONFIG, expected, expected)
    return str(error.value).partition(": ")[2]


def test_a_sentencepiece_model_for_a_model_with_a_tokenizer(files):
    spiece, tokenizer = files
    assert refused(spiece, T5TokenizerVocabulary(tokenizer)) == (
        "these are different kinds, which VOCABULARY_FILE does not change; register the task with the model's: "
        f"vocabulary={tokenizer!r}; or, if the model is of `limba convert from-hf`, convert it again with the task's: "
        f"--vocab {spiece}."
    )


def test_a_tokenizer_without_sentinels_for_a_t5(files):
    """The name of its file alone would give a `TokenizerVocabulary` again."""
    given, expected = TokenizerVocabulary(files[1]), T5TokenizerVocabulary(files[1])
    pretraining.register_pretraining_task(
        "kinds_of_tokenizers", data_files={"train": "moods.csv"}, vocabulary=given, objective=PrefixLM()
    )
    config = contract.DatasetConfig("kinds_of_tokenizers", {"inputs": 8, "targets": 8}, "train", 1)
    with pytest.raises(ValueError) as error:
        task_vocabularies.check_task_vocabularies(config, expected, expected)
    assert str(error.value).endswith(f"model's: vocabulary=vocabularies.T5TokenizerVocabulary({files[1]!r}).")


def test_bytes_for_a_model_with_pieces(files):
    assert refused(ByteVocabulary(), SentencePieceVocabulary(files[0], extra_ids=100)) == (
        "these are different kinds, which VOCABULARY_FILE does not change; register the task with the model's: "
        f"vocabulary={files[0]!r}."
    )


def test_two_of_a_kind(files):
    assert refused(files[0], SentencePieceVocabulary(files[0], extra_ids=0)).startswith("bind VOCABULARY_FILE, VOCAB_S")


def test_a_tokenizer_whose_file_is_none(files):
    with pytest.raises(
        ValueError, match=r"given .*spiece\.model, which is not a tokenizer\.json\. Give a file that end"
    ):
        T5TokenizerVocabulary(files[0])
    folder = files[1].removesuffix("/tokenizer.json")
    assert T5TokenizerVocabulary(folder).vocab_size == 5
