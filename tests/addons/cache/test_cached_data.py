import dataclasses
import io
import json
import os
import shutil

import gin
import numpy as np
import pytest

from limba.addons.cache import cached_data
from limba.data import contract
from limba.gin_config import gin_files

EXAMPLES = [(list(range(3, 3 + n)), list(range(50, 50 + n // 2 + 1))) for n in (2, 5, 1, 8, 4, 3, 7)]
CONFIG = contract.DatasetConfig("my_task", {"inputs": 8, "targets": 5}, "train", batch_size=4, seed=1)


@pytest.fixture
def cache(tmp_path):
    """A cache of 7 finished examples, as `limba cache` lays it out."""
    folder = tmp_path / "cache" / "train"
    folder.mkdir(parents=True)
    source = tmp_path / "corpus.txt"
    source.write_text("7 lines")
    features = {}
    for number, name in enumerate(("inputs", "targets")):
        rows = [example[number] for example in EXAMPLES]
        tokens = np.concatenate(rows).astype(np.uint16)
        tokens.tofile(folder / f"{name}.tokens")
        np.save(folder / f"{name}.ends.npy", np.cumsum([len(row) for row in rows]))
        features[name] = {"dtype": "uint16", "bytes": tokens.nbytes, "longest": max(map(len, rows))}
    manifest = {
        "task": "my_task",
        "split": "train",
        "lengths": {"inputs": 8, "targets": 5},
        "objective": None,
        "mode": [],
        "vocabulary": {"vocab_size": 359, "num_sentinels": 100, "eos_id": 1},
        "files": cached_data.describe_files([str(source)]),
        "fingerprint": {"rows": 7},
        "features": features,
        "num_examples": len(EXAMPLES),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "cache"


FEATURE = {"dtype": "uint16", "bytes": 60, "longest": 8}
OBJECTIVE = {"class": "tasks.objectives.SpanCorruption", "arguments": {}}
WINDOWS = {"features": {"tokens": FEATURE | {"longest": 30}}}


def open_train(cache, index=0, count=1, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    return cached_data.get_dataset(config, index, count, "EncDecFeatureConverter", str(cache))


def rows(batch):
    return [row[row > 0].tolist() for row in batch["encoder_input_tokens"]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_permutations(size):
    first = cached_data.permute(np.arange(size), size, seed=1, epoch=0)
    assert sorted(first) == list(range(size))
    if size > 100:
        others = [cached_data.permute(np.arange(size), size, seed, epoch) for seed, epoch in ((1, 1), (2, 0))]
        # Two permutations agree in one place on average.
        assert all(np.sum(first == other) < 10 for other in [*others, np.arange(size)])
        assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.1
        # Neighbours do not stay neighbours.
        assert np.mean(np.abs(np.diff(first)) == 1) < 0.02


def test_every_example_once_per_epoch(cache):
    batches = open_train(cache)
    seen = [row for _ in range(14) for row in rows(next(batches))]
    epochs = [seen[start : start + 7] for start in range(0, 56, 7)]
    expected = sorted(example[0] for example in EXAMPLES)
    assert all(sorted(epoch) == expected for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) > 6
    in_order = open_train(cache, shuffle=False)
    assert rows(next(in_order)) == [example[0] for example in EXAMPLES[:4]]


def test_features(cache):
    batch = next(open_train(cache, shuffle=False))
    assert batch["decoder_target_tokens"].tolist()[1] == [50, 51, 52, 0, 0]
    assert batch["decoder_input_tokens"].tolist()[1] == [0, 50, 51, 52, 0]
    assert batch["decoder_loss_weights"].tolist()[1] == [1, 1, 1, 0, 0]
    assert batch["encoder_input_tokens"].shape == (4, 8)
    assert {x.dtype.name for x in batch.values()} == {"int32"}


@pytest.mark.parametrize("count", [2, 4])
def test_hosts_and_restarts(cache, count):
    """The same batches from any number of hosts, and when that number changes at a restart."""
    whole = open_train(cache)
    expected = [next(whole) for _ in range(8)]
    hosts = [open_train(cache, index, count) for index in range(count)]
    for step in range(4):
        parts = [next(host) for host in hosts]
        for name, value in expected[step].items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value)
    state = {name: content for host in hosts for name, content in host.save_state().items()}
    assert json.loads(state["cached.json"])["batches"] == 4 and len(state["cached.json"]) < 300
    restored = open_train(cache)
    restored.restore_state(state)
    for step in range(4, 8):
        np.testing.assert_array_equal(next(restored)["encoder_input_tokens"], expected[step]["encoder_input_tokens"])


def test_a_seed_that_was_drawn_is_kept(cache, caplog):
    batches = open_train(cache, seed=None)
    assert "this run draws" in caplog.text
    next(batches)
    restored = open_train(cache, seed=None)
    restored.restore_state(batches.save_state())
    assert rows(next(restored)) == rows(next(batches))
    with pytest.raises(ValueError, match="Several hosts need one seed"):
        open_train(cache, 0, 2, seed=None)


def test_evaluation_is_finite(cache):
    sets = cached_data.get_eval_datasets(CONFIG, 0, 1, None, "EncDecFeatureConverter", str(cache))
    for _ in range(2):
        batches = list(sets["my_task"])
        assert [row for batch in batches for row in rows(batch)] == [*(example[0] for example in EXAMPLES), []]
    assert batches[-1]["decoder_loss_weights"][-1].sum() == 0
    second = cached_data.get_eval_datasets(CONFIG, 1, 2, None, "EncDecFeatureConverter", str(cache))["my_task"]
    np.testing.assert_array_equal(next(iter(second))["encoder_input_tokens"], batches[0]["encoder_input_tokens"][2:])


def test_changed_runs_and_caches_are_refused(cache, tmp_path):
    state = open_train(cache).save_state()
    with pytest.raises(ValueError, match="seed was 1 and is 2"):
        open_train(cache, seed=2).restore_state(state)
    with pytest.raises(ValueError, match="batch_size was 4 and is 8"):
        open_train(cache, batch_size=8).restore_state(state)
    with pytest.raises(ValueError, match=r"has no 'cached.json', only \['reader"):
        open_train(cache).restore_state({"reader-0000-of-0001.json": b""})
    (tmp_path / "corpus.txt").touch()
    next(open_train(cache))  # another time, the same content
    (tmp_path / "corpus.txt").write_text("8 lines")
    with pytest.raises(ValueError, match=r"stale: .*corpus\.txt has changed since. Remove it.*limba cache my_task"):
        open_train(cache)
    (tmp_path / "corpus.txt").unlink()  # The cache may be on a machine that never had the corpus.
    next(open_train(cache))
    with (cache / "train" / "inputs.tokens").open("ab") as file:
        file.write(b"xx")
    with pytest.raises(ValueError, match=r"inputs\.tokens is damaged"):
        open_train(cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": dict.fromkeys(("../../secret", "targets"), FEATURE)}, r"features are \.\./\.\./secret; a ca"),
        ({"features": {"inputs": FEATURE | {"longest": 10**6}, "targets": FEATURE}}, "no row of 1000000 tokens"),
        ({"features": {"inputs": FEATURE | {"dtype": "O"}, "targets": FEATURE}}, "features is a table of 2; it is a"),
        ({"features": 5}, r"manifest\.json is none that `limba cache` wrote"),
        ({"num_examples": 0}, r"num_examples is 0; it is a whole number of at least 1"),
        ({"objective": OBJECTIVE | {"class": "of_a_cache.Objective"}} | WINDOWS, "it lies in the folder of the run"),
        ({"objective": OBJECTIVE} | WINDOWS, r"manifest\.json: windows have up to 30 tokens; for 8 inputs .* 2 to 7"),
    ],
)
def test_a_manifest_of_somebody_else(cache, change, message, monkeypatch):
    """It names nothing outside its folder, and no module in it, wherever the command was started."""
    monkeypatch.syspath_prepend(str(cache))
    monkeypatch.setattr(cached_data, "_differences_of_task", lambda *args: [])
    (cache / "of_a_cache.py").write_text("raise AssertionError('it was run')\n")
    file = cache / "train/manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    for end in ("tokens", "ends.npy"):
        shutil.copy(cache / f"train/inputs.{end}", cache / f"train/tokens.{end}")
    with pytest.raises(ValueError, match=message):
        open_train(cache)


def _array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is a FIFO, not a file"),
        (b"", "is no array that `limba cache` wrote: EOF"),
        (_array(np.arange(7.0)), "should have 7 numbers of the type int64"),
        (_array(np.arange(7))[:-8], "should have 7 numbers of the type int64"),
        (_array(np.array([{}] * 7, object)), "should have 7 numbers of the type int64"),
        (b"\x93NUMPY\1\0" + b"\xe8\x03" + b"(" * 1000, "Header info length \\(1000\\) is large"),
        (_array(np.full(7, 31)), r"example 0 is not in the 30 tokens"),
        (_array(np.arange(7)[::-1]), r"example 1 is not in the 30 tokens"),
    ],
)
def test_ends_of_somebody_else(cache, content, message):
    file = cache / "train/inputs.ends.npy"
    file.unlink()
    file.write_bytes(content) if content is not None else os.mkfifo(file)
    with pytest.raises(ValueError, match=message):
        next(open_train(cache, shuffle=False))


def test_a_file_without_an_end_is_not_read(cache):
    file = cache / "train/manifest.json"
    of_memory = {"files": {"/proc/self/mem": {"size": 0, "time_ns": 0, "crc32": 0}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | of_memory))
    assert len(rows(next(open_train(cache)))) == 4


def test_a_position_of_somebody_else(cache):
    state = {"cached.json": open_train(cache).save_state()["cached.json"].replace(b'"batches": 0', b'"batches": 1.5')}
    with pytest.raises(ValueError, match=r"\(cached.json\) has batches 1.5; it is a whole number"):
        open_train(cache).restore_state(state)


def test_errors(cache, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no finished cache in .*validation; make it: limba cache my_task"):
        open_train(cache, split="validation")
    with pytest.raises(ValueError, match="made with task 'my_task', and the configuration asks for 'other'"):
        open_train(cache, mixture_or_task_name="other")
    with pytest.raises(ValueError, match="made with lengths"):
        open_train(cache, task_feature_lengths={"inputs": 16, "targets": 5})
    with pytest.raises(ValueError, match=r"cannot be read with DatasetConfig\.pack"):
        open_train(cache, pack=True)
    with pytest.raises(ValueError, match=r"Bind cached_data\.get_dataset\.directory"):
        cached_data.get_dataset(CONFIG, 0, 1, "EncDecFeatureConverter")
    with pytest.raises(ValueError, match="not those of LMFeatureConverter"):
        cached_data.get_dataset(CONFIG, 0, 1, "LMFeatureConverter", str(cache))
    with pytest.raises(ValueError, match="does not divide by 3 hosts"):
        open_train(cache, 0, 3)


@pytest.mark.parametrize("package", ["limba.addons.cache", "tasks.pipeline.cached"])
def test_a_recipe_binds_the_reader(cache, tmp_path, package):
    """By its former name, too."""
    (tmp_path / "a.gin").write_text(
        f"from __gin__ import dynamic_registration\nfrom {package} import cached_data\n"
        f"READER = @cached_data.get_dataset\ncached_data.get_dataset.directory = '{cache}'\n"
    )
    gin_files.parse_files([str(tmp_path / "a.gin")])
    try:
        reader = gin.query_parameter("READER/gin.macro.value").scoped_configurable_fn
        batch = next(reader(CONFIG, 0, 1, "EncDecFeatureConverter"))
    finally:
        gin.clear_config()
    assert rows(batch) == rows(next(open_train(cache)))
