"""Schedules and batches of `limba run` against transformers' own."""

import ast
import dataclasses
import json
import pathlib

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.addons.run import data, gin_text, script_task
from limba.addons.run.keys import script_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.schedule_keys import SCHEDULES
from limba.addons.run.plan import Counted
from limba.checkpoint_files import run_folder
from limba.data import contract
from limba.models import losses
from limba.optimizers import weight_decay
from tasks.metrics import text_metrics
from tasks.pipeline import predictions
from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

ARGUMENTS = Request(
    config_name="config.json", train_file="t.txt", output_dir="/nowhere", do_train=True, learning_rate=3e-4
)
DECODING = "decoding.temperature_sample"


def _plan(keys, **fields):
    """Of 50 updates."""
    return plan_of(dataclasses.replace(keys, max_steps=50), **fields)


def test_a_signed_url_is_read_and_not_written():
    """The gin file that the run reads back has `***`; the source in this process has the whole URL."""
    url = "https://me:pl4nted@host/corpus.jsonl?part=2&X-Amz-Signature=pl4nted"
    arguments = dataclasses.replace(ARGUMENTS, train_file=url)
    corpus = data.find(arguments)
    assert corpus.name == "corpus" and "pl4nted" not in repr(corpus)
    files = next(line for line in lines_of(gin_text._documents(_plan(arguments, corpus=corpus))) if "***" in line)
    recorded = ast.literal_eval(files.partition("=")[2].strip())
    assert recorded == {"train": ["https://***@host/corpus.jsonl?part=2&X-Amz-Signature=***"]}
    assert corpora.files_by_split(recorded) == {"train": [url]}


def test_a_translation_has_its_task(tmp_path):
    """run_translation's keys and rows; the gin file's task makes the examples and measures BLEU."""
    rows = tmp_path / "wmt.json"
    rows.write_text("\n".join(json.dumps({"translation": {"en": f"tree {i}", "uk": f"дерево {i}"}}) for i in range(3)))
    given = {"train_file": str(rows), "source_lang": "en", "target_lang": "uk", "source_prefix": "{to} uk: "}
    arguments = dataclasses.replace(ARGUMENTS, **given)
    corpus = data.find(arguments)
    vocabulary = {"class": run_folder.BYTES, "extra_ids": 100}
    assert data.count_examples(arguments, corpus, vocabulary) == Counted(3, True, 3)
    lines = lines_of(gin_text._rows(_plan(arguments, corpus=corpus)))
    given = {name.strip(): value for name, _, value in (line.partition(" = ") for line in lines) if name[:1] == " "}
    values = {name: ast.literal_eval(value) for name, value in given.items() if value != "%VOCABULARY"}
    task = TaskRegistry.get(script_task.task(vocabulary=ByteVocabulary(extra_ids=100), **values))
    example = next(iter(predictions.examples(task, contract.DatasetConfig(task.name, None, "train", 1, seed=0))))
    assert example["inputs_pretokenized"].decode() == "{to} uk: tree 0"
    assert example["targets_pretokenized"].decode() == "дерево 0" and [x.__wrapped__ for x in task.metric_fns] == [
        text_metrics.bleu
    ]


def test_a_prefix_lm_has_its_lengths():
    lines = lines_of(gin_text._documents(_plan(dataclasses.replace(ARGUMENTS, task="prefix_lm", max_seq_length=64))))
    parsed = "from __gin__ import dynamic_registration\nfrom tasks import objectives\n" + "\n".join(lines[-4:])
    gin.clear_config()
    gin.parse_config(parsed)
    lengths = gin.query_parameter("%TASK_FEATURE_LENGTHS").scoped_configurable_fn()
    gin.clear_config()
    assert lengths == {"inputs": 64, "targets": 63}
    assert "  objective = @objectives.PrefixLM()" in lines[: lines.index("objectives.lengths:")]


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [
        ({}, (128, 128, 128)),
        ({"max_target_length": 30}, (30, 30, 30)),
        ({"max_target_length": 30, "val_max_target_length": 20}, (30, 20, 20)),
        ({"max_target_length": 30, "generation_max_length": 40}, (30, 30, 40)),
        ({"val_max_target_length": 20, "generation_max_length": 40}, (128, 20, 40)),
        ({"max_target_length": 16, "val_max_target_length": 16, "generation_max_length": 16}, (16, 16, 16)),
    ],
)
def test_lengths_of_answers(keys, lengths):
    """In training, in the losses of evaluations, and of generated answers."""
    arguments = dataclasses.replace(ARGUMENTS, label_column_name="answer", do_eval=True, **keys)
    plan = _plan(arguments)
    lines = [*lines_of(gin_text._rows(plan)), *lines_of(gin_text._periods(plan))]
    targets = {
        name: ast.literal_eval(value)["targets"]
        for name, equals, value in (line.partition(" = ") for line in lines)
        if name.endswith(("TASK_FEATURE_LENGTHS", "task_feature_lengths"))
    }
    of_evaluations = (f"{role}_eval/data.DatasetConfig.task_feature_lengths" for role in ("train", "infer"))
    assert targets == dict(zip(("TASK_FEATURE_LENGTHS", *of_evaluations), lengths, strict=True))
    alone = plan.of_dataset("eval")
    assert alone["eval/data.DatasetConfig.task_feature_lengths"] == {"inputs": 512, "targets": lengths[2]}


def _value(lines, name):
    return next(line.partition(" = ")[2].partition("  #")[0] for line in lines if line.strip().startswith(name))


@pytest.mark.parametrize(
    ("keys", "save", "evaluate"),
    [
        ({}, 500, 500),
        ({"save_steps": 7}, 7, 7),
        ({"save_strategy": "epoch", "eval_strategy": "epoch"}, 25, 25),
        ({"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 4}, 50, 4),
        ({"eval_strategy": "no"}, 500, 50),
        ({"do_train": False, "eval_strategy": "epoch"}, 50, 50),
    ],
)
def test_periods(keys, save, evaluate):
    """800 rows are 25 batches of 8 on 4 devices, and 50 steps two epochs."""
    arguments = dataclasses.replace(ARGUMENTS, label_column_name="answer", do_eval=True, **keys)
    lines = lines_of(gin_text._periods(_plan(arguments, examples=Counted(800))))
    assert int(_value(lines, "train_script.train.stats_period")) == (50 if "do_train" in keys else 500)
    assert (int(_value(lines, "period")), int(_value(lines, "EVAL_PERIOD"))) == (save, evaluate)
    if keys.get("save_strategy") == "epoch":
        with pytest.raises(ValueError, match=r"eval_strategy is 'epoch', .* with max_steps only files .* eval_steps"):
            lines_of(gin_text._periods(_plan(arguments)))


def test_lines_come_every_logging_steps_only_where_they_are_given():
    lines = lines_of(gin_text._periods(_plan(dataclasses.replace(ARGUMENTS, logging_steps=0.1))))
    assert _value(lines, "train_script.train.log_every") == _value(lines, "train_script.train.stats_period") == "5"
    assert not [line for line in lines_of(gin_text._periods(_plan(ARGUMENTS))) if "log_every" in line]


def test_evaluations_are_delayed_by_steps_or_epochs():
    given = {"do_eval": True, "eval_delay": 1.5, "eval_steps": 1}
    for strategy, first in (("steps", "2"), ("epoch", "38")):  # 25 steps an epoch
        lines = lines_of(
            gin_text._periods(
                _plan(dataclasses.replace(ARGUMENTS, eval_strategy=strategy, **given), examples=Counted(800))
            )
        )
        assert _value(lines, "train_script.train.eval_delay") == first
        assert _value(lines, "train_script.train.run_eval_before_training") == "False"


def test_the_best_strategy_keeps_the_checkpoint_of_the_best_evaluation():
    keys = {"save_strategy": "best", "do_eval": True, "eval_steps": 4, "label_column_name": "answer"}
    arguments = dataclasses.replace(ARGUMENTS, metric_for_best_model="gen_len", **keys)
    lines = lines_of(gin_text._periods(_plan(arguments)))
    assert (_value(lines, "period"), _value(lines, "keep = ")) == ("4", "1")
    assert _value(lines, "metric_name_to_monitor") == "'inference_eval/t/tokens_per_prediction'"
    assert _value(lines, "metric_mode") == "'max'" and _value(lines, "keep_checkpoints_without_metrics") == "False"


def test_early_stopping_is_to_beat_an_evaluation_after_some_steps():
    """As transformers' callback, whose first evaluation is no step 0; and 0 checkpoints to keep are all of them."""
    arguments = dataclasses.replace(ARGUMENTS, do_eval=True, save_total_limit=0)
    lines = lines_of(gin_text._periods(_plan(arguments)))
    assert not [line for line in lines if "run_eval_before_training" in line or "keep" in line]
    lines = lines_of(gin_text._periods(_plan(dataclasses.replace(arguments, early_stopping_patience=1))))
    assert _value(lines, "train_script.train.run_eval_before_training") == "False"
    assert not [line for line in lines if "eval_delay" in line]


def test_smoothed_labels_are_those_of_transformers():
    from transformers.trainer_pt_utils import LabelSmoother

    torch = pytest.importorskip("torch")
    vocab, factor = 11, 0.3
    (line,) = lines_of(
        gin_text._smoothing(_plan(dataclasses.replace(ARGUMENTS, label_smoothing_factor=factor), vocab_size=vocab))
    )
    smoothing = float(_value([line], "LABEL_SMOOTHING"))
    logits = np.random.default_rng(0).normal(size=(2, 3, vocab)).astype(np.float32)
    targets = np.array([[1, 4, 10], [0, 7, 7]])
    ours = jax.grad(lambda x: losses.cross_entropy_with_logits(x, targets, smoothing, 0.0)[0].mean())(logits)
    x = torch.tensor(logits, requires_grad=True)
    LabelSmoother(epsilon=factor)({"logits": x}, torch.tensor(targets)).backward()
    np.testing.assert_allclose(ours, x.grad.numpy(), atol=1e-7)


def _learning_rates(arguments):
    """Of the updates, as the gin lines of the schedule have them."""
    gin.clear_config()
    imports = "from __gin__ import dynamic_registration\n"
    imports += "from limba.optimizers import schedules\nfrom limba.training import trainer\n"
    gin.parse_config(imports + "\n".join(lines_of(gin_text._schedule(_plan(arguments)))))
    function = gin.query_parameter("trainer.Trainer.learning_rate_fn").scoped_configurable_fn()
    gin.clear_config()
    return np.array([float(function(jax.numpy.int32(step))) for step in range(50)])


_NUMBERS = {
    "cosine_with_restarts": [{}, {"num_cycles": 3}],
    "polynomial": [{}, {"power": 2.0, "lr_end": 1e-5}],
    "cosine": [{}, {"num_cycles": 1.25}],
    "cosine_with_min_lr": [{"min_lr": 1e-5}, {"min_lr_rate": 0.2, "num_cycles": 1.5}],
    "cosine_warmup_with_min_lr": [{"min_lr_rate": 0.1}, {"min_lr": 1e-5, "warmup_lr_rate": 0.3, "num_cycles": 1}],
    "warmup_stable_decay": [
        {"num_decay_steps": 15},
        {"num_decay_steps": 9, "num_stable_steps": 20, "min_lr_ratio": 0.1, "decay_type": "1-sqrt"},
        {"num_decay_steps": 20, "warmup_type": "cosine", "decay_type": "linear"},
        {"num_decay_steps": 20, "warmup_type": "1-sqrt", "min_lr_ratio": 0.3, "num_cycles": 1.5},
    ],
}


@pytest.mark.parametrize(
    ("kind", "numbers", "warmup"),
    [
        (kind, numbers, warmup)
        for kind in SCHEDULES
        for numbers in _NUMBERS.get(kind, [{}])
        for warmup in (0, 10, 50, 60)
        if (kind, warmup) != ("polynomial", 50)  # transformers divides by zero
    ],
)
def test_schedules_are_those_of_transformers(kind, numbers, warmup):
    torch = pytest.importorskip("torch")
    from transformers import get_scheduler

    arguments = dataclasses.replace(
        ARGUMENTS, lr_scheduler_type=kind, warmup_steps=warmup, lr_scheduler_kwargs=numbers or None
    )
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    theirs = get_scheduler(
        kind, optimizer, num_warmup_steps=warmup, num_training_steps=50, scheduler_specific_kwargs=numbers
    )
    expected = []
    for _ in range(50):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(_learning_rates(arguments), expected, rtol=1e-5, atol=1e-10)


def test_warmup_ratio_is_a_share_of_the_steps():
    ratio = dataclasses.replace(ARGUMENTS, warmup_ratio=0.2)
    steps = dataclasses.replace(ARGUMENTS, warmup_steps=10)
    np.testing.assert_array_equal(_learning_rates(ratio), _learning_rates(steps))


def test_epochs_become_steps_of_the_global_batch():
    arguments = dataclasses.replace(
        ARGUMENTS, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=3.0
    )
    assert plan_of(arguments).rows == 64
    examples, few = Counted(1000, drops_last=True), Counted(10, drops_last=True)
    assert plan_of(arguments, examples=examples).steps == 45  # 15 whole batches an epoch
    assert plan_of(arguments, examples=few).steps == 3
    half = dataclasses.replace(arguments, num_train_epochs=0.5)
    assert plan_of(half, examples=examples).steps == 8
    # transformers' Trainer: 32 batches of 32 rows, 16 pairs of them.
    assert plan_of(arguments, examples=Counted(1000)).steps == 48
    assert plan_of(arguments, examples=Counted(47), devices=1).steps == 9


def test_what_the_text_binds():
    arguments = dataclasses.replace(
        ARGUMENTS,
        weight_decay=0.01,
        max_grad_norm=0.5,
        save_total_limit=2,
        report_to=("tensorboard", "wandb", "mlflow"),
        run_name="mine",
    )
    text = gin_text.compose(_plan(arguments))
    for line in (
        "TRAIN_STEPS = 50  # max_steps",
        "BATCH_SIZE = 32  # 8 a device x 4 devices x 1 forward passes",
        "optax.clip_by_global_norm.max_norm = 0.5",
        "  weight_decay = 0.01",
        "  keep = 2",
        "train_script.train.train_eval_dataset_cfg = None",
        "from limba.reports import mlflow_writer",
        "train_script.train.metric_writers = [@wandb_writer.WandbWriter, @mlflow_writer.MlflowWriter]",
        "wandb_writer.WandbWriter.name = 'mine'",
        "mlflow_writer.MlflowWriter.name = 'mine'",
    ):
        assert line in text.splitlines()
    no_clipping = gin_text.compose(_plan(dataclasses.replace(arguments, max_grad_norm=0.0)))
    assert "clip_by_global_norm" not in no_clipping
    adafactor = gin_text.compose(_plan(dataclasses.replace(arguments, adafactor=True)))
    assert "OPTIMIZER = @adafactor.Adafactor()" in adafactor and "adamw" not in adafactor and "optax" not in adafactor


@pytest.mark.parametrize(("beams", "is_greedy"), [(None, True), (1, True), (4, False)])
def test_without_beams_answers_are_greedy(beams, is_greedy):
    arguments = dataclasses.replace(ARGUMENTS, label_column_name="answer", generation_num_beams=beams)
    lines = gin_text.compose(_plan(arguments)).splitlines()
    imports = "from limba.models import decoding\nfrom limba import models\n"
    at = next(i for i, line in enumerate(lines) if line.startswith("models.EncoderDecoderModel."))
    assert ("from limba.models import decoding" in lines) == is_greedy and "from limba import models" in lines
    gin.clear_config()
    gin.parse_config("from __gin__ import dynamic_registration\n" + imports + "\n".join(lines[at : at + 4]))
    if is_greedy:
        decode = gin.query_parameter("models.EncoderDecoderModel.decode_fn").scoped_configurable_fn
        assert decode.__name__ == "temperature_sample" and gin.query_parameter(f"{DECODING}.temperature") == 0.0
    else:
        assert gin.query_parameter("models.DecoderParams.num_decodes") == 4
    gin.clear_config()
    assert "models." not in gin_text.compose(_plan(ARGUMENTS))  # of documents


@pytest.mark.parametrize(
    ("keys", "is_optax"),
    [
        ({"script": "run_t5_mlm_flax.py", "weight_decay": 0.1}, True),
        ({"script": "run_summarization_flax", "label_column_name": "x"}, True),
        ({"mean_noise_span_length": 3.0}, True),
        ({"mean_noise_span_length": 3.0, "scale_parameter": False}, False),
        ({"script": "run_mlm.py", "mean_noise_span_length": 3.0}, False),
    ],
)
def test_adafactor_of_the_flax_scripts_is_optax_s(keys, is_optax):
    given = {
        "config_name": "c.json",
        "train_file": "t.txt",
        "output_dir": "o",
        "adafactor": True,
        "learning_rate": 0.005,
    }
    arguments, notes = script_keys.from_values(given | keys)
    lines = lines_of(gin_text._optimizer(_plan(arguments)))
    assert ("Without effect: weight_decay (the Flax scripts' Adafactor has none)." in notes) == ("weight_decay" in keys)
    gin.clear_config()
    header = "from __gin__ import dynamic_registration\nfrom limba.optimizers import adafactor\n"
    gin.parse_config(header + "\n".join(lines))
    ours = gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()
    gin.clear_config()
    params = {"wide": jnp.linspace(-2.0, 3.0, 128 * 130).reshape(128, 130), "small": jnp.linspace(0.1, 3.0, 4)}
    theirs = optax.adafactor(0.005)
    states, updates = [ours.init(params), theirs.init(params)], [jax.jit(ours.update), jax.jit(theirs.update)]
    for step in range(3):
        grads = {name: (step + 1) * jnp.cos(17 * x) for name, x in params.items()}
        first, states[0] = updates[0](grads, states[0], params, learning_rate=0.005, step=step)
        second, states[1] = updates[1](grads, states[1], params)
        same = all(np.allclose(first[name], second[name], rtol=1e-4, atol=1e-9) for name in params)
        assert same == is_optax
        params = optax.apply_updates(params, second)


def test_weight_decay_spares_norms_and_position_biases():
    tree = {
        "encoder": {
            "relpos_bias": {"rel_embedding": 0.0},
            "layers_0": {"attention": {"query": {"kernel": 0.0}}, "pre_mlp_layer_norm": {"scale": 0.0}},
        },
        "token_embedder": {"embedding": 0.0},
    }
    decayed = weight_decay.matrices(tree)
    assert decayed["encoder"]["layers_0"]["attention"]["query"]["kernel"] and decayed["token_embedder"]["embedding"]
    assert not decayed["encoder"]["layers_0"]["pre_mlp_layer_norm"]["scale"]
    assert not decayed["encoder"]["relpos_bias"]["rel_embedding"]


def _adafactor_by_gin(arguments):
    """The optimizer and the learning rates that the gin lines bind."""
    gin.clear_config()
    lines = ["from __gin__ import dynamic_registration", "from limba.optimizers import adafactor, schedules"]
    lines = [lines[0], "from limba.optimizers import adafactor", "from limba.optimizers import schedules"]
    lines += ["from limba.training import trainer", *lines_of(gin_text._optimizer(_plan(arguments)))]
    gin.parse_config("\n".join([*lines, *lines_of(gin_text._schedule(_plan(arguments)))]))
    made = gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()
    rate = gin.query_parameter("trainer.Trainer.learning_rate_fn").scoped_configurable_fn()
    gin.clear_config()
    return made, rate


@pytest.mark.sample(5)
@pytest.mark.parametrize("scale_parameter", [False, True])
@pytest.mark.parametrize("relative_step", [None, False, True])
@pytest.mark.parametrize("weight_decay_rate", [0.0, 0.1])
def test_adafactor_is_that_of_the_trainer(scale_parameter, relative_step, weight_decay_rate):
    """Scaling and relative steps are off unless asked for; matrices of every size are factored; norms do not decay."""
    torch = pytest.importorskip("torch")
    from transformers.optimization import Adafactor

    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(6, 4)), "scale": rng.normal(size=5), "embedding": rng.normal(size=(3, 7))}
    params = {name: x.astype(np.float32) for name, x in params.items()}
    grads = [{name: rng.normal(size=x.shape).astype(np.float32) for name, x in params.items()} for _ in range(5)]

    relative = relative_step is not None
    more = {"scale_parameter": scale_parameter, "relative_step": relative, "warmup_init": relative and relative_step}
    arguments = dataclasses.replace(
        ARGUMENTS, optim="adafactor", lr_scheduler_type="constant", weight_decay=weight_decay_rate, **more
    )
    theirs = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in params.items()}
    decays = {name: 0.0 if name == "scale" or scale_parameter else weight_decay_rate for name in params}
    arguments = dataclasses.replace(arguments, weight_decay=max(decays.values()))
    optimizer = Adafactor(
        [{"params": [theirs[name]], "weight_decay": decays[name]} for name in params],
        lr=None if relative else 3e-4,
        **more,
    )
    for grad in grads:
        for name, x in grad.items():
            theirs[name].grad = torch.tensor(x)
        torch.nn.utils.clip_grad_norm_(list(theirs.values()), 1.0)
        optimizer.step()

    ours, rate = _adafactor_by_gin(arguments)
    values, state, update = dict(params), ours.init(params), jax.jit(ours.update)
    for step, grad in enumerate(grads):
        learning_rate = rate(jax.numpy.int32(step))
        updates, state = update(grad, state, values, learning_rate=learning_rate, step=step)
        values = jax.tree.map(lambda x, u: x + u, values, updates)
    for name, x in values.items():
        moved = np.abs(theirs[name].detach().numpy() - params[name]).max()
        np.testing.assert_allclose(x, theirs[name].detach().numpy(), rtol=0, atol=max(2e-4 * moved, 1e-6))


def test_the_command_of_a_gin_file_can_be_pasted_into_a_shell():
    plan = _plan(ARGUMENTS, named=pathlib.Path("/a folder/of me"))
    assert "#   limba train --gin_file='/a folder/of me/run.gin'" in gin_text.compose(plan).splitlines()


def test_shared_modules_of_a_head_are_taken_from_the_checkpoint():
    plan = _plan(ARGUMENTS, has_weights=True, shared_modules={"head/dense": "mlm_head/dense"})
    line = next(x for x in lines_of(gin_text._training(plan)) if ".assignment_map" in x)
    assert ast.literal_eval(line.partition("=")[2].partition("#")[0].strip()) == [
        ("target/head/dense/(.*)", r"target/mlm_head/dense/\1")
    ]
    assert not any(
        ".assignment_map" in x for x in lines_of(gin_text._training(dataclasses.replace(plan, shared_modules={})))
    )
