"""An example of a run's own data: which sentence, which row, and what is said where there is none."""

import csv
import json

import pytest

from limba.addons.cards import run_example
from limba.addons.cards.card_example import BLANK
from tests.convert import vocabularies

GIN = (
    "from __gin__ import dynamic_registration\nimport {module}\nimport limba.addons.diacritics.romanian\n"
    "from limba.network import t5\n"
)


@pytest.fixture
def module(tmp_path, monkeypatch, spiece_model):
    """Writes a module of tasks beside its data, where the process finds it; returns its gin file."""

    def write(name, code):
        head = "from tasks import objectives, pretraining, sources, supervised\n"
        head += "from tasks.supervised import SupervisedDataset\n"
        text = code.replace("HERE", str(tmp_path)).replace("SPIECE", str(spiece_model))
        (tmp_path / f"{name}.py").write_text(head + text, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        return GIN.format(module=name)

    return write


CORPUS = """
pretraining.register_pretraining_task(
    "small", data_files={"train": "HERE/train.jsonl", "validation": "HERE/validation.jsonl"}, vocabulary="SPIECE"
)
"""


def write_corpus(folder, *texts, split="validation"):
    (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")


def test_a_sentence_of_the_validation_split(module, tmp_path):
    gin = module("one_corpus", CORPUS)
    write_corpus(tmp_path, "Nothing here.", "The old cat sleeps under a tree.")
    found = run_example.of_run({"task": "small"}, gin)
    assert found.kind == "blank" and found.split == "validation" and found.datasets == ()
    assert (found.inputs, found.targets) == (f"The old cat {BLANK} under a tree.", "sleeps")


def test_without_a_validation_split_it_is_of_the_training(module, tmp_path):
    gin = module("only_training", CORPUS.replace(', "validation": "HERE/validation.jsonl"', ""))
    write_corpus(tmp_path, "The old cat sleeps under a tree.", split="train")
    assert run_example.of_run({"task": "small"}, gin).split == "train"


def test_a_mode_is_in_front_of_the_sentence(module, tmp_path):
    code = """
from tasks.pretraining import register_ul2_mixture
register_ul2_mixture("small", data_files={"train": "HERE/validation.jsonl"}, vocabulary="SPIECE")
"""
    gin = module("denoisers", code)
    write_corpus(tmp_path, "The old cat sleeps under a tree.")
    assert run_example.of_run({"task": "small"}, gin).inputs == f"[NLU] The old cat {BLANK} under a tree."


SUPERVISED = """
supervised.register_supervised_task(
    "small",
    SupervisedDataset("mood of: {story}", "mood", labels={"g": "glad", "s": "sad"}),
    data_files={"train": "HERE/rows.csv", "validation": "HERE/rows.csv"},
    vocabulary="SPIECE",
)
"""


def test_a_row_of_a_fine_tuned_model(module, tmp_path):
    gin = module("moods_of_stories", SUPERVISED)
    rows = [("story", "mood"), ("long " * 100, "g"), ("Ana won.", "g"), ("Ana lost.", "s")]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    found = run_example.of_run({"task": "small"}, gin)
    assert (found.kind, found.inputs, found.targets) == ("row", "mood of: Ana won.", "glad")
    assert (found.template, found.labels) == ("mood of: {story}", ("glad", "sad"))


def test_other_tasks_give_their_first_example(module, tmp_path):
    gin = module("prefixes", CORPUS.replace("vocabulary=", "objective=objectives.PrefixLM(), vocabulary="))
    write_corpus(tmp_path, *vocabularies.sentences(60))
    found = run_example.of_run({"task": "small", "feature_lengths": {"inputs": 512, "targets": 512}}, gin)
    assert found.kind == "row" and found.inputs and found.targets
    # A short window of the text, in two parts.
    assert f"{found.inputs} {found.targets}".split()[:2] == vocabularies.sentences(1)[0].split()[:2]


def test_the_hub_s_name_of_the_data(module, tmp_path):
    code = """
class Local(sources.HubSource):
    def numbered_documents(self, split, batch_size=0):
        yield "file", 0, {"text": "The old cat sleeps under a tree."}
    splits = ("train", "validation")
pretraining.register_pretraining_task("small", data_files=Local("org/corpus", "ro"), vocabulary="SPIECE")
"""
    assert run_example.of_run({"task": "small"}, module("on_the_hub", code)).datasets == ("org/corpus",)


def test_a_task_that_gin_registers(tmp_path, spiece_model):
    """As `limba run` writes it; a run's own configuration has the arguments in the scope of the macro."""
    write_corpus(tmp_path, "The old cat sleeps under a tree.")
    gin = f"""
from __gin__ import dynamic_registration
from tasks import vocabularies
from tasks.pretraining import masked_text
MIXTURE_OR_TASK_NAME = @masked_text.task()
VOCABULARY = @vocabularies.SentencePieceVocabulary()
MIXTURE_OR_TASK_NAME/masked_text.task.files = {{'validation': ['{tmp_path}/validation.jsonl'], 'train': ['x']}}
MIXTURE_OR_TASK_NAME/masked_text.task.name = 'corpus'
MIXTURE_OR_TASK_NAME/masked_text.task.vocabulary = %VOCABULARY
VOCABULARY/vocabularies.SentencePieceVocabulary.sentencepiece_model_file = '{spiece_model}'
"""
    assert run_example.of_run({"task": "corpus"}, gin).targets == "sleeps"


def test_a_row_of_an_encoder_with_a_number(tmp_path):
    (tmp_path / "scores.csv").write_text("sentence,label\nAna won.,3.5\n")
    gin = f"""
from __gin__ import dynamic_registration
from tasks import vocabularies
from tasks.supervised import script_task
MIXTURE_OR_TASK_NAME = @script_task.task()
VOCABULARY = @vocabularies.TokenizerVocabulary()
MIXTURE_OR_TASK_NAME/script_task.task.answers = 'number'
MIXTURE_OR_TASK_NAME/script_task.task.files = {{'train': ['{tmp_path}/scores.csv']}}
MIXTURE_OR_TASK_NAME/script_task.task.inputs = '{{sentence}}'
MIXTURE_OR_TASK_NAME/script_task.task.label_column = 'label'
MIXTURE_OR_TASK_NAME/script_task.task.name = 'scores'
MIXTURE_OR_TASK_NAME/script_task.task.vocabulary = %VOCABULARY
"""
    found = run_example.of_run({"task": "scores"}, gin)
    assert (found.kind, found.inputs, found.targets) == ("row", "Ana won.", "3.5")


@pytest.mark.parametrize("call", ["MIXTURE_OR_TASK_NAME = @os.mkdir()", "MIXTURE_OR_TASK_NAME = @masked_text.task()"])
def test_a_strangers_configuration_calls_nothing(tmp_path, call):
    """Gin would call what the file names, here as the task or for an argument of it."""
    gin = f"""
from __gin__ import dynamic_registration
import os
from tasks.pretraining import masked_text
{call}
masked_text.task.name = @os.mkdir()
masked_text.task.files = @os.mkdir()
os.mkdir.path = '{tmp_path}/called'
"""
    with pytest.raises(ValueError, match=r"made by os\.mkdir|missing .*'name'"):
        run_example.of_run({"task": "corpus"}, gin)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("info", "code", "reason"),
    [
        ({"task": "large"}, CORPUS, r"There is no task or mixture 'large'\."),
        ({"task": "small"}, CORPUS, r"There is no file '.*validation\.jsonl'"),
        ({"task": "small"}, "import not_there", "there is no module 'not_there'"),
        ({"task": "small"}, "raise KeyError('mine')", "KeyError: 'mine'"),
    ],
)
def test_the_reason_why_there_is_none(module, info, code, reason):
    gin = module(f"broken_{abs(hash(reason))}", code)
    with pytest.raises(ValueError, match=reason):
        run_example.of_run(info, gin)


def test_a_module_that_is_elsewhere_is_found_by_its_folder():
    with pytest.raises(
        ValueError, match=r"no module .of_somebody.\. The run imported it from /there: work in that folder"
    ):
        run_example.of_run({"task": "small", "modules": {"of_somebody": "/there"}}, "import of_somebody\n")


def test_reading_that_takes_too_long_ends(module, monkeypatch):
    monkeypatch.setattr(run_example, "_SECONDS", 2)
    gin = module("slow_tasks", "import time; time.sleep(60)")
    with pytest.raises(ValueError, match="reading the first rows of task 'small' took more than 2 s"):
        run_example.of_run({"task": "small"}, gin)


def test_modules_of_the_user_and_of_tasks():
    gin = "\n".join(
        [
            "from __gin__ import dynamic_registration",
            "import my_tasks",
            "import seqio",
            "import limba.addons.examples.quickstart",
            "from limba.network import t5",
            "from tasks import vocabularies",
            "MIXTURE_OR_TASK_MODULE = 'company.tasks'",
            "    train/data.DatasetConfig.module = 'other'",
        ]
    )
    assert run_example.modules(gin) == [
        *("my_tasks", "limba.addons.examples.quickstart", "tasks.vocabularies", "company.tasks", "other")
    ]
