"""Tasks, mixtures and their registries, without TensorFlow."""

import subprocess
import sys

import pytest

from tasks.registry import Feature, Mixture, MixtureRegistry, Task, TaskRegistry, get_mixture_or_task, get_subtasks
from tasks.registry import tasks as registered_tasks
from tasks.registry.providers import find_provider, tasks_with_split
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary

FEATURES = {"targets": Feature(ByteVocabulary()), "inputs": Feature(ByteVocabulary(100))}


def _source(*splits):
    return corpora.HuggingFaceSource(dict.fromkeys(splits, "gone.jsonl"))


def _add(name, *splits):
    return TaskRegistry.add(name, _source(*(splits or ("train",))), FEATURES)


def test_a_task():
    def accuracy(targets, predictions, extra=None):
        return {"accuracy": 1.0}

    def likelihood(targets, scores):
        return {"likelihood": 1.0}

    def aux(targets, predictions, aux_values):
        return {}

    task = Task("a.b:c_1", _source("train"), FEATURES, metric_fns=[accuracy, likelihood, aux])
    assert list(task.output_features) == ["inputs", "targets"] and list(task.splits) == ["train"]
    assert (task.predict_metric_fns, task.score_metric_fns) == ([accuracy], [likelihood])
    assert task.predict_with_aux_metric_fns == [aux] and task.shuffle_buffer_size == 1000
    assert task.postprocess_fn("answer", example=None) == "answer"
    upper = Task("a", _source("train"), FEATURES, postprocess_fn=lambda answer, is_target: answer.upper() * is_target)
    assert upper.postprocess_fn("answer", is_target=True) == "ANSWER"

    def wrong(predictions):
        return {}

    with pytest.raises(ValueError, match=r"wrong.*of task 'a' takes \('predictions',\), not"):
        Task("a", _source("train"), FEATURES, metric_fns=[wrong]).predict_metric_fns  # noqa: B018


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a-b", "a\n"])
def test_names_are_seqio_s(name):
    with pytest.raises(ValueError, match="other characters than letters"):
        TaskRegistry.add(name, _source("train"), FEATURES)
    with pytest.raises(ValueError, match="other characters than letters"):
        Mixture(name, [(_add("ok"), 1.0)])
    assert name not in TaskRegistry


def test_a_function_is_no_step():
    with pytest.raises(
        ValueError, match=r"of task 'a' is not a tasks\.registry\.steps\.Step.*seqio\.TaskRegistry\.add"
    ):
        TaskRegistry.add("a", _source("train"), FEATURES, [lambda dataset: dataset])


def test_a_registry():
    a, b = _add("task_a"), _add("task_b")
    assert TaskRegistry.get("task_a") is a and "task_b" in TaskRegistry and "task_c" not in TaskRegistry
    assert {"task_a", "task_b"} <= set(TaskRegistry.names()) and {a, b} <= set(TaskRegistry)
    with pytest.raises(ValueError, match="A task 'task_a' is registered already; choose another name"):
        _add("task_a")
    with pytest.raises(ValueError, match=r"There is no task 'task_aa'\. The nearest are 'task_a'"):
        TaskRegistry.get("task_aa")
    with pytest.raises(ValueError, match=r"There is no mixture 'task_a'\."):
        MixtureRegistry.get("task_a")
    with pytest.raises(ValueError, match=r"There is no task or mixture 'tusk_b'\. The nearest are 'task_b'"):
        get_mixture_or_task("tusk_b")
    TaskRegistry.remove("task_a")
    TaskRegistry.remove("task_a")
    assert "task_a" not in TaskRegistry and "task_a" not in registered_tasks.all_names()
    assert _add("task_a") is not a
    mixture = MixtureRegistry.add("task_b", [("task_a", 1.0)])
    assert get_mixture_or_task("task_b") is mixture  # as in SeqIO


def test_mixtures():
    tasks = {name: _add(name, *splits) for name, splits in {"a": ("train",), "b": ("train", "test"), "c": ()}.items()}
    inner = MixtureRegistry.add("inner", ["a", ("b", 3.0)], default_rate=1.0)
    outer = MixtureRegistry.add("outer", [(inner, 2.0), ("c", lambda task: len(task.name) / 2), (tasks["a"], 1)])
    assert get_subtasks(outer) == [tasks["a"], tasks["b"], tasks["c"]] and get_subtasks(inner)[0] is tasks["a"]
    assert outer.total_rate == 3.5
    # A task that is in an inner mixture and beside it has both rates.
    assert [outer.get_rate(task) for task in outer.tasks] == [0.5 + 1.0, 1.5, 0.5]
    assert sorted(outer.splits) == ["test", "train"] and list(outer.output_features) == ["inputs", "targets"]
    assert tasks_with_split(outer, "test") == [tasks["b"]] and tasks_with_split(tasks["a"], "test") == []
    assert registered_tasks.is_mixture(outer) and not registered_tasks.is_mixture(tasks["a"])
    for parts, default, message in (
        (["a"], None, "has no rate for 'a'"),
        ([], None, "has no task"),
        ([("x", 1.0)], None, "There is no task or mixture 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            MixtureRegistry.add("bad", parts, default)
    TaskRegistry.add("other", _source("train"), {"targets": FEATURES["targets"]})
    with pytest.raises(ValueError, match="'bad' mixes tasks with different features"):
        MixtureRegistry.add("bad", [("a", 1.0), ("other", 1.0)])
    of_mixture = MixtureRegistry.add("function", [("inner", lambda task: 1.0)])
    with pytest.raises(ValueError, match="rate of the mixture 'inner' in 'function' must be a number"):
        of_mixture.get_rate(tasks["a"])
    assert "bad" not in MixtureRegistry


def test_providers_are_found_by_name_and_module(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_here.py").write_text(
        "from tasks.registry import TaskRegistry\n"
        "from tasks.sources import corpora\n"
        "TaskRegistry.add('of_module', corpora.HuggingFaceSource({'train': 'x.jsonl'}), {})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_provider("of_module", "my_tasks_here").name == "of_module"
    task = _add("task_a")
    assert find_provider("task_a") is find_provider(task) is task
    with pytest.raises(ValueError, match=r"no task or mixture 'task_b'\. The nearest are 'task_a'.*import my_module"):
        find_provider("task_b")


_QUICKSTART = """
import itertools, json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
os.environ["LIMBA_QUICKSTART_DIR"] = str(folder)

from limba.data import contract
from limba.addons.plan.data import lint_tasks
from tasks.pipeline import predictions, task_batches
from tasks import preview
from limba.addons.cache import write_cache
from tasks.registry.providers import find_provider

name = "quickstart_span_corruption"
lengths = {"inputs": 64, "targets": 14}
config = contract.DatasetConfig(name, lengths, "train", 8, seed=0, module="limba.addons.examples.quickstart")
batches = task_batches.get_train_batches(config)
state = [next(batches) for _ in range(3)] and batches.save_state()
batches.restore_state(state)
validation = contract.DatasetConfig(name, lengths, "validation", 8, seed=0)
(of_task,) = task_batches.get_eval_batches(validation).values()
examples = list(itertools.islice(predictions.examples(find_provider(name), validation), 5))
assert next(batches).keys() == next(iter(of_task)).keys() and len(examples) == 5
preview.main([name, "--inputs_length=64", "--num=1"])
write_cache.main([name, "--sequence_length=inputs=64,targets=14", f"--out={folder / 'cache'}"])
for role in ("train", "train_eval", "infer_eval"):
    purpose = lint_tasks.Purpose(role)
    assert not list(lint_tasks.check(config, "EncDecFeatureConverter", purpose)), role
print(sorted({"tensorflow", "seqio", "torch", "jax", "t5"} & set(sys.modules)))
"""


def test_the_quickstart_s_pipeline_needs_no_tensorflow(tmp_path, corpus):
    from tests.convert import vocabularies

    # Of the folder `corpus`, as the quickstart has them.
    (corpus / "validation.jsonl").rename(corpus / "validation-0.jsonl")
    (tmp_path / "vocab").mkdir()
    letters = ["shard 0 row 1: w2x3y4 56789"] * 50
    vocabularies.train(
        tmp_path / "vocab" / "spiece.model", [*vocabularies.sentences(3000), *letters], character_coverage=1.0
    )
    command = [sys.executable, "-c", _QUICKSTART, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]" and "fill of the first" in found.stdout


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("my_georgian_tasks.py", r"A module is named without \.py: my_georgian_tasks\."),
        ("my_georgian_task", r"Did you mean 'my_georgian_tasks'\?"),
    ],
)
def test_a_module_that_is_not_there_is_answered_with_the_file_that_is(tmp_path, monkeypatch, module, words):
    (tmp_path / "my_georgian_tasks.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"There is no module '{module}' .*{words}"):
        find_provider("nothing", module)
