"""A training in stages: its steps fit their batches, its lines are of one stage each, and a resumed run is the same."""

import json
import logging

import jax
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig, Stage
from limba.reports import writers
from limba.train import train
from tasks import objectives
from tasks.pretraining import register_pretraining_task
from tasks.registry import MixtureRegistry
from tasks.vocabularies import ByteVocabulary
from tests.limba import small

LONG, SHORT = {"inputs": 32, "targets": 24}, {"inputs": 16, "targets": 16}
# Tokens of inputs and targets in a step of each stage.
TOKENS = [8 * 56, 8 * 32, 16 * 32, 16 * 32]
STAGES = (Stage(3, "few_in_stages", SHORT), Stage(5, batch_size=16), Stage(7, "both_in_stages"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(model_dir, steps, **arguments)` trains; its task has a stage more every two steps."""
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [json.dumps({"text": f"{number:04d} " + "of words and words " * 6}) for number in range(100)]
    corpus.write_text("\n".join(rows) + "\n")
    for name, density in (("many_in_stages", 0.3), ("few_in_stages", 0.15)):
        register_pretraining_task(
            name,
            data_files={"train": str(corpus)},
            vocabulary=ByteVocabulary(100),
            objective=objectives.SpanCorruption(noise_density=density),
            shuffle_buffer_size=16,
        )
    MixtureRegistry.add("both_in_stages", [("many_in_stages", 1), ("few_in_stages", 1)])

    model = small.model(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16, vocab_size=384)

    def run(model_dir, steps, stages=STAGES, **arguments):
        config = DatasetConfig("many_in_stages", LONG, "train", 8, seed=3, num_readers=2, stages=stages)
        given = {
            "model": model,
            "train_dataset_cfg": config,
            "checkpoint_cfg": checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=1)),
            "partitioner": small.partitioner(),
            "trainer_cls": small.SharedTrainer,
            "model_dir": str(model_dir),
            "total_steps": steps,
            "stats_period": 4,
            "random_seed": 7,
            "verify_matching_vocabs_fn": None,
        }
        return train(**(given | arguments))

    return run


def _lines(model_dir):
    return {line["step"]: line for line in writers.read_metrics(model_dir, "train")}


def test_each_line_is_of_one_stage_and_a_resumed_run_is_the_same(tmp_path, run, caplog):
    caplog.set_level(logging.INFO)
    _, whole = run(tmp_path / "whole", 9)
    lines = _lines(tmp_path / "whole")
    assert [*lines] == [3, 4, 5, 7, 8, 9]  # every 4 steps, before each stage, and the last
    timed = {step: line for step, line in lines.items() if "timing/seqs" in line}
    rows = {step: line["timing/seqs"] for step, line in timed.items()}
    assert rows == {3: 16, 4: 8, 5: 8, 7: 32, 8: 16, 9: 16}  # the first step of a run is not timed
    for step, tokens in ((3, TOKENS[0]), (4, TOKENS[1]), (7, TOKENS[2]), (9, TOKENS[3])):
        line = timed[step]
        assert line["timing/tokens_per_second"] / line["timing/steps_per_second"] == pytest.approx(tokens)
    assert [step for step, line in lines.items() if "loss/few_in_stages" in line] == [8, 9]
    run(tmp_path / "parts", 6)
    _, resumed = run(tmp_path / "parts", 9)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    assert _lines(tmp_path / "parts")[9]["loss"] == lines[9]["loss"]
    assert caplog.text.count("the first step of stage 'few_in_stages', with batches of 16 rows") >= 1


def test_what_cannot_be_is_refused(tmp_path, run):
    with pytest.raises(ValueError, match=r"train.epochs \(TRAIN_EPOCHS\) is 2, and DatasetConfig.stages begin after"):
        run(tmp_path / "run", 9, epochs=2)
    with pytest.raises(ValueError, match=r"DatasetConfig\.stages are made by Limba's own get_dataset"):
        run(tmp_path / "run", 9, get_dataset_fn=lambda *_: small.Stream())
    partitioner = small.partitioner()
    with pytest.raises(ValueError, match="batch_size is 12, which does not divide by"):
        run(tmp_path / "run", 9, (Stage(3, batch_size=12),), partitioner=partitioner, trainer_cls=_microbatches)
    assert not (tmp_path / "run" / "checkpoint_1").exists()


def _microbatches(**arguments):
    return small.SharedTrainer(num_microbatches=8, **arguments)
