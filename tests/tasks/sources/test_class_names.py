"""Numbers of labels and the names that `datasets` keeps of them, in all files that it writes."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks import supervised
from tasks.sources import class_names, corpora, dataset_layout
from tasks.sources.remote_files import http_files
from tasks.supervised.dataset import SupervisedDataset
from tasks.supervised.row_preprocessor import Supervise

NAMES = ["O", "B-PER", "I-PER"]


def make(names, tags=((0, 1), (2,))):
    label = datasets.ClassLabel(names=list(names))
    features = {"tokens": datasets.Sequence(datasets.Value("string")), "tags": datasets.Sequence(label), "label": label}
    rows = {"tokens": [["a"] * len(row) for row in tags], "tags": [[*row] for row in tags]}
    return datasets.Dataset.from_dict(
        rows | {"label": [row[0] for row in tags]}, features=datasets.Features({**features})
    )


def write(folder, names, how, split="train"):
    """The file with the rows, written as one may."""
    rows = make(names)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{split}.parquet"
    if how == "parquet":
        rows.to_parquet(str(file))
        return file
    if how == "feather":  # a file with a footer
        table = rows.data.table
        with pa.ipc.new_file(str(file.with_suffix(".arrow")), table.schema) as out:
            out.write_table(table)
        return file.with_suffix(".arrow")
    rows.save_to_disk(str(folder / split))
    (file,) = (folder / split).glob("*.arrow")
    if how == "info":  # an older version, whose schema says nothing
        with pa.ipc.open_stream(file.read_bytes()) as stream:
            table = stream.read_all().replace_schema_metadata(None)
        with pa.ipc.new_stream(str(file), table.schema) as out:
            out.write_table(table)
    return file


@pytest.mark.parametrize("how", ["parquet", "arrow", "feather", "info"])
def test_files_know_the_names(tmp_path, how):
    source = corpora.HuggingFaceSource(
        {"train": str(write(tmp_path, NAMES, how))}, ("label",), nested_columns=("tokens", "tags")
    )
    assert source.class_names("train", "tags") == source.class_names("train", "label") == tuple(NAMES)
    assert source.class_names("train", "tokens") == source.class_names("train", "absent") == ()
    rows = [row for batch in source.documents("train") for row in batch]
    assert [(row["label"], row["tags"]) for row in rows] == [(0, [0, 1]), (2, [2])]
    assert source.column_names("train") == ["tokens", "tags", "label"]


def test_a_damaged_arrow_file_is_named(tmp_path):
    file = write(tmp_path, NAMES, "arrow")
    file.write_bytes(file.read_bytes()[:-200])
    source = corpora.HuggingFaceSource({"train": str(file)}, ("label",))
    with pytest.raises(http_files.BrokenFileError, match=r"data-00000-of-00001\.arrow"):
        source.check("train")


def test_files_of_another_order_are_refused(tmp_path):
    files = [str(write(tmp_path / name, names, "parquet")) for name, names in (("a", NAMES), ("b", NAMES[::-1]))]
    with pytest.raises(ValueError, match=r"mean 0 'O', 1 'B-PER', 2 'I-PER' in .*a/train.* and 0 'I-PER'"):
        corpora.HuggingFaceSource({"train": files}, ("label",)).class_names("train", "label")


@pytest.mark.parametrize("how", ["arrow", "info"])
def test_a_folder_of_save_to_disk_has_its_splits(tmp_path, how):
    for split in ("train", "test"):
        write(tmp_path / "saved", NAMES, how, split)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = dataset_layout.of_folder(tmp_path / "saved")
    name = "data-00000-of-00001.arrow"
    assert found.builder == "arrow"
    assert found.files == {split: [f"{tmp_path}/saved/{split}/{name}"] for split in ("train", "test")}
    (tmp_path / "one").mkdir()
    make(NAMES).save_to_disk(str(tmp_path / "one"))
    assert dataset_layout.of_folder(tmp_path / "one").files == {"train": [f"{tmp_path}/one/{name}"]}


INFO = {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}
CARD = (
    "---\ndataset_info:\n  features:\n  - name: label\n    dtype:\n      class_label:\n        names:\n"
    "          '0': 'no'\n          '1': 'yes'\n---\n"
)


@pytest.mark.parametrize(
    ("file", "content"), [("README.md", CARD), ("dataset_infos.json", json.dumps({"default": INFO}))]
)
def test_cards_know_the_names(tmp_path, file, content):
    (tmp_path / file).write_text(content)
    (tmp_path / "train.jsonl").write_text('{"label": 1}\n')
    assert dataset_layout.of_folder(tmp_path).class_names == {"label": ("no", "yes")}


@pytest.mark.parametrize(
    ("features", "names"),
    [
        ({"x": {"names": ["a", "b"], "_type": "ClassLabel"}}, {"x": ("a", "b")}),
        ({"x": {"feature": {"names": ["a"], "_type": "ClassLabel"}, "_type": "Sequence"}}, {"x": ("a",)}),
        ({"x": [{"names": ["a"], "_type": "ClassLabel"}]}, {"x": ("a",)}),
        ({"x": {"names": "ab", "_type": "ClassLabel"}, "y": {"dtype": "int64", "_type": "Value"}, "z": 3}, {}),
        ([], {}),
    ],
)
def test_features_of_all_versions(features, names):
    assert class_names.of_info({"features": features}) == names


def test_a_task_refuses_labels_of_another_order(tmp_path):
    """A number of the file would be learned as another label."""
    files = {"train": str(write(tmp_path, NAMES, "parquet"))}
    words = supervised.TokenDataset(["O", "I-PER", "B-PER"], tags="tags")
    source = corpora.HuggingFaceSource(files, (), nested_columns=("tokens", "tags"))
    with pytest.raises(ValueError, match=r"number 1 of the column 'tags' is 'B-PER' in 'train', .* for 'I-PER'"):
        supervised.LabelTokens("t", words).check_examples(source, "train")
    supervised.LabelTokens("t", supervised.TokenDataset(NAMES, tags="tags")).check_examples(source, "train")
    source = corpora.HuggingFaceSource(files, ("label",))
    rows = SupervisedDataset("{label}", "label", {0: "I-PER", 1: "B-PER", 2: "O"})
    with pytest.raises(ValueError, match="number 0 of the column 'label' is 'O' in 'train'"):
        Supervise("t", rows.format).check_examples(source, "train")
    own_names = SupervisedDataset("{label}", "label", {0: "nothing", 1: "begins", 2: "inside"})
    assert Supervise("t", own_names.format).check_examples(source, "train") == []
