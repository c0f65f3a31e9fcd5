"""An example of a run's own task for the model card, read in a process of its own.

Reading a task imports the user's modules and libraries of data, and may ask the hub. In another process it takes no
memory from the conversion, cannot stop it, and ends after a time.

    python -m limba.addons.cards.run_example

reads a JSON object from standard input, and writes an `Example` as JSON to standard output.
"""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from limba.addons import table
from limba.addons.cards.card_example import Example
from limba.files import json_text, python_path, repository
from limba.gin_config import import_errors, importing, run_folders, t5x_names
from limba.gin_config.recipe import Recipe, Reference

_SECONDS = 120
# Documents in which a sentence is looked for.
_MOST_DOCUMENTS = 200
_MOST_CHARACTERS = 200
# Where an example is a whole window of text, a short one is enough for a card.
_MOST_INPUTS = 64
# The modules that a gin file imports and that register no task of the user's, or need TensorFlow.
_NO_TASKS = ("limba", "gin", "__gin__", "seqio", "tensorflow", "jax", "flax", "optax")
_EXCEPTION = re.compile(r"(error: |[\w.]*(Error|Exception|Exit|Interrupt): )")


def of_run(info: Mapping[str, Any], gin: str, run: str = "") -> Example:
    """The example of a run's task, from its validation split, else from its training split.

    Args:
      info: `run.json`.
      gin: the run's operative configuration, whose imports register the task.
      run: its folder, or one of its checkpoints. No module in it is imported.

    Raises:
      ValueError: if the task or its data cannot be read, with the reason.
    """
    request = {name: info.get(name) for name in ("task", "feature_lengths", "modules")} | {"gin": gin, "run": run}
    # Messages may have names in any alphabet, whatever the locale is.
    environment = python_path.with_path({"JAX_PLATFORMS": "cpu", "PYTHONUTF8": "1"})
    command = [sys.executable, "-m", "limba.addons.cards.run_example"]
    try:
        done = subprocess.run(
            command,
            input=json_text.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading the first rows of task {info.get('task')!r} took more than {_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # Of a traceback the line of the exception: gin adds others after it.
        exceptions = [line for line in said if _EXCEPTION.match(line)]
        raise ValueError((exceptions or said)[-1].removeprefix("error: "))
    # A module of the user's may print something before.
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Example(**found | {name: tuple(found[name]) for name in ("labels", "datasets")})


def find(info: Mapping[str, Any], gin: str, run: str, has_other: bool = False) -> Example | None:
    """The example of `of_run`; None if the run names no task, or its data cannot be read, which is warned of.

    Args:
      info, gin, run: see `of_run`.
      has_other: whether the user gives another text.
    """
    if not (info.get("task") and modules(gin)):
        return None
    try:
        return of_run(info, gin, run)
    except ValueError as error:
        remedy = "" if has_other else " The card's example is a neutral one; --example TEXT gives another."
        print(f"warning: the data of the run cannot be read: {str(error).rstrip('.')}.{remedy}", file=sys.stderr)
        return None


def modules(gin: str) -> list[str]:
    """The modules that a configuration imports and that may register tasks."""
    recipe = Recipe.parse(gin)
    named = (recipe.macros.get("MIXTURE_OR_TASK_MODULE"), recipe.parameters("DatasetConfig").get("module"))
    names = dict.fromkeys([*recipe.modules, *filter(None, named)])
    return [name for name in names if _may_register(name)]


def _may_register(name: str) -> bool:
    if name.startswith(f"{table.__package__}."):  # the quickstart's tasks are an add-on
        return True
    return name.partition(".")[0] not in _NO_TASKS and name not in t5x_names.MODULES


# -------------------------------------------------- in the new process -----------------------------------------------


def _find(request: Mapping[str, Any]) -> Example:
    """Raises ImportError, ValueError or OSError if there is no such task, or no row of it can be read."""
    from limba.tasks import objectives
    from limba.tasks.pretraining.denoising import Denoise
    from limba.tasks.registry import get_subtasks, providers
    from limba.tasks.sources import corpora
    from limba.tasks.supervised.row_preprocessor import Supervise

    if request.get("run"):
        run_folders.read_run(request["run"])
    recipe = Recipe.parse(request["gin"])
    task_of_gin = recipe.macros.get("MIXTURE_OR_TASK_NAME")
    if isinstance(task_of_gin, Reference):  # as in the files of `limba run`: a function that registers the task
        _register_by_gin(recipe, task_of_gin.removeprefix("@").removesuffix("()"))
    else:
        for name in modules(request["gin"]):
            _import(name, request.get("modules") or {})
    tasks = get_subtasks(providers.find_provider(request["task"]))
    datasets = tuple(dict.fromkeys(task.source.name for task in tasks if isinstance(task.source, corpora.HubSource)))
    for task in tasks:
        for step in task.preprocessors:
            if isinstance(step, Supervise):
                return dataclasses.replace(_row(task, step), datasets=datasets)
            if isinstance(step, Denoise) and isinstance(
                step.objective, objectives.SpanCorruption | objectives.IidDenoising | objectives.MaskedLM
            ):
                return dataclasses.replace(_blank(task, step), datasets=datasets)
    return dataclasses.replace(_any_example(tasks[0], request.get("feature_lengths") or {}), datasets=datasets)


def _register_by_gin(recipe: Recipe, selector: str) -> None:
    """Registers the task of a file of `limba run` from the plain values that are bound to its function.

    Nothing of the configuration is evaluated: a checkpoint may come from a stranger, and gin calls what a file names.
    """
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import ByteVocabulary, TokenizerVocabulary

    functions: dict[str, Callable[..., str]] = {
        "masked_text.task": masked_text.task,
        **{name: made for part in table.parts("task_functions") for name, made in part.FUNCTIONS.items()},
    }
    function = functions.get(".".join(selector.split(".")[-2:]))
    if function is None:
        raise ValueError(f"the task is made by {selector}, and no function that a run's configuration names is called")
    # The operative configuration has the function's arguments in the scope of the macro.
    names = (selector, f"MIXTURE_OR_TASK_NAME/{selector}")
    bound = {x.parameter: x.value for x in recipe.bindings if x.name.rpartition(".")[0] in names}
    arguments = {name: value for name, value in bound.items() if not isinstance(value, Reference)}
    is_of_encoder = arguments.get("answers", "text") != "text"
    # A text needs no vocabulary, but its class says which models learn the task. The file is never opened.
    function(**arguments | {"vocabulary": TokenizerVocabulary("t.json") if is_of_encoder else ByteVocabulary(100)})


def _import(name: str, folders: Mapping[str, str]) -> None:
    """Imports `a.b`, or `a` where b is not a module but something in it."""
    package = name.rpartition(".")[0]
    try:
        importing.load(name)
    except ModuleNotFoundError as error:
        if package and error.name == name:
            importing.load(package)
            return
        import_errors.remember(folders)
        raise ValueError(f"there is no module {error.name!r}.{import_errors.where_it_was(name)}") from error


def _documents(task: Any) -> Iterator[Mapping[str, Any]]:
    from limba.tasks.sources.sharded import ShardedSource

    if not isinstance(task.source, ShardedSource):
        raise ValueError(f"the source of task {task.name!r} is SeqIO's, which needs TensorFlow")
    documents = task.source.numbered_documents(_split(task), batch_size=_MOST_DOCUMENTS)
    return (document for _, _, document in itertools.islice(documents, _MOST_DOCUMENTS))


def _split(task: Any) -> str:
    return "validation" if "validation" in task.splits else "train"


def _blank(task: Any, step: Any) -> Example:
    from limba.tasks.pretraining import blank_sentences

    mode = f"{step.mode} " if step.mode else ""
    for document in _documents(task):
        if (found := blank_sentences.with_blank(_text(document[step.text_column]))) is not None:
            return Example("blank", mode + found[0], found[1], split=_split(task))
    lengths = f"{blank_sentences.WORDS.start} to {blank_sentences.WORDS[-1]} words"
    raise ValueError(f"no sentence of {lengths} in the first {_MOST_DOCUMENTS} documents of split {_split(task)!r}")


def _row(task: Any, step: Any) -> Example:
    from limba.tasks.supervised.row_formats import UNKNOWN, Template

    template = step.format.whole if isinstance(step.format, Template) else ""
    labels = step.format.choices if isinstance(step.format, Template) else ()
    found = [
        example
        for document in _documents(task)
        for example in step.format({name: _plain(value) for name, value in document.items()})
    ]
    if not found:
        raise ValueError(f"split {_split(task)!r} of task {task.name!r} has no row")
    first = next((x for x in found if len(x.inputs) <= _MOST_CHARACTERS), min(found, key=lambda x: len(x.inputs)))
    return Example(
        "row", first.inputs, "" if first.targets == UNKNOWN else first.targets, template, labels, _split(task)
    )


def _any_example(task: Any, lengths: Mapping[str, int]) -> Example:
    """The first example as the model gets it, decoded: a short one of tasks that fill whole windows."""
    from limba.data.contract import DatasetConfig
    from limba.tasks.pipeline import predictions

    short = {name: min(length, _MOST_INPUTS) if name == "inputs" else length for name, length in lengths.items()}
    if predictions.needs_seqio(task, "EncDecFeatureConverter"):
        raise ValueError(f"task {task.name!r} needs SeqIO, which needs TensorFlow")
    found = next(predictions.examples(task, DatasetConfig(task.name, short, _split(task), 1, seed=0)), None)
    if found is None:
        raise ValueError(f"split {_split(task)!r} of task {task.name!r} has no example")
    texts = {
        name: task.output_features[name].vocabulary.decode([int(x) for x in found[name] if x > 1])
        for name in ("inputs", "targets")
    }
    return Example("row", texts["inputs"], texts["targets"], split=_split(task))


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    return _text(value) if isinstance(value, bytes) else value


def main() -> int:
    repository.claim()
    try:
        found = _find(json.load(sys.stdin))
    except (ImportError, ValueError, OSError, RuntimeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json_text.dumps(dataclasses.asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
