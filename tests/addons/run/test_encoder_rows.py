"""`limba run` with an encoder on rows with labels: run_glue.py's, run_classification.py's and run_ner.py's commands."""

import csv
import dataclasses
import json
import random
import types

import gin
import pytest

from limba.addons.run import columns, command, data
from limba.addons.run.keys.script_keys import from_values
from tasks import registry
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer

pytestmark = pytest.mark.usefixtures("without_checks")

BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "vocab_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
TRAINING = {
    "max_steps": 40,
    "learning_rate": 2e-2,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
    "pad_to_max_length": True,
    "save_strategy": "no",
    "eval_strategy": "no",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A network without weights, and rows: whether and how often a sentence has w5, and which of its words are w5."""
    root = tmp_path_factory.mktemp("labels", numbered=False)
    (root / "config.json").write_text(json.dumps(BERT))
    write_tokenizer(root / "tokenizer.json", SPECIAL_TOKENS)
    rng = random.Random(0)
    for split, size in (("train", 160), ("validation", 24)):
        rows = [[rng.choice(["w5", "w6", "w7", "w8"]) for _ in range(3)] for _ in range(size)]
        for name, labels in (
            ("classes", [("no", "yes")["w5" in row] for row in rows]),
            ("numbers", [row.count("w5") / 2 for row in rows]),
        ):
            with (root / f"{name}_{split}.csv").open("w") as file:
                texts = ((" ".join(row), "w9", label) for row, label in zip(rows, labels, strict=True))
                csv.writer(file).writerows([("sentence1", "sentence2", "label"), *texts])
        with (root / f"words_{split}.json").open("w") as file:
            for row in rows:
                tags = [{"w5": "B-X", "w6": "B-Big Y"}.get(word, "O") for word in row]
                file.write(json.dumps({"tokens": row, "ner_tags": tags}) + "\n")
    yield root
    gin.clear_config()


def _run(here, *flags, **keys):
    """As in a new process; answers are asked for the rows of the evaluation."""
    gin.clear_config()
    for name in [
        name
        for name in registry.TaskRegistry.names()
        if name.startswith(("labels", "words", "numbers", "classes", "glue"))
    ]:
        registry.TaskRegistry.remove(name)
    if not {"model_name_or_path", "config_name"} & keys.keys():
        keys |= {"config_name": here / "config.json", "tokenizer_name": here / "tokenizer.json"}
    assert command.main([f"--{name}={value}" for name, value in keys.items()] + [*flags]) == 0


def _files(here, name, ending):
    validation = here / f"{name}_validation.{ending}"
    return {"train_file": here / f"{name}_train.{ending}", "validation_file": validation, "test_file": validation}


def _results(out):
    return json.loads((out / "all_results.json").read_text())


@pytest.mark.slow
def test_a_classifier_is_trained_evaluated_and_asked_again(here, capsys, one_device):
    out = here / "classes"
    files = _files(here, "classes", "csv")
    _run(here, output_dir=out, **files, **TRAINING)
    assert "inputs = '{sentence1} [SEP] {sentence2}'" in capsys.readouterr().out
    header, *lines = (out / "predict_results.txt").read_text().splitlines()
    with files["test_file"].open() as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert header == "index\tprediction" and [line.split("\t")[0] for line in lines] == list(map(str, range(24)))
    right = sum(line.split("\t")[1] == label for line, label in zip(lines, labels, strict=True))
    results = _results(out)
    assert results["eval_accuracy"] == pytest.approx(right / 24) and right > 20
    assert results["step"] == 40 and not {"perplexity", "eval_gen_len", "predict_gen_len"} & results.keys()
    assert results["predict_accuracy"] == results["eval_accuracy"]
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "no", "1": "yes"}

    # The exported classifier alone, on rows without labels: of its labels none is read from data.
    (here / "unlabelled.csv").write_text("sentence1,sentence2\nw5 w5 w5,w9\nw6 w6 w6,w9\n")
    alone = {"validation_file": files["validation_file"], "test_file": here / "unlabelled.csv"}
    _run(here, model_name_or_path=out, output_dir=here / "alone", **alone, do_eval=True, do_predict=True)
    assert _results(here / "alone")["eval_accuracy"] == results["eval_accuracy"]
    assert (here / "alone" / "predict_results.txt").read_text() == "index\tprediction\n0\tyes\n1\tno\n"


@pytest.fixture
def rows(tmp_path):
    """A function: writes rows as JSON lines, in a file of its own each time: sources keep what they know of a file."""

    def write(*found):
        file = tmp_path / f"rows_{len(list(tmp_path.iterdir()))}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in found))
        return file

    return write


TEXT = {"text": "w5 w6", "label": "a"}
WORDS = {"tokens": ["w5", "w6"], "ner_tags": ["O", "B-X"]}
BEST = {"do_eval": True, "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("found", "keys", "words"),
    [
        ([TEXT], {}, "of the training split has only one label, 'a'; a classifier"),
        ([TEXT], {"source_prefix": "sum: "}, "one of run_summarization .*: an encoder writes no texts. Name a T5"),
        ([TEXT], {"label_column_name": "label"}, "of the training split has only one label, 'a'; a classifier"),
        ([{"text": "w5", "tags": ["a"]}], {"do_predict": True, "test_file": "t.json"}, "no column 'label'"),
        ([TEXT], {"do_regression": True}, "'label' has 'a', which is not a number, and do_regression is true"),
        ([TEXT], {"do_regression": False, "do_train": False, "do_eval": True}, "MaskedLanguageModel, which has no lab"),
        ([TEXT], {"do_regression": False, "return_entity_level_metrics": True}, "'label' has 'a', which is no list of"),
        ([TEXT | {"label": ["a", "b"]}], {"label_column_name": "label"}, "'label' has lists, and limba run learns one"),
        ([TEXT | {"label": x} for x in "abc"], {"metric_name": "f1"}, "f1, which is of two labels, .* a, b, c"),
        (
            [TEXT | {"label": x} for x in "ab"],
            {"source_lang": "en", "target_lang": "ro"},
            "translates nothing; name a T5",
        ),
        ([TEXT | {"label": 1.5}], {"metric_name": "accuracy"}, "has accuracy, and the rows have numbers: write mse"),
        (
            [TEXT | {"label": x} for x in "ab"],
            {"label_column_name": "label", **BEST, "metric_for_best_model": "combined_score"},
            "metric_for_best_model is 'combined_score', and the evaluations have loss, accuracy, majority_accuracy, a_",
        ),
        (
            [WORDS],
            {"return_entity_level_metrics": True, **BEST, "metric_for_best_model": "X_f2"},
            "metric_for_best_model is 'X_f2', and the evaluations have loss, X_precision, X_recall, X_f1, X_number, ",
        ),
        ([TEXT], {"label_all_tokens": True}, "'label' has 'a', which is no list of labels"),
        ([WORDS], {"metric_name": "accuracy"}, "metric_names is 'accuracy': labels of words have run_ner.py's"),
        ([WORDS | {"ner_tags": ["a", "b"]}], {"return_entity_level_metrics": True}, "a, b name no entities"),
        ([TEXT], {"benchmark": "squad"}, "squad has texts as answers, which a T5 writes"),
        ([TEXT], {"task_name": "mrcp"}, "no 'glue_mrcp'. The nearest are 'glue_mrpc'"),
    ],
)
def test_what_an_encoder_cannot_learn_is_refused_before_anything_is_written(here, rows, found, keys, words):
    file = rows(*found)
    with pytest.raises(ValueError, match=words):
        _run(here, **{"do_train": True, "train_file": file, "validation_file": file, "output_dir": here / "no", **keys})
    assert not (here / "no").exists()


def test_which_columns_and_labels_are_read(here, rows, capsys):
    def composed(*found, **keys):
        _run(here, "--dry_run", do_train=True, train_file=rows(*found), output_dir=here / "no", **keys)
        return capsys.readouterr().out

    text = composed({"text": "w5", "label": 10}, {"text": "w6", "label": 9}, label_column_name="label")
    assert "LABELS = ['9', '10']\n" in text and "inputs = '{text}'" in text and "gin/runs/classify.gin" in text
    assert "TASK_FEATURE_LENGTHS = {'inputs': 24, 'targets': 1}" in text  # all positions of the network
    text = composed({"a": "w5", "b": "w6", "label": 1.0}, text_column_names="a,b", max_seq_length=8)
    assert "inputs = '{a} {b}'" in text and "gin/runs/regress.gin" in text and "'inputs': 8" in text
    text = composed({"text": ["w5"], "pos_tags": [2]}, task_name="pos")
    assert "tokens = 'text'" in text and "tags = 'pos_tags'" in text and "LABELS = ['0', '1', '2']" in text
    for tags in ("ner_tags", "tagged"):  # never the column of the row's number
        text = composed({"id": "0", "tokens": ["w5", "w6"], tags: ["O", "B-X"]}, task_name="pos")
        assert "tokens = 'tokens'" in text and f"tags = '{tags}'" in text and "LABELS = ['B-X', 'O']" in text
    text = composed({"sentence1": "w5", "sentence2": "w6", "label": 1}, task_name="mrpc")
    assert "entry = 'glue_mrpc'" in text and "LABELS = ['not_equivalent', 'equivalent']" in text
    text = composed(WORDS | {"ner_tags": ["O", "B-Job Title"]}, task_name="ner")
    assert "LABELS = ['B-Job Title', 'O']" in text
    text = composed(WORDS, label_all_tokens=True)
    assert "all_pieces = True" in text and "tags = 'ner_tags'" in text
    assert "tags = 'labels'" in composed({"tokens": ["w5"], "labels": ["O"]}, {"tokens": ["w5"], "labels": ["B-X"]})
    documents = {"text": "w5 w6 " * 40, "tags": ["a"]}  # not of its words
    labelled = documents | {"label": "a"}
    for row, keys in (
        (documents, {}),
        *((labelled, keys) for keys in ({"task": "masked_lm"}, {"mlm_probability": 0.15}, {"script": "run_mlm.py"})),
    ):
        assert "gin/runs/pretrain.gin" in composed(*[row] * 9, **keys)


def test_texts_and_labels_are_a_classifier_s_as_in_run_glue(here, rows, capsys, caplog):
    file = rows(TEXT, TEXT | {"label": "b"})
    for first in ([], ["--script=run_glue"], ["--script=examples/run_classification.py"]):
        caplog.clear()
        _run(here, "--dry_run", *first, do_train=True, train_file=file, output_dir=here / "no")
        assert "gin/runs/classify.gin" in capsys.readouterr().out
        assert ("a classifier is trained, as run_glue.py does it" in caplog.text) == (not first)
    _run(here, "--dry_run", "--script=run_ner", do_train=True, train_file=rows(WORDS), output_dir=here / "no")
    assert "tags = 'ner_tags'" in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "found", "warned"), [(None, 128, 0), (512, 128, 1), (64, None, 0)])
def test_rows_of_documents_are_as_long_as_the_encoder_reads(asked, found, warned, tmp_path, caplog):
    """As run_mlm.py, which goes by the tokenizer's model_max_length; else the training would refuse them."""
    (tmp_path / "t.txt").write_text("a\n")
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path / "t.txt"), "script": "run_mlm"}
    arguments = from_values(keys | ({} if asked is None else {"max_seq_length": asked}))[0]
    network = types.SimpleNamespace(max_positions=128)
    model = types.SimpleNamespace(network=network, labels=(), tokenizer_length=512, vocabulary={})
    assert columns.of_encoder(arguments, model) == ({} if found is None else {"max_seq_length": found})
    assert caplog.text.count("the encoder reads 128 tokens") == warned


@pytest.mark.parametrize(("asked", "found"), [(None, 64), (100, 100), (300, 128)])
def test_rows_of_words_go_by_the_tokenizer_where_no_key_says_a_length(rows, asked, found):
    """As run_ner.py, whose max_seq_length has no default."""
    keys = {"model_name_or_path": "m", "output_dir": "o", "script": "run_ner", "do_train": True}
    keys |= {"train_file": str(rows(WORDS)), **({} if asked is None else {"max_seq_length": asked})}
    head = types.SimpleNamespace(is_number=False)
    network = types.SimpleNamespace(max_positions=128)
    model = types.SimpleNamespace(network=network, labels=(), head=head, tokenizer_length=64, vocabulary={})
    assert columns.of_encoder(from_values(keys)[0], model)["max_seq_length"] == found


@pytest.mark.parametrize(
    ("names", "text", "is_named"),
    [
        (("id", "premise", "hypothesis"), "{id} [SEP] {premise}", True),
        (("idx", "tweet"), "{idx} [SEP] {tweet}", True),
        (("premise", "hypothesis"), "{premise} [SEP] {hypothesis}", False),
        (("idx", "sentence1", "sentence2"), "{sentence1} [SEP] {sentence2}", False),
        (("id", "sentence"), "{sentence}", False),
    ],
)
def test_columns_that_run_glue_takes_for_a_pair_are_named(tmp_path, caplog, names, text, is_named):
    (tmp_path / "rows.csv").write_text(",".join((*names, "label")) + "\n" + "1,a,b,c\n"[-2 * len(names) - 2 :])
    arguments, _ = from_values(
        {"script": "run_glue", "model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path / "rows.csv")}
    )
    corpus = data.find_whole(arguments)[0]
    assert columns._columns(arguments, corpus, "train") == (text, "label", "label")
    assert (f"the text is {text!r}, of {[*names, 'label']}" in caplog.text) is is_named


def _class_labels(folder, names):
    """A table of `datasets` whose columns `tags` and `label` are numbers with names."""
    import datasets

    label = datasets.ClassLabel(names=names)
    words = {"tokens": datasets.Sequence(datasets.Value("string")), "tags": datasets.Sequence(label)}
    features = datasets.Features({"text": datasets.Value("string"), **words, "label": label})
    rows = {"text": ["w5 w6"] * 2, "tokens": [["w5", "w6"]] * 2, "tags": [[0, 1], [1, 0]], "label": [0, 1]}
    folder.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / "rows.parquet"))
    return folder / "rows.parquet"


def _of_rows(arguments, labels=()):
    head = types.SimpleNamespace(class_name="BertForSequenceClassification", is_number=False)
    network = types.SimpleNamespace(max_positions=24)
    model = types.SimpleNamespace(network=network, labels=labels, head=head, tokenizer_length=24, path="m")
    if labels:
        head.class_name = arguments.row_answers.network or "SequenceClassifier"
    return columns.of_encoder(arguments, model)


BY_NUMBER = {"0": "O", "1": "B-X", "2": "B-Y"}


@pytest.mark.parametrize("how", ["parquet", "card"])
def test_the_labels_of_numbers_are_their_names(tmp_path, how):
    """ClassLabel of `datasets`: all names are labels, in their order, also those that no row has."""
    names = [*BY_NUMBER.values()]
    if how == "parquet":
        given = {"train_file": str(_class_labels(tmp_path / "a", names))}
    else:
        given = {"dataset_name": str(tmp_path)}
        row = {"text": "w5", "tokens": ["w5", "w6"], "tags": [0, 1], "label": 0}
        lines = json.dumps(row) + "\n" + json.dumps(row | {"label": 1}) + "\n"
        (tmp_path / "train.jsonl").write_text(lines)
        feature = {"names": names, "_type": "ClassLabel"}
        features = {"tags": {"feature": feature, "_type": "Sequence"}, "label": feature}
        features |= {"text": {"dtype": "string", "_type": "Value"}}
        features |= {"tokens": {"feature": features["text"], "_type": "Sequence"}}
        (tmp_path / "dataset_infos.json").write_text(json.dumps({"default": {"features": features}}))
    keys = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, **given}
    words = from_values(keys | {"script": "run_ner", "label_column_name": "tags"})[0]
    assert _of_rows(words)["labels"] == names
    classes = from_values(keys | {"script": "run_glue", "text_column_names": "text"})[0]
    found = _of_rows(classes)["labels"]
    assert found == {**BY_NUMBER, **{name: name for name in names}}
    assert columns.label_names(
        dataclasses.replace(classes, label_column_name="label", labels=found, answers="label")
    ) == tuple(names)
    # A T5 writes the names.
    of_t5 = from_values(keys | {"text_column_name": "text", "label_column_name": "label"})[0]
    assert columns.of_t5(of_t5)["labels"] == found
    assert columns.of_t5(dataclasses.replace(of_t5, labels={"0": "a", "1": "b", "2": "c"})) == {}


def test_numbers_with_other_names_are_refused(tmp_path):
    train, swapped = (
        str(_class_labels(tmp_path / name, names)) for name, names in (("a", ["O", "B-X"]), ("b", ["B-X", "O"]))
    )
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": train, "validation_file": swapped}
    for more in ({"script": "run_ner", "label_column_name": "tags"}, {"script": "run_glue"}):
        arguments = from_values(keys | more | {"do_train": True, "do_eval": True})[0]
        with pytest.raises(ValueError, match="mean 0 'O', 1 'B-X' in 'train' and 0 'B-X', 1 'O' in 'validation'"):
            _of_rows(arguments)
    # A trained model has its own order: numbers of rows are mapped by name, or refused where they are places.
    asked = from_values({**keys, "do_eval": True, "script": "run_glue", "text_column_names": "text"})[0]
    corpus = data.find_whole(asked)[0]
    labels = columns._labels(asked, ("O", "B-X"), corpus, "label", "label")
    assert labels == {"O": "O", "B-X": "B-X", "0": "B-X", "1": "O"}
    with pytest.raises(ValueError, match="number 0 of the column 'tags' is 'B-X' in the data"):
        columns._labels(asked, ("O", "B-X"), corpus, "tags", "word_labels")
