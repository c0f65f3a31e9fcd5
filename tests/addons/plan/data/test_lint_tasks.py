import dataclasses
from typing import Any, ClassVar

from limba.addons import diacritics
from limba.addons.plan.data import lint_tasks
from limba.data import contract
from tasks import objectives, supervised
from tasks.pipeline import streams
from tasks.pretraining import pretraining_tasks
from tasks.registry import Feature, MixtureRegistry, TaskRegistry, steps
from tasks.registry.rows import TOKENS, Tokens
from tasks.sources import corpora, splits
from tasks.vocabularies import ByteVocabulary, sentencepiece_training
from tests.convert import vocabularies

TRAIN, EVAL = lint_tasks.Purpose("train"), lint_tasks.Purpose("train_eval")
BYTES = ByteVocabulary(extra_ids=100)


def _check(name, lengths, use=TRAIN, split="train", **options):
    config = contract.DatasetConfig(name, lengths, split, 8, **options)
    return {finding.name: finding for finding in lint_tasks.check(config, "EncDecFeatureConverter", use)}


def test_a_task_of_ours_is_silent(task, lengths):
    # The fixture masks spans of 3 bytes.
    assert _check(task.name, lengths).keys() == {"byte_span"}
    assert not _check(task.name, lengths, EVAL, "validation")


def test_target_lengths(data_files):
    pretraining_tasks.register_pretraining_task(
        "twenty", data_files=data_files, vocabulary=BYTES, mean_noise_span_length=20.0
    )
    assert not _check("twenty", {"inputs": 64, "targets": 13})
    found = _check("twenty", {"inputs": 64, "targets": 26})["target_length"]
    assert found.severity == "warning" and found.cost == "50% of the decoder's work is on padding"
    use = lint_tasks.Purpose("train", flops=lambda inputs, targets: inputs + targets)
    assert _check("twenty", {"inputs": 64, "targets": 90}, use)["target_length"].cost.startswith("100% more FLOPs")
    short = _check("twenty", {"inputs": 64, "targets": 10})
    assert short.keys() == {"target_length"} and short["target_length"].severity == "error"
    assert "up to 3 of them" in short["target_length"].cost
    assert "has no length for ['targets']" in _check("twenty", {"inputs": 64})["target_length"].what


def test_sentinels(data_files):
    options = {"data_files": data_files, "mean_noise_span_length": 20.0}
    none = ByteVocabulary(extra_ids=0)
    pretraining_tasks.register_pretraining_task("none", vocabulary=none, **options)
    found = _check("none", {"inputs": 64, "targets": 13})["sentinel_collision"]
    assert "its last 1 pieces, 258" in found.what
    pretraining_tasks.register_pretraining_task("few", vocabulary=ByteVocabulary(extra_ids=2), **options)
    found = _check("few", objectives.span_corruption_lengths(1024, mean_noise_span_length=20.0))
    assert found.keys() == {"too_many_sentinels"}
    assert "needs 9 sentinels, and the vocabulary has 2" in found["too_many_sentinels"].what
    use = lint_tasks.Purpose("train", embedding_rows=256)
    found = _check("few", {"inputs": 64, "targets": 13}, use)["embedding_rows"]
    assert "makes ids up to 260, and the embedding has 256 rows" in found.what


@dataclasses.dataclass(frozen=True)
class Encode(steps.Step):
    """A user's own step: texts with these ids behind them."""

    ends: tuple[int, ...] = (1,)
    output_features: Any = None
    sequence_length: Any = None
    rows_per_group: ClassVar[int] = 8

    def columns(self):
        return {"inputs": TOKENS, "targets": TOKENS}

    def rows_function(self):
        def encode(rows, seed):
            tokens = Tokens.of([[*BYTES.encode(text.decode())[:9], *self.ends] for text in rows.columns["text"]])
            return rows.make({"inputs": tokens, "targets": tokens})

        return encode


def test_ends_of_examples_of_a_step(data_files):
    lengths = {"inputs": 16, "targets": 16}
    found = {}
    for name, ends in (("right", (1,)), ("without", ()), ("doubled", (1, 1))):
        features = dict.fromkeys(lengths, Feature(BYTES))
        TaskRegistry.add(name, corpora.HuggingFaceSource(data_files), features, [Encode(ends)])
        found[name] = _check(name, lengths)
    assert not found["right"]
    assert found["without"].keys() == {"missing_eos"} and found["without"]["missing_eos"].severity == "error"
    assert "32 of the first 32 examples" in found["without"]["missing_eos"].what
    assert found["doubled"].keys() == {"double_eos"} and found["doubled"]["double_eos"].severity == "warning"


def test_what_cannot_be_read_is_said(tmp_path, write_jsonl):
    class Broken(Encode):
        def rows_function(self):
            def fail(rows, seed):
                raise ConnectionError("no network")

            return fail

    files = {"train": write_jsonl(tmp_path / "x.jsonl", [{"text": "a"}])}
    TaskRegistry.add(
        "broken", corpora.HuggingFaceSource(files), dict.fromkeys(("inputs", "targets"), Feature(BYTES)), [Broken()]
    )
    found = _check("broken", {"inputs": 64, "targets": 13})
    assert found.keys() == {"source"}
    assert found["source"].what == "Split 'train' of task 'broken' cannot be read: no network (ConnectionError)."
    diacritics.register_diacritics_task(
        "gone", data_files={"train": str(tmp_path / "gone.jsonl")}, vocabulary=BYTES, language=None
    )
    found = _check("gone", {"inputs": 64, "targets": 64})
    assert found.keys() == {"source"} and "There is no file" in found["source"].what


def test_names_that_are_not_there(task, lengths):
    assert "The nearest are 'test_task'" in _check("test_tusk", lengths)["task"].what
    assert "it has 'train', 'validation'" in _check(task.name, lengths, split="test")["split"].what
    assert "is None" in _check(task.name, None)["target_length"].what


def test_other_objectives_of_ours_are_silent(data_files):
    vocabulary = ByteVocabulary(extra_ids=200)
    for objective in (objectives.PrefixLM(), objectives.FullLM(), objectives.BertStyle(), objectives.Deshuffling()):
        name = type(objective).__name__
        pretraining_tasks.register_pretraining_task(
            name, data_files=data_files, vocabulary=vocabulary, objective=objective
        )
        config = contract.DatasetConfig(name, objectives.lengths(objective, 64), "train", 8)
        converter = "EncDecFeatureConverter" if "inputs" in config.task_feature_lengths else "LMFeatureConverter"
        assert not list(lint_tasks.check(config, converter, TRAIN)), name
    pretraining_tasks.register_ul2_mixture("ul2", data_files=data_files, vocabulary=vocabulary)
    assert _check("ul2", objectives.ul2_lengths(512)).keys() <= {"byte_span"}


def test_an_evaluation_on_files_of_the_training(tmp_path, write_jsonl):
    rows = [{"text": f"{i} " * 40} for i in range(20)]
    for name in ("train-0", "validation-0"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    everything, validation = (str(tmp_path / pattern) for pattern in ("*.jsonl", "validation-*.jsonl"))
    files = {"train": everything, "validation": validation}
    options = {"vocabulary": BYTES, "mean_noise_span_length": 20.0}
    pretraining_tasks.register_pretraining_task("seen", data_files=files, **options)
    found = _check("seen", {"inputs": 64, "targets": 13}, EVAL, "validation")
    assert found.keys() == {"seen_in_training"} and "validation-0.jsonl" in found["seen_in_training"].what
    # A share of the same file is not a file of both.
    source = corpora.HuggingFaceSource({"train": everything}, splits=splits.held_out(0.5))
    pretraining_tasks.register_pretraining_task("unseen", data_files=source, **options)
    assert not _check("unseen", {"inputs": 64, "targets": 13}, EVAL, "validation")


def test_a_template_in_characters_that_the_vocabulary_lacks(tmp_path, write_jsonl):
    words = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "lnrst"]
    texts = [" ".join(words[(7 * i + j * j) % 200] for j in range(30)) for i in range(300)]
    file = write_jsonl(tmp_path / "train-0.jsonl", [{"text": text, "mood": "bal"} for text in texts])
    corpus = corpora.HuggingFaceSource({"train": str(file)})
    model = sentencepiece_training.train_vocabulary(corpus, tmp_path / "spiece.model", vocab_size=256)
    for name, template in (("latin", "dal {text}"), ("greek", "Ψυχή {text}")):
        supervised.register_supervised_task(
            name,
            supervised.SupervisedDataset(template, "mood", labels=("bal", "kal")),
            vocabulary=str(model),
            data_files={"train": str(file)},
        )
    lengths = {"inputs": 256, "targets": 8}
    assert "unknown_pieces" not in _check("latin", lengths)
    found = _check("greek", lengths)["unknown_pieces"]
    assert found.severity == "warning" and "32 of the first 32 examples of task 'greek'" in found.what
    assert "⁇" in found.what.partition("inputs: ")[2]


def test_thousands_of_epochs_of_a_small_corpus(tmp_path, write_jsonl):
    """Each task of a mixture by its share; where the steps are not known, nothing is said."""
    for name, count in (("few", 4), ("more", 400)):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"a line of text, number {i:5}"} for i in range(count)])
        pretraining_tasks.register_pretraining_task(
            f"lint_{name}", data_files={"train": str(tmp_path / f"{name}.jsonl")}, vocabulary=BYTES
        )
    MixtureRegistry.add("lint_both", [("lint_few", 1), ("lint_more", 1)])
    lengths = objectives.span_corruption_lengths(32)

    def check(name, steps):
        config = contract.DatasetConfig(name, lengths, "train", 8)
        found = lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("train", steps))
        return [finding for finding in found if finding.name == "many_epochs"]

    (finding,) = check("lint_few", 10_000)
    assert finding.severity == "warning" and "the training reads 80,000" in finding.what
    assert not check("lint_few", None) and not check("lint_few", 100) and not check("lint_more", 10_000)
    (finding,) = check("lint_both", 10_000)
    assert "task 'lint_few'" in finding.what and "the training reads 40,000" in finding.what


def test_examples_are_counted_until_they_suffice(tmp_path, write_jsonl, monkeypatch):
    """A shuffle buffer would be filled first."""
    file = write_jsonl(tmp_path / "text.jsonl", [{"text": f"a line of text, number {i:5}"} for i in range(4000)])
    pretraining_tasks.register_pretraining_task("counted", data_files={"train": str(file)}, vocabulary=BYTES)
    groups = []
    windows = streams.windows
    noted = lambda *others: (groups.append(1) or block for block in windows(*others))  # noqa: E731
    monkeypatch.setattr(streams, "windows", noted)
    monkeypatch.setattr(lint_tasks, "_check_examples", lambda *_: ())
    assert "many_epochs" not in _check(
        "counted", objectives.span_corruption_lengths(32), lint_tasks.Purpose("train", steps=100)
    )
    assert len(groups) == 1


UKRAINIAN = "мама мила раму і тато читав газету про погоду в столиці та гарні цілющі ягоди " * 4


def _with_vocabulary_of(tmp_path, write_jsonl, known, rows):
    """The findings of a task with these rows, whose vocabulary is built of `known`."""
    vocabularies.train(tmp_path / "spiece.model", known, vocab_size=100, hard_vocab_limit=False, character_coverage=1.0)
    file = str(write_jsonl(tmp_path / "text.jsonl", rows))
    pretraining_tasks.register_pretraining_task(
        "of_letters", data_files={"train": file, "validation": file}, vocabulary=str(tmp_path / "spiece.model")
    )
    return _check("of_letters", objectives.span_corruption_lengths(64))


def test_letters_that_the_vocabulary_lost(tmp_path, write_jsonl):
    rows = [{"text": UKRAINIAN}] * 300 + [{"text": "Юрко і Їжак, Ґанок, м’ята"}] * 2 + [{"text": UKRAINIAN}] * 50
    found = _with_vocabulary_of(tmp_path, write_jsonl, [f"{UKRAINIAN} Р ,"] * 300, rows)
    assert found.keys() == {"unknown_letters"}
    what = found["unknown_letters"].what
    assert what.startswith(
        "In the first 352 texts of task 'of_letters', its vocabulary does not know 6 characters, 16 of "
    )
    assert "'к' 6 times, first in " in what and "text.jsonl, row 300: 'Юрко і Їжак" in what and "'Ю' 2 times" in what
    assert found["unknown_letters"].severity == "warning" and "--byte_fallback" in found["unknown_letters"].remedy


def test_letters_that_are_known_or_foreign(tmp_path, write_jsonl):
    """Emoji, foreign words and a letter that occurs once are in most corpora."""
    rows = [{"text": UKRAINIAN}] * 300 + [{"text": "日本 🦊 ☃ ελλάς"}] * 4 + [{"text": "Юрко"}]
    assert not _with_vocabulary_of(tmp_path, write_jsonl, [UKRAINIAN] * 300, rows)
