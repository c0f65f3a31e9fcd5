"""`first_rows.json`: what the model got first, as text, with the share of unknown tokens."""

import json
from types import SimpleNamespace

import numpy as np

from limba.training import first_rows
from tasks.pipeline import converters
from tasks.vocabularies import ByteVocabulary, LabelVocabulary, NumberVocabulary

BYTES = ByteVocabulary(100)
FIRST_SENTINEL = BYTES.vocab_size - 1


class Words:
    """A vocabulary with an unknown token, 2, and padding of its own, 3."""

    eos_id, unk_id, pad_id = 1, 2, 3

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


def _row(*parts, length=24):
    ids = [x for part in parts for x in (BYTES.encode(part) if isinstance(part, str) else [part])]
    return ids + [0] * (length - len(ids))


def _batch():
    inputs = [_row("one ", FIRST_SENTINEL, " two", 1), _row("a", 1, "b", 1), _row("c", 1), _row("never shown", 1)]
    targets = [_row(FIRST_SENTINEL, "and", 1), _row("x", 1, "y", 1), _row(), _row("z", 1)]
    return {"encoder_input_tokens": np.array(inputs), "decoder_target_tokens": np.array(targets)}


def test_rows_are_texts_with_blanks_and_are_written_once(tmp_path):
    model = SimpleNamespace(input_vocabulary=BYTES, output_vocabulary=BYTES)
    first_rows.write(tmp_path, model, _batch(), 1)
    written = first_rows.read(tmp_path)
    assert written == {
        "step": 1,
        "rows": [
            {"inputs": "one  ___  two </s>", "targets": "___ and </s>"},
            {"inputs": "a </s> b </s>", "targets": "x </s> y </s>"},
            {"inputs": "c </s>", "targets": ""},
        ],
        "unknown": {"inputs": 0.0, "targets": 0.0},
    }
    first_rows.write(tmp_path, model, {"decoder_target_tokens": np.ones((1, 4), int)}, 7)
    assert first_rows.read(tmp_path) == written


def test_unknown_tokens_are_counted_without_padding(tmp_path):
    inputs = np.array([[5, 2, 6, 1, 3, 3], [2, 2, 7, 8, 9, 1]])
    model = SimpleNamespace(output_vocabulary=Words())
    first_rows.write(tmp_path, model, {"decoder_target_tokens": inputs}, 1)
    assert first_rows.read(tmp_path) == {
        "step": 1,
        "rows": [{"targets": "w5 w2 w6 </s>"}, {"targets": "w2 w2 w7 w8 w9 </s>"}],
        "unknown": {"targets": 3 / 10},
    }


def test_labels_and_numbers_of_a_classifier(tmp_path):
    features = {"inputs": np.array([[5, 1], [5, 1], [5, 1]]), "targets": np.array([[1], [2], [0]])}
    model = SimpleNamespace(output_vocabulary=LabelVocabulary(["glad", "calm"]))
    first_rows.write(tmp_path, model, _without_inputs(converters.encoder_classification(features, False)), 1)
    written = first_rows.read(tmp_path)
    assert written["rows"] == [{"targets": "glad"}, {"targets": "calm"}, {"targets": ""}]
    assert written["unknown"] == {"targets": None}

    (tmp_path / first_rows.FILE_NAME).unlink()
    numbers = NumberVocabulary()
    features["targets"] = np.array([numbers.encode("0.25"), numbers.encode("0"), numbers.encode("none")])
    model = SimpleNamespace(output_vocabulary=numbers)
    first_rows.write(tmp_path, model, _without_inputs(converters.encoder_regression(features, False)), 1)
    assert [row["targets"] for row in first_rows.read(tmp_path)["rows"]] == ["0.25", "0", ""]


def _without_inputs(batch):
    return {name: array for name, array in batch.items() if name != "encoder_input_tokens"}


def test_long_rows_are_cut(tmp_path):
    model = SimpleNamespace(output_vocabulary=BYTES)
    first_rows.write(tmp_path, model, {"decoder_target_tokens": np.full((1, 1000), BYTES.encode("a")[0])}, 1)
    (row,) = first_rows.read(tmp_path)["rows"]
    assert row["targets"] == "a" * 400 + " …"


def test_what_cannot_be_decoded_or_read_is_left_out(tmp_path):
    class NoText:
        eos_id = 1

        def decode(self, ids):
            raise NotImplementedError

    model = SimpleNamespace(output_vocabulary=NoText())
    first_rows.write(tmp_path, model, {"decoder_target_tokens": np.array([[5, 1]])}, 1)
    assert not [*tmp_path.iterdir()] and first_rows.read(tmp_path) == {}
    (tmp_path / first_rows.FILE_NAME).write_text(json.dumps([1]))
    assert first_rows.read(tmp_path) == {}
