"""The folder for CTranslate2 that `limba serve RUN` keeps in a run; `test_to_ct2` has the check itself."""

import contextlib
import shutil

import pytest

from limba.addons.engines import kept_folder as kept
from limba.addons.engines.ct2.ct2_t5_export import T5Export
from limba.checkpoint_files import run_folder
from limba.convert.compare.comparison_rows import Comparison
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures

pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")


@pytest.fixture(scope="module")
def saved(new_run, tmp_path_factory):  # noqa: F811
    return new_run(tmp_path_factory.mktemp("kept") / "run", num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """The user's folder of marks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "limba" / "engines"


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A copy of the run's checkpoint, in a run of its own."""
    found = saved if saved.name.startswith("checkpoint_") else next(saved.glob("checkpoint_*"))
    return shutil.copytree(found, tmp_path / "mine" / found.name)


@pytest.fixture
def is_right(monkeypatch):
    monkeypatch.setattr(T5Export, "compare", lambda self, folder: [Comparison("logits", 0.0, 1.0)])


def _keep(checkpoint):
    """The folder, the parts of the work, and the lines about it."""
    parts, lines = [], []

    @contextlib.contextmanager
    def part(what):
        parts.append(what.split(",")[0])
        yield

    with kept.kept_folder(str(checkpoint), False, part, lines.append) as folder:
        assert (folder / "model.bin").is_file()
    return folder, parts, lines


_WORK = ["Reading the checkpoint", "Converting it for CTranslate2", "Comparing what CTranslate2 and JAX compute"]


def test_a_folder_is_written_once_and_again_where_it_must_be(checkpoint, is_right, monkeypatch):
    step = checkpoint.name.removeprefix("checkpoint_")
    folder, parts, lines = _keep(checkpoint)
    assert folder.parent == checkpoint.parent / "engines" and folder.name.startswith(f"ctranslate2-{step}-")
    assert (parts, lines) == (_WORK, []) and _keep(checkpoint) == (folder, [], [])

    model = folder / "model.bin"
    whole = model.read_bytes()
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert _keep(checkpoint) == (folder, _WORK, [f"{folder} is damaged: it is written again."])
    assert model.read_bytes() == whole
    (folder / "tokenizer.json").unlink()
    assert _keep(checkpoint)[1] == _WORK
    (folder / "conversion_report.json").write_text("{")
    assert _keep(checkpoint)[1] == _WORK
    monkeypatch.setattr(kept, "VERSION", "0.0.1")
    assert _keep(checkpoint)[2] == [f"{folder} was written by other versions: it is written again."]


def test_another_checkpoint_has_another_folder_and_forgotten_ones_go(checkpoint, is_right):
    first, *_ = _keep(checkpoint)
    other = checkpoint.rename(checkpoint.with_name("checkpoint_99"))
    second, parts, _ = _keep(other)
    assert parts == _WORK and second.name.startswith("ctranslate2-99-")
    assert [*first.parent.iterdir()] == [second], "the run no longer has the first checkpoint"
    sums = other / run_folder.FOLDER / "state_checksums.json"
    sums.write_text(sums.read_text().replace("1", "2"))
    assert kept._name(other, False) not in (second.name, kept._name(other, True))


def test_a_folder_that_somebody_else_wrote_is_not_read(checkpoint, is_right, cache):
    folder, *_ = _keep(checkpoint)
    shutil.rmtree(cache)  # as on the machine of whoever downloads this run
    again = f"{folder} was not written by this user on this machine: it is written again."
    assert _keep(checkpoint) == (folder, _WORK, [again]) and _keep(checkpoint) == (folder, [], [])
    # Hashes that are right prove nothing.
    report = folder / "conversion_report.json"
    report.write_text(report.read_text() + "\n")
    assert _keep(checkpoint)[2] == [again]


def test_a_run_that_cannot_be_written_to_gets_a_temporary_folder(checkpoint, is_right):
    (checkpoint.parent / "engines").write_text("in the way")
    folder, parts, (line,) = _keep(checkpoint)
    assert parts == _WORK and not folder.parent.exists()
    assert line.endswith("(File exists): it is converted for this start alone.")


def test_what_fails_the_check_is_not_kept(checkpoint, monkeypatch):
    monkeypatch.setattr(T5Export, "compare", lambda self, folder: [Comparison("logits", 2.0, 1.0)])
    with pytest.raises(ValueError, match="is not the model, nothing was kept: logits: 2, allowed 1e"):
        _keep(checkpoint)
    assert not any((checkpoint.parent / "engines").iterdir())


def test_an_encoder_is_refused_before_it_is_read(checkpoint, monkeypatch):
    record = {"network_class": "EncoderConfig", "network": {}}
    monkeypatch.setattr(run_folder, "load_run_info", lambda path: record)
    with pytest.raises(ValueError, match="has an EncoderConfig and no T5, whose answers alone CTranslate2 gives"):
        _keep(checkpoint)
