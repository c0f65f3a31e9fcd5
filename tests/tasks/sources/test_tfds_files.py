"""Folders of TensorFlow Datasets of strangers: what they say is looked at before the library believes it."""

import json

import pytest
import seqio

from tasks.registry import providers

INFO = {"name": "foo", "version": "1.0.0", "splits": [{"name": "train", "filepathTemplate": "{DATASET}-{SPLIT}.x"}]}


def features(name):
    return {"pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            "featuresDict": {"features": {"text": {"pythonClassName": name, "text": {}}}}}  # fmt: skip


OURS = features("tensorflow_datasets.core.features.text_feature.Text")


@pytest.mark.parametrize(
    ("info", "of_features", "words"),
    [
        (INFO, OURS, None),
        (INFO, features("this.Text"), r"features.json has a feature of the class 'this.Text', and .* would import"),
        (INFO, {"type": "idlelib.idle.Text", "content": {}}, r"features.json has a feature of the class 'idlelib"),
        (INFO | {"splits": [{"filepathTemplate": "../../{SPLIT}"}]}, OURS, r"'\.\./\.\./\{SPLIT\}', which leads"),
        (INFO | {"splits": [{"filepathTemplate": "/etc/passwd"}]}, OURS, r"filepathTemplate is '/etc/passwd'"),
        ("[" * 100_000, OURS, r"dataset_info.json: line 1 has more than 200 brackets"),
        ("{", OURS, r"dataset_info.json is not JSON"),
    ],
)
def test_a_folder_is_looked_at_before_it_is_opened(tmp_path, monkeypatch, info, of_features, words):
    for name, content in {"dataset_info.json": info, "features.json": of_features}.items():
        file = tmp_path / "foo/1.0.0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
    source = seqio.TfdsDataSource("foo:1.0.0", tfds_data_dir=str(tmp_path), splits=["train"])
    feature = seqio.Feature(seqio.ByteVocabulary())
    task = seqio.Task("foo", source=source, output_features={"targets": feature}, preprocessors=[])
    if words is None:
        assert providers.find_provider(task).source is source
        return
    with pytest.raises(ValueError, match=words):
        providers.find_provider(task)
