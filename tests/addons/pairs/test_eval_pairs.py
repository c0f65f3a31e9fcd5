"""`limba eval RUN --pairs`: the scores of each kind of model are those of NumPy, and bad input is named."""

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import eval, models
from limba.addons import pairs as minimal_pairs
from limba.addons.pairs import eval_pairs, model_forms, text_scorer
from limba.checkpoints import checkpointing, train_state
from limba.data import contract
from limba.inference import evaluation, task_metrics
from limba.network import decoder_only, t5
from limba.network.encoders import classifier, encoder
from limba.optimizers import adafactor
from limba.reports import pair_results
from tasks import objectives, vocabularies
from tasks.registry import TaskRegistry
from tests.convert import vocabularies as made_vocabularies
from tests.limba import small

WORDS = ["the", "dogs", "dog", "bark", "barks", "loud", "##ly", "."]
PAIRS = [
    {"sentence_good": "the dogs bark.", "sentence_bad": "the dogs barks.", "phenomenon": "number"},
    {"sentence_good": "the dog barks", "sentence_bad": "the dog bark", "phenomenon": "number"},
    {"sentence_good": "dogs loud bark.", "sentence_bad": "dog loud barks.", "phenomenon": "both"},
]
BYTES = vocabularies.ByteVocabulary(100)


class Evaluator(task_metrics.Evaluator):
    """What gin makes of eval_pairs.gin."""

    def __init__(self, **arguments):
        super().__init__(**arguments, logger_cls=[eval_pairs.PairsLogger])


def _optimizer():
    return adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())


def _t5():
    config = small.config(**small.TINY | {"vocab_size": 384})
    return models.EncoderDecoderModel(t5.Transformer(config), BYTES, BYTES, _optimizer())


def _decoder():
    config = small.config(**small.TINY | {"vocab_size": 384})
    return models.DecoderOnlyModel(decoder_only.DecoderWrapper(config), BYTES, _optimizer())


def _encoder_config(**fields):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    return encoder.EncoderConfig(**sizes, max_positions=16, dropout_rate=0.0, attention_dropout_rate=0.0, **fields)


def _encoder(folder):
    file = made_vocabularies.write_words(folder / "tokenizer.json", WORDS)
    vocabulary = vocabularies.TokenizerVocabulary(str(file))
    return models.EncoderOnlyModel(encoder.MaskedLanguageModel(_encoder_config()), vocabulary, _optimizer())


def _save(model, run, step=3, seed=0):
    params = small.random_params(model, seed)
    state = train_state.TrainState(step=jnp.int32(step), params=params, opt_state={})
    checkpointer = checkpointing.Checkpointer(run, checkpointing.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    return params


def _write(file, rows):
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return str(file)


def _evaluate(model, tmp_path, rows, mode="latest", **arguments):
    files = [_write(tmp_path / "made.jsonl", rows)] if isinstance(rows, list) else [str(rows)]
    return eval_pairs.evaluate_pairs(
        model=model,
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode=mode),
        partitioner=small.partitioner(2),
        output_dir=str(tmp_path / "out"),
        files=files,
        inference_evaluator_cls=Evaluator,
        batch_size=4,
        **arguments,
    )


def _lines(tmp_path, step=3):
    file = tmp_path / f"out/inference_eval/made-pairs-{step:06}.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _log_probability(logits, targets):
    """Of targets `[length]` under logits `[length, vocab]`, in NumPy."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(sum(log_softmax[i, target] for i, target in enumerate(targets)))


def _bytes(text):
    return [byte + 3 for byte in text.encode()]


# The text around the blanks and the fillings of the right and the wrong sentence, by hand.
FILLINGS = [
    (["the dogs ", "."], ["bark"], ["barks"]),
    (["the dog ", ""], ["barks"], ["bark"]),
    (["", " loud ", "."], ["dogs", "bark"], ["dog", "barks"]),
]


def _row(tokens):
    """All of one length, which one program serves."""
    return np.pad(np.array([tokens]), ((0, 0), (0, 64 - len(tokens))))


def test_a_t5_scores_the_fillings_of_its_blanks(tmp_path):
    model = _t5()
    params = _save(model, tmp_path / "run")
    _evaluate(model, tmp_path, PAIRS)
    logits = jax.jit(model.logits)
    first = 358  # <extra_id_0>, and the others count down
    for line, (kept, *sides) in zip(_lines(tmp_path), FILLINGS, strict=True):
        inputs = _bytes(kept[0])
        for i, text in enumerate(kept[1:]):
            inputs += [first - i, *_bytes(text)]
        for words, kind in zip(sides, ("good", "bad"), strict=True):
            targets = [token for i, word in enumerate(words) for token in (first - i, *_bytes(word))]
            targets.append(first - len(words) if kept[-1] else 1)
            batch = {
                "encoder_input_tokens": _row([*inputs, 1]),
                "decoder_input_tokens": _row([0, *targets[:-1]]),
                "decoder_target_tokens": _row(targets),
            }
            expected = _log_probability(logits(params, batch)[0], targets)
            assert line[f"score_{kind}"] == pytest.approx(expected, rel=1e-5)
            assert line[f"tokens_{kind}"] == len(targets)


def test_a_decoder_scores_the_whole_sentence_with_its_end(tmp_path):
    model = _decoder()
    params = _save(model, tmp_path / "run")
    _evaluate(model, tmp_path, PAIRS)
    logits = jax.jit(model.logits)
    for line, row in zip(_lines(tmp_path), PAIRS, strict=True):
        for kind in ("good", "bad"):
            targets = [*_bytes(row[f"sentence_{kind}"]), 1]
            batch = {"decoder_input_tokens": _row([0, *targets[:-1]]), "decoder_target_tokens": _row(targets)}
            expected = _log_probability(logits(params, batch)[0], targets)
            assert line[f"score_{kind}"] == pytest.approx(expected, rel=1e-5)
            assert line[f"tokens_{kind}"] == len(targets) and line[f"sentence_{kind}"] == row[f"sentence_{kind}"]
    scorer = text_scorer.TextScorer(model, small.partitioner(2), params, batch_size=4, finds_ranks=True)
    found = scorer.score_words([row["sentence_good"] for row in PAIRS])
    assert found.scores == pytest.approx([line["score_good"] for line in _lines(tmp_path)], rel=1e-5)
    assert found.ranks is None and found.owners.tolist() == [0, 1, 2]


def test_an_encoder_scores_the_masked_words(tmp_path):
    model = _encoder(tmp_path)
    params = _save(model, tmp_path / "run")
    _evaluate(model, tmp_path, PAIRS)
    # The words with their masks, the places of these, and what stood there: of ids from 5 on, in the order of WORDS.
    the, dogs, dog, bark, barks, loud, _, dot = range(5, 5 + len(WORDS))
    expected = [
        ([the, dogs, 4, dot], [3], [bark], [barks]),
        ([the, dog, 4], [3], [barks], [bark]),
        ([4, loud, 4, dot], [1, 3], [dogs, bark], [dog, barks]),
    ]
    for line, (row, places, *sides) in zip(_lines(tmp_path), expected, strict=True):
        batch = {"encoder_input_tokens": np.array([[2, *row, 3]]), "masked_lm_positions": np.array([places])}
        logits = jax.jit(model.logits)(params, batch)[0]
        for targets, kind in zip(sides, ("good", "bad"), strict=True):
            assert line[f"score_{kind}"] == pytest.approx(_log_probability(logits, targets), rel=1e-5)
            assert line[f"tokens_{kind}"] == len(targets)


def test_the_table_and_the_files_of_two_checkpoints(tmp_path, capsys):
    model = _t5()
    for step, seed in ((3, 0), (10, 1)):
        _save(model, tmp_path / "run", step, seed)
    metrics = _evaluate(model, tmp_path, PAIRS, mode="all")["made"]
    won = {step: [line["score_good"] > line["score_bad"] for line in _lines(tmp_path, step)] for step in (3, 10)}
    assert won[10] == [line["is_right"] for line in _lines(tmp_path, 10)]
    assert metrics["accuracy"] == pytest.approx(100 * sum(won[10]) / 3)
    assert metrics["accuracy/number"] == pytest.approx(100 * sum(won[10][:2]) / 2)
    assert metrics["pairs"] == 3 and metrics["pairs/both"] == 1 and metrics["ties"] == 0
    rows = pair_results.read(tmp_path / "out")
    assert [(row["task"], row["step"]) for row in rows] == [("made", 3), ("made", 10)]
    assert rows[0]["metrics"]["accuracy"] == pytest.approx(100 * sum(won[3]) / 3)
    assert rows[1]["file"] == str(tmp_path / "made.jsonl")
    printed = capsys.readouterr().out
    assert "made: accuracy in percent with 95 % intervals, no ties" in printed
    table = [line.split() for line in printed.splitlines() if line.startswith(("phenomenon", "number", "both", "all "))]
    assert table[0] == ["phenomenon", "pairs", "step", "3", "step", "10"]
    assert [line[:3] for line in table[1:]] == [
        ["both", "1", f"{100 * won[3][2]:.1f}"],
        ["number", "2", f"{50 * sum(won[3][:2]):.1f}"],
        ["all", "3", f"{100 * sum(won[3]) / 3:.1f}"],
    ]


def test_many_checkpoints_leave_the_intervals_out():
    metrics = {"accuracy": 50.0, "accuracy_low": 40.0, "accuracy_high": 60.0, "pairs": 1200, "ties": 1}
    rows = [{"task": "a", "step": step, "metrics": metrics} for step in range(9)]
    lines = pair_results.table(rows[:1]).splitlines()
    assert lines == [
        "a: accuracy in percent with 95 % intervals, 1 ties, counted as wrong",
        "phenomenon  pairs               step 0",
        "all         1,200  50.0 (40.0 to 60.0)",
    ]
    assert pair_results.table(rows).splitlines()[0] == "a: accuracy in percent, 9 ties, counted as wrong"


def test_several_files_and_all_of_them_together(tmp_path, capsys, monkeypatch):
    model = _decoder()
    _save(model, tmp_path / "run")
    files = [_write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", PAIRS[:2]), ("b", PAIRS[2:]))]
    arguments = {
        "model": model,
        "restore_checkpoint_cfg": checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest"),
        "partitioner": small.partitioner(1),
        "output_dir": str(tmp_path / "out"),
        "files": files,
        "inference_evaluator_cls": Evaluator,
    }
    metrics = eval_pairs.evaluate_pairs(**arguments)
    of_all = {row["task"]: row["metrics"] for row in pair_results.read(tmp_path / "out")}
    assert of_all.keys() == {"a", "b", "all_files"} and of_all["all_files"]["pairs"] == 3
    won = [metrics[name]["accuracy"] * metrics[name]["pairs"] for name in ("a", "b")]
    assert of_all["all_files"]["accuracy"] == pytest.approx(sum(won) / 3)
    assert "\na: accuracy" in capsys.readouterr().out
    monkeypatch.setattr(eval_pairs, "_MOST_TABLES", 1)
    eval_pairs.evaluate_pairs(**arguments)
    printed = capsys.readouterr().out
    assert "all_files: accuracy" in printed and "\nb: accuracy" not in printed


@pytest.mark.parametrize("kind", ["t5", "decoder", "encoder"])
def test_a_registered_task_in_training_gives_the_same(kind, tmp_path):
    """`infer_eval_dataset_cfg` reads each sentence alone; `limba eval --pairs` reads the inputs of both once."""
    model = {"t5": _t5, "decoder": _decoder, "encoder": lambda: _encoder(tmp_path)}[kind]()
    params = _save(model, tmp_path / "run")
    expected = _evaluate(model, tmp_path, PAIRS)["made"]
    objective = {"decoder": objectives.FullLM(), "encoder": objectives.MaskedLM()}.get(kind)
    minimal_pairs.register_pairs_task(
        f"agreement_{kind}",
        data_files={"validation": str(tmp_path / "made.jsonl")},
        vocabulary=model.input_vocabulary,
        objective=objective,
    )
    config = contract.DatasetConfig(f"agreement_{kind}", None, "validation", 4, shuffle=False, seed=0)
    evaluator = evaluation.InferenceEvaluator(config, Evaluator, model, small.partitioner(2), tmp_path / "run")
    found = evaluator.evaluate(params, 5)[f"agreement_{kind}"]
    assert found == expected
    file = tmp_path / f"run/inference_eval/agreement_{kind}-pairs-000005.jsonl"
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for line, ours in zip(lines, _lines(tmp_path), strict=True):
        of_sides = [[x.pop(f"score_{side}") for side in ("good", "bad")] for x in (line, ours)]
        assert of_sides[0] == pytest.approx(of_sides[1], rel=1e-5) and line == ours
    TaskRegistry.remove(f"agreement_{kind}")


def test_a_prefix_lm_is_refused():
    model = models.DecoderOnlyModel(
        decoder_only.DecoderWrapper(small.config(**small.TINY)),
        BYTES,
        _optimizer(),
        inputs_bidirectional_attention=True,
    )
    with pytest.raises(ValueError, match="a text alone has no inputs"):
        model_forms.form_of(model)


def test_models_without_a_language_model_are_refused(tmp_path):
    labels = vocabularies.LabelVocabulary(["glad", "sad"])
    head = classifier.SequenceClassifier(_encoder_config(), labels=("glad", "sad"))
    model = models.EncoderClassifier(head, _encoder(tmp_path).input_vocabulary, labels, _optimizer())
    with pytest.raises(ValueError, match="EncoderClassifier gives labels or numbers, and words no probability"):
        _evaluate(model, tmp_path, PAIRS)
    assert not (tmp_path / "out").exists()


_LONG = {**PAIRS[0], "sentence_good": "the dogs bark " + ". " * 20}
_SAME = {**PAIRS[1], "sentence_bad": " the  dog barks"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a b"}], r"has the columns 'text', and none of the known .*: --good_column NAME --bad_column NAME"),
        ([PAIRS[0], _SAME], r"row 1 \(the first is 0\) of .*made.jsonl: the two sentences have the same words, 'the"),
        ([{**PAIRS[0], "sentence_good": " "}], r"row 0 .* column 'sentence_good' has ' ' where a sentence is needed"),
        ([], r"made.jsonl is empty"),
        ([{**PAIRS[0], "sentence_bad": "the [MASK] barks."}], r"row 0 .* has the special token '\[MASK\]' in its text"),
        ([_LONG], r"row 0 .* its inputs have 2\d tokens, and the model reads at most 16: pairs are not cut"),
    ],
)
def test_bad_rows_are_named_before_a_checkpoint_is_read(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        _evaluate(_encoder(tmp_path), tmp_path, rows)  # There is no run.


def test_named_columns_and_multiblimp(tmp_path):
    model = _decoder()
    _save(model, tmp_path / "run")
    file = tmp_path / "made.tsv"
    file.write_text("\tsen\twrong_sen\tphenomenon\n0\tNone sees\tNone see\tSV-#\n1\ta b\ta c\tSV-P\n", "utf-8")
    metrics = _evaluate(model, tmp_path, file)["made"]
    assert metrics["pairs/SV-#"] == metrics["pairs/SV-P"] == 1
    assert _lines(tmp_path)[0]["sentence_good"] == "None sees"
    columns = {"good": "wrong_sen", "bad": "sen"}
    turned = _evaluate(model, tmp_path, file, columns=columns)["made"]
    assert turned["accuracy"] == pytest.approx(100 - metrics["accuracy"])
    with pytest.raises(ValueError, match=r"'wrong_sen', 'phenomenon', and no 'x', which --bad_column names"):
        _evaluate(model, tmp_path, file, columns={"bad": "x"})


def test_unknown_characters_and_equal_tokens_are_warned_of(tmp_path, caplog):
    model = _encoder(tmp_path)
    _save(model, tmp_path / "run")
    rows = [PAIRS[0], {"sentence_good": "the dogs run", "sentence_bad": "the dogs runs", "phenomenon": "number"}]
    caplog.set_level(logging.WARNING)
    metrics = _evaluate(model, tmp_path, rows)["made"]
    assert metrics["ties"] == 1 and metrics["pairs"] == 2 and metrics["accuracy"] <= 50
    assert "1 of 2 pairs have the same tokens in both sentences (the first: row 1" in caplog.text
    assert "2 of 4 inputs have" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/x", "--good_column", "a"], "--good_column goes with --pairs FILE"),
        (["runs/x", "--task", "t", "--pairs", "a.jsonl"], "--pairs scores files, and --task is about tasks"),
        (["--pairs", "a.jsonl"], "give RUN before --pairs FILE"),
    ],
)
def test_flags_that_do_not_go_together(words, message, capsys):
    with pytest.raises(SystemExit):
        eval.main(words)
    assert message in capsys.readouterr().err
