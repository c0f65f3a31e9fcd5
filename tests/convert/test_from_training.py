"""Models as PyTorch training scripts leave them: which step, files with an optimizer beside the model."""

import json
import shutil

import numpy as np
import pytest

from convert import __main__
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.run import starting_model
from limba.checkpoints import checkpointing

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def saved(new_run, tmp_path_factory):
    """An export of a model of step 10, and transformers' own classes' copy of it, which says no step."""
    from transformers import AutoModelForSeq2SeqLM

    root = tmp_path_factory.mktemp("saved")
    run = new_run(root / "run", num_encoder_layers=2, num_decoder_layers=2, logits_via_embedding=False)
    to_hf(run, root / "export", formats=["safetensors"], verify=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(root / "export")
    model.save_pretrained(root / "copy")
    for name in ("spiece.model", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(root / "export" / name, root / "copy")
    return root, model


def step_of(checkpoint):
    state = any_format.open_checkpoint(checkpoint)
    assert checkpoint.name == f"checkpoint_{state.step}"
    return state.step


def trainer_folder(saved, path, state=None):
    """What transformers' Trainer leaves: its state beside the model."""
    shutil.copytree(saved[0] / "copy", path)
    if state is not None:
        (path / "trainer_state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    return path


# ------------------------------------------------------- the step ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "state", "step", "source"),
    [
        ("any", {"global_step": 1500, "epoch": 2.5, "log_history": []}, 1500, "step 1500, from trainer_state.json"),
        ("checkpoint-500", {"global_step": 1500}, 1500, "step 1500, from trainer_state.json"),
        ("checkpoint-500", None, 500, "step 500, from the folder's name"),
        ("checkpoint-pt-10000", None, 10000, "step 10000, from the folder's name"),
        ("my-t5-v2", None, 0, "step 0: the source does not say one"),
    ],
)
def test_the_step_of_the_source_is_kept(saved, tmp_path, capsys, name, state, step, source):
    folder = trainer_folder(saved, tmp_path / name, state)
    checkpoint = from_hf(folder, tmp_path / "run", verify=False)
    assert step_of(checkpoint) == step
    assert f"is converted to {checkpoint} (t5_1_1, " in (out := capsys.readouterr().out) and source in out
    assert starting_model.open_model(str(folder), None, None).opened.step == step


def test_the_step_of_an_export(saved, tmp_path, capsys):
    checkpoint = from_hf(saved[0] / "export", tmp_path / "run", verify=False)
    assert step_of(checkpoint) == 10
    assert "step 10, from conversion_report.json" in capsys.readouterr().out
    # A Trainer that saved into the same folder trained on.
    folder = tmp_path / "trained_on"
    shutil.copytree(saved[0] / "export", folder)
    (folder / "trainer_state.json").write_text('{"global_step": 70}')
    assert step_of(from_hf(folder, tmp_path / "more", verify=False)) == 70


def test_a_flax_folder(saved, new_run, tmp_path):
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1)
    to_hf(run, tmp_path / "flax", formats=["flax"], verify=False)
    (tmp_path / "flax/conversion_report.json").unlink()
    (tmp_path / "flax/trainer_state.json").write_text('{"global_step": 33}')
    assert step_of(from_hf(tmp_path / "flax", tmp_path / "out", verify=False)) == 33


def test_another_step_can_be_given(saved, tmp_path, capsys):
    folder = trainer_folder(saved, tmp_path / "checkpoint-500", {"global_step": 500})
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run"), "--no-check", "--step", "0"]) == 0
    assert step_of(tmp_path / "run/checkpoint_0") == 0 and "step 0, from --step" in capsys.readouterr().out
    for step in ("-1", str(2**31)):
        assert __main__.main(["from-hf", str(folder), str(tmp_path / "other"), "--step", step]) == 1
        assert f"--step is {step}; it is a whole number of at least 0 and below 2**31" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "trainer_state.json is not JSON"),
        ("[]", "trainer_state.json holds an empty list"),
        ("{}", "trainer_state.json: global_step is None"),
        ({"global_step": "5"}, "trainer_state.json: global_step is '5'; it is a whole number of at least 0"),
        ({"global_step": -5}, "global_step is -5"),
        ({"global_step": 2**40}, "global_step is 1099511627776"),
    ],
)
def test_a_damaged_state_is_named(saved, tmp_path, capsys, state, words):
    folder = trainer_folder(saved, tmp_path / "model", state)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run"), "--no-check"]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# ------------------------------------------------ files of t5-experiments --------------------------------------------


def save_as_trainer(model, path, **more):
    """The dict that the Trainer of lm_experiments_tools saves, after a step of AdamW with a schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ones = torch.ones((1, 4), dtype=torch.long)
    model(input_ids=ones, labels=ones).loss.backward()
    optimizer.step()
    schedule.step()
    model.load_state_dict(before)  # The fixture's model stays what it is.
    content = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "lr_scheduler_state_dict": schedule.state_dict(),
        "iteration": 150_000,
        "epoch": 3,
        "metrics": {"loss": np.float64(2.5), "accuracy": np.float32(0.25)},
        **more,
    }
    torch.save({name: value for name, value in content.items() if value is not None}, path)
    return path


@pytest.fixture(scope="module")
def pth(saved, tmp_path_factory):
    """A folder as that Trainer leaves it: its config.json has the training's settings, not the network."""
    root, model = saved
    folder = tmp_path_factory.mktemp("t5-experiments")
    save_as_trainer(model, folder / "model_150000.pth")
    (folder / "config.json").write_text(json.dumps({"model_cfg": "./t5configs/t5-small.json", "lr": 5e-5}))
    network = json.loads((root / "copy/config.json").read_text())
    # As the repository's own configurations: what was a default is not in them.
    kept = {"d_ff", "d_kv", "d_model", "num_heads", "num_layers", "vocab_size", "model_type", "feed_forward_proj"}
    network = {key: value for key, value in network.items() if key in kept}
    (folder / "t5-small.json").write_text(json.dumps(network | {"tie_word_embeddings": False, "output_past": True}))
    return folder


def arguments(pth, out, *more):
    return ["from-hf", str(pth / "model_150000.pth"), str(out), "--config", str(pth / "t5-small.json"), *more]


def test_a_file_with_optimizer_state_is_the_model_at_its_step(saved, pth, tmp_path, capsys):
    vocab = str(saved[0] / "copy/spiece.model")
    assert __main__.main([*arguments(pth, tmp_path / "run"), "--vocab", vocab]) == 0
    out = capsys.readouterr().out
    assert "step 150000, from the file" in out and "ok    logits, A in PyTorch " in out
    assert step_of(tmp_path / "run/checkpoint_150000") == 150_000
    report = json.loads((tmp_path / "run/checkpoint_150000/conversion_report.json").read_text())
    rows = {row["what"]: row["value"] for row in report["comparisons"]["orbax"]}
    assert rows["logits, A in PyTorch"] < 1e-5 and rows["logits, A in NumPy"] < 1e-5
    ours = checkpointing.load_params(tmp_path / "run")["decoder"]["layers_1"]["mlp"]["wo"]["kernel"]
    theirs = saved[1].state_dict()["decoder.block.1.layer.2.DenseReluDense.wo.weight"].numpy()
    np.testing.assert_array_equal(ours, theirs.T)
    assert (tmp_path / "run/spiece.model").is_file() and (tmp_path / "run/model.gin").is_file()


def test_the_tokenizer_may_be_a_folder_or_lie_beside(saved, pth, tmp_path):
    assert __main__.main([*arguments(pth, tmp_path / "a", "--no-check"), "--vocab", str(saved[0] / "copy")]) == 0
    # With a folder as --config, whose tokenizer it is.
    file = str(pth / "model_150000.pth")
    given = ["from-hf", file, str(tmp_path / "b"), "--no-check", "--config", str(saved[0] / "copy")]
    assert __main__.main(given) == 0
    assert (tmp_path / "a/spiece.model").read_bytes() == (tmp_path / "b/spiece.model").read_bytes()


@pytest.mark.parametrize(("name", "step"), [("model_75000.pth", 75_000), ("model_best.pth", 0)])
def test_without_an_iteration_the_name_says_the_step(saved, pth, tmp_path, name, step):
    file = save_as_trainer(saved[1], tmp_path / name, iteration=None)
    config, vocab = str(pth / "t5-small.json"), str(saved[0] / "copy/spiece.model")
    given = ["from-hf", str(file), str(tmp_path / "run"), "--config", config, "--vocab", vocab, "--no-check"]
    assert __main__.main(given) == 0
    assert step_of(tmp_path / f"run/checkpoint_{step}") == step


def test_what_is_missing_is_named(saved, pth, tmp_path, capsys):
    file, out = str(pth / "model_150000.pth"), str(tmp_path / "run")
    for given, words in (
        ([], "holds weights and no configuration: give that of its network with --config FILE"),
        ([], "The settings of its training name ./t5configs/t5-small.json."),
        (["--config", str(tmp_path / "no.json")], f"there is no {tmp_path}/no.json"),
        (["--config", str(pth / "config.json")], "model_type is missing"),
        (["--config", str(pth / "t5-small.json")], "say where the SentencePiece model is with --vocab FILE"),
    ):
        assert __main__.main(["from-hf", file, out, *given]) == 1
        assert words in capsys.readouterr().err
    assert __main__.main(["from-hf", str(saved[0] / "copy"), out, "--config", str(pth / "t5-small.json")]) == 1
    assert "copy has its own config.json; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Program:
    """What a pickle may ask for, and must not get."""

    def __reduce__(self):
        return exec, ("raise SystemExit('ran')",)


def test_a_program_beside_the_model_is_not_run(saved, pth, tmp_path, capsys):
    file = save_as_trainer(saved[1], tmp_path / "model_1.pth", metrics=Program())
    given = ["--config", str(pth / "t5-small.json"), "--vocab", str(saved[0] / "copy/spiece.model")]
    assert __main__.main(["from-hf", str(file), str(tmp_path / "run"), *given]) == 1
    error = capsys.readouterr().err
    assert ".exec, which could run any program" in error


# ---------------------------------------------- model_name_or_path of `limba run` ------------------------------------


def same_tensors(checkpoint, source):
    ours, theirs = any_format.open_model(checkpoint).tensors, any_format.open_model(source).tensors
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(theirs[name]), err_msg=name)


def test_a_file_of_weights_with_the_configuration_of_its_training(saved, pth, tmp_path, checks_in_forks, caplog):
    model, config, vocab = pth / "model_150000.pth", str(pth / "t5-small.json"), str(saved[0] / "copy")
    opened = starting_model.open_model(str(model), config, vocab)
    assert opened.has_weights and opened.encoder is None and opened.no_export == ""
    assert f"{model} is of step 150000, as the file says. The weights are taken; steps and the" in caplog.text
    assert opened.write(tmp_path / "initial") == tmp_path / "initial" / "model.gin"
    assert step_of(tmp_path / "initial" / "checkpoint_150000") == 150_000
    same_tensors(tmp_path / "initial", saved[0] / "copy")
    # A start that resumes leaves it; one that somebody else put there names modules.
    gin_file = opened.write(tmp_path / "initial")
    written = gin_file.read_text()
    for line in (
        "import theirs",
        "include 'theirs.gin'",
        "MIXTURE_OR_TASK_MODULE = 'theirs'",
        "network.T5Config.encoder_self_attention_layer = 'theirs:Layer'",
    ):
        gin_file.write_text(f"{written}\n{line}\n")
        with pytest.raises(ValueError, match=r"model\.gin names theirs.*somebody else"):
            opened.write(tmp_path / "initial")
    gin_file.write_text(written)
    with pytest.raises(ValueError, match=r"model_150000.pth' is a file of weights; give its network as config_name"):
        starting_model.open_model(str(model), None, vocab)
    with pytest.raises(FileNotFoundError, match=r"t5-small.json|model_150000.pth has no tokenizer beside it"):
        starting_model.open_model(str(model), config, None)


@pytest.mark.parametrize("place", ["run", "run/checkpoint_10"])
def test_a_run_or_one_of_its_checkpoints(saved, pth, tmp_path, place):
    run, config = str(saved[0] / place), str(pth / "t5-small.json")
    for given in (None, config):
        opened = starting_model.open_model(run, given, None)
        assert opened.has_weights and opened.network.num_encoder_layers == 2
    opened.write(tmp_path / "initial")
    assert step_of(tmp_path / "initial" / "checkpoint_10") == 10
    same_tensors(tmp_path / "initial", saved[0] / "run")


@pytest.mark.parametrize("place", ["run", "copy"])
def test_the_dropout_of_another_config_counts(saved, pth, tmp_path, place):
    content = json.loads((pth / "t5-small.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(content | {"dropout_rate": 0.37}))
    assert (
        starting_model.open_model(str(saved[0] / place), str(tmp_path / "other.json"), None).network.dropout_rate
        == 0.37
    )


@pytest.mark.parametrize("place", ["run", "copy"])
def test_another_network_than_the_models_is_refused(saved, pth, tmp_path, place):
    content = json.loads((pth / "t5-small.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(content | {"feed_forward_proj": "gated-silu"}))
    with pytest.raises(
        ValueError, match=r"has mlp_activations \['relu'\]; config_name, .* has mlp_activations \['silu', 'linear'\]"
    ):
        starting_model.open_model(str(saved[0] / place), str(tmp_path / "other.json"), None)


def test_tokens_without_a_row_get_one(saved, tmp_path):
    """As `resize_token_embeddings(len(tokenizer))`; this T5 has an output of its own."""
    from transformers import AutoTokenizer

    shutil.copytree(saved[0] / "copy", tmp_path / "added")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "added")
    rows = saved[1].config.vocab_size
    tokenizer.add_tokens([f"<new_{i}>" for i in range(rows - len(tokenizer) + 3)])
    tokenizer.save_pretrained(tmp_path / "added")
    opened = starting_model.open_model(str(tmp_path / "added"), None, None)
    assert opened.network.vocab_size == rows + 3
    opened.write(tmp_path / "initial")
    to_hf(tmp_path / "initial", tmp_path / "export", formats=["safetensors"], verify=False)
    model = saved[1].from_pretrained(tmp_path / "export")
    for before, after in ((saved[1].shared, model.shared), (saved[1].lm_head, model.lm_head)):
        assert torch.equal(after.weight[:rows], before.weight)
        torch.testing.assert_close(after.weight[rows:], before.weight.mean(0).expand(3, -1))


@pytest.mark.parametrize(("learns", "extra_ids"), [(True, 125), (False, 0)])
def test_a_byt5_learns_the_sentinels_of_its_tokenizer_with_masked_spans(tmp_path, learns, extra_ids):
    """run_t5_mlm_flax.py trains google/byt5-small with them."""
    from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 384, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    opened = starting_model.open_model(str(tmp_path), None, None, learns_sentinels=learns)
    assert opened.vocabulary["extra_ids"] == extra_ids
