"""`limba run` on rows with answers: fine-tuning, evaluation and prediction with a Hugging Face script's keys."""

import csv
import dataclasses
import json

import gin
import pytest

from limba.addons.run import command, results
from limba.addons.run.keys.request import Request
from limba.addons.run.plan import Counted
from limba.reports import results_table
from tasks import registry
from tasks.sources.sharded import ShardedSource
from tests.addons.run.plans import plan_of
from tests.convert import vocabularies

LABELS = ["long", "short"]

pytestmark = pytest.mark.usefixtures("without_checks")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Rows whose answer is whether a text has one word or twelve, a tokenizer and a small config.json."""
    root = tmp_path_factory.mktemp("sizes", numbered=False)
    vocabularies.train(root / "spiece.model")
    words = " ".join(vocabularies.sentences(300)).split()
    rows = [(words[i] if i % 2 else " ".join(words[i : i + 12]), LABELS[i % 2]) for i in range(400)]
    for split, part in (("train", rows[:320]), ("validation", rows[320:360]), ("test", rows[360:])):
        with (root / f"{split}.csv").open("w") as file:
            csv.writer(file).writerows([("text", "size"), *part])
    network = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 512}
    (root / "config.json").write_text(json.dumps({"model_type": "t5", "dropout_rate": 0.0, **network}))
    keys = {
        **{f"{split}_file": str(root / f"{split}.csv") for split in ("train", "validation", "test")},
        "config_name": str(root / "config.json"),
        "tokenizer_name": str(root / "spiece.model"),
        "text_column_name": "text",
        "label_column_name": "size",
        "source_prefix": "size of: ",
        "labels": LABELS,
        "max_seq_length": 32,
        "max_target_length": 8,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 1,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "polynomial",
        "num_train_epochs": 6,
        "logging_steps": 20,
        "save_steps": 60,
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        "output_dir": str(root / "out"),
    }
    (root / "run.json").write_text(json.dumps(keys))
    yield root
    gin.clear_config()


def _run(*argv):
    """As in a new process: the task of an earlier run has the vocabulary of that run."""
    gin.clear_config()
    for name in [name for name in registry.TaskRegistry.names() if name.startswith("sizes")]:
        registry.TaskRegistry.remove(name)
    assert command.main([str(argument) for argument in argv]) == 0


def test_the_gin_file_of_a_pod(here, tmp_path, monkeypatch, capsys):
    """Nothing is trained; the file is for as many devices as the pod has, and names folders as they were given."""
    monkeypatch.chdir(tmp_path)
    _run(here / "run.json", "--output_dir", "runs/pod", "--write_gin", "pod.gin", "--num_devices", "32")
    text = (tmp_path / "pod.gin").read_text()
    assert "BATCH_SIZE = 128  # 4 a device x 32 devices" in text and "TRAIN_STEPS = 18  # 6 epochs" in text
    assert "include 'runs/pod/initial/model.gin'" in text and "MODEL_DIR = 'runs/pod/run'" in text
    assert "VOCABULARY_FILE = 'runs/pod/initial/spiece.model'" in text
    assert not (tmp_path / "runs" / "pod" / "run").exists()
    assert "bash launch/worker.sh pod.gin" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"--num_devices is 4; .*--write_gin"):
        command.main([str(here / "run.json"), "--num_devices", "4"])


def test_epochs_are_counted_beside_max_steps(here, capsys, monkeypatch):
    """320 rows are 10 batches of 32. Rows of another machine are not read for it."""
    periods = [f"--{what}_strategy=epoch" for what in ("evaluation", "save", "logging")]
    _run(here / "run.json", "--max_steps", "12", *periods, "--dry_run")
    text = capsys.readouterr().out
    for line in ("TRAIN_STEPS = 12  # max_steps", "EVAL_PERIOD = 10\n", "stats_period = 10\n", "  period = 10\n"):
        assert line in text
    monkeypatch.setattr(ShardedSource, "is_remote", lambda self, split: True)
    with pytest.raises(ValueError, match=r"logging_strategy is 'epoch', .* only files on this machine are counted"):
        _run(here / "run.json", "--max_steps", "12", *periods, "--dry_run")


def test_a_dry_run_without_a_key_of_wandb_is_refused(here, tmp_path, monkeypatch, capsys, caplog):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    given = [here / "run.json", "--max_steps", "1", "--report_to", "wandb", "--dry_run"]
    with pytest.raises(ValueError, match=r"Weights & Biases has no key for https://api\.wandb\.ai\."):
        _run(*given)
    _run(*given, "--gin.wandb_writer.WandbWriter.mode='offline'")
    assert "@wandb_writer.WandbWriter" in capsys.readouterr().out
    monkeypatch.setenv("WANDB_DISABLED", "true")
    for tracker in ("wandb", "all"):
        caplog.clear()
        _run(*given, "--report_to", tracker)
        assert "wandb" not in capsys.readouterr().out
        assert caplog.text.count("WANDB_DISABLED is set: nothing is sent to Weights & Biases") == 1


@pytest.mark.slow
def test_it_learns_evaluates_and_answers(here, capsys, one_device):
    out = here / "out"
    _run(here / "run.json")
    results = json.loads((out / "all_results.json").read_text())
    assert results["step"] == 60  # 320 rows by 32, 6 epochs
    assert 0.9 < results["eval_accuracy"] <= 1 and results["eval_majority_accuracy"] == 0.5
    assert 0.9 < results["eval_macro_f1"] <= 1 and results["eval_short_recall"] > 0.8
    answers = (out / "generated_predictions.txt").read_text().splitlines()
    right = [row["size"] for row in csv.DictReader((here / "test.csv").open())]
    assert (out / "predictions" / "checkpoint_60").is_dir()  # Longer training answers anew.
    assert len(answers) == 40 and sum(map(str.__eq__, answers, right)) >= 36
    assert json.loads((out / "conversion_report.json").read_text())["checkpoint"] == "checkpoint_60"
    _check_files_of_transformers(out, results)

    # The exported model alone: evaluated and asked, not trained.
    (keys := json.loads((here / "run.json").read_text())).update(do_train=False, config_name=None, tokenizer_name=None)
    (here / "alone.json").write_text(json.dumps(keys | {"model_name_or_path": str(out)}))
    _run(here / "alone.json", "--output_dir", here / "alone")
    alone = json.loads((here / "alone" / "all_results.json").read_text())
    assert alone["eval_accuracy"] == results["eval_accuracy"] and alone["step"] == 60
    assert (here / "alone" / "generated_predictions.txt").read_text().splitlines() == answers
    assert not (here / "alone" / "run").exists() and not (here / "alone" / "model.safetensors").exists()
    assert [row["split"] for row in results_table.read(here / "alone/evaluated/eval")] == ["validation"]
    _run(here / "alone.json", "--output_dir", here / "alone", "--do_eval", "false", "--max_predict_samples", "7")
    assert (here / "alone" / "generated_predictions.txt").read_text().splitlines() == answers[:7]  # not the older ones


def _check_files_of_transformers(out, results):
    from transformers import TrainerState

    parts = {kind: json.loads((out / f"{kind}_results.json").read_text()) for kind in ("train", "eval", "predict")}
    assert {"step": 60, **parts["train"], **parts["eval"], **parts["predict"]} == results
    assert (results["epoch"], results["train_samples"], results["eval_samples"]) == (6.0, 320, 40)
    assert results["predict_samples"] == 40 and results["predict_accuracy"] >= 0.9
    # "long" and "short" are of some pieces, and EOS is counted.
    assert 2 <= results["eval_gen_len"] <= 8 and 2 <= results["predict_gen_len"] <= 8
    for kind, steps in (("train", 60), ("eval", 5), ("predict", 5)):
        assert results[f"{kind}_steps_per_second"] == pytest.approx(
            steps / results[f"{kind}_runtime"], rel=0.01, abs=0.01
        )
    state = TrainerState.load_from_json(str(out / "trainer_state.json"))
    assert (state.global_step, state.max_steps, state.num_train_epochs, state.epoch) == (60, 60, 6, 6.0)
    assert [entry["step"] for entry in state.log_history if "loss" in entry] == [20, 40, 60]
    assert state.log_history[-1]["train_runtime"] == results["train_runtime"]


def test_data_that_are_not_enough_are_refused_before_any_work(here, tmp_path):
    out = ["--output_dir", str(tmp_path / "new")]
    best = ["--labels", "None", "--load_best_model_at_end", "--metric_for_best_model"]
    for changes, words in (
        (["--label_column_name", "sizes"], "did you mean 'size'"),
        (["--metric_names", "acuracy"], "no metric 'acuracy' .*accuracy"),
        ([*best, "f1"], "'f1', and the evaluations have loss, accuracy, gen_len:"),
        ([*best, "rouge3"], "'rouge3', and the evaluations have loss, rouge1, rouge2, rougeL, rougeLsum, gen_len:"),
        (["--test_file", "None"], "do_predict answers the split 'test', and .* has 'train', 'validation'"),
        (["--do_train", "false", "--validation_file", "None"], "no split 'validation' to evaluate"),
        (["--labels", '["long"]'], "give at least two"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            command.main([str(here / "run.json"), *out, *changes])
    assert not (tmp_path / "new").exists()


def test_the_files_of_results_are_those_of_transformers(tmp_path):
    """320 rows by 32 are 10 steps an epoch; the best of two checkpoints is exported, and nothing is invented."""
    run = tmp_path / "run"
    for step in (10, 20):
        (run / f"checkpoint_{step}").mkdir(parents=True)
    counts = {"num_examples": 9, "tokens_per_prediction": 2.25, "timing/evaluate_seconds": 1.0}
    lines = []
    for step, loss, accuracy in ((10, 3.0, 0.75), (20, 2.0, 0.5)):
        lines.append({"step": step, "dataset": "train", "loss": loss, "learning_rate/current": loss / 1000})
        evaluation = {"nats_per_target_token": 0.0, "accuracy": 0.5, "timing/seconds": 0.5}
        lines.append({"step": step, "dataset": "training_eval/t", **evaluation})
        lines.append({"step": step, "dataset": "inference_eval/t", "eval/accuracy": accuracy, **counts})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spent = {"start": 30.0, "compile": 20.0, "input": 0.5, "step": 1.5, "evaluation": 1.5, "checkpoint": 0.5}
    goodput = {"began": 1.0, "time": 60.0, "step": 20, "seconds": spent}
    (run / "goodput.jsonl").write_text(json.dumps(goodput) + "\n")
    keys = {"config_name": "c", "train_file": "t", "output_dir": str(tmp_path), "label_column_name": "a"}
    keys |= {"do_train": True, "do_eval": True, "load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    arguments = Request(**keys, num_train_epochs=1.5, per_device_eval_batch_size=2)
    plan = plan_of(arguments, examples=Counted(320))
    found = results.of_training(plan, run / "checkpoint_10", first_step=10)
    results.write_state(plan, run / "checkpoint_10", found)
    results.write(plan, found)

    def read(name):
        return json.loads((tmp_path / name).read_text())

    trained = {"train_runtime": 4.0, "train_samples_per_second": 80.0, "train_steps_per_second": 2.5}
    assert read("train_results.json") == {"epoch": 2.0, "train_loss": 2.5, "train_samples": 320, **trained}
    evaluated = {"eval_loss": 0.0, "eval_accuracy": 0.75, "eval_gen_len": 2.25, "eval_runtime": 1.5}
    evaluated |= {"eval_samples_per_second": 6.0, "eval_steps_per_second": 1.333}
    assert read("eval_results.json") == {"epoch": 2.0, "perplexity": 1.0, "eval_samples": 9, **evaluated}
    state = read("trainer_state.json")
    assert (state["best_metric"], state["best_global_step"], state["global_step"]) == (0.75, 10, 20)
    assert state["best_model_checkpoint"] == str(run / "checkpoint_10") and state["num_train_epochs"] == 2
    last = {**trained, "train_loss": 2.5, "epoch": 2.0, "step": 20}
    assert state["log_history"] == [
        {"loss": 3.0, "learning_rate": 0.003, "epoch": 1.0, "step": 10},
        {**evaluated, "epoch": 1.0, "step": 10},
        {"loss": 2.0, "learning_rate": 0.002, "epoch": 2.0, "step": 20},
        {**evaluated, "eval_accuracy": 0.5, "epoch": 2.0, "step": 20},
        last,
    ]
    assert not (tmp_path / "predict_results.json").exists()
    # The same command once more trains nothing, and the time is that of the training.
    again = results.of_training(plan, run / "checkpoint_10", first_step=20)
    assert again == found
    # Prediction alone adds to what is there.
    alone = dataclasses.replace(arguments, do_train=False, load_best_model_at_end=False)
    results.write(plan_of(alone), {"predict_samples": 3})
    assert read("all_results.json") == {**found, "predict_samples": 3}


def test_the_results_keep_the_names_of_the_scripts(tmp_path):
    lines = [
        {"step": 5, "dataset": "train", "loss": 1.5},
        {"step": 5, "dataset": "training_eval/t", "nats_per_target_token": 0.0, "accuracy": 0.5},
        {"step": 5, "dataset": "inference_eval/t", "eval/accuracy": 0.75, "eval/f1": 0.5, "eval/bleu": 20.0},
        {"step": 9, "dataset": "training_eval/t", "nats_per_target_token": 2.0, "accuracy": 0.1},
        # What follows the checkpoint is of another model.
        {"step": 9, "dataset": "inference_eval/t", "eval/accuracy": 0.0, "eval/f1": 0.0, "eval/bleu": 0.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert results.of_checkpoint(tmp_path / "checkpoint_5") == {
        "step": 5,
        "train_loss": 1.5,
        "eval_loss": 0.0,
        "perplexity": 1.0,
        "eval_accuracy": 0.75,
        "eval_f1": 0.5,
        "eval_bleu": 20.0,
    }
    row = {"task": "t", "split": "validation", "checkpoint": "c", "step": 5, "loss": {}}
    of_task = {"exact_match": 40.0, "f1": 50.0, "sad_f1": 0.5, "pearson_corrcoef": None}
    results_table.add(tmp_path, [row | {"metrics": of_task}])
    expected = {"step": 5, "eval_exact_match": 40.0, "eval_f1": 50.0, "eval_sad_f1": 0.5, "eval_pearson_corrcoef": None}
    assert results.of_evaluation(tmp_path) == expected
