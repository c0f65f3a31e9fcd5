"""Labels stand at the first pieces of words, in every kind of vocabulary, and rows that cannot be read are named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from limba.addons.run import script_task
from limba.data.contract import DatasetConfig
from tasks import supervised
from tasks.metrics import tagging_metrics
from tasks.pipeline import predictions
from tasks.registry import TaskRegistry
from tasks.vocabularies import (
    ByteVocabulary,
    LabelVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
)
from tasks.vocabularies import words as of_words
from tests.convert import vocabularies as spiece_models

LABELS = ["O", "B-PER", "I-PER"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROWS = [
    {"tokens": ["Ana", "Blandiana", "sings", "."], "tags": ["B-PER", "I-PER", "O", "O"]},
    {"tokens": ["sings", "\u200b", "Ana"], "tags": ["O", "B-PER", "I-PER"]},
]


def _wordpiece(file):
    pieces = {piece: i for i, piece in enumerate([*SPECIAL, "ana", "bland", "##iana", "sing", "##s", "."])}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(file))
    return TokenizerVocabulary(str(file))


def _bytes(file):
    """Pieces are single bytes, a word's space among them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({x: i for i, x in enumerate([*SPECIAL, *letters, "Ġs"])}, [("Ġ", "s")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(file))
    return TokenizerVocabulary(str(file))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return _wordpiece(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")


@pytest.fixture
def task(tmp_path, vocabulary):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    yield supervised.register_token_task(
        "test_names", supervised.TokenDataset(LABELS), data_files={"train": str(file)}, vocabulary=vocabulary
    )
    TaskRegistry.remove("test_names")


def _examples(task, length):
    lengths = None if length is None else {"inputs": length, "targets": length}
    return list(predictions.examples(task, DatasetConfig(task.name, lengths, "train", 1, seed=0)))


def test_the_first_piece_of_a_word_has_its_label(task):
    first, second = _examples(task, 12)
    assert first["inputs"].tolist() == [2, 5, 6, 7, 8, 9, 10, 3]  # ana bland ##iana sing ##s .
    assert first["targets"].tolist() == [0, 2, 3, 0, 1, 0, 1, 0]
    # The second word has no piece.
    assert second["inputs"].tolist() == [2, 8, 9, 5, 3] and second["targets"].tolist() == [0, 1, 0, 3, 0]
    assert first["targets_pretokenized"] == b"B-PER I-PER O O" and second["targets_pretokenized"] == b"O I-PER"
    assert task.metric_fns == (tagging_metrics.token_accuracy, tagging_metrics.entity_f1)
    assert task.postprocess_fn("O I-PER", example=second, is_target=False) == ["O", "I-PER"]
    assert supervised.TokenDataset(LABELS).words({"tokens": ["a", "b"], "tags": [0, 2]})[1] == ["O", "I-PER"]
    of_words, of_labels = supervised.TokenDataset(["NOUN", "VERB"]).metrics
    assert of_words is tagging_metrics.token_accuracy and "NOUN_f1" in of_labels([["NOUN"]], [["VERB"]])


def test_all_pieces_of_a_word_may_have_its_label(task, tmp_path):
    """As run_ner.py's label_all_tokens: behind the first piece of B-PER is I-PER, and a cut takes the rest away."""
    file = tmp_path / "more.jsonl"
    rows = [*ROWS, {"tokens": ["blandiana", "Ana"], "tags": ["B-PER", "O"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = script_task.word_dataset("tokens", "tags", LABELS, all_pieces=True)
    vocabulary = task.output_features["inputs"].vocabulary
    pieces = supervised.register_token_task("test_pieces", form, data_files={"train": str(file)}, vocabulary=vocabulary)
    try:
        first, second, third = _examples(pieces, 12)
        assert first["targets"].tolist() == [0, 2, 3, 3, 1, 1, 1, 0]
        assert first["targets_pretokenized"] == b"B-PER I-PER I-PER O O O"
        assert second["targets"].tolist() == [0, 1, 1, 3, 0]  # the second word has no piece
        assert third["targets"].tolist() == [0, 2, 3, 1, 0]
        assert _examples(pieces, 4)[0]["targets"].tolist() == [0, 2, 3, 0]
    finally:
        TaskRegistry.remove("test_pieces")
    assert supervised.PieceDataset(["O", "B-X"]).placed([0, 2], ["B-X", "O"], 4) == [
        *((0, "B-X"), (1, "B-X")),
        *((2, "O"), (3, "O")),
    ]


def test_numbers_are_not_taken_for_places_where_they_may_be_labels():
    words = lambda labels, *tags: supervised.TokenDataset(labels).words({"tokens": ["a"] * len(tags), "tags": [*tags]})  # noqa: E731
    assert words(["0", "1", "2"], 2, "0")[1] == ["2", "0"] and words(["1", "2", "3"], "1", 0)[1] == ["1", "1"]
    with pytest.raises(
        ValueError, match=r"the number 1, which is the label '1' or the place of '2' in the labels 1, 2, 3"
    ):
        words(["1", "2", "3"], 1)


def test_a_table_has_numbers_of_labels(task, tmp_path):
    """As data sets of the hub have them: ClassLabels in parquet."""
    pq.write_table(pa.table({"tokens": [["Ana", "sings"]], "tags": [[1, 0]]}), tmp_path / "rows.parquet")
    source = {"train": str(tmp_path / "rows.parquet")}
    vocabulary = task.output_features["inputs"].vocabulary
    of_table = supervised.register_token_task(
        "test_table", supervised.TokenDataset(LABELS), data_files=source, vocabulary=vocabulary
    )
    try:
        assert _examples(of_table, None)[0]["targets"].tolist() == [0, 2, 1, 0, 0]
    finally:
        TaskRegistry.remove("test_table")


def test_a_cut_row_keeps_the_labels_of_whole_places(task, caplog):
    first, second = _examples(task, 5)
    assert first["inputs"].tolist() == [2, 5, 6, 7, 3] and first["targets"].tolist() == [0, 2, 3, 0, 0]
    assert first["targets_pretokenized"] == b"B-PER I-PER"
    assert len(second["inputs"]) == 5
    assert "1 of the first 2 examples of split 'train' have inputs longer than 5 tokens (the longest: 8)" in caplog.text


def test_words_of_byte_level_pieces(tmp_path):
    vocabulary = _bytes(tmp_path / "tokenizer.json")
    ids, places = vocabulary.encode_words([["ab", "so", "É", "x"]])[0]
    # a b, a space and s in one piece, o, a space and two bytes, a space and x: a space is the next word's, as in
    # transformers' `word_ids`.
    tokens = [vocabulary.tokenizer.id_to_token(id_) for id_ in ids]
    assert tokens == ["a", "b", "Ġs", "o", "Ġ", "Ã", "ī", "Ġ", "x"] and places == [0, 2, 4, 7]


def test_words_of_a_t5_s_vocabularies(tmp_path):
    """EOS ends a row, and nothing begins it: a label stands at the first piece of its word, which may be a blank."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"tokens": ["é", "ab", "x"], "tags": ["B-PER", "I-PER", "O"]}) + "\n")
    spiece = SentencePieceVocabulary(str(spiece_models.train(tmp_path / "spiece.model")))
    for vocabulary, places in ((ByteVocabulary(), [0, 3, 6]), (spiece, None)):
        task = supervised.register_token_task(
            "test_t5", supervised.TokenDataset(LABELS), data_files={"train": str(file)}, vocabulary=vocabulary
        )
        try:
            whole, cut = _examples(task, 12)[0], _examples(task, 4)[0]
        finally:
            TaskRegistry.remove(task.name)
        ids = vocabulary.encode("é ab x")
        assert whole["inputs"].tolist() == [*ids, 1] and cut["inputs"].tolist() == [*ids[:3], 1]
        if places is None:
            pieces = [vocabulary.tokenizer.id_to_piece(id_) for id_ in ids]
            places = [place for place, piece in enumerate(pieces) if piece.startswith("▁")]
        expected = [0] * (len(ids) + 1)
        for place, label in zip(places, (2, 3, 1), strict=True):
            expected[place] = label
        assert whole["targets"].tolist() == expected and cut["targets"].tolist() == [*expected[:3], 0]
    assert spiece.encode_words([["\u200b", "ab"]])[0] == (spiece.encode("ab"), [-1, 0])
    assert spiece.encode_words([[]])[0] == ByteVocabulary().encode_words([[]])[0] == ([], [])

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("b", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    of_json = T5TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    # Of a tokenizer with blanks of their own, as run_ner.py's `word_ids` say it: "a", blank, ",", blank and "b" as one.
    assert of_words.first_by_offset(["a", ",", "b"], [(0, 1), (1, 2), (2, 3), (3, 5)]) == [0, 1, 3]
    assert of_words.first_by_offset(["a", ",", "b"], [(0, 1), (2, 2), (2, 3), (4, 5)]) == [0, 1, 3]  # trimmed
    assert of_json.encode_words([["ab", "b"]])[0] == ([4, 5, 3, 5], [0, 2]) and of_json.encode("ab b") == [4, 5, 3, 5]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "there are 2 words and 1 tags; each word has one"),
        ({"tokens": ["a"], "tags": ["B-LOC"]}, "has the tag 'B-LOC'; the known labels are O, B-PER, I-PER"),
        ({"tokens": ["a"], "tags": [3]}, "has the tag 3"),
        ({"tokens": ["a b"], "tags": ["O"]}, "column 'tokens' has 'a b', which is not a word"),
        ({"tokens": "a", "tags": ["O"]}, "column 'tokens' has 'a', which is not a list"),
        ({"tokens": ["a"], "tags": [True]}, "has the tag True"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(row, words):
    with pytest.raises(ValueError, match=words):
        supervised.TokenDataset(LABELS).words(row)


def test_what_is_wrong_with_a_task_is_said(task, vocabulary, tmp_path):
    with pytest.raises(ValueError, match="give inputs and targets the same length"):
        list(predictions.examples(task, DatasetConfig(task.name, {"inputs": 8, "targets": 1}, "train", 1, seed=0)))
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[0] | {"tags": ["O"]}) + "\n")
    with pytest.raises(ValueError, match=r"Task 'test_names', row 1 \(the first is 0\) of .*rows.jsonl: there are 4"):
        _examples(task, 12)
    for wrong in ("B-JOB\tTITLE", " B-PER", "B-A  B"):
        with pytest.raises(ValueError, match="labels of tokens have single blanks inside and no other space: write"):
            supervised.TokenDataset(["O", wrong])
    of_labels = LabelVocabulary(LABELS)
    for vocabulary_, words in ((of_labels, "give a tokenizer.json, a Sent"), (vocabulary, "has no data")):
        with pytest.raises(ValueError, match=words):
            supervised.register_token_task("test_none", supervised.TokenDataset(LABELS), vocabulary=vocabulary_)


def test_labels_may_have_blanks(tmp_path, vocabulary):
    """Then a tab stands between them; a label of the data with two blanks is meant as that with one."""
    labels = ["O", "B-Job Title", "I-Job Title"]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROWS[0] | {"tags": ["B-Job Title", "I-Job  Title", "O", "O"]}) + "\n")
    task = supervised.register_token_task(
        "test_titles", supervised.TokenDataset(labels), data_files={"train": str(file)}, vocabulary=vocabulary
    )
    try:
        (example,) = _examples(task, 12)
        text = "B-Job Title\tI-Job Title\tO\tO"
        assert example["targets"].tolist() == [0, 2, 3, 0, 1, 0, 1, 0]
        assert example["targets_pretokenized"] == text.encode()
        decoded = LabelVocabulary(labels).decode(example["targets"].tolist())
        assert decoded == text and task.postprocess_fn(decoded) == text.split("\t")
        assert task.postprocess_fn("") == []
        (_, of_kinds) = supervised.TokenDataset(labels).metrics
        scores = of_kinds([text.split("\t")], [["B-Job Title", "O", "O", "O"]])
        assert scores["entity_precision"] == 0 and "Job_Title_f1" in scores
    finally:
        TaskRegistry.remove("test_titles")
