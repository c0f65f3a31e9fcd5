"""`convert to-hf --average`: the moving average of a run's parameters as the model."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convert import __main__
from convert.model_files import any_format
from convert.to_t5x import to_t5x
from limba.addons.cards.model_card import average_sentences
from limba.checkpoint_files import assignment_maps, run_folder, saved_tensors
from limba.checkpoints import checkpointing
from limba.checkpoints.train_state import TrainState
from limba.models import EncoderDecoderModel
from limba.network.t5 import T5Config, Transformer
from limba.optimizers.averaging import AveragedState

GIN = "averaging.AveragedOptimizer.decay = 0.99\n"


@pytest.fixture(scope="module")
def averages(new_run, tmp_path_factory):
    """A run with an average that is not its parameters; the average alone as a run; and its parameters."""
    folder = tmp_path_factory.mktemp("average")
    plain = new_run(folder / "plain", num_encoder_layers=1, num_decoder_layers=1)
    params = checkpointing.load_params(plain)
    average = jax.tree.map(lambda x: x * np.float32(0.75), params)
    files = checkpointing.load_files(checkpointing.find_checkpoint(plain), run_folder.FOLDER)
    files = {"run.json": files["run.json"], "config.gin": GIN.encode()}
    states = {
        "run": TrainState(jnp.int32(10), params, AveragedState({}, average, jnp.int32(7))),
        "alone": TrainState(jnp.int32(10), average, {}),
    }
    for name, state in states.items():
        checkpointer = checkpointing.Checkpointer(folder / name, checkpointing.SaveCheckpointConfig())
        checkpointer.save(jax.tree.map(jnp.asarray, state), None, files)
        checkpointer.close()
    lines = [
        {"step": 10, "dataset": "training_eval/small", "nats_per_target_token": 2.5},
        {"step": 10, "dataset": "training_eval/small_average", "nats_per_target_token": 1.25},
    ]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "run", folder / "alone", average


def _logits(params, run):
    config = T5Config(**checkpointing.load_run_info(run)["network"])
    vocabulary = types.SimpleNamespace(eos_id=1)
    model = EncoderDecoderModel(Transformer(config), vocabulary, vocabulary, optimizer_def=None)
    rng = np.random.default_rng(1)
    tokens = {
        name: rng.integers(3, 500, (2, 12), np.int32)
        for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
    }
    return np.asarray(jax.jit(model.logits)(params, tokens))


def test_the_export_is_the_average(averages, tmp_path, capsys):
    run, alone, average = averages
    out = tmp_path / "out"
    assert __main__.main(["to-hf", str(run), str(out), "--average", "--format", "safetensors"]) == 0
    said = capsys.readouterr().out
    assert f"The average of the parameters at checkpoint_10 is exported to {out}" in said
    assert "ok    logits, B in NumPy" in said  # the folder, read back and run, against the average
    assert json.loads((out / "conversion_report.json").read_text())["average"] is True
    # The same weights as of a run that has nothing else, and its logits.
    assert __main__.main(["to-hf", str(alone), str(tmp_path / "alone"), "--no-check", "--format", "safetensors"]) == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "alone/model.safetensors").read_bytes()
    read_back = {name: np.asarray(x) for name, x in any_format.open_model(out).tensors.items()}
    logits = _logits(assignment_maps.unflatten_state_dict(read_back), run)
    np.testing.assert_array_equal(logits, _logits(average, run))
    assert np.abs(logits - _logits(checkpointing.load_params(run), run)).max() > 0.01
    card = (out / "README.md").read_text()
    assert "Its parameters are an exponential moving average (decay 0.99) of those that were trained." in card
    assert "1.2500" in card
    assert "2.5000" not in card
    # Without --average it is another export, and the card has the parameters' own loss.
    assert __main__.main(["to-hf", str(run), str(tmp_path / "raw"), "--no-check", "--format", "safetensors"]) == 0
    assert (tmp_path / "raw/model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()
    card = (tmp_path / "raw" / "README.md").read_text()
    assert "2.5000" in card
    assert "1.2500" not in card
    assert "average" not in card


def test_another_export_in_the_folder_is_refused(averages, tmp_path, capsys):
    run, out = averages[0], str(tmp_path / "out")
    arguments = ["to-hf", str(run), out, "--no-check", "--format", "safetensors"]
    assert __main__.main(arguments) == 0
    assert __main__.main([*arguments, "--average"]) == 1
    assert f"{out} holds another conversion (other average)" in capsys.readouterr().err


def test_a_run_without_an_average_is_refused(averages, tmp_path, capsys):
    assert __main__.main(["to-hf", str(averages[1]), str(tmp_path / "out"), "--average"]) == 1
    said = capsys.readouterr().err
    assert "checkpoint_10 has no average of the parameters: " in said
    assert "`limba average RUN --last 5` makes the mean of a run's last checkpoints." in said
    assert not list(tmp_path.iterdir())


def test_t5x_gets_the_parameters_alone(averages, tmp_path):
    path = to_t5x(averages[0], tmp_path, format_="classic", network=None, verify=False)
    tensors = saved_tensors.open_tensors(path)
    assert not [name for name in tensors if "average" in name]
    source = saved_tensors.open_tensors(checkpointing.find_checkpoint(averages[0]))
    name = "target/token_embedder/embedding"
    np.testing.assert_array_equal(np.asarray(tensors[name]), np.asarray(source[name]))


def test_a_card_names_the_checkpoints_of_a_mean():
    mean = {"mean_of": {"steps": [1000, 2000], "run": "mine"}}
    assert average_sentences(False, mean, "") == [
        "Its parameters are the mean of 2 checkpoints of the training, those of the steps 1,000, 2,000."
    ]
    assert average_sentences(False, {}, GIN) == []
    assert average_sentences(True, {}, "") == [
        "Its parameters are an exponential moving average of those that were trained."
    ]
