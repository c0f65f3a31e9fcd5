import ast
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from limba.addons.examples import python_docs
from limba.addons.vectors import embed
from limba.checkpoints import checkpointing
from limba.files import written_files
from limba.inference import answering, infer_text
from tasks.sources import corpora
from tasks.vocabularies import sentencepiece_training

ROOT = Path(__file__).parents[3]


class _Answers:
    lines_at_once, batch_size = 4, 2

    def __init__(self, restore_checkpoint_cfg):
        pass

    def find_unknown(self, lines):
        return ""

    def answer(self, lines, done=0):
        for line in lines[done:]:
            yield answering.Answer(line, line.upper(), line.upper(), -1.0)


def _infer(path, folder):
    (folder / "checkpoint_3").mkdir(exist_ok=True)
    (folder / "checkpoint_3" / "checkpoint").write_bytes(b"x")
    checkpoint = checkpointing.RestoreCheckpointConfig(path=str(folder / "checkpoint_3"))
    infer_text.infer_text(
        answerer_cls=_Answers,
        restore_checkpoint_cfg=checkpoint,
        inputs=["a", "b"],
        output_file=str(path),
        overwrite=True,
    )


def _embed(path, folder):
    rows = [np.zeros(2, np.float32)]
    embedder = types.SimpleNamespace(embed=lambda inputs: rows, num_cut=0, find_unknown=lambda inputs: "")
    embed.embed(embedder_cls=lambda **_: embedder, restore_checkpoint_cfg=None, inputs=["a"], output_file=path)


def _build_vocabulary(path, folder):
    (folder / "text.txt").write_text("".join(f"{i * i * i:x} {i * 7919:o} line\n" for i in range(400)))
    source = corpora.HuggingFaceSource({"train": [str(folder / "text.txt")]}, ["text"])
    sentencepiece_training.train_vocabulary(source, path, vocab_size=256, overwrite=True)


def _moved(path, folder):
    (folder / "new").write_text("moved")
    written_files.move(folder / "new", path)


# What writes a file that a user names.
WRITERS = {
    "infer --output_file": (_infer, b'{"input": "a"'),
    "embed --output_file": (_embed, b"\x93NUMPY"),
    "vocab build --out": (_build_vocabulary, b"\n"),
    "texts": (lambda path, folder: written_files.write_text(path, "text"), b"text"),
    "a moved file": (_moved, b"moved"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_plain_file_stays(writer, tmp_path):
    write, beginning = WRITERS[writer]
    target, link, dangling, new = (tmp_path / name for name in ("target", "link", "dangling", "new_file"))
    target.write_text("before")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "later")
    for path, file in ((new, new), (link, target), (dangling, tmp_path / "later"), (target, target)):
        write(path, tmp_path)
        assert file.read_bytes().startswith(beginning) and not file.is_symlink()
    assert link.is_symlink() and dangling.is_symlink()

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe, tmp_path)
    reader.join(10)
    assert read and read[0].startswith(beginning) and pipe.is_fifo()

    write(Path("/dev/null"), tmp_path)
    assert Path("/dev/null").is_char_device()
    names = {path.name for path in tmp_path.iterdir()}
    assert not [name for name in names if "tmp" in name or "unfinished" in name]


def test_open_descriptors_are_written_where_they_are(tmp_path):
    program = """
import sys
from pathlib import Path
from limba.files import written_files
print("before")
written_files.write_text(Path(sys.argv[1]), "text\\n")
print("after", file=written_files.messages_beside(Path(sys.argv[1])))
print("end")
"""
    for name, out, err in (
        ("/dev/stdout", "before\ntext\nend\n", "after\n"),
        ("/dev/stderr", "before\nend\n", "text\nafter\n"),
        ("/dev/fd/1", "before\ntext\nend\n", "after\n"),
        ("/proc/self/fd/1", "before\ntext\nend\n", "after\n"),
    ):
        # To a file and, on the other side, to a pipe.
        with (tmp_path / "out").open("wb") as file:
            done = subprocess.run([sys.executable, "-c", program, name], stdout=file, stderr=subprocess.PIPE, cwd=ROOT)
        assert (done.returncode, (tmp_path / "out").read_text(), done.stderr.decode()) == (0, out, err)


def test_after_an_error_the_old_content_is_there(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), written_files.writing(file) as temporary:
        temporary.write_text("new")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and file.read_text() == "old"
    with pytest.raises(IsADirectoryError, match=str(tmp_path)), written_files.writing(tmp_path):
        pass
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert not written_files.is_stream(tmp_path / "circle")


def test_no_other_code_replaces_files():
    """`path.replace(other)` and `path.rename(other)`: one argument that is no keyword. Folders get their names so."""
    folders = {
        "limba/files/storage.py": 1,
        "limba/files/output_folder.py": 3,
        "limba/checkpoints/checkpointing.py": 2,
        "limba/addons/sweep/trial_folders.py": 1,
        "limba/addons/corpus/command.py": 1,  # out of its folder of unfinished work
        "limba/addons/run/results.py": 1,  # of an export
        "limba/addons/run/output_dir/earlier_run.py": 1,  # into a folder that is new
        "limba/addons/run/output_dir/refused_starts.py": 3,  # out of that folder again
        "limba/addons/instructions/speedrun.py": 1,
        "limba/addons/cache/write_cache.py": 1,
        "convert/tensors/weight_shards.py": 2,  # inside a folder that is not complete
    }
    calls: dict[str, int] = {}
    for file in (path for package in ("limba", "tasks", "convert") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_path = node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords
                is_os = node.func.attr in ("replace", "rename", "renames") and ast.unparse(node.func.value) == "os"
                if is_path or is_os or ast.unparse(node.func) == "shutil.move":
                    name = str(file.relative_to(ROOT))
                    calls[name] = calls.get(name, 0) + 1
    assert calls == folders | {"limba/files/written_files.py": 2}


def test_a_corpus_goes_through_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "corpus").symlink_to(tmp_path / "elsewhere")
    python_docs._write_shard(tmp_path / "corpus", "train", ["text"])
    assert json.loads((tmp_path / "elsewhere" / "train.jsonl").read_text()) == {"text": "text"}
    assert (tmp_path / "corpus").is_symlink() and (tmp_path / "elsewhere" / "train.parquet").is_file()
