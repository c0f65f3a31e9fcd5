"""The check finds what differs, says it in one table, and takes rounding and ties for what they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convert import __main__
from convert.compare import comparison, comparison_rows, forward, t5_outputs
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.checkpoint_files.saved_tensors import from_array
from limba.network.t5 import T5Config


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("check") / "run", num_encoder_layers=1, num_decoder_layers=1)


def with_tensor(model: any_format.Model, name: str, change) -> any_format.Model:
    array = change(np.asarray(model.tensors[name]).copy())
    return dataclasses.replace(model, tensors={**model.tensors, name: from_array(array)})


def test_a_run_and_its_export_are_the_same_model(all_exported, capsys):
    exported = all_exported["t5-scalable_t5"]
    assert __main__.main(["check", str(exported.run), str(exported.folder)]) == 0
    out = capsys.readouterr().out
    parameters = sum(x.size for x in jax.tree.leaves(exported.params))
    assert f"A: {exported.run}/checkpoint_10 (Limba, t5, {parameters:,} parameters)" in out
    assert "ok    greedy tokens, B in PyTorch" in out
    assert "WRONG" not in out


def test_one_number_of_one_tensor(run):
    a = any_format.open_model(run)
    b = with_tensor(a, "decoder/layers_0/mlp/wo/kernel", lambda x: x + np.eye(*x.shape, dtype=x.dtype) * 1e-3)
    rows = {row.what: row for row in comparison.compare(a, b)}
    assert rows["parameters that differ"].value == 1
    assert "decoder/layers_0/mlp/wo/kernel; largest difference 1.00e-03" in rows["parameters that differ"].note
    assert 1e-4 < rows["logits, B in Limba"].value < 1e-1
    assert not rows["logits, B in Limba"].holds
    with pytest.raises(
        ValueError, match=r"not the same: parameters that differ: 1, allowed 0e\+00 \(of .*\); logits, B in Limba"
    ):
        comparison_rows.require(list(rows.values()), "not the same")
    assert comparison_rows.table(list(rows.values())).startswith("WRONG parameters that differ ")


def test_the_command_fails_and_names_the_difference(run, new_run, tmp_path, capsys):
    """Two norms exchanged: the same shapes, other logits."""
    other = new_run(tmp_path / "other", num_encoder_layers=1, num_decoder_layers=1, dtype="bfloat16")
    assert __main__.main(["check", str(run), str(other)]) == 0  # Rounded alike.
    assert "of 27 tensors, in bfloat16" in capsys.readouterr().out
    third = new_run(tmp_path / "third", num_encoder_layers=1, num_decoder_layers=1, mlp_activations=("relu", "linear"))
    assert __main__.main(["check", str(run), str(third)]) == 1
    assert "wi_0/kernel has no place" in capsys.readouterr().err


def test_another_activation_is_a_contradiction(run):
    a = any_format.open_model(run)
    b = dataclasses.replace(a, config=dataclasses.replace(a.config, mlp_activations=("gelu",)))
    with pytest.raises(ValueError, match=r"mlp_activations is \['relu'\] in A .* and \['gelu'\] in B"):
        comparison.compare(a, b)


def test_the_narrower_dtype_is_the_measure(run):
    a = any_format.open_model(run)
    b = a.cast(jnp.dtype("bfloat16"))
    rows = comparison.compare(a, b)
    assert all(row.holds for row in rows)
    assert rows[0].note == "of 27 tensors, in bfloat16"


def test_nan_is_never_equal(run):
    a = any_format.open_model(run)

    def poison(x):
        x[0, 0] = np.nan
        return x

    with pytest.raises(ValueError, match="encoder/layers_0/mlp/wo/kernel holds NaN"):
        comparison.compare(a, with_tensor(a, "encoder/layers_0/mlp/wo/kernel", poison))


def test_tokens_of_a_tie_are_not_a_difference(run, tmp_path):
    """Two rows of the output matrix are the same, so either token is the greedy one."""
    to_hf(run, tmp_path / "out", formats=["safetensors"], verify=False)
    folder = any_format.open_model(tmp_path / "out")
    batch = t5_outputs.check_batch(folder.config, np.zeros(0, np.int32))
    ours = forward.greedy(folder.config, folder.tensors, batch["encoder_input_tokens"], 2)
    first = int(ours[0, 0])
    kernel = np.asarray(folder.folder.stored["lm_head.weight"]).copy()
    kernel[7] = kernel[first]
    stored = {**folder.folder.stored, "lm_head.weight": from_array(kernel)}
    tied = dataclasses.replace(folder, folder=dataclasses.replace(folder.folder, stored=stored))
    theirs = ours.copy()
    theirs[0, 0] = 7
    assert t5_outputs._different_rows(tied, batch, ours, theirs) == 0
    assert t5_outputs._different_rows(folder, batch, ours, theirs) == 1


def test_the_batch_draws_from_the_whole_vocabulary_and_has_the_text():
    text = np.arange(5, 15, dtype=np.int32)
    batch = t5_outputs.check_batch(T5Config(vocab_size=1000), text)
    np.testing.assert_array_equal(batch["encoder_input_tokens"][1, :10], text)
    assert not batch["encoder_input_tokens"][1, 24:].any()
    assert batch["encoder_input_tokens"][0].max() > 900
    assert t5_outputs.check_batch(T5Config(vocab_size=10), text)["encoder_input_tokens"].max() < 10
