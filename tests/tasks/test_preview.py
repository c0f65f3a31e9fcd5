import dataclasses
from unittest import mock

import gin
import numpy as np
import pytest

from limba.inference import blanks
from tasks import objectives, pretraining, preview, supervised
from tasks.registry import TaskRegistry
from tasks.supervised import row_formats
from tasks.vocabularies import ByteVocabulary
from tests.convert import vocabularies


def test_text_with_sentinels():
    vocabulary = ByteVocabulary(100)
    tokens = np.array([*vocabulary.encode("ab"), 358, *vocabulary.encode("c"), 357, 1, 0, 0])
    assert blanks.row_text(vocabulary, tokens) == "ab ___ c ___ </s>"


def test_preview_command(task, capsys):
    preview.main(["test_task", "--split", "validation", "--inputs_length", "64", "--num", "2"])
    output = capsys.readouterr().out
    assert "example 1, targets: 14 of 14 tokens" in output
    assert "fill of the first" in output
    with pytest.raises(SystemExit, match=r"error: There is no task or mixture 'test_tak'.*--module my_module"):
        preview.main(["test_tak"])


def test_words_are_those_between_blanks_of_all_documents(tmp_path, capsys):
    (tmp_path / "words.jsonl").write_text('{"text": "ein Haus,\\n zwei"}\n{"text": ""}\n{"text": "drei"}\n')
    pretraining.register_pretraining_task(
        "preview_words", data_files={"train": str(tmp_path / "words.jsonl")}, vocabulary=ByteVocabulary(100)
    )
    preview.main(["preview_words", "--words"])
    shares = "0.0% of 10,000,000, 0.0% of 100,000,000"
    assert capsys.readouterr().out == f"--- split train: 4 words in 3 documents, {shares}\n"
    preview.main(["preview_words", "--words", "4"])
    assert capsys.readouterr().out == "--- split train: 4 words in 3 documents, 100.0% of 4\n"
    with pytest.raises(SystemExit, match="Split train has 4 words in 3 documents, 1 more than --words 3: take fewer"):
        preview.main(["preview_words", "--words", "3"])


def test_a_language_model_has_no_inputs(data_files, capsys):
    pretraining.register_pretraining_task(
        "preview_lm", data_files=data_files, vocabulary=ByteVocabulary(100), objective=objectives.FullLM()
    )
    preview.main(["preview_lm", "--split", "validation", "--targets_length", "16", "--num", "1"])
    output = capsys.readouterr().out
    assert "example 0, targets: 16 of 16 tokens" in output and "inputs" not in output


def test_seqio_s_features_that_no_model_reads_and_vocabularies_without_texts(capsys):
    import seqio
    import tensorflow as tf

    numbers = seqio.Feature(seqio.PassThroughVocabulary(64, eos_id=1), add_eos=False)
    rows = {"inputs": [[5, 6, 1]], "targets": [[7, 8, 1]], "grid": [[[1, 2], [3, 4]]]}
    seqio.TaskRegistry.add(
        "preview_numbers",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
                {name: tf.constant(x, tf.int32) for name, x in rows.items()}
            ),
            splits=["train"],
        ),
        preprocessors=[],
        output_features={"inputs": numbers, "targets": numbers, "grid": dataclasses.replace(numbers, rank=2)},
    )
    preview.main(["preview_numbers", "--inputs_length", "4", "--targets_length", "3", "--num", "1"])
    output = capsys.readouterr().out
    assert "inputs: 3 of 4 tokens\n5 6 </s>\n" in output and "targets: 3 of 3 tokens\n7 8 </s>\n" in output


def test_inputs_that_t5_s_tasks_do_not_require(capsys):
    import seqio
    import tensorflow as tf

    from limba.tasks.t5 import t5_preprocessors

    tokens = seqio.Feature(seqio.ByteVocabulary(100), required=False)
    seqio.TaskRegistry.add(
        "preview_t5_spans",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
                {"inputs": [""], "targets": ["a text of sixty bytes, more or less, for the blanks of a T5"]}
            ),
            splits=["train"],
        ),
        preprocessors=[seqio.preprocessors.tokenize, t5_preprocessors.span_corruption],
        output_features={"inputs": tokens, "targets": dataclasses.replace(tokens, required=True)},
    )
    preview.main(["preview_t5_spans", "--inputs_length", "40", "--targets_length", "12", "--num", "1"])
    output = capsys.readouterr().out
    assert "example 0, inputs: 39 of 40 tokens" in output and "___" in output


def test_a_pipe_without_a_reader_is_for_limba_to_end(task, monkeypatch):
    monkeypatch.setattr("builtins.print", mock.Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        preview.main(["test_task", "--inputs_length", "64"])


def test_a_recipe_brings_task_and_lengths(task, tmp_path, capsys):
    recipe = tmp_path / "mine.gin"
    recipe.write_text(
        "include 'gin/models/t5_1_1/tiny.gin'\ninclude 'gin/runs/pretrain.gin'\n"
        "MIXTURE_OR_TASK_NAME = 'test_task'\nTASK_FEATURE_LENGTHS = {'inputs': 48, 'targets': 13}\n"
    )
    shown = {}
    for more in ((), ("--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 9}",), ("--inputs_length", "64")):
        gin.clear_config()
        preview.main([str(recipe), "--split", "validation", "--num", "1", *more])
        shown[len(shown)] = capsys.readouterr().out
    gin.clear_config()
    assert "--- test_task, split validation" in shown[0] and "of 13 tokens" in shown[0]
    assert "of 48 tokens" in shown[0] and "of 32 tokens" in shown[1] and "of 64 tokens" in shown[2]
    with pytest.raises(SystemExit):
        preview.main(["test_task", "another"])
    assert "give one task, not test_task and another" in capsys.readouterr().err


def test_a_run_brings_task_and_lengths(task, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.gin").write_text(
        "include 'gin/models/t5_1_1/tiny.gin'\ninclude 'gin/runs/pretrain.gin'\n"
        "MIXTURE_OR_TASK_NAME = 'test_task'\nTASK_FEATURE_LENGTHS = {'inputs': 48, 'targets': 13}\n"
    )
    gin.clear_config()
    preview.main([str(tmp_path / "run"), "--num", "1"])
    gin.clear_config()
    assert "--- test_task, split train" in (shown := capsys.readouterr().out) and "of 13 tokens" in shown


def test_folders_that_are_no_run(tmp_path):
    (tmp_path / "model.gin").write_text("")
    with pytest.raises(SystemExit, match=r"is a folder; name a gin file, such as .*model\.gin"):
        preview.main([str(tmp_path)])
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"export is a Hugging Face folder: make a run .*from-hf .*export runs/NAME"):
        preview.main([str(tmp_path / "export")])


def test_tasks_of_encoders(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("red cat blue dog\n" * 50)
    (tmp_path / "table.csv").write_text("text,label\n" + "red cat,yes\nblue dog,no\n" * 20)
    vocabulary = vocabularies.write_words(tmp_path / "tokenizer.json", ["red", "blue", "cat", "dog"])
    masked = pretraining.register_pretraining_task(
        "test_preview_masked",
        data_files={"train": str(tmp_path / "text.txt")},
        vocabulary=vocabulary,
        objective=objectives.MaskedLM(),
    )
    labelled = supervised.register_supervised_task(
        "test_preview_labels",
        supervised.SupervisedDataset("{text}", "label", labels=["no", "yes"]),
        data_files={"train": str(tmp_path / "table.csv")},
        vocabulary=vocabulary,
    )
    (tmp_path / "numbers.csv").write_text("text,much\n" + "red cat,2.5\n" * 20)
    number = supervised.register_supervised_task(
        "test_preview_number",
        supervised.SupervisedDataset(row_formats.Number("{text}", "much")),
        data_files={"train": str(tmp_path / "numbers.csv")},
        vocabulary=vocabulary,
    )
    (tmp_path / "words.jsonl").write_text('{"tokens": ["red", "cat"], "tags": ["O", "B-ANIMAL"]}\n' * 20)
    words = supervised.register_token_task(
        "test_preview_words",
        supervised.TokenDataset(["O", "B-ANIMAL"]),
        data_files={"train": str(tmp_path / "words.jsonl")},
        vocabulary=vocabulary,
    )
    try:
        for task, labels in ((number, "2.5"), (words, "O B-ANIMAL")):
            preview.main([task.name, "--inputs_length", "8", "--num", "1"])
            shown = capsys.readouterr().out.splitlines()
            assert shown[1] == "red cat [SEP]" and shown[4] == labels
        preview.main([masked.name, "--inputs_length", "12", "--num", "1"])
        shown = capsys.readouterr().out
        assert "inputs: 12 of 12 tokens" in shown and "targets: 2 of 2 tokens" in shown
        preview.main([labelled.name, "--inputs_length", "8", "--num", "1"])
        shown = capsys.readouterr().out.splitlines()
        assert shown[1] == "red cat [SEP]" and shown[3] == "--- example 0, targets: 1 of 1 tokens"
        assert shown[4] == "yes"
    finally:
        TaskRegistry.remove(masked.name)
        for task in (labelled, number, words):
            TaskRegistry.remove(task.name)
