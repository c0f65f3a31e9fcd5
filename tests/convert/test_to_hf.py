"""The folder of an export: what is in it, when it is written anew, what is refused. Its models: test_families.py."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from convert import __main__
from convert.exports.t5_export import T5Export
from convert.tensors import safetensors_files, table
from convert.to_hf import to_hf
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing

# Two float32 implementations of these small models differ by about 2e-6.
TOLERANCE = 1e-5


FILES = {
    *["model.safetensors", "flax_model.msgpack", "config.json", "generation_config.json"],
    *["spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "conversion_report.json"],
    "README.md",
}

# ------------------------------------------------------ the folder ---------------------------------------------------


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("plain") / "run", num_encoder_layers=1, num_decoder_layers=1)


def names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_command_line_writes_every_file(run, tmp_path, capsys):
    assert __main__.main(["to-hf", str(run), str(tmp_path / "out")]) == 0
    assert names_in(tmp_path / "out") == FILES
    assert names_in(tmp_path) == {"out"}
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["max_new_tokens"] == checkpointing.load_run_info(run)["feature_lengths"]["targets"]
    out = capsys.readouterr().out
    assert "ok    parameters that differ " in out
    assert "ok    logits, B in NumPy " in out
    # What holds of both files stands there once, and what is another line of Flax's behind it.
    head = next(line for line in out.splitlines() if line.startswith("flax:"))
    assert head.endswith(" lines as of safetensors") and "the weights are Flax's" in out.partition(head)[2]
    assert out.count("ok    settings that differ ") == out.count("ok    parameters that differ ") == 1


def test_files_that_the_caller_moves_are_named_by_their_last_folder(run, tmp_path, capsys):
    staged, last = tmp_path / ".staged", tmp_path / "last"
    to_hf(run, staged, formats=("safetensors",), verify=False, named=last)
    assert f"is exported to {last} (safetensors" in (said := capsys.readouterr().out) and str(staged) not in said


def test_bfloat16_is_rounded_once_and_checked(run, tmp_path):
    report = to_hf(run, tmp_path / "out", dtype="bfloat16", formats=["safetensors"])
    tensors = safetensors_files.open_tensors([tmp_path / "out/model.safetensors"])
    assert tensors["shared.weight"].dtype == jnp.bfloat16
    rows = [row for rows in report["comparisons"].values() for row in rows]
    assert max(row["value"] for row in rows if "logits" in row["what"] and row["value"] is not None) < TOLERANCE
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_bfloat16_checkpoint_exports_to_float32(new_run, tmp_path):
    new_run(tmp_path / "run", dtype="bfloat16", num_encoder_layers=1, num_decoder_layers=1)
    to_hf(tmp_path / "run", tmp_path / "out", formats=["safetensors"], verify=False)
    tensors = safetensors_files.open_tensors([tmp_path / "out/model.safetensors"])
    assert tensors["shared.weight"].dtype == np.float32


def test_the_same_export_is_reused_and_another_refused(run, tmp_path, capsys):
    first = to_hf(run, tmp_path / "out", formats=["safetensors"], verify=False)
    written = (tmp_path / "out/model.safetensors").stat().st_mtime_ns
    assert to_hf(run, tmp_path / "out", formats=["safetensors"], verify=False) == first
    assert "holds this export of checkpoint_10 already" in capsys.readouterr().out
    assert (tmp_path / "out/model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match=r"holds another conversion \(other dtype\).*--overwrite"):
        to_hf(run, tmp_path / "out", formats=["safetensors"], dtype="bfloat16", verify=False)
    to_hf(run, tmp_path / "out", formats=["flax"], verify=False, overwrite=True)
    assert names_in(tmp_path / "out") == FILES - {"model.safetensors"}
    assert names_in(tmp_path) == {"out"}


def test_a_folder_of_somebody_else_is_not_touched(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("three years")
    with pytest.raises(ValueError, match="not a conversion of Limba's"):
        to_hf(run, tmp_path / "out")
    assert names_in(tmp_path / "out") == {"thesis.txt"}


@pytest.mark.parametrize("place", ["run", "run/checkpoint_10", "run/checkpoint_10/export", "."])
def test_what_is_converted_is_never_overwritten(new_run, tmp_path, place):
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="must not lie in each other"):
        to_hf(run, tmp_path / place, overwrite=True, verify=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_overwrite_replaces_only_conversions(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("three years")
    with pytest.raises(ValueError, match="not a conversion of Limba's"):
        to_hf(run, tmp_path / "out", overwrite=True, verify=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is a file; OUT is a folder"):
        to_hf(run, tmp_path / "file", overwrite=True, verify=False)


def test_a_link_is_followed(run, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    to_hf(run, tmp_path / "link", formats=["flax"], verify=False)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/flax_model.msgpack").is_file()


def test_what_a_killed_export_left_does_not_hinder(run, tmp_path):
    (tmp_path / ".out.unfinished").mkdir()
    (tmp_path / ".out.unfinished/model.safetensors").write_bytes(b"half")
    to_hf(run, tmp_path / "out", formats=["flax"], verify=False)
    assert names_in(tmp_path) == {"out"}
    assert "model.safetensors" not in names_in(tmp_path / "out")


# ------------------------------------------------------ bad input ----------------------------------------------------


def assert_error(capsys, tmp_path, arguments, message):
    """One message, exit code 1, nothing left."""
    assert __main__.main(["to-hf", *map(str, arguments), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_no_checkpoint(tmp_path, capsys):
    assert_error(capsys, tmp_path, [tmp_path / "nowhere"], "No checkpoint at")


def test_the_best_checkpoint_of_a_run(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(copied / "checkpoint_10", copied / "checkpoint_20")
    lines = [{"step": step, "dataset": "inference_eval/a", "eval/accuracy": x} for step, x in ((10, 0.9), (20, 0.5))]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--no-check", "--format", "safetensors", "--best"]
    best = "max:inference_eval/a/eval/accuracy"
    assert __main__.main(["to-hf", str(copied), str(tmp_path / "best"), *options, best]) == 0
    assert json.loads((tmp_path / "best" / "conversion_report.json").read_text())["checkpoint"] == "checkpoint_10"
    assert_error(capsys, tmp_path, [copied, *options, "max:loss"], "the nearest are inference_eval/a/eval/accuracy")


def test_vocabulary_larger_than_the_embedding(new_run, tmp_path, capsys):
    new_run(tmp_path / "run", vocab_size=384)
    assert_error(capsys, tmp_path, [tmp_path / "run"], "checkpoint_10 has only 384 rows; they do not belong together")


def test_missing_sentencepiece_file(new_run, tmp_path, capsys, spiece_model):
    shutil.copy(spiece_model, tmp_path / "moved.model")
    new_run(tmp_path / "run", vocab_file=tmp_path / "moved.model")
    (tmp_path / "moved.model").unlink()
    assert_error(capsys, tmp_path, [tmp_path / "run"], "moved.model")
    arguments = ["to-hf", str(tmp_path / "run"), str(tmp_path / "out"), "--no-check"]
    assert __main__.main([*arguments, "--vocab", str(spiece_model)]) == 0


def test_nan_names_the_tensor(new_run, tmp_path, capsys):
    new_run(tmp_path / "run", poison="layers_1/mlp/wo")
    assert_error(capsys, tmp_path, [tmp_path / "run"], "decoder/layers_1/mlp/wo/kernel holds NaN or infinite values")


def test_tensors_of_another_network_are_named(new_run, tmp_path, capsys, monkeypatch):
    new_run(tmp_path / "run")
    info = checkpointing.load_run_info(tmp_path / "run")
    info["network"] |= {"logits_via_embedding": True, "num_decoder_layers": 3, "mlp_dim": 40}
    monkeypatch.setattr(run_folder, "load_run_info", lambda _: info)
    assert __main__.main(["to-hf", str(tmp_path / "run"), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "decoder/layers_2/pre_mlp_layer_norm/scale is missing" in error
    assert "more" in error
    assert not (tmp_path / "out").exists()


def test_a_run_description_edited_by_hand_is_refused(new_run, tmp_path, capsys):
    new_run(tmp_path / "run")
    run_json = tmp_path / "run/checkpoint_10/run/run.json"
    run_json.write_text(run_json.read_text().replace('"batch_size": 2', '"batch_size": 4'))
    assert_error(capsys, tmp_path, [tmp_path / "run"], "run.json is damaged or missing")


def test_a_wrong_export_is_not_kept(run, tmp_path, monkeypatch):
    """Two norms exchanged in the table of names: the round trip is right, the independent forward is not."""
    other = {"encoder/encoder_norm": "decoder/decoder_norm", "decoder/decoder_norm": "encoder/encoder_norm"}
    right = table.table

    def wrong(shapes, rows, **more):
        exchanged = tuple(dataclasses.replace(row, limba=other.get(row.limba, row.limba)) for row in rows)
        return right(shapes, exchanged, **more)

    monkeypatch.setattr(table, "table", wrong)
    with pytest.raises(ValueError, match=r"are not the checkpoint's model, nothing was kept: .*logits, B in NumPy"):
        to_hf(run, tmp_path / "out")
    assert names_in(tmp_path) == set()


def test_an_unexportable_activation_is_named(new_run, tmp_path):
    new_run(tmp_path / "run", mlp_activations=("swish", "linear"))
    with pytest.raises(ValueError, match="swish"):
        to_hf(tmp_path / "run", tmp_path / "out")


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as exit_:
        __main__.main(["--help"])
    assert exit_.value.code == 0
    assert "to-hf" in capsys.readouterr().out


def test_an_export_whose_tokenizer_transformers_does_not_load_is_not_kept(run, tmp_path, monkeypatch):
    """As users load it: AutoTokenizer.from_pretrained(folder)."""
    write = T5Export.write_beside

    def damaged(export, folder, dtype):
        files = write(export, folder, dtype)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_prefix_space": True}))
        (folder / "spiece.model").unlink()
        return files

    monkeypatch.setattr(T5Export, "write_beside", damaged)
    reason = r"does not load the exported tokenizer: .*No export was kept.*--no-check"
    with pytest.raises(ValueError, match=reason):
        to_hf(run, tmp_path / "out", formats=["safetensors"])
    assert not (tmp_path / "out").exists()


def test_the_check_names_the_tokenizer_that_users_get(run, tmp_path):
    rows = to_hf(run, tmp_path / "out", formats=["safetensors"])["comparisons"]["safetensors"]
    (row,) = [row for row in rows if row["what"] == "tokenizers not loaded"]
    assert row["holds"] and row["note"].startswith("T5TokenizerFast, AutoTokenizer of transformers ")
