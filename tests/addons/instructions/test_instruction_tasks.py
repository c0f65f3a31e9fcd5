"""A folder of tasks in Super-NaturalInstructions' format: texts to the letter, caps, lists, rates, messages."""

import json
import os

import pytest

from limba.addons.instructions import instruction_tasks
from limba.addons.instructions.instruction_files import InstructionSource
from limba.data import contract
from tasks import supervised
from tasks.pipeline import predictions
from tasks.registry import TaskRegistry
from tasks.supervised import register_instruction_mixture, register_instruction_task
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(extra_ids=100)
ZERO = "Definition: Name it!\n\nNow complete the following example -\nInput: thing 0.\nOutput: "
FIRST = " Positive Example 1 -\nInput: a dog.\n Output: Dog.\n\n"
SECOND = " Positive Example 2 -\nInput: what?\n Output: Cat.\n\n"
ONE, TWO = (ZERO.replace("Now", f"{shots}Now") for shots in (FIRST, FIRST + SECOND))


def _task(count, **fields):
    examples = [{"input": " a dog ", "output": "Dog", "explanation": "It barks"}, {"input": "what?", "output": "Cat."}]
    return {
        "Contributors": ["somebody"],
        "Definition": ["Name it!", "Another one."],
        "Input_language": ["English"],
        "Positive Examples": [*examples, {"input": "third", "output": "unused"}],
        "Negative Examples": [{"input": "bad", "output": "no"}],
        "Instances": [{"id": f"i-{n}", "input": f"thing {n}", "output": [f"name {n}", "it"]} for n in range(count)],
    } | fields


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "splits/default").mkdir(parents=True)
    for name, count in (("task001_things", 9), ("task002_few", 2), ("task003_test", 5), ("task004_excluded", 1)):
        (tmp_path / f"tasks/{name}.json").write_text(json.dumps(_task(count), indent=2))
    (tmp_path / "splits/default/train_tasks.txt").write_text("task001_things\ntask002_few\n")
    (tmp_path / "splits/default/test_tasks.txt").write_text("task003_test\n")
    return tmp_path


def _examples(task, split="test", **lengths):
    return list(predictions.examples(task, contract.DatasetConfig(task.name, lengths or None, split, 1, seed=0)))


def _inputs(task, **lengths):
    return [BYTES.decode(example["inputs"][:-1].tolist()) for example in _examples(task, **lengths)]


def test_shots_are_written_to_the_letter_and_left_out_where_they_do_not_fit(folder):
    task = register_instruction_task("shots", folder, vocabulary=BYTES)
    assert register_instruction_task("shots", folder, vocabulary=BYTES) is task
    with pytest.raises(AttributeError, match="has no attribute 'register_nothing'"):
        supervised.register_nothing  # noqa: B018
    assert task.splits == ("train", "validation", "test")
    assert _inputs(task)[0] == TWO
    # EOS counts. A text that does not fit without any example is cut.
    for most, text in ((len(TWO) + 1, TWO), (len(TWO), ONE), (len(ONE), ZERO), (len(ZERO), ZERO[:-1])):
        assert _inputs(task, inputs=most, targets=16)[0] == text, most
    assert _examples(task, inputs=len(ONE) + 1, targets=16)[0]["inputs_pretokenized"] == ONE.encode()
    zero_shot = register_instruction_task("zero_shot", folder, vocabulary=BYTES, num_positive=0)
    assert _inputs(zero_shot)[0] == ZERO
    negative = register_instruction_task("negative", folder, vocabulary=BYTES, num_positive=1, num_negative=1)
    shot = " Negative Example 1 -\nInput: bad.\n Output: no.\n\n"
    assert _inputs(negative)[0] == ZERO.replace("Now", f"{FIRST}{shot}Now")
    explained = instruction_tasks.Instructions(1, has_definition=False, has_explanations=True)
    row = next(document for _, _, document in task.source.numbered_documents("test"))
    assert explained(row)[0].inputs.startswith(FIRST.removesuffix("\n") + " Explanation: It barks.\n\nNow")


def test_references_are_all_right_and_one_of_them_is_learned(folder):
    task = register_instruction_task("references", folder, vocabulary=BYTES)
    learned = []
    for number, example in enumerate(_examples(task)):
        references = json.loads(example["reference"])
        learned.append(BYTES.decode(example["targets"][:-1].tolist()))
        assert references[0] == learned[-1] and sorted(references) == ["it", f"name {number}"]
    assert {"it"} < {*learned}  # drawn, not always the first
    assert learned == [BYTES.decode(x["targets"][:-1].tolist()) for x in _examples(task)]


def test_rouge_is_that_of_the_best_reference():
    found = instruction_tasks.rouge_of_references([["a red dog", "running"], "it"], ["The dogs run fast", "that"])
    # "running" is stemmed: one of four words and all of one, F 0.4; "a red dog" has one of three and four, F 2/7.
    assert found == pytest.approx({"rougeL": 50 * 0.4, "rougeL_one_reference": 50 * 2 / 7})
    found = instruction_tasks.rouge_of_references([["красный дом", "изба"]], ["синий дом"])
    assert found == pytest.approx({"rougeL": 50, "rougeL_one_reference": 50})


def test_the_evaluator_has_the_metric(folder):
    task = register_instruction_task("measured", folder, vocabulary=BYTES)
    targets, answers = [], []
    for example in _examples(task):
        targets.append(task.postprocess_fn(example["targets_pretokenized"].decode(), example=example, is_target=True))
        answers.append(task.postprocess_fn(" it ", example=example, is_target=False))
    (metric,) = task.predict_metric_fns
    found = metric(targets, answers)
    assert found["rougeL"] == 100
    share = sum(target[0] == "it" for target in targets) / 5
    assert 0 < share < 1 and found["rougeL_one_reference"] == pytest.approx(100 * share)


def _rows(source, split):
    return [(row["task"], row["input"]) for _, _, row in source.numbered_documents(split)]


def test_caps_draw_of_training_tasks_and_take_the_first_of_others(folder):
    rows = _rows(InstructionSource(folder, max_instances=3, max_eval_instances=2), "train")
    of_things = [text for task, text in rows if task == "task001_things"]
    assert len(of_things) == 3 and of_things != ["thing 0", "thing 1", "thing 2"]
    assert [text for task, text in rows if task == "task002_few"] == ["thing 0", "thing 1"]
    assert rows == _rows(InstructionSource(folder, max_instances=3), "train")
    source = InstructionSource(folder, max_eval_instances=2)
    assert _rows(source, "validation") == _rows(source, "test") == [("task003_test", f"thing {n}") for n in range(2)]
    assert source.fingerprint("test") != InstructionSource(folder).fingerprint("test")
    assert len(_rows(InstructionSource(folder, max_instances=None), "train")) == 11


def test_lists_names_and_patterns_say_which_tasks(folder):
    files = folder / "tasks"
    assert InstructionSource(files).splits == ("train",)
    assert len(InstructionSource(files).task_names()) == 4  # no lists: all
    chosen = InstructionSource(folder, tasks={"train": ["task00[12]*"], "held": ["task004_excluded"]})
    assert chosen.task_names("train") == ["task001_things", "task002_few"]
    assert _rows(chosen, "held") == [("task004_excluded", "thing 0")]
    (folder / "splits/default/dev_tasks.txt").write_text("task004_excluded")
    assert InstructionSource(folder).task_names("validation") == ["task004_excluded"]


def test_a_mixture_has_rates_with_caps(folder):
    mixture = register_instruction_mixture(
        "mixed", folder, vocabulary=BYTES, max_instances=None, maximum=8, temperature=3, num_positive=0
    )
    things, few = TaskRegistry.get("mixed_task001_things"), TaskRegistry.get("mixed_task002_few")
    assert {task.name for task in mixture.tasks} == {things.name, few.name}
    assert mixture.get_rate(things) == pytest.approx(2)  # 9 instances count as 8
    assert mixture.get_rate(few) == pytest.approx(2 ** (1 / 3))
    assert len(_examples(things, "train")) == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON: .*line 1"),
        ("[1]", r"the file is \[1\]; it is an object"),
        (_task(1, Definition=7), "the field Definition is 7; it is a text"),
        (_task(1, Instances=None), "the field Instances is missing; it is a list"),
        (_task(0), "the field Instances is empty; it is a list"),
        (_task(1, Instances=[{"input": "a", "output": []}]), r"the field Instances\[0\]\['output'\] is empty"),
        (_task(1, Instances=[{"input": "a", "output": ["b", 5]}]), r"the field Instances\[0\]\['output'\] is 5"),
        (_task(1, Instances=[{"output": ["b"]}]), r"the field Instances\[0\]\['input'\] is missing; it is a text"),
        (_task(1, **{"Positive Examples": [{"input": "a"}]}), r"the field Positive Examples\[0\]\['output'\] is miss"),
    ],
)
def test_a_wrong_file_and_its_field_are_named_before_the_training(folder, content, message):
    broken = folder / "tasks/task002_few.json"
    broken.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    task = register_instruction_task(f"wrong.{abs(hash(message))}", folder, vocabulary=BYTES)
    with pytest.raises((ValueError, RuntimeError), match=f"task002_few.json cannot be read from row 0 on: {message}"):
        task.source.check("train")


def test_what_is_missing_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere.* Clone it"):
        InstructionSource(tmp_path / "nowhere", hint="Clone it.").check("train")
    (folder / "splits/default/train_tasks.txt").write_text("task001_things\ntask009_gone\n")
    with pytest.raises(FileNotFoundError, match=r"is called 'task009_gone' \(split 'train'\)"):
        InstructionSource(folder).check("train")
    with pytest.raises(FileNotFoundError, match=r"no folder .*splits/xlingual' with lists"):
        InstructionSource(folder, tasks="xlingual").check("train")
    with pytest.raises(ValueError, match=r"There is no split 'valid'.*'train', 'validation', 'test'"):
        InstructionSource(folder).check("valid")
    with pytest.raises(ValueError, match="max_instances is 0"):
        InstructionSource(folder, max_instances=0)
    with pytest.raises(ValueError, match="num_positive is -1"):
        instruction_tasks.Instructions(-1)


def test_half_of_a_character_is_replaced(folder):
    content = json.dumps(_task(1)).replace("thing 0", r"thing \ud83d")
    (folder / "tasks/task003_test.json").write_text(content)
    assert _rows(InstructionSource(folder), "test") == [("task003_test", "thing ?")]


def test_texts_end_with_punctuation_of_their_script(folder):
    texts = ["什么？", "ठीक है।", "متى؟", "Sì…", "«Так»", "5 €", "так"]
    instances = [{"id": text, "input": text, "output": ["x"]} for text in texts]
    content = json.dumps(_task(0, Definition=["Antwort。"], Instances=instances), ensure_ascii=False)
    (folder / "tasks/task003_test.json").write_text(content, encoding="utf-8")
    made = _inputs(register_instruction_task("scripts", folder, vocabulary=BYTES, num_positive=0))
    assert {text.partition("\n\n")[0] for text in made} == {"Definition: Antwort。"}
    assert [text.partition("Input: ")[2].partition("\n")[0] for text in made] == [*texts[:5], "5 €.", "так."]


NO_NAME = r"is no name of a task \(split 'train' of '.*'\): give the name of a file of its folder of tasks"
# What a list of a stranger's has, and how the error says it.
LISTS = {
    b"../../secret": NO_NAME,
    b"../../sec*": NO_NAME,
    b"/etc/*": NO_NAME,
    b"**/" * 200 + b"*": NO_NAME,
    b"a" * 5000: NO_NAME,
    b"\xff": r"train_tasks\.txt is not UTF-8: byte 0xff at line 1",
    b"": "The split 'train' of .* names no task",
}


@pytest.mark.parametrize("names", LISTS, ids=range(len(LISTS)))
def test_a_list_of_a_stranger_leads_to_no_other_file(folder, names):
    (folder.parent / "secret.json").write_text(json.dumps(_task(1)))
    (folder / "splits/default/train_tasks.txt").write_bytes(names)
    with pytest.raises(ValueError, match=LISTS[names]):
        InstructionSource(folder).task_names()


def test_a_list_that_is_a_link_to_the_environment_is_not_shown(folder):
    (folder / "splits/default/train_tasks.txt").unlink()
    (folder / "splits/default/train_tasks.txt").symlink_to("/proc/self/environ")
    with pytest.raises(ValueError, match="is of the kernel, not a file") as raised:
        InstructionSource(folder).task_names()
    assert "PATH" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            "tasks/task001_things.json",
            "task001_things.json cannot be read from row 0 on: it has more than 268,435,456 bytes",
        ),
        ("splits/default/train_tasks.txt", "train_tasks.txt has 21,474,836,480 bytes; a file of this kind has at most"),
    ],
)
def test_files_with_holes_cost_no_memory(folder, file, said):
    os.truncate(folder / file, 20 * 2**30)
    with pytest.raises((ValueError, RuntimeError), match=said):
        list(InstructionSource(folder).documents("train"))
