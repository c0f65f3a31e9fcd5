"""Files of Limba's own folders: a link that somebody put there changes nothing elsewhere."""

import argparse
import contextlib
import re
import types

import numpy as np
import pytest

from convert.t5x import limba_run, t5x_checkpoint
from limba import eval as evaluation
from limba.addons.publish import all_checkpoints
from limba.addons.run import command as hf_command
from limba.addons.run import results
from limba.addons.sweep import sweep_report, trial_folders
from limba.checkpoint_files import saved_tensors
from limba.files import output_folder, storage, written_files
from limba.gin_config import gin_files
from limba.inference import evaluation as evaluation_of_tasks
from limba.inference import infer_text, shard_files
from limba.reports import json_lines

SWEEP = types.SimpleNamespace(parameters=[], metric="loss", maximize=False)
CHECKPOINT = "trials/0001/run/checkpoint_4"


def _append(folder):
    with written_files.append(folder / "x") as file:
        file.write("ours")


def _replace(folder):
    with written_files.replacing(folder / "x") as temporary:
        temporary.write_text("ours")


def _repair(folder):
    (folder / "metrics.jsonl").write_text("{\n")
    json_lines.read_and_repair(folder / "metrics.jsonl", lambda record: True)


def _convert(folder):
    with output_folder.complete_or_absent(folder / "out", {}) as unfinished:
        (unfinished / "x").write_text("ours")


def _resume(folder):
    (folder / "x").rename(folder / "link")
    with pytest.raises(KeyboardInterrupt), output_folder.complete_or_absent(folder / "out", {}):
        raise KeyboardInterrupt
    (folder / ".out.unfinished" / "x").symlink_to((folder / "link").resolve())
    _convert(folder)
    (folder / "out" / "x").rename(folder / "x")


def _merge(folder):
    (folder / "chunks").mkdir()
    (folder / "chunks" / "x-chunk00000").write_text("ours")
    shard_files.merge_chunks_to_file(str(folder), "x", str(folder / "chunks"), None)


def _chunk(folder):
    files = shard_files.ShardFiles(folder, "x")
    files.write_chunk(0, lambda path: open(path, "w").write("ours"))  # noqa: PTH123, SIM115


def _answers(folder):
    answers = object.__new__(infer_text._AnswersFile)
    answers.path, answers._unfinished, answers._request = folder / "out", folder / "x", {}
    with answers.writing(0):
        pass


def _keep_best(folder):
    (folder / CHECKPOINT).mkdir(parents=True, exist_ok=True)
    trial = trial_folders.Trial(1, {}, folder / "trials" / "0001", "done", value=0.1, step=4)
    with contextlib.suppress(FileNotFoundError):  # It cannot be exported: it has no state.
        sweep_report.keep_best(SWEEP, [trial], folder)


def _measure(folder):
    model = types.SimpleNamespace(FEATURE_CONVERTER_CLS=None)
    evaluation_of_tasks.InferenceEvaluator(None, None, model, None, folder)


def _convert_all(folder):
    storage.write_bytes(folder / "run" / "checkpoint_4" / "state" / "x", b"")
    all_checkpoints.convert_all(str(folder / "run"), folder / "exports", options={})


def _initial(folder):
    files = limba_run.RunFiles("T5Config", {}, {}, "gin", None)
    tensors = {"target/x": saved_tensors.from_array(np.zeros(2, np.float32))}
    source = t5x_checkpoint.SourceCheckpoint(folder.parent / "no", tensors, 4)
    limba_run.write_files_of_run(source, files, None, folder / "initial", False, True)


def _remove(folder):
    storage.write_bytes(folder / "x" / "y", b"")
    storage.remove_tree(folder / "x")


def _flags(run):
    return argparse.Namespace(
        run_dir=run,
        task=None,
        module=None,
        split=None,
        eval_steps=None,
        checkpoints=None,
        average=False,
        output_dir=None,
    )


# What writes into a folder in which the file of this name is a link.
FILES = {
    "a continued file": ("x", _append),
    "a whole file": ("x", _replace),
    "a text": ("x", lambda folder: storage.replace_text(folder / "x", "ours")),
    "bytes": ("x", lambda folder: storage.write_bytes(folder / "x", b"ours")),
    "damaged lines": ("metrics.jsonl.damaged", _repair),
    "damaged lines of a link": ("x", lambda folder: json_lines.read_and_repair(folder / "x", lambda record: True)),
    "the configuration": ("config.gin", lambda folder: gin_files.summarize_gin_config(str(folder), None, 0)),
    "a conversion that goes on": ("x", _resume),
    "answers": ("x", _merge),
    "a chunk of answers": ("tmp-x/x-chunk00000", _chunk),
    "unfinished answers": ("x", _answers),
    "a file of a converted run": ("initial/model.gin", _initial),
    "answers of tasks": ("inference_eval/t-000005.jsonl", _measure),
    "the lock of a sweep": ("lock", lambda folder: trial_folders.SweepFolder(folder, {})),
    "the record of a sweep": ("sweep.json", lambda folder: trial_folders.SweepFolder(folder, {}).close()),
    "the results of a sweep": ("results.csv", lambda folder: sweep_report.write(SWEEP, [], folder)),
    "the mark of the best checkpoint": (f"{CHECKPOINT}/PINNED", _keep_best),
}
# What fills a folder that is a link.
FOLDERS = {
    "unfinished files": (".out.unfinished", _convert),
    "a trial": ("trials/0001", lambda folder: trial_folders.Trial(1, {}, folder / "trials" / "0001").save()),
    "trials": ("trials", lambda folder: trial_folders.Trial(1, {}, folder / "trials" / "0001").save()),
    "the best checkpoint": (CHECKPOINT, _keep_best),
    "its export": ("best", _keep_best),
    "an export of each checkpoint": ("exports/checkpoint_4", _convert_all),
    "chunks of answers": ("tmp-x", lambda folder: shard_files.ShardFiles(folder, "x").num_whole_chunks({})),
    "answers of tasks": ("inference_eval", _measure),
    "a converted checkpoint": ("initial/checkpoint_4", _initial),
    "a script's export": (
        ".exported/ours",
        lambda folder: results.export(types.SimpleNamespace(out=folder, keys=None), None),
    ),
    "an evaluation": ("eval", lambda folder: evaluation.run_bindings(_flags(str(folder)))),
    "a script's evaluation": ("eval", lambda folder: hf_command._make_folder(folder, False)),
}
# What empties one.
REMOVED = {
    "a conversion before": (".out.replaced", lambda folder: (_convert(folder), _convert(folder))),
    "what is removed": ("x", lambda folder: storage.remove_tree(folder / "x")),
    "what is to be removed": (".removed_x", _remove),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link(tmp_path, name):
    file, write = FILES[name]
    theirs, folder = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text("theirs")
    (folder / file).parent.mkdir(parents=True)
    (folder / file).symlink_to(theirs)
    try:
        write(folder)
    except ValueError as error:
        assert str(error).startswith(f"{folder / file} is a link to {theirs}, ") and str(error).endswith(
            "Remove the link."
        )
    else:
        assert not (folder / file).is_symlink()
    assert theirs.read_text() == "theirs"
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours"}


@pytest.mark.parametrize("name", {**FOLDERS, **REMOVED})
def test_a_folder_that_is_a_link(tmp_path, name):
    link, write = (FOLDERS | REMOVED)[name]
    theirs, folder = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    (theirs / "x").write_text("theirs")
    (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(theirs)
    if name in FOLDERS:
        with pytest.raises(
            ValueError, match=f"^{re.escape(str(folder / link))} is a link to {re.escape(str(theirs))}, "
        ):
            write(folder)
    else:
        write(folder)
    assert [(path.name, path.read_text()) for path in theirs.iterdir()] == [("x", "theirs")]
