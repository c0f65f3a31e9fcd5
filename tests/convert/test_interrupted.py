"""A conversion that is interrupted leaves nothing that looks finished, and resumes."""

import numpy as np
import pytest

from convert import __main__
from convert.model_files.model import ModelHints
from convert.tensors import tensor_parts
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.checkpoint_files import saved_tensors


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("interrupted") / "run")


class Interrupting:
    """Counts the tensors that are read, and interrupts before the one after `last`."""

    def __init__(self, monkeypatch, last: int):
        self.read: list[str] = []
        self.last = last
        cast = tensor_parts.cast

        def counting(tensor, dtype, name):
            tensor = cast(tensor, dtype, name)

            def read(index):
                if len(self.read) == self.last:
                    raise KeyboardInterrupt
                self.read.append(name)
                return tensor.read(index)

            return saved_tensors.SavedTensor(tensor.shape, tensor.dtype, read)

        monkeypatch.setattr(tensor_parts, "cast", counting)


def test_an_export_keeps_the_shards_that_are_whole(run, tmp_path, monkeypatch):
    options = {"formats": ("safetensors",), "shard_bytes": 30_000, "verify": False}
    (tmp_path / "whole").mkdir()
    whole = to_hf(run, tmp_path / "whole/out", **options)  # The card has the folder's name.
    first = Interrupting(monkeypatch, last=30)
    with pytest.raises(KeyboardInterrupt):
        to_hf(run, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    kept = {path.name for path in (tmp_path / ".out.unfinished").glob("model-*.safetensors")}
    assert kept
    first.last = -1
    first.read.clear()
    assert to_hf(run, tmp_path / "out", **options) == whole
    shards = sorted((tmp_path / "whole/out").glob("model-*.safetensors"))
    assert len(shards) > len(kept)
    for shard in shards:
        assert (tmp_path / "out" / shard.name).read_bytes() == shard.read_bytes()
    # What the finished shards hold was not read again.
    assert 0 < len(set(first.read)) < 53
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.parametrize("format_", ["classic", "orbax"])
def test_a_checkpoint_goes_on_behind_the_last_tensor(run, tmp_path, monkeypatch, format_):
    monkeypatch.setattr("convert.t5x.t5x_state._COMMIT_BYTES", 10_000)
    first = Interrupting(monkeypatch, last=30)
    with pytest.raises(KeyboardInterrupt):
        to_t5x(run, tmp_path, format_=format_, verify=False)
    assert [path.name for path in tmp_path.iterdir()] == [".checkpoint_10.unfinished"]
    first.last = -1
    first.read.clear()
    path = to_t5x(run, tmp_path, format_=format_, verify=False)
    total = len(saved_tensors.open_tensors(path))
    assert total - 30 <= len(first.read) < total - 10
    ours = saved_tensors.open_tensors(run / "checkpoint_10")
    for name, tensor in saved_tensors.open_tensors(path).items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(ours[name]))
    assert not list(path.glob(".*"))


def test_another_request_begins_anew(run, tmp_path, monkeypatch, spiece_model):
    first = Interrupting(monkeypatch, last=30)
    with pytest.raises(KeyboardInterrupt):
        to_hf(run, tmp_path / "out", formats=("safetensors",), shard_bytes=30_000, verify=False)
    first.last = -1
    to_hf(run, tmp_path / "out", formats=("flax",), hints=ModelHints(vocab=str(spiece_model)), verify=False)
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_the_command_says_that_it_goes_on(run, tmp_path, monkeypatch, capsys):
    Interrupting(monkeypatch, last=5)
    assert __main__.main(["to-hf", str(run), str(tmp_path / "out"), "--no-check"]) == 130
    assert "the same command resumes there" in capsys.readouterr().err
