import json

import jax
import numpy as np
import pytest

from limba import checkpoints, infer
from tests.limba import small


@pytest.mark.parametrize(
    ("text", "prediction", "filled"),
    [
        ("a <extra_id_0> b", "<extra_id_0> x y", "a x y b"),
        ("<extra_id_0> and <extra_id_1>.", "<extra_id_0> this <extra_id_1> that <extra_id_2>", "this and that."),
        ("a <extra_id_0> b <extra_id_1>", "<extra_id_1> z", "a <extra_id_0> b z"),
        ("no blanks", "an answer", "an answer"),
    ],
)
def test_fill_blanks(text, prediction, filled):
    assert infer.fill_blanks(text, prediction) == filled


@pytest.fixture
def checkpoint(tmp_path):
    trainer = small.make_trainer()
    state = trainer.new_state(jax.random.key(1))
    checkpointer = checkpoints.Checkpointer(tmp_path / "run", checkpoints.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    return trainer.model, state.params, str(tmp_path / "run")


@pytest.mark.parametrize("num_devices", [1, 4])
def test_answers_are_those_of_predict_batch(checkpoint, tmp_path, num_devices):
    model, params, path = checkpoint
    lines = ["5 6 7", "8 9 10 11 12", "200"]
    out = tmp_path / "out" / "answers.jsonl"
    infer.infer(
        model=model,
        restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(path=path, mode="latest"),
        partitioner=small.partitioner(num_devices),
        inputs=lines,
        output_file=str(out),
        max_decode_length=5,
        batch_size=2,
    )
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["input"] for r in results] == lines
    for result, line in zip(results, lines, strict=True):
        tokens = np.zeros((1, 32), np.int32)
        ids = [*map(int, line.split()), 1]
        tokens[0, : len(ids)] = ids
        batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": np.zeros((1, 5), np.int32)}
        expected, aux = model.predict_batch_with_aux(params, batch)
        text = " ".join(str(t) for t in expected[0].tolist() if t > 1)
        assert result["prediction"] == text
        assert result["score"] == pytest.approx(float(aux["scores"][0]), abs=1e-3)


def test_nothing_to_answer(checkpoint):
    model, _, path = checkpoint
    config = checkpoints.RestoreCheckpointConfig(path=path, mode="latest")
    with pytest.raises(ValueError, match="--input"):
        infer.infer(model=model, restore_checkpoint_cfg=config, partitioner=small.partitioner(), inputs=[])
    with pytest.raises(ValueError, match="No checkpoint"):
        infer.infer(
            model=model,
            restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(),
            partitioner=small.partitioner(),
            inputs=["1"],
        )
