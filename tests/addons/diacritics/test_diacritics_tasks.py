"""The task that restores diacritics: its examples, what is cut and counted, and where a stream goes on."""

import logging

import numpy as np
import pytest

from limba.addons.diacritics import diacritics_tasks, marks
from limba.addons.plan.data import lint_tasks
from limba.data import contract
from tasks.pipeline import predictions, task_batches
from tasks.vocabularies import ByteVocabulary
from tests.convert import vocabularies

DOCUMENTS = ["Şi ţara e mare. Fata vede „fața”!", "", "Fără sfârșit\nVine 10 lei…", "Un cuvânt lung: nemaipomenit."]


def _register(name, files, **options):
    options = {"vocabulary": ByteVocabulary(extra_ids=100), "language": "ro"} | options
    return diacritics_tasks.register_diacritics_task(name, data_files={"train": files, "validation": files}, **options)


@pytest.fixture
def files(tmp_path, write_jsonl):
    return str(write_jsonl(tmp_path / "ro.jsonl", [{"text": text} for text in DOCUMENTS]))


def _examples(task, inputs, targets):
    lengths = {"inputs": inputs, "targets": targets}
    return list(predictions.examples(task, contract.DatasetConfig(task.name, lengths, "train", 1, seed=0)))


def test_examples_are_sentences_without_their_marks_and_end_once(files):
    task = _register("restored", files)
    examples = _examples(task, 64, 64)
    texts = [(x["inputs_pretokenized"].decode(), x["targets_pretokenized"].decode()) for x in examples]
    assert texts == [
        ("Si tara e mare.", "Și țara e mare."),
        ("Fata vede „fata”!", "Fata vede „fața”!"),
        ("Fara sfarsit", "Fără sfârșit"),
        ("Vine 10 lei…", "Vine 10 lei…"),
        ("Un cuvant lung: nemaipomenit.", "Un cuvânt lung: nemaipomenit."),
    ]
    for example, pair in zip(examples, texts, strict=True):
        for name, text in zip(("inputs", "targets"), pair, strict=True):
            assert example[name].tolist() == [byte + 3 for byte in text.encode()] + [1]


def test_long_sentences_are_cut_between_words_and_counted(files, caplog):
    with caplog.at_level(logging.WARNING):
        task = _register("cut", files)
        examples = _examples(task, 12, 13)
    texts = [x["targets_pretokenized"].decode() for x in examples]
    # 12 bytes with marks, 11 without, and EOS: "Fără" has 6, "nemaipomenit." 13, which no row holds.
    parts = "Și țara|e mare.|Fata|vede|„fața”!|Fără|sfârșit|Vine|10 lei…|Un cuvânt|lung:"
    assert texts == parts.split("|")
    assert all(len(x["inputs"]) <= 12 and len(x["targets"]) <= 13 for x in examples)
    count = diacritics_tasks.counts["cut"]
    assert (count["sentences"], count["cut"], count["words_left_out"], count["documents"]) == (5, 5, 1, 4)
    said = [r.getMessage() for r in caplog.records if "Task cut" in r.getMessage()]
    assert said == [
        "Task cut: of 5 sentences so far 5 were longer than {'inputs': 12, 'targets': 13} and were cut between words; "
        "1 single words were longer and were left out. Of 4 documents 0 were left out because too few words have marks."
    ]


def test_lengths_that_are_not_given_are_max_tokens(files):
    task = _register("evaluated", files, max_tokens=20)
    examples = list(predictions.examples(task, contract.DatasetConfig(task.name, None, "validation", 1, seed=0)))
    assert max(len(x["targets"]) for x in examples) <= 20 and len(examples) == 7


def test_documents_without_marks_are_left_out_where_asked(tmp_path, write_jsonl):
    texts = ["Ei nu scriu asa cum trebuie.", "Ei știu să scrie. Da.", "Știu."]
    files = str(write_jsonl(tmp_path / "web.jsonl", [{"text": text} for text in texts]))
    examples = _examples(_register("web", files, min_marked_words=0.3), 64, 64)
    assert [x["targets_pretokenized"].decode() for x in examples] == ["Ei știu să scrie.", "Da.", "Știu."]
    assert diacritics_tasks.counts["web"]["documents_left_out"] == 1


def test_text_without_any_example_is_refused(tmp_path, write_jsonl):
    file = str(write_jsonl(tmp_path / "plain.jsonl", [{"text": "Si tara. Plain text."}, {"text": "nemaipomenit"}] * 20))
    for name, options, words in (
        ("plain", {"min_marked_words": 0.05}, "Of 40 documents 40 were left out because fewer than 5% of their words"),
        ("narrow", {}, "and 100 words were longer than {'inputs': 2, 'targets': 2}"),
    ):
        _register(name, file, **options)
        # A training would read on for ever, where not even Ctrl-C ends it.
        with pytest.raises(ValueError, match=words):
            task_batches.get_train_batches(contract.DatasetConfig(name, {"inputs": 2, "targets": 2}, "train", 8))


def test_a_vocabulary_without_the_letters_is_warned_of_with_the_letters(tmp_path, files, caplog):
    text = ["Fata mea vede tara. SI TATA E AICI."] * 50 + ["țară și"] * 50
    model = vocabularies.train(tmp_path / "plain.model", text, vocab_size=40, hard_vocab_limit=False)
    task = _register("lacking", files, vocabulary=str(model))
    with caplog.at_level(logging.WARNING):
        assert len(_examples(task, 64, 64)) == 5
        _examples(task, 64, 64)
    said = [r.getMessage() for r in caplog.records if "lacks" in r.getMessage()]
    assert len(said) == 1 and "lacks s Â â Î î Ă Ș Ț of the language 'ro'" in said[0]
    config = contract.DatasetConfig("lacking", {"inputs": 64, "targets": 64}, "train", 4, seed=0)
    found = list(lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("train")))
    assert [(x.name, x.severity) for x in found if x.name != "unknown_pieces"] == [("missing_letters", "warning")]
    assert "s Â â Î î Ă Ș Ț" in found[0].what and "byte_fallback" in found[0].remedy
    # Nothing is missing from bytes, nor where no language says what its letters are.
    for name, options in (("bytes", {}), ("any", {"vocabulary": str(model), "language": None})):
        _register(name, files, **options)
        config = contract.DatasetConfig(name, {"inputs": 64, "targets": 64}, "train", 4, seed=0)
        found = lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("train"))
        assert not [x for x in found if x.name != "unknown_pieces"]


@pytest.mark.slow
def test_a_stream_goes_on_where_it_stopped(tmp_path, write_jsonl):
    rng = np.random.default_rng(0)
    words = ["și", "fata", "fața", "știe", "mare.", "câine", "în", "casă."]
    rows = [{"text": " ".join(rng.choice(words, rng.integers(0, 30)))} for _ in range(300)]
    for shard in range(3):
        write_jsonl(tmp_path / f"train-{shard}.jsonl", rows[shard::3])
    _register("streamed", str(tmp_path / "train-*.jsonl"), shuffle_buffer_size=64)
    config = contract.DatasetConfig(
        "streamed", {"inputs": 24, "targets": 28}, "train", 8, seed=3, num_readers=1, pack=True
    )
    first, second = (task_batches.get_train_batches(config) for _ in range(2))
    for _ in range(5):
        next(first)
    second.restore_state(first.save_state())
    for _ in range(7):
        batch, again = next(first), next(second)
        assert batch.keys() == again.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], again[name])


def test_registering_again_and_bad_input(files):
    task = _register("twice", files)
    assert _register("twice", files, vocabulary=task.output_features["inputs"].vocabulary) is task
    with pytest.raises(ValueError, match="'twice' is registered already"):
        _register("twice", files, language="pl")
    with pytest.raises(ValueError, match="no rules of the language 'rumanian'"):
        _register("bad", files, language="rumanian")
    with pytest.raises(ValueError, match="max_tokens 1; a token and EOS need 2"):
        _register("bad", files, max_tokens=1)
    with pytest.raises(ValueError, match="min_marked_words 5; it is a share"):
        _register("bad", files, min_marked_words=5)
    with pytest.raises(ValueError, match="a token and EOS need 2"):
        _examples(_register("short", files), 1, 8)
    own = _register("own_rules", files, language=marks.Language("ș"))
    assert _examples(own, 64, 64)[2]["inputs_pretokenized"] == b"Fara sfarsit"
