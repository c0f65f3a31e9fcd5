import importlib
import sys

import numpy as np
import pytest

from limba.data import contract
from tasks import objectives
from tasks.pipeline import predictions, task_batches
from tasks.pretraining import pretraining_tasks
from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(extra_ids=100)


def test_registering_again(data_files):
    arguments = {"data_files": data_files, "vocabulary": "not/there/yet.model"}
    task = pretraining_tasks.register_pretraining_task("test_again", **arguments)
    assert pretraining_tasks.register_pretraining_task("test_again", **arguments) is task
    with pytest.raises(ValueError, match="'test_again' is registered already, with other arguments"):
        pretraining_tasks.register_pretraining_task("test_again", **arguments, noise_density=0.3)
    assert set(task.output_features) == {"inputs", "targets"}
    assert all(feature.add_eos for feature in task.output_features.values())
    assert task.output_features["inputs"].vocabulary.extra_ids == 100


def test_missing_vocabulary_is_said_when_used(data_files, lengths):
    task = pretraining_tasks.register_pretraining_task("test_lazy", data_files=data_files, vocabulary="not/there.model")
    command = r"limba vocab build --data_files … --out not/there\.model`"
    with pytest.raises(FileNotFoundError, match=rf"no SentencePiece model 'not/there\.model'.*{command}"):
        task_batches.get_train_batches(contract.DatasetConfig(task.name, lengths, "train", 8))
    with pytest.raises(FileNotFoundError, match=r"no SentencePiece model 'not/there\.model'.*limba vocab build"):
        _all_examples(task, lengths)


def test_quickstart_registers_without_files(monkeypatch, tmp_path, lengths):
    monkeypatch.setenv("LIMBA_QUICKSTART_DIR", str(tmp_path))
    # Other tests may have imported it with the directory that this checkout has.
    monkeypatch.delitem(sys.modules, "limba.addons.examples.quickstart", raising=False)
    for name in {"quickstart_span_corruption", "quickstart_many_blanks"} & set(TaskRegistry.names()):
        TaskRegistry.remove(name)
    quickstart = importlib.import_module("limba.addons.examples.quickstart")

    task = TaskRegistry.get("quickstart_span_corruption")
    assert sorted(task.splits) == ["train", "validation"]
    with pytest.raises(FileNotFoundError, match=r"quickstart\.sh"):
        task.source.check("train")
    assert quickstart.VOCABULARY_FILE.name == "spiece.model"


# ----------------------------------------------------- objectives ----------------------------------------------------


def _all_examples(task, lengths):
    return list(predictions.examples(task, contract.DatasetConfig(task.name, lengths, "validation", 1, seed=1)))


def test_prefix_lm_of_a_corpus_gives_back_its_text(data_files, make_document):
    task = pretraining_tasks.register_pretraining_task(
        "test_prefix", data_files=data_files, vocabulary=BYTES, objective=objectives.PrefixLM(), mode="[S2S]"
    )
    text = []
    lengths = objectives.lengths(objectives.PrefixLM(), 64)
    for example in _all_examples(task, lengths):
        inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
        assert BYTES.decode(inputs[:5]) == "[S2S]" and inputs[-1] == targets[-1] == 1
        assert len(inputs) <= 64 and len(targets) <= lengths["targets"]
        text += inputs[5:-1] + targets[:-1]
    assert BYTES.decode(text) == "".join(make_document(99, row)["text"] for row in range(30))


def test_full_lm_trains_a_decoder_and_ends_documents(data_files, make_document):
    task = pretraining_tasks.register_pretraining_task(
        "test_lm", data_files=data_files, vocabulary=BYTES, objective=objectives.FullLM()
    )
    lengths = objectives.lengths(objectives.FullLM(), 50)
    assert lengths == {"targets": 50}
    examples = _all_examples(task, lengths)
    tokens = np.concatenate([example["targets"] for example in examples]).tolist()
    assert all(set(example) == {"targets"} for example in examples)
    assert all(len(example["targets"]) == 50 for example in examples[:-1])
    expected = [token for row in range(30) for token in [*BYTES.encode(make_document(99, row)["text"]), 1]]
    assert tokens == expected[: len(tokens)] and len(tokens) >= len(expected) - 1
    config = contract.DatasetConfig("test_lm", lengths, "train", 4, seed=0)
    batch = next(task_batches.get_train_batches(config, "DecoderFeatureConverter"))
    assert batch["decoder_target_tokens"].shape == (4, 50) and "example_tasks" not in batch


def test_an_objective_and_arguments_of_another_are_refused(data_files):
    arguments = {"data_files": data_files, "vocabulary": BYTES}
    with pytest.raises(ValueError, match=r"objective PrefixLM.*noise_density 0\.3"):
        pretraining_tasks.register_pretraining_task(
            "test_both", **arguments, objective=objectives.PrefixLM(), noise_density=0.3
        )
    with pytest.raises(ValueError, match=r"mode '\[NLG\]'.*no inputs"):
        pretraining_tasks.register_pretraining_task(
            "test_mode", **arguments, objective=objectives.FullLM(), mode="[NLG]"
        )
    with pytest.raises(
        ValueError, match=r"'test_mode' has the mode '\[NLU\]', and rows of MaskedLM begin with \[CLS\]"
    ):
        pretraining_tasks.register_pretraining_task(
            "test_mode", **arguments, objective=objectives.MaskedLM(), mode="[NLU]"
        )
    assert not {"test_both", "test_mode"} & set(TaskRegistry.names())


# --------------------------------------------------------- UL2 -------------------------------------------------------


def _register_ul2(data_files, **options):
    source = corpora.HuggingFaceSource(data_files, chunk_documents=8)
    return pretraining_tasks.register_ul2_mixture("test_ul2", data_files=source, vocabulary=BYTES, **options)


def test_ul2_is_one_mixture_of_seven_denoisers_with_their_modes(data_files):
    mixture = _register_ul2(data_files, shuffle_buffer_size=8)
    assert [task.name for task in mixture.tasks] == sorted(f"test_ul2_{d.name}" for d in objectives.UL2_DENOISERS)
    lengths = objectives.ul2_lengths(128)
    config = contract.DatasetConfig("test_ul2", lengths, "train", 64, seed=0, num_readers=1)
    batches = task_batches.get_train_batches(config)
    modes = {f"test_ul2_{d.name}": d.mode for d in objectives.UL2_DENOISERS}
    names = [task.name for task in mixture.tasks]
    counts = np.zeros(7)
    for _ in range(5):
        batch = next(batches)
        assert (batch["example_tasks"].sum(axis=1) == 1).all()
        for inputs, task in zip(batch["encoder_input_tokens"], batch["example_tasks"].argmax(axis=1), strict=True):
            assert BYTES.decode(inputs[:5].tolist()) == modes[names[task]]
            counts[task] += 1
        # Nothing is cut: both features end with EOS.
        for name in ("encoder_input_tokens", "decoder_target_tokens"):
            assert ((batch[name] == 1).sum(axis=1) == 1).all()
    assert (np.abs(counts / counts.sum() - 1 / 7) < 0.06).all()
    assert batches.task_groups == {name: [number] for number, name in enumerate(names)}
    assert batches.epochs().keys() == set(names)


def test_ul2_needs_sentinels_for_half_of_the_tokens_in_spans_of_three(data_files):
    _register_ul2(data_files)
    config = contract.DatasetConfig("test_ul2", objectives.ul2_lengths(), "train", 8, seed=0)
    with pytest.raises(ValueError, match=r"needs 12\d sentinels, and the vocabulary has 100.*extra_ids=12\d"):
        task_batches.get_train_batches(config)


def test_ul2_rates_and_registering_again(data_files):
    rates = {denoiser.name: 1.0 for denoiser in objectives.UL2_DENOISERS} | {"s_prefix_lm": 3.0}
    source = corpora.HuggingFaceSource(data_files)
    arguments = {"data_files": source, "vocabulary": BYTES, "rates": rates}
    mixture = pretraining_tasks.register_ul2_mixture("test_rates", **arguments)
    assert mixture.get_rate(TaskRegistry.get("test_rates_s_prefix_lm")) / mixture.total_rate == 3 / 9
    assert pretraining_tasks.register_ul2_mixture("test_rates", **arguments) is mixture
    with pytest.raises(ValueError, match="'test_rates' is registered already"):
        pretraining_tasks.register_ul2_mixture("test_rates", data_files=source, vocabulary=BYTES)
    with pytest.raises(ValueError, match=r"rates for \['r_span3'\]"):
        pretraining_tasks.register_ul2_mixture("test_few", data_files=source, vocabulary=BYTES, rates={"r_span3": 1.0})
