"""`limba run` with the JSON of a Hugging Face script, its model and data replaced by local ones."""

import functools
import json
from pathlib import Path

import gin
import numpy as np
import pytest
import tokenizers

from convert import from_hf, to_hf
from convert.model_files.hf import hub_models
from limba import train
from limba.addons import table
from limba.addons.publish import push
from limba.addons.run import command, starting_model
from limba.checkpoints import checkpointing
from limba.reports import writers
from tasks.pretraining import masked_text
from tasks.registry import TaskRegistry
from tasks.vocabularies.sentencepiece_models import sentinel_ids
from tests.addons.run.keys.test_script_keys import EXAMPLE
from tests.convert import vocabularies

pytestmark = pytest.mark.usefixtures("checks_in_forks")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A data set's folder, a tokenizer, and a config.json as small as Hugging Face's scripts are given them."""
    root = tmp_path_factory.mktemp("run")
    sentences = vocabularies.sentences(700)
    (root / "data").mkdir()
    for split, part in (("train", sentences[:600]), ("validation", sentences[600:])):
        lines = (json.dumps({"text": text}) + "\n" for text in part)
        (root / "data" / f"{split}.jsonl").write_text("".join(lines))
    vocabularies.train(root / "spiece.model")
    network = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 512}
    (root / "config.json").write_text(json.dumps({"model_type": "t5", **network}))
    (root / "run.json").write_text(
        json.dumps(
            {
                name: value
                for name, value in EXAMPLE.items()
                if name not in ("model_name_or_path", "dataset_config_name")
            }
            | {"dataset_name": str(root / "data"), "output_dir": str(root / "out")}
            | {"config_name": str(root / "config.json"), "tokenizer_name": str(root / "spiece.model")}
            | {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "learning_rate": 3e-3}
            | {"num_train_epochs": 1, "max_seq_length": 64, "warmup_steps": 5, "gradient_accumulation_steps": 2}
            | {"logging_steps": 3, "save_steps": 6, "eval_steps": 6, "save_total_limit": 2}
        )
    )
    yield root
    gin.clear_config()


def _run(*argv):
    """As in a process of its own: nothing is bound, and no task is registered."""
    gin.clear_config()
    TaskRegistry.remove("data")
    assert command.main([str(argument) for argument in argv]) == 0


def _losses(out):
    return {x["step"]: x["loss"] for x in writers.read_metrics(out / "run") if x["dataset"] == "train"}


def test_a_dry_run_writes_nothing(here, capsys):
    _run(here / "run.json", "--dry_run")
    text = capsys.readouterr().out
    # 600 sentences are 14,000 tokens, 71 of which fill 64 inputs; 8 devices and 2 passes make 16 rows.
    assert "1 epochs of 2" in text and "BATCH_SIZE = 16  # 1 a device x 8 devices x 2 forward passes" in text
    assert f"include '{here}/out/initial/model.gin'" in text
    assert not (here / "out").exists()


def test_of_a_model_only_the_network_and_the_tokenizer(here, tmp_path, capsys):
    """Its weights, which are damaged here, are not read."""
    for name in ("config.json", "spiece.model"):
        (tmp_path / name).write_bytes((here / name).read_bytes())
    (tmp_path / "model.safetensors").write_text("damaged")
    keys = ["--model_name_or_path", tmp_path, "--config_name", "None", "--tokenizer_name", "None", "--dry_run"]
    _run(here / "run.json", *keys, "--initialize_from_scratch")
    text = capsys.readouterr().out
    assert "initial/model.gin" in text and "INITIAL_CHECKPOINT_PATH" not in text
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        _run(here / "run.json", *keys)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no weights .*add initialize_from_scratch"):
        _run(here / "run.json", *keys)


TORCH = """
class Attention:  # As a project for PyTorch has it: derived from torch.nn.Module.
    def forward(self, states):
        return states
"""


def _write_tokenizers(root):
    """Two: a class of transformers' that adds no sentinels, and bytes, whose class names them."""
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyz"),
    ]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    for folder, kind in (("no_sentinels", "PreTrainedTokenizerFast"), ("bytes", "ByT5Tokenizer")):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    tokenizer.save(str(root / "no_sentinels" / "tokenizer.json"))
    (root / "bytes/config.json").write_bytes((root / "config.json").read_bytes())


@pytest.mark.parametrize("dry", [[], ["--dry_run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--config_name", "{}/torch.json"], "my_torch_layers:Attention .* no class for Flax"),
        (["--gin.TRAIN_STPES=3"], r"--gin\.TRAIN_STPES overrides a name that no gin file uses\. Did you mean TRAIN_ST"),
        (["--gin.trainer.Trainer.num_microbatch=3"], "doesn't have a parameter named 'num_microbatch'"),
        (["--tokenizer_name", "{}/no_sentinels"], "has no token <extra_id_0>, and masked spans need sentinels"),
        (["--output_dir", "{}/spiece.model/out"], "nothing can be written in .*spiece.model; name another folder"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses_before_anything_is_written(here, monkeypatch, dry, changes, says):
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.chdir(here)
    (here / "my_torch_layers.py").write_text(TORCH)
    own = json.loads((here / "config.json").read_text()) | {"encoder_self_attention_layer": "my_torch_layers:Attention"}
    (here / "torch.json").write_text(json.dumps(own))
    _write_tokenizers(here)
    changes = [change.replace("{}", str(here)) for change in changes]
    with pytest.raises(ValueError, match=says):
        _run(here / "run.json", *changes, *dry)
    assert not (here / "out").exists()


def test_the_precision_of_accelerate_counts_as_a_key(here, capsys, monkeypatch):
    def bound(*keys):
        _run(here / "run.json", "--dry_run", *keys)
        return "network.T5Config.dtype = 'bfloat16'" in capsys.readouterr().out

    assert not bound()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # what accelerate launch says by default
    assert not bound() and bound("--bf16")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert bound()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert bound("--bf16")  # as in TrainingArguments, a key comes first
    with pytest.raises(ValueError, match=r"mixed_precision: fp16: float16 has a small range"):
        bound()


def test_a_new_byt5_learns_the_125_sentinels_of_its_tokenizer(here, capsys):
    """Those of run_t5_mlm_flax.py, which takes the ids below len(tokenizer), 384, from the last one down."""
    _write_tokenizers(here)
    _run(here / "run.json", "--config_name", here / "bytes", "--tokenizer_name", "None", "--dry_run")
    assert "TRAIN_STEPS" in capsys.readouterr().out
    for config, tokenizer in ((here / "bytes", None), (here / "bytes" / "config.json", str(here / "bytes"))):
        model = starting_model.open_model(None, str(config), tokenizer)
        assert (model.vocabulary["class"], model.vocabulary["vocab_size"]) == ("ByteVocabulary", 384)
        assert "vocabularies.ByteVocabulary.extra_ids = 125" in model.gin
        ids = sentinel_ids(masked_text.open_vocabulary(model.vocabulary))
        assert (ids[0], ids[1], ids[-1], len(ids)) == (383, 382, 259, 125)
    assert "warning" not in capsys.readouterr().err


def test_a_dry_run_accepts_what_the_run_accepts(here, capsys, caplog, monkeypatch):
    """Bindings of gin, keys of all its commands; and it asks for no token, which only the upload needs."""
    monkeypatch.setattr(hub_models.client(), "get_token", lambda: None)
    (here / "test.jsonl").write_text('{"text": "a", "mood": "b"}\n')
    bindings = ["--gin.EVAL_PERIOD=7", "--gin.trainer.Trainer.num_microbatches=1"]
    _run(here / "run.json", *bindings, "--push_to_hub", "--hub_model_id", "me/mine", "--dry_run")
    assert "push_to_hub needs a token" in caplog.text and "TRAIN_STEPS" in capsys.readouterr().out
    with pytest.raises(ValueError, match="push_to_hub needs a token"):
        _run(here / "run.json", "--push_to_hub", "--hub_model_id", "me/mine")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="no add-on that uploads"):
        patch.delitem(table.ADDONS, "publish")
        _run(here / "run.json", "--push_to_hub")
    rows = ["--label_column_name", "mood", "--test_file", "test.jsonl", "--do_predict", "--do_train", "false"]
    monkeypatch.chdir(here)
    _run(
        here / "run.json",
        "--dataset_name",
        "None",
        *rows,
        "--do_eval",
        "false",
        "--gin.infer.mode='predict'",
        "--dry_run",
    )
    assert not (here / "out").exists()


@pytest.mark.slow
def test_it_trains_saves_evaluates_and_exports(here, monkeypatch, one_device):
    out = here / "out"
    _run(here / "run.json", "--hub_token", "hf_secret")
    steps = json.loads((out / "all_results.json").read_text())["step"]
    assert steps == 13  # 209 examples, 16 a step
    assert checkpointing.checkpoint_steps(out / "run") == [12, 13]  # save_total_limit
    losses = _losses(out)
    assert sorted(losses) == [3, 6, 9, 12, 13]
    evaluations = writers.read_metrics(out / "run", "training_eval/")
    assert [x["step"] for x in evaluations] == [0, 6, 12, 13]
    assert evaluations[-1]["nats_per_target_token"] < evaluations[0]["nats_per_target_token"] - 0.5
    # 3e-3 * s / 5 while it rises, then 3e-3 * (13 - s) / 8: the mean of a line's steps and its last one.
    rates = {
        x["step"]: x["learning_rate/current"] for x in writers.read_metrics(out / "run") if x["dataset"] == "train"
    }
    np.testing.assert_allclose([rates[3], rates[6], rates[13]], [1.2e-3, 3e-3, 3.75e-4], rtol=1e-4)

    report = json.loads((out / "conversion_report.json").read_text())
    assert report["checked"] and report["checkpoint"] == "checkpoint_13"
    assert all(row["holds"] for rows in report["comparisons"].values() for row in rows)
    for name in ("config.json", "model.safetensors", "spiece.model", "tokenizer.json", "README.md"):
        assert (out / name).is_file(), name
    assert (out / "README.md").read_text().count("# out\n") == 1 and not (out / ".exported").exists()
    files = [file for file in out.rglob("*") if file.is_file() and file.suffix in (".json", ".gin", ".md", ".jsonl")]
    assert not [file for file in files if "hf_secret" in file.read_text()]

    # The kept gin file is one for `limba train`; the same command goes on, here from a checkpoint before the end.
    gin.clear_config()
    train.main([f"--gin_file={out}/run.gin", "--dry_run"])
    assert gin.query_parameter("%TRAIN_STEPS") == 13
    checkpointing.checkpoint_path(out / "run", 13).rename(here / "lost")
    # Each check imports PyTorch and transformers anew, and one is enough.
    for module, name in ((to_hf, "to_hf"), (from_hf, "write")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), verify=False))
    pushed = []
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def record_push(folder, repo, public):
        pushed.append((sorted(file.name for file in folder.iterdir()), repo, public))

    monkeypatch.setattr(push, "push", record_push)
    _run(here / "run.json", "--push_to_hub", "--hub_model_id", "me/mine")
    assert _losses(out) == losses and checkpointing.checkpoint_steps(out / "run") == [12, 13]
    (files, *where) = pushed[0]
    assert where == ["me/mine", False] and "model.safetensors" in files and "run" not in files


def test_nothing_that_is_there_is_replaced_and_no_upload_is_left_to_fail(here, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_something")
    (tmp_path / "file").write_text("x")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    begin = ["--config_name", "None", "--tokenizer_name", "None", "--model_name_or_path", str(tmp_path / "model")]
    for changes, words in (
        (["--output_dir", str(tmp_path / "file")], "which is a file"),
        (["--output_dir", str(tmp_path / "model"), *begin], "or write overwrite_output_dir, which moves such files"),
        (["--output_dir", str(tmp_path / "model")], "holds the file config.json, which no `limba run` has written"),
        (["--output_dir", str(tmp_path / "new"), "--push_to_hub", "--hub_model_id", "a/b/c"], "hub_model_id .*'a/b/c'"),
    ):
        with pytest.raises(ValueError, match=words):
            command.main([str(here / "run.json"), *changes])
    monkeypatch.setattr(hub_models.client(), "get_token", lambda: None)
    with pytest.raises(ValueError, match=r"push_to_hub needs a token .*HF_TOKEN"):
        command.main([str(here / "run.json"), "--output_dir", str(tmp_path / "new"), "--push_to_hub"])
    assert (tmp_path / "model" / "config.json").read_text() == "{}" and not (tmp_path / "new").exists()


def test_help_and_bad_input_before_any_work(here, capsys):
    assert command.main(["--help"]) == 0
    assert "--mlm_probability" in capsys.readouterr().out
    for changes, words in (
        (["--max_seq_lenght", "64"], "nearest is 'max_seq_length'"),
        (["--dataset_name", "None", "--train_file", str(here / "absent.txt")], "There is no file"),
        (["--tokenizer_name", "/absent/folder"], "neither a folder, a file nor a name"),
        (["--config_name", str(here / "spiece.model")], "is a SentencePiece model"),
        (["--text_column_name", "txt"], "did you mean 'text'"),
        (["--dataset_name", str(Path(__file__).parent)], "has no file of texts, such as train"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            command.main([str(here / "run.json"), "--output_dir", str(here / "other"), *changes])
    assert not (here / "other").exists()
