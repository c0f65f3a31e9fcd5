"""Right answers with characters that the vocabulary normalizes: full-width punctuation, which NFKC makes ASCII."""

import json
import logging
import pathlib

import pytest
from sentencepiece import sentencepiece_model_pb2

from limba.data import contract
from limba.inference import metric_loggers, task_metrics
from tasks.metrics import text_metrics
from tasks.pipeline import task_batches
from tasks.registry import TaskRegistry
from tasks.supervised import question_formats
from tasks.supervised.compared_answers import ComparedAnswers
from tasks.supervised.supervised_tasks import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary, T5TokenizerVocabulary, normalization
from tests.convert import vocabularies

ANSWERS = ["体育，足球！", "（财经）股票：涨", "科技；电脑？", "娱乐、电影。"]
DECODED = ["体育,足球!", "(财经)股票:涨", "科技;电脑?", "娱乐、电影。"]


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    text = [f"{answer} {other}" for answer in ANSWERS for other in ANSWERS] * 20
    file = tmp_path_factory.mktemp("zh") / "spiece.model"
    return str(vocabularies.train(file, text, vocab_size=60, hard_vocab_limit=False))


@pytest.fixture
def vocabulary(spiece):
    return SentencePieceVocabulary(spiece, extra_ids=100)


def _files(tmp_path, answers=ANSWERS, column="answer"):
    lines = [json.dumps({"text": f"第{i}条", column: answer}) for i, answer in enumerate(answers)]
    (tmp_path / "v.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {"validation": str(tmp_path / "v.jsonl")}


def _evaluate(name, vocabulary, answers, log_dir=None):
    """The metrics of a model that answers so, through the evaluator of training and of `limba eval`."""
    config = contract.DatasetConfig(name, None, "validation", 4)
    evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter", log_dir, [metric_loggers.JSONLogger])
    evaluator.open()
    ids = [vocabulary.encode(answer) for answer in answers]
    padded = [[*x, 1, *[0] * (40 - len(x))] for x in ids]
    return evaluator.evaluate({"predict": lambda batches: (padded, {})}, 3, computes=True)[name]


def test_a_perfect_model_of_full_width_punctuation_is_right(tmp_path, vocabulary):
    entry = SupervisedDataset("{text}：", "answer", metric_fns=[text_metrics.accuracy])
    register_supervised_task("zh_answers", entry, vocabulary=vocabulary, data_files=_files(tmp_path))
    found = _evaluate("zh_answers", vocabulary, ANSWERS, tmp_path / "log")
    assert found["accuracy"] == 100.0
    assert _evaluate("zh_answers", vocabulary, [*ANSWERS[:3], "娱乐,电影。"])["accuracy"] == 75.0
    # Files have the right answer as the corpus has it.
    written = (tmp_path / "log" / "zh_answers-000003.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["input"]["targets_pretokenized"] for line in lines] == ANSWERS
    assert [line["prediction"] for line in lines] == DECODED


def test_labels_and_references_are_normalized_too(tmp_path, vocabulary, caplog):
    labels = {"sports": ANSWERS[0], "money": ANSWERS[1]}
    files = _files(tmp_path, ["sports", "money"])
    entry = SupervisedDataset("{text}", "answer", labels=labels, metric_fns=[text_metrics.accuracy])
    task = register_supervised_task("zh_labels", entry, vocabulary=vocabulary, data_files=files)
    with caplog.at_level(logging.WARNING):
        lengths = {"inputs": 8, "targets": 20}
        task_batches.get_eval_batches(contract.DatasetConfig("zh_labels", lengths, "validation", 2))
    assert "does not give the labels" not in caplog.text
    assert [task.postprocess_fn(text) for text in (*DECODED[:2], DECODED[2])] == [0, 1, -1]
    assert _evaluate("zh_labels", vocabulary, ANSWERS[:2])["accuracy"] == 100.0
    questions = ComparedAnswers(question_formats.Questions(), vocabulary)
    example = {"reference": json.dumps(["足球！", "“球”"]), "targets": "足球！"}
    assert questions("足球！", example=example, is_target=True) == ["足球!", "“球”"]


def test_what_the_vocabulary_cannot_say_is_not_forgiven(tmp_path, vocabulary):
    entry = SupervisedDataset("{text}", "answer", metric_fns=[text_metrics.accuracy])
    files = _files(tmp_path, ["体育龘", "??"])
    task = register_supervised_task("zh_unknown", entry, vocabulary=vocabulary, data_files=files)
    assert _evaluate("zh_unknown", vocabulary, ["体育龘", "体育"])["accuracy"] == 0.0
    # The unknown token is decoded as U+2047, which NFKC would turn into two question marks.
    assert task.postprocess_fn(vocabulary.decode([vocabulary.unk_id])) != "??"
    # Bytes are what they are.
    register_supervised_task("zh_bytes", entry, vocabulary=ByteVocabulary(), data_files=files)
    assert TaskRegistry.get("zh_bytes").postprocess_fn("体育，") == "体育，"


def test_every_vocabulary_normalizes_as_its_file_says(tmp_path, vocabulary, spiece):
    assert normalization.normalized(vocabulary, ANSWERS[0]) == DECODED[0]
    model = sentencepiece_model_pb2.ModelProto.FromString(pathlib.Path(spiece).read_bytes())
    assert model.normalizer_spec.name == "nmt_nfkc"
    options = {"vocab_size": 60, "hard_vocab_limit": False, "normalization_rule_name": "identity"}
    plain = vocabularies.train(tmp_path / "plain.model", ANSWERS * 50, **options)
    assert normalization.normalized(SentencePieceVocabulary(str(plain), extra_ids=100), ANSWERS[0]) == ANSWERS[0]
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("▁", -1.0)], 0))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert normalization.normalized(T5TokenizerVocabulary(str(tmp_path / "tokenizer.json")), "Ａ，") == "Ａ，"
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(" ", "▁"), tokenizers.normalizers.Prepend("▁")]
    )
    tokenizer.save(str(tmp_path / "nfkc.json"))
    assert normalization.normalized(T5TokenizerVocabulary(str(tmp_path / "nfkc.json")), "Ａ， b") == "A, b"
