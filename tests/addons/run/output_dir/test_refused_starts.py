"""A start that is refused leaves the run in OUTPUT_DIR as it was, and is refused in the words of `limba run`."""

import json

import pytest

from limba.addons.run import command
from limba.addons.run.keys.script_keys import from_values
from limba.addons.run.output_dir import earlier_run, refused_starts
from limba.checkpoints import restore
from limba.data import contract
from tests.addons.run.plans import plan_of

KEYS = {"model_name_or_path": "m", "train_file": "t.csv", "do_train": True, "label_column_name": "l"}
OTHER_DATA = ValueError(
    "The saved data position (reader-0000-of-0008.json) belongs to other data: batch_size was 16 and is 8. Restore the "
    f"old values, or {contract.NEW_RUN}."
)
FEWER_READERS = ValueError(str(OTHER_DATA).replace("old values", "old BATCH_SIZE"))  # as `tasks.pipeline.readers` says
OTHER_TASK = ValueError(
    f"This run is of task 'a', and MIXTURE_OR_TASK_NAME is 'b': set it back, or {contract.NEW_RUN}."
)


@pytest.fixture
def out(tmp_path):
    """A finished run."""
    out = tmp_path / "out"
    for step in (3, 6):
        (out / "run" / f"checkpoint_{step}").mkdir(parents=True)
        (out / "predictions" / f"checkpoint_{step}").mkdir(parents=True)
    (out / "run" / "config.gin").write_text("operative")
    (out / "run.gin").write_text("BATCH_SIZE = 16\n")
    _write_keys(out, per_device_train_batch_size=16)
    return out


def _arguments(out, **keys):
    return from_values(KEYS | {"output_dir": str(out)} | keys)[0]


def _write_keys(out, **keys):
    (out / "run.json").write_text(json.dumps(_arguments(out, **keys).without_secrets()))


def _content(out):
    paths = (path for path in out.rglob("*") if path.name != "run.lock")
    return {str(path.relative_to(out)): path.is_file() and path.read_text() for path in paths}


def _change(out, start, **keys):
    """As `limba run` does before it trains."""
    start.keep_files()
    start.moved = earlier_run.make_room(_arguments(out, **keys), out, "BATCH_SIZE = 8\n")
    start.set_aside(out / "predictions")
    (out / "run.gin").write_text("BATCH_SIZE = 8\n")
    _write_keys(out, per_device_train_batch_size=8, max_steps=5, **keys)
    (out / "run").mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OTHER_DATA, "batch_size was 16 and is 8"),
        (FEWER_READERS, "batch_size was 16 and is 8"),
        (OTHER_TASK, "This run is of task 'a', and MIXTURE_OR_TASK_NAME is 'b'"),
        (
            restore._mismatch("checkpoint_6", ["target/w: missing"]),
            "checkpoint_6 holds another network .*: target/w: mi",
        ),
    ],
)
def test_other_values_are_refused_by_keys_and_change_nothing(out, error, reason):
    before = _content(out)
    says = (
        rf"^output_dir is {out}, which holds a run of other values: {reason}[^.]*\. Keys: per_device_train_batch_size "
        r"was 16 and is 8, max_steps was -1 and is 5\. Write the old values to resume it, choose another output_dir, "
        r"or write overwrite_output_dir, which .* Nothing of the old run was changed\.$"
    )
    with pytest.raises(ValueError, match=says), refused_starts.put_back(out) as start:
        _change(out, start)
        assert not (out / "predictions").exists()
        raise error
    assert _content(out) == before


@pytest.mark.parametrize(
    "keys", [{"overwrite_output_dir": True}, {"resume_from_checkpoint": "checkpoint_3"}, {}], ids=["new", "back", "on"]
)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt("stop"), ValueError("BATCH_SIZE does not divide.")], ids=["stop", "bad"]
)
def test_what_was_moved_comes_back(out, caplog, keys, error):
    before = _content(out)
    if "resume_from_checkpoint" in keys:
        keys = {"resume_from_checkpoint": str(out / "run" / "checkpoint_3")}
    with pytest.raises(type(error), match=str(error)), refused_starts.put_back(out) as start:
        _change(out, start, **keys)
        raise error
    assert _content(out) == before
    assert caplog.text.count("This start has failed: what it had moved into") == bool(keys)


def test_an_accepted_start_keeps_its_files(out):
    for error in (None, ValueError(str(OTHER_DATA))):
        (out / "predictions" / "checkpoint_3").mkdir(parents=True, exist_ok=True)
        try:
            with refused_starts.put_back(out) as start:
                _change(out, start)
                (out / "run" / "config.gin").unlink()
                (out / "run" / "config.gin").write_text("operative")  # as a training that begins
                if error is not None:
                    raise error
        except ValueError as raised:
            assert raised is error
        assert (out / "run.gin").read_text() == "BATCH_SIZE = 8\n"
        assert json.loads((out / "run.json").read_text())["max_steps"] == 5
        assert not list(out.glob("*predictions*"))


def test_limba_run_puts_back(out, monkeypatch):
    """The command: its training is refused."""
    before = _content(out)

    def write_gin(request, start, *_):
        _change(out, start)
        return plan_of(request).as_json(request)

    def refuse(argv):
        assert argv == [f"--gin_file={out / 'run.gin'}"]
        raise OTHER_DATA

    monkeypatch.setattr(command, "_write_gin", write_gin)
    monkeypatch.setattr(command.train, "main", refuse)
    flags = [f"--{name}={value}" for name, value in (KEYS | {"output_dir": out}).items()]
    with pytest.raises(ValueError, match=r"output_dir is .* Keys: per_device_train_batch_size was 16 and is 8"):
        command.main(flags)
    assert _content(out) == before
