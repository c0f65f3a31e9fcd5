"""`limba profile`: the time of a real training's steps by part."""

import json
import re
import types

import gin
import jax
import pytest

from limba.addons.plan import program_cost
from limba.addons.plan.profile import command, step_parts

GIN = """
from __gin__ import dynamic_registration
from limba.network import t5 as network
from tasks import vocabularies
from tasks.pretraining import masked_text

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'

VOCABULARY = @vocabularies.ByteVocabulary()
vocabularies.ByteVocabulary.extra_ids = 100
VOCAB_SIZE = 384
MIXTURE_OR_TASK_NAME = @masked_text.task()
masked_text.task:
  name = 'profiled'
  vocabulary = %VOCABULARY
  files = {{'train': ['{corpus}'], 'validation': ['{corpus}']}}
TASK_FEATURE_LENGTHS = {{'inputs': 32, 'targets': 16}}
BATCH_SIZE = 8
TRAIN_STEPS = 5
DROPOUT_RATE = 0.0
network.T5Config:
  num_encoder_layers = 1
  num_decoder_layers = 1
"""
LINE = re.compile(r"\| ([a-z -]+) \| ([\d.,]+) \| (\d+)% \| ([\d.,]*) \|")


@pytest.fixture
def recipe(tmp_path):
    gin.clear_config()
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(20 * (json.dumps({"text": "the cat sat on the mat. " * 20}) + "\n"))
    (tmp_path / "recipe.gin").write_text(GIN.format(corpus=corpus))
    return tmp_path / "recipe.gin"


def test_the_parts_of_a_step_and_their_time(recipe, tmp_path, capsys):
    assert command.main([str(recipe), "--steps=4", f"--out={tmp_path}/trace"]) == 0
    out = capsys.readouterr().out
    rows = {found[1]: (float(found[2].replace(",", "")), int(found[3]), found[4]) for found in LINE.finditer(out)}
    for part in ("attention", "feed-forward", "norms", "embeddings", "logits and loss", "optimizer"):
        assert rows[part][0] > 0, part
    for part in ("attention", "feed-forward", "logits and loss"):
        assert 0 < float(rows[part][2]) <= rows[part][0], part
    assert not rows["norms"][2] and not rows["optimizer"][2]
    assert rows.get("other", (0, 0))[1] <= 10
    assert 95 <= sum(share for _, share, _ in rows.values()) <= 105
    step = float(re.match(r"[\d.,]+", out)[0].replace(",", ""))
    assert sum(spent for spent, _, _ in rows.values()) == pytest.approx(step, abs=0.2)
    assert re.search(r"^[\d.,]+ ms a step of 8 rows, the mean of 4 steps on \d x cpu", out)
    assert [*(tmp_path / "trace").glob("plugins/profile/*/*.xplane.pb")]


@pytest.mark.parametrize(
    ("platform", "seconds", "expected", "said"),
    [  # Of 2 steps; in all the parts took 3.2 s a step on one device, 1.6 s for each of two.
        ("cpu", 4.0, {"attention": "1,500.00", "other": "500.00", "**the step**": "**2,000.00**"}, "Threads worked"),
        ("gpu", 8.0, {"attention": "2,400.00", "other": "800.00", "idle": "800.00"}, ""),
        ("gpu", 2.0, {"attention": "750.00", "other": "250.00"}, "Streams of the devices worked"),
    ],
)
@pytest.mark.parametrize("devices", [1, 2])
def test_the_rows_add_up_to_the_step(devices, platform, seconds, expected, said):
    parts = [step_parts.Part("attention", 4.8 * devices, 2.4 * devices), step_parts.Part("other", 1.6 * devices, 0.0)]
    device = types.SimpleNamespace(device_kind="fast", platform=platform)
    mesh = types.SimpleNamespace(local_devices=[device] * devices)
    trainer = types.SimpleNamespace(partitioner=types.SimpleNamespace(mesh=mesh))
    text = command._table(parts, trainer, 8, 2, seconds, 0.0)
    rows = dict(line.strip("| ").split(" | ")[:2] for line in text.splitlines() if line.startswith("| "))
    assert rows | expected == rows
    assert ("idle" in rows) == ("idle" in expected) and (said in text if said else "beside each other" not in text)
    step = float(rows.pop("**the step**").strip("*").replace(",", ""))
    rows.pop("part of the step")
    assert step == 1000 * seconds / 2 == sum(float(x.replace(",", "")) for x in rows.values())


def test_what_cannot_be_profiled(recipe, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for words, said in (
        ([], "give the gin files of a training"),
        ([str(recipe), f"--out={tmp_path}/mine"], "not an empty folder; name a new one"),
        ([str(recipe), "--steps=0"], "--steps"),
    ):
        with pytest.raises(SystemExit):
            command.main(words)
        assert said in capsys.readouterr().err
    assert [x.name for x in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_loop_counts_without_what_runs_in_it():
    events = [(0.0, 10.0, "while"), (1.0, 4.0, "dot"), (2.0, 3.0, "copy"), (5.0, 6.0, "dot"), (12.0, 13.0, "add")]
    found = sorted(step_parts._own_seconds(events))
    assert found == [("add", 1.0), ("copy", 1.0), ("dot", 1.0), ("dot", 2.0), ("while", 6.0)]


def test_kernels_that_overlap_count_once():
    """As a GPU's do, by some nanoseconds: the second begins before the first ends, and is no part of it."""
    events = [(0.0, 5.0, "dot"), (4.0, 7.0, "add"), (6.5, 8.0, "mul"), (9.0, 10.0, "dot")]
    found = list(step_parts._own_seconds(events))
    assert found == [("dot", 4.0), ("add", 2.5), ("mul", 1.5), ("dot", 1.0)]


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("jit(step)/jvp(Transformer)/encoder/layers_0/attention/query/dot_general", "attention"),
        ("jit(step)/jvp(Transformer)/decoder/layers_0/pre_self_attention_layer_norm/mul", "norms"),
        ("jit(step)/transpose(jvp(Transformer))/decoder/layers_0/mlp/wi_0/dot_general", "feed-forward"),
        ("jit(step)/jvp(loss)/reduce_sum", "logits and loss"),
        ("jit(step)/optimizer/add", "optimizer"),
        ("jit(step)/jvp(Transformer)/token_embedder/take", "embeddings"),
        ("jit(step)/add", "other"),
    ],
)
def test_parts_are_found_by_name(where, part):
    assert step_parts.part_of(program_cost.Named(where, False, False)) == part
    assert step_parts.part_of(program_cost.Named(where, False, True)) == "collectives"


def test_operations_have_the_names_of_what_they_were_made_from():
    def function(x):
        with jax.named_scope("attention"):
            y = x @ x
        with jax.named_scope("optimizer"):
            return y + 1.0

    program = jax.jit(function).lower(jax.ShapeDtypeStruct((300, 300), "float32")).compile().as_text()
    names = program_cost.operation_names(program).values()
    products = [named for named in names if named.multiplies]
    assert products and all("attention" in named.where for named in products)
    assert any("optimizer" in named.where for named in names)
