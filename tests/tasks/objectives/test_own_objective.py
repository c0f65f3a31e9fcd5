"""A package of a user's own brings an objective: it is previewed, trained on, and cached."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from limba.addons.cache import cached_data, write_cache
from limba.data import contract
from tasks import objectives, preview
from tasks.pipeline import task_batches
from tasks.pretraining import pretraining_tasks
from tasks.registry import providers
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(extra_ids=100)

# Inputs are every `step`-th token of a window, targets the whole window.
OBJECTIVE = """
import dataclasses
from typing import ClassVar
import numpy as np
from tasks.objectives import CorruptedBatch

@dataclasses.dataclass(frozen=True)
class EveryNth:
    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False
    step: int = 2

    @property
    def name(self):
        return f"every{self.step}"

    def raw_length(self, length):
        return (length - 1) * self.step

    def lengths(self, length):
        return {"inputs": length, "targets": self.raw_length(length) + 1}

    def check_sentinels(self, length, num_sentinels):
        pass

    def corrupt(self, tokens, lengths, seeds, ids):
        features = []
        for rows, ends in ((tokens[:, :: self.step], -(-lengths // self.step)), (tokens, lengths)):
            with_eos = np.pad(rows, [(0, 0), (0, 1)])
            with_eos[np.arange(len(rows)), ends] = ids.eos_id
            features += [with_eos, ends + 1]
        return CorruptedBatch(*features)
"""

TASKS = """
from my_package.every_nth import EveryNth
from tasks import pretraining, vocabularies

pretraining.register_pretraining_task(
    "every_third",
    data_files={data_files!r},
    vocabulary=vocabularies.ByteVocabulary(extra_ids=100),
    objective=EveryNth(step=3),
)
"""
# 24 letters: windows of 21 bytes make 8 inputs and 22 targets, EOS included.
LENGTHS = {"inputs": 8, "targets": 22}
TEXT = b"abcdefghijklmnopqrstuvwx"


@pytest.fixture
def package(tmp_path, monkeypatch, write_jsonl):
    """The folder that is on PYTHONPATH, with the package `my_package`."""
    files = {"train": str(write_jsonl(tmp_path / "text.jsonl", [{"text": TEXT.decode()}] * 7))}
    folder = tmp_path / "python" / "my_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "every_nth.py").write_text(OBJECTIVE)
    (folder / "my_tasks.py").write_text(TASKS.format(data_files=files))
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder.parent
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def config(**options):
    options = {"batch_size": 4, "seed": 0, "num_readers": 1} | options
    return contract.DatasetConfig("every_third", LENGTHS, "train", module="my_package.my_tasks", **options)


def texts(batch):
    """Inputs and targets without EOS; every row must end with it."""
    for name in ("encoder_input_tokens", "decoder_target_tokens"):
        assert ((batch[name] == 1).sum(axis=1) == 1).all()
        yield [bytes(int(x) - 3 for x in row if x > 1) for row in batch[name]]


def test_batches_and_preview(package, capsys):
    stream = TEXT * 7  # 168 bytes are exactly 8 windows of 21
    windows = [stream[i : i + 21] for i in range(0, 168, 21)]
    batches = task_batches.get_train_batches(config(shuffle=False))
    for begin in (0, 4):
        inputs, targets = texts(next(batches))
        assert targets == windows[begin : begin + 4]
        assert inputs == [window[::3] for window in windows[begin : begin + 4]]
    preview.main(["every_third", "--module=my_package.my_tasks", "--inputs_length=8", "--num=1"])
    output = capsys.readouterr().out
    assert "inputs: 8 of 8 tokens\nadgjmps </s>" in output
    assert "targets: 22 of 22 tokens\nabcdefghijklmnopqrstu </s>" in output
    assert "fill of the first 8 examples: inputs 100.0%, targets 100.0%" in output


def test_a_cache_of_it_is_read_where_the_package_is(package, tmp_path):
    write_cache.main(
        [
            "every_third",
            "--module=my_package.my_tasks",
            "--sequence_length=inputs=8,targets=22",
            f"--out={tmp_path}/cache",
        ]
    )
    manifest = json.loads((tmp_path / "cache" / "train" / "manifest.json").read_text())
    assert manifest["objective"] == {"class": "my_package.every_nth.EveryNth", "arguments": {"step": 3}}
    assert manifest["num_examples"] == 8
    code = f"""
import sys
from limba.data import contract
from limba.addons.cache import cached_data
config = contract.DatasetConfig("every_third", {LENGTHS!r}, "train", 8, shuffle=False, seed=0)
batch = next(cached_data.get_dataset(config, 0, 1, "EncDecFeatureConverter", {str(tmp_path / "cache")!r}))
print(batch["encoder_input_tokens"].tolist())
assert "tensorflow" not in sys.modules
"""
    path = {"PYTHONPATH": f"{package}:."}
    found = subprocess.run([sys.executable, "-c", code], env=path, check=True, capture_output=True, text=True)
    streamed = task_batches.get_train_batches(config(shuffle=False, batch_size=8))
    assert json.loads(found.stdout) == next(streamed)["encoder_input_tokens"].tolist()
    lost = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "."}, capture_output=True, text=True)
    assert "'my_package.every_nth.EveryNth', which cannot be imported (No module named 'my_package')" in lost.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("os.system", {"command": "exit 1"}, r"'os\.system' as its objective, which lacks \['main_feature'"),
        ("my_package.every_nth.Gone", {}, r"cannot be imported \(module .* has no attribute 'Gone'\)"),
        ("my_package.every_nth.EveryNth", {"stride": 3}, "has changed since the cache was made: .*stride"),
        ("EveryNth", {}, "cannot be imported"),
    ],
)
def test_a_manifest_names_no_other_thing(package, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        cached_data.load_objective({"class": name, "arguments": arguments})


def test_what_is_no_objective_or_cannot_be_found_again(package, data_files, tmp_path):
    every_nth = providers.find_provider("every_third", "my_package.my_tasks").preprocessors[0].objective
    assert objectives.missing_names(type(every_nth)) == []
    assert cached_data.load_objective(cached_data.describe_objective(every_nth)) == every_nth

    @dataclasses.dataclass(frozen=True)
    class Local(objectives.SpanCorruption):
        pass

    with pytest.raises(ValueError, match=r"Local.* is found again .*frozen dataclass at the top of a module"):
        cached_data.describe_objective(Local())
    with pytest.raises(ValueError, match=r"is found again .*not JSON serializable"):
        cached_data.describe_objective(dataclasses.replace(every_nth, step=np.int64(3)))
    arguments = {"data_files": data_files, "vocabulary": BYTES}
    with pytest.raises(
        ValueError, match=r"'spans' of task 'test_none' lacks check_sentinels, corrupt, .*, raw_length of"
    ):
        pretraining_tasks.register_pretraining_task("test_none", **arguments, objective="spans")
