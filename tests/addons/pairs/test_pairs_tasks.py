"""Registered tasks of pairs: what they give to models of each kind, and their metric in an evaluation."""

import json

import numpy as np
import pytest

from limba.addons import pairs as minimal_pairs
from limba.addons.pairs import pair_columns, pair_formats
from limba.data import contract
from limba.inference import task_metrics
from tasks import objectives
from tasks.pipeline import predictions
from tasks.vocabularies import ByteVocabulary, TokenizerVocabulary
from tests.convert import vocabularies

ROWS = [
    {"sentence_good": "a dog runs", "sentence_bad": "a dog run", "phenomenon": "number"},
    {"sentence_good": "dogs run", "sentence_bad": "dogs runs", "phenomenon": "number"},
    {"sentence_good": "I am", "sentence_bad": "I is", "phenomenon": "person"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def _register(file, **arguments):
    arguments = {"vocabulary": ByteVocabulary(100)} | arguments
    return minimal_pairs.register_pairs_task("pairs", data_files={"validation": file}, **arguments)


def _config(lengths=None):
    return contract.DatasetConfig("pairs", lengths, "validation", 4, shuffle=False, seed=1)


@pytest.mark.parametrize("lengths", [None, {"inputs": 24, "targets": 12}])
def test_the_metric_of_scores(file, lengths):
    _register(file)
    evaluator = task_metrics.Evaluator(_config(lengths), "EncDecFeatureConverter")
    evaluator.open()

    def score(batches):
        """The sentences are examples 0, 1; 2, 3; 4, 5. Won, lost, a tie."""
        found = {i: features for index, features in batches for i in index.tolist()}
        assert sorted(found) == [*range(6)]
        return [-1.0, -2.0, -2.0, -1.0, -3.0, -3.0], {}

    metrics = evaluator.evaluate({"score": score}, step=0, computes=True)["pairs"]
    assert metrics["accuracy"] == pytest.approx(100 / 3) and metrics["ties"] == 1
    assert metrics["accuracy/number"] == 50 and metrics["accuracy/person"] == 0
    assert (metrics["pairs"], metrics["pairs/number"], metrics["pairs/person"]) == (3, 2, 1)


def _examples(task):
    return list(predictions.examples(task, _config()))


def test_examples_of_a_t5_with_a_mode(file):
    first, second, *_ = _examples(_register(file, mode="M"))
    assert ByteVocabulary().decode(first["inputs"][:-2]) == "Ma dog " and first["inputs"][-2:].tolist() == [358, 1]
    assert ByteVocabulary().decode(first["targets"][1:-1]) == "runs" and first["targets"][[0, -1]].tolist() == [358, 1]
    assert second["inputs"].tolist() == first["inputs"].tolist()
    assert first["idx"].tolist() == [0, 0] and second["idx"].tolist() == [0, 1]
    assert first["is_correct"] and not second["is_correct"]
    assert (first["sentence"], first["phenomenon"]) == (b"a dog runs", b"number")


def test_examples_of_a_decoder(file):
    task = _register(file, objective=objectives.FullLM())
    first = _examples(task)[0]
    assert "inputs" not in task.output_features and first["targets"][-1] == 1
    assert ByteVocabulary().decode(first["targets"][:-1]) == "a dog runs" == first["targets_pretokenized"].decode()


def test_examples_of_an_encoder_have_a_mask_for_each_piece(file, tmp_path):
    words = ["a", "dog", "dogs", "run", "I", "am", "is"]
    vocabulary = TokenizerVocabulary(str(vocabularies.write_words(tmp_path / "tokenizer.json", words)))
    found = _examples(_register(file, objective=objectives.MaskedLM(), vocabulary=vocabulary))
    assert [x["inputs"].tolist() for x in found[2:4]] == [[2, 7, 4, 3]] * 2
    assert [x["targets"].tolist() for x in found[2:4]] == [[8], [1]]  # "runs" is unknown
    assert [x["target_positions"].tolist() for x in found[2:4]] == [[2], [2]]
    features = predictions.model_features(found, None, "MaskedLanguageModelFeatureConverter")
    assert features["masked_lm_positions"].shape == features["decoder_target_tokens"].shape == (6, 1)


def test_masks_of_several_pieces():
    from limba.addons.pairs.token_spans import TokenSpans
    from tasks.objectives import VocabularyIds

    ids = VocabularyIds(99, 0, 1, cls_id=2, sep_id=3, mask_id=4)
    right = TokenSpans([10, 11, 12, 13], [(0, 1), (2, 3), (4, 5), (5, 6)])
    wrong = TokenSpans([20, 21, 11, 14], [(0, 1), (1, 2), (3, 4), (5, 6)])
    pair = pair_formats.Sentences("a b cd", "xy b c", (right, wrong))
    first, second = pair_formats.MaskedWords()(pair, ids, [])
    assert first == {"inputs": [2, 4, 11, 4, 4, 3], "targets": [10, 12, 13], "target_positions": [1, 3, 4]}
    assert second == {"inputs": [2, 4, 4, 11, 4, 3], "targets": [20, 21, 14], "target_positions": [1, 2, 4]}


def test_lengths_do_not_cut_pairs(file):
    _register(file)
    with pytest.raises(ValueError, match=r"row 0 .*its inputs have 8 tokens, and task_feature_lengths 7: pairs are"):
        task_metrics.Evaluator(_config({"inputs": 7, "targets": 12}), "EncDecFeatureConverter").open()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": objectives.PrefixLM()}, "A model that learned PrefixLM.* fills no blanks"),
        ({"objective": objectives.FullLM(), "mode": "[NLU]"}, "has the mode '.NLU.', which only models with sentinels"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        _register("nowhere.jsonl", **arguments)


def test_a_vocabulary_without_sentinels_is_refused(file):
    _register(file, vocabulary=ByteVocabulary())
    with pytest.raises(ValueError, match=r"ByteVocabulary\(extra_ids=0\) has no sentinels"):
        task_metrics.Evaluator(_config(), "EncDecFeatureConverter").open()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["UID", "sentence_bad", "sentence_good", "linguistics_term"],
            ("sentence_good", "sentence_bad", "linguistics_term"),
        ),
        (["sen", "wrong_sen", "phenomenon"], ("sen", "wrong_sen", "phenomenon")),
        (["wrong", "right"], ("right", "wrong", None)),
    ],
)
def test_columns_of_known_formats(tmp_path, names, expected):
    path = tmp_path / "a.csv"
    path.write_text(",".join(names) + "\n" + ",".join("x" for _ in names) + "\n")
    assert pair_columns.find(str(path), None, None, None) == pair_columns.PairColumns(*expected)


def test_names_of_files_differ():
    names = pair_columns.names_of_files(["eng/data.tsv", "ron/data.tsv", "x y.jsonl.gz", "a/z.csv", "a/z.tsv"])
    assert names == ["eng_data", "ron_data", "x_y", "a_z_3", "a_z_4"]
    assert np.unique(names).size == 5


def test_a_csv_with_semicolons_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("good;bad\na dog runs;a dog run\n")
    with pytest.raises(
        ValueError, match=r"a.csv: its header 'good;bad' is separated by ';'\. Save it with commas, or wi"
    ):
        pair_columns.find(str(path), None, None, None)


def test_a_registered_task_knows_the_names_that_the_command_knows(tmp_path):
    path = tmp_path / "named.jsonl"
    path.write_text(json.dumps({"good": "a dog runs", "bad": "a dog run", "linguistics_term": "number"}) + "\n")
    task = _register(str(path))
    right, wrong = _examples(task)
    assert (right["sentence"], wrong["sentence"]) == (b"a dog runs", b"a dog run")
    assert right["phenomenon"] == b"number"
    assert _register(str(path)) is task


def test_columns_that_a_task_does_not_know_are_named(tmp_path):
    path = tmp_path / "named.jsonl"
    path.write_text(json.dumps({"a": "a dog runs", "b": "a dog run"}) + "\n")
    remedy = r"has the columns 'a', 'b', and none .*: columns=minimal_pairs\.PairColumns\('RIGHT', 'WRONG', phen"
    with pytest.raises(ValueError, match=remedy):
        _register(str(path))
    columns = minimal_pairs.PairColumns("a", "b", phenomenon=None)
    assert [x["sentence"] for x in _examples(_register(str(path), columns=columns))] == [b"a dog runs", b"a dog run"]
