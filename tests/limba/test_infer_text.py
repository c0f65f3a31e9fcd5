import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import checkpoints, decoding, infer_text, train_state
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
    assert infer_text.fill_blanks(text, prediction) == filled


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    greedy = functools.partial(decoding.temperature_sample, rescale_log_probs=False)
    model = small.model(decode_fn=greedy, emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    params = model.initial_variables(jax.random.key(1))["params"]
    state = train_state.TrainState(step=jnp.int32(0), params=params, opt_state={})
    checkpointer = checkpoints.Checkpointer(directory, checkpoints.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    return model, params, str(directory)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_answers_are_those_of_predict_batch(checkpoint, tmp_path, num_devices):
    model, params, path = checkpoint
    lines = ["5 6 7", "8 9 10 11 12", "200"]
    out = tmp_path / "out" / "answers.jsonl"
    infer_text.infer_text(
        model=model,
        restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(path=path, mode="latest"),
        partitioner=small.partitioner(num_devices),
        inputs=lines,
        output_file=str(out),
        max_decode_length=5,
        batch_size=2,
    )
    predict = jax.jit(model.predict_batch_with_aux)
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["input"] for r in results] == lines
    for result, line in zip(results, lines, strict=True):
        tokens = np.zeros((1, 32), np.int32)
        ids = [*map(int, line.split()), 1]
        tokens[0, : len(ids)] = ids
        batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": np.zeros((1, 5), np.int32)}
        expected, aux = predict(params, batch)
        text = " ".join(str(t) for t in expected[0].tolist() if t > 1)
        assert result["prediction"] == text
        assert result["score"] == pytest.approx(float(aux["scores"][0]), abs=1e-3)
        assert result["score"] < -1


def test_nothing_to_answer(checkpoint):
    model, _, path = checkpoint
    config = checkpoints.RestoreCheckpointConfig(path=path, mode="latest")
    with pytest.raises(ValueError, match="--input"):
        infer_text.infer_text(model=model, restore_checkpoint_cfg=config, partitioner=small.partitioner(), inputs=[])
    with pytest.raises(ValueError, match="No checkpoint"):
        infer_text.infer_text(
            model=model,
            restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(),
            partitioner=small.partitioner(),
            inputs=["1"],
        )
