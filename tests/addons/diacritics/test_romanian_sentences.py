"""The grammar whose ambiguity is known: its promises, and a model that comes as near to its ceiling as can be."""

import collections
import json
import math

import pytest

from limba.addons.diacritics import diacritics_table, diacritics_tasks, marks, romanian_sentences
from limba.reports import writers
from tasks.pretraining import blank_sentences
from tests import line
from tests.convert import vocabularies


def test_a_plain_sentence_has_one_distribution_and_forms_are_drawn_by_it():
    grammar = romanian_sentences.Grammar("test")
    plain = marks.rules_of("ro").without_marks
    of_plain = {}
    drawn = collections.defaultdict(collections.Counter)
    for _ in range(6000):
        words = grammar.sentence()
        known = of_plain.setdefault(plain(romanian_sentences.best(words)), words)
        assert known == words  # else the likeliest forms of one would be those of the other
        assert {plain(form) for word in words if not isinstance(word, str) for form in word} <= {
            plain(next(iter(word))) for word in words if not isinstance(word, str)
        }
        for word, form in zip(words, grammar.draw(words)[:-1].split(), strict=True):
            if not isinstance(word, str):
                drawn[tuple(sorted(word.items()))][form] += 1
    assert len(drawn) > 30
    for shares, counts in drawn.items():
        assert math.isclose(sum(dict(shares).values()), 1)
        for form, share in shares:
            # Five standard deviations.
            assert abs(counts[form] - share * counts.total()) <= 5 * math.sqrt(counts.total() * share * (1 - share)), (
                form
            )


def test_the_corpus_is_split_by_sentence_and_knows_its_ceiling(tmp_path, capsys):
    facts = romanian_sentences.write_corpus(tmp_path, {"train": 200, "validation": 40})
    assert romanian_sentences.write_corpus(tmp_path) == facts
    assert (facts["train"], facts["validation"], facts["sentences"]) == (200, 40, 140)
    plain = marks.rules_of("ro").without_marks
    documents = {
        split: [
            json.loads(x)
            for file in sorted(tmp_path.glob(f"{split}-*"))
            for x in file.read_text("utf-8").split("\n")
            if x
        ]
        for split in ("train", "plain", "validation")
    }
    assert {split: len(x) for split, x in documents.items()} == {"train": 200, "plain": 200, "validation": 40}
    assert sorted(plain(x["text"]) for x in documents["train"]) == sorted(x["text"] for x in documents["plain"])
    seen = {plain(s) for x in documents["train"] for s in blank_sentences.sentences(x["text"])}
    held_out = {plain(s) for x in documents["validation"] for s in blank_sentences.sentences(x["text"])}
    assert not seen & held_out and len(held_out) > 130
    bounds = romanian_sentences.ceilings(tmp_path)
    # What was drawn is near to what could be: a standard deviation is 0.35.
    assert bounds["best"]["word_accuracy"] == pytest.approx(facts["expected_word_accuracy"], abs=1.5)
    assert 96 < bounds["best"]["word_accuracy"] < 100 and bounds["copy"]["word_accuracy"] < 50
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(SystemExit, match=r"error: .*metrics.jsonl' has no predictions of the task 'diacritics_demo'"):
        diacritics_table.main([f"--corpus={tmp_path}", f"--run={run}"])
    metrics = {f"eval/{name}": value for name, value in bounds["copy"].items()}
    line = {"step": 7, "dataset": "inference_eval/diacritics_demo", **metrics}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    diacritics_table.main([f"--corpus={tmp_path}", f"--run={run}"])
    rows = {x.split()[0]: x.split()[1:] for x in capsys.readouterr().out.splitlines()}
    assert rows["step"][0] == "7;" and rows["marked_word_accuracy"][1] == "0.00"
    typed, ceiling = bounds["copy"]["diacritic_error_rate"], bounds["best"]["diacritic_error_rate"]
    assert float(rows["diacritic_error_rate"][3]) == pytest.approx(100 * (100 - typed) / (100 - ceiling), abs=0.01)


_FORMS = {  # verb: what it is said of, and the form that is likelier there, four times out of five
    "vede": (("fata", "fața"), ("casa", "casă")),
    "spală": (("fața", "fata"), ("pături", "paturi")),
    "cere": (("casă", "casa"), ("para", "pară")),
}


def _tiny_sentences():
    """All sentences of a tiny grammar, five times each: their texts, and the likeliest for each of them."""
    texts, best = [], []
    for verb, pairs in _FORMS.items():
        for pair in pairs:
            for who in ("Țăranul", "Bunica", "Șoferul", "Împăratul"):
                for place in ("", " în pădure", " la școală", " în față", " pe masă"):
                    for form in (pair[0],) * 4 + (pair[1],):
                        texts.append(f"{who} {verb} {form}{place}.")
                        best.append(f"{who} {verb} {pair[0]}{place}.")
    return texts, best


_GIN = """
from __gin__ import dynamic_registration
import seqio
from limba.checkpoints import checkpointing as checkpoints
from limba.data import contract as data
from limba.network import t5 as network
from limba.optimizers import schedules
from limba import train as train_script
import tiny_tasks

include 'gin/recipes/diacritics_small.gin'

MIXTURE_OR_TASK_NAME = 'tiny_diacritics'
TASK_FEATURE_LENGTHS = {'inputs': 24, 'targets': 24}
VOCAB_SIZE = 256
INITIAL_CHECKPOINT_PATH = ()
TRAIN_STEPS_RELATIVE = 300
EVAL_PERIOD = 300
PACK = False
train_script.train.run_eval_before_training = False
train_script.train.train_eval_dataset_cfg = None
checkpoints.CheckpointConfig.save = None
train/data.DatasetConfig.num_readers = 1
network.T5Config:
  emb_dim = 64
  head_dim = 16
  mlp_dim = 128
  num_encoder_layers = 1
  num_decoder_layers = 1
schedules.create_learning_rate_scheduler.warmup_steps = 50
"""

_TASKS = """
from limba.addons.diacritics import diacritics_tasks

diacritics_tasks.register_diacritics_task(**{})
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_tiny_model_reaches_what_the_ambiguity_allows(tmp_path, write_jsonl, forks):
    texts, best = _tiny_sentences()
    plain = marks.rules_of("ro").without_marks
    held_out = {s for i, s in enumerate(sorted({plain(text) for text in texts})) if i % 6 == 0}
    rows = {True: [], False: []}
    for text, likeliest in zip(texts, best, strict=True):
        rows[plain(text) in held_out].append((text, likeliest))
    for name, chosen in (("train", rows[False]), ("validation", rows[True])):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text} for text, _ in chosen])
    vocabularies.train(
        tmp_path / "spiece.model",
        [*texts, *map(plain, texts)],
        vocab_size=110,
        character_coverage=1.0,
        hard_vocab_limit=False,
        user_defined_symbols=list("ĂÂâA"),
    )
    arguments = {
        "name": "tiny_diacritics",
        "data_files": {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation")},
        "vocabulary": str(tmp_path / "spiece.model"),
        "language": "ro",
    }
    task = diacritics_tasks.register_diacritics_task(**arguments)
    (tmp_path / "tiny_tasks.py").write_text(_TASKS.format(arguments))
    (tmp_path / "tiny.gin").write_text(_GIN)
    bindings = {"MODEL_DIR": tmp_path / "run", "VOCABULARY_FILE": tmp_path / "spiece.model"}
    arguments = [f"--gin.{name}='{value}'" for name, value in bindings.items()]
    # On one device, and compiled as for a user: 300 steps cost more than what XLA saves by optimizing nothing.
    environment = line.environment(tmp_path, XLA_FLAGS="", PYTHONPATH=str(tmp_path))
    done = forks.run(["limba.train", f"--gin_file={tmp_path}/tiny.gin", *arguments], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (metric,) = task.metric_fns
    ceiling = metric([text for text, _ in rows[True]], [likeliest for _, likeliest in rows[True]])
    assert ceiling["exact_sentences"] == 80.0
    lines = [x for x in writers.read_metrics(tmp_path / "run") if x["dataset"] == "inference_eval/tiny_diacritics"]
    got = {name: lines[-1][f"eval/{name}"] for name in ceiling}
    assert got["word_accuracy"] >= 0.95 * ceiling["word_accuracy"], got
    assert got["marked_word_accuracy"] >= 0.95 * ceiling["marked_word_accuracy"], got
    assert got["exact_sentences"] >= 0.95 * ceiling["exact_sentences"], got
