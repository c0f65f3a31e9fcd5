import os
import re
from pathlib import Path

import pytest

from limba.addons.plan.lint import gin_check
from limba.gin_config import gin_files, t5x_files

# T5X's include paths, each of which stands for files of ours where there is no checkout of T5X.
_SIZES = "small base large"
_RUNS = "pretrain pretrain_deterministic finetune eval infer infer_from_tfexample_file precompile"
_MOE_RUNS = "pretrain continue_pretrain sparse_upcycle finetune eval infer infer_from_tfexample_file precompile"
FLAXFORMER = "flaxformer/t5x/configs/moe/models/"
_FIVE = f"tiny {_SIZES} xl xxl"
_OF_PAPERS = "switch_base switch_large switch_xxl switch_c st_moe_base st_moe_xl st_moe_32b"
UMT5 = "t5x/examples/scalable_t5/umt5/pretrain_"
PATHS = [
    *(f"t5x/configs/runs/{run}.gin" for run in _RUNS.split()),
    *(f"t5x/examples/t5/t5_1_1/{size}.gin" for size in f"tiny {_SIZES} xl xxl".split()),
    *(f"t5x/examples/t5/t5_1_0/{size}.gin" for size in f"tiny {_SIZES} 3B 11B".split()),
    *(f"t5x/examples/t5/mt5/{size}.gin" for size in f"tiny {_SIZES} xl xxl".split()),
    *(f"t5x/examples/t5/byt5/{size}.gin" for size in f"tiny {_SIZES} xl xxl".split()),
    "t5x/examples/t5/local_tiny.gin",
    *(f"t5x/examples/scalable_t5/t5_1_1/{size}.gin" for size in f"{_SIZES} xl xxl".split()),
    *(f"t5x/examples/scalable_t5/mt5/{size}.gin" for size in f"{_SIZES} xl xxl".split()),
    "t5x/examples/scalable_t5/local_tiny.gin",
    *(f"{UMT5}{size}.gin" for size in f"{_SIZES} xl xxl".split()),
    "t5x/examples/scalable_t5/umt5/tydiqa_base.gin",
    "t5x/examples/scalable_t5/umt5/vocab.gin",
    "t5x/examples/scalable_t5/umt5/architectures/encoder_decoder.gin",
    "t5x/examples/scalable_t5/umt5/optimizer/adafactor.gin",
    "t5x/examples/scalable_t5/umt5/optimizer/adafactor_momentum_nofactor.gin",
    "t5x/examples/scalable_t5/umt5/runs/pretraining_common.gin",
    "t5x/examples/scalable_t5/umt5/runs/finetuning_common.gin",
    *(f"t5x/examples/decoder_only/models/{size}.gin" for size in f"{_SIZES} xl xxl".split()),
    *(f"t5x/contrib/moe/configs/runs/{run}.gin" for run in _MOE_RUNS.split()),
    "flaxformer/t5x/configs/moe/architectures/moe.gin",
    *(f"{FLAXFORMER}{kind}_{size}.gin" for kind in ("tokens_choose", "experts_choose") for size in _FIVE.split()),
    *(f"{FLAXFORMER}{size}.gin" for size in _OF_PAPERS.split()),
]


def _run(capsys, *arguments):
    code = gin_check.main([str(argument) for argument in arguments])
    return code, capsys.readouterr().out.splitlines()


# One size of a family: what stands for the others differs in the name of the file that it includes.
CHECKED = [x for x in PATHS if not re.search(r"(small|large|xl|3B|11B)\.gin$|moe/", x)]
CHECKED += [f"{UMT5}xxl.gin", f"{FLAXFORMER}switch_large.gin", "t5x/contrib/moe/configs/runs/sparse_upcycle.gin"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The answer for a file that includes it, by include path."""
    folder = tmp_path_factory.mktemp("users")
    files = {}
    for i, path in enumerate(CHECKED):
        files[path] = folder / f"{i}.gin"
        files[path].write_text(f"include {path!r}\n")
    gin_check._warm_up([str(file) for file in files.values()])
    return {path: gin_check.check_apart(str(file), [], [], "") for path, file in files.items()}


@pytest.mark.parametrize("path", CHECKED)
def test_t5x_include_paths_are_ours(checked, path):
    assert checked[path] is None


def test_our_list_of_paths_is_whole():
    assert sorted(PATHS) == t5x_files.names(gin_files.REPOSITORY)


def test_every_file_of_ours_resolves(forks):
    """In a small process: it forks for each file, which costs more the more memory it has."""
    done = forks.run(["limba", "gin-check", str(gin_files.REPOSITORY / "gin")], dict(os.environ))
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert done.returncode == 0, done.stderr
    assert len(lines) == len(list((gin_files.REPOSITORY / "gin").rglob("*.gin")))


HEAD = "from __gin__ import dynamic_registration\nfrom t5x import utils\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            HEAD + "utils.DatasetConfg.seed = 3\n",
            "{}:3: Limba does not provide t5x.utils.DatasetConfg. Did you mean DatasetC",
        ),
        (
            HEAD + "utils.DatasetConfig.sede = 3\n",
            "{}:3: Configurable 'utils.DatasetConfig' doesn't have a parameter named",
        ),
        (HEAD + "X = @utils.nothing()\n", "{}:3: Limba does not provide t5x.utils.nothing."),
        (
            HEAD + "trainer.Trainer.num_microbatches = 2\n",
            "{}:3: 'trainer' is not imported in this file. Add `from t5x import t",
        ),
        (
            "from __gin__ import dynamic_registration\nnetwork.T5Config.emb_dim = 8\n",
            "{}:2: 'network' is not imported in this file. Add `from limba.network import t5 as network`.",
        ),
        (
            "from __gin__ import dynamic_registration\nutils.DatasetConfig.seed = 8\n",
            "{}:2: 'utils' is not imported in this file. Add `from t5x import utils`.",
        ),
        ("from t5x import export_lib\n", "{}:1: Limba does not provide t5x.export_lib. Limba writes no TensorFlow"),
        ("import no_such_module\n", "{}:1: No module named 'no_such_module'"),
        (
            "from flaxformer.components import dense\n",
            "{}:1: No module named 'flaxformer'. Limba's own networks stand in place of its models with experts: leave",
        ),
        (
            "nowhere_imported.T5Config.emb_dim = 8\n",
            "{}:1: No configurable matching 'nowhere_imported.T5Config'. Import its module in this file, or read",
        ),
        (
            "import optax\nX = @optax.adamw\n",
            "{}:2: No configurable matching reference '@optax.adamw'. Begin this file with `from __gin__ import dyn",
        ),
        ("X = four\n", "{}:1: cannot read `X = four`. Strings need quotes"),
        (
            "X = {inputs: 64}\n",
            "{}:1: cannot read `X = {{inputs: 64}}`. Strings inside of it need quotes: 'inputs' in pl",
        ),
        ("X =\n", "{}:1: cannot read `X =`. No value stands behind `=`: write one"),
        ("X. = 4\n", "{}:1: cannot read `X. = 4`. 'X.' is not a name: a macro is NAME, a parameter module.Class.p"),
        ("X = 4;\n", "{}:1: cannot read `X = 4;`. Leave out the ';' at its end."),
        ("X = «ș»\n", "{}:1: cannot read `X = «ș»`. '«' (LEFT-POINTING DOUBLE ANGLE QUOTATION MARK) is no letter of"),
        ("ВX = 4  # ș\n", "{}:1: cannot read `ВX = 4  # ș`. 'В' (CYRILLIC CAPITAL LETTER VE) is no letter of"),
        ("X = [1,\n", "{}"),
        ("include 't5x/configs/runs/export.gin'\n", "{}:1: There is no gin file t5x/configs/runs/export.gin."),
        ("include 't5x/examples/t5/t5_1_1/bsae.gin'\n", "Did you mean t5x/examples/t5/t5_1_1/base.gin"),
        ("include 'nothing.gin'\n", "{}:1: There is no gin file nothing.gin."),
        (f"X = {'-' * 5000}1\n", "{}:1: cannot read `X = ---"),
    ],
)
def test_what_is_missing_is_named_with_file_and_line(tmp_path, capsys, text, answer):
    file = tmp_path / "run.gin"
    file.write_text(text)
    code, lines = _run(capsys, file)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"FAIL {file}")
    assert answer.format(f"FAIL {file}") in lines[0]


def test_a_fault_in_an_included_file_names_both(tmp_path, capsys):
    (tmp_path / "inner.gin").write_text(HEAD + "\nutils.DatasetConfig.sede = 3\n")
    (tmp_path / "outer.gin").write_text("X = 1\ninclude 'inner.gin'\n")
    _, lines = _run(capsys, f"--gin_search_paths={tmp_path}", tmp_path / "outer.gin")
    assert lines[0].startswith(
        f"FAIL {tmp_path}/outer.gin:2: {tmp_path}/inner.gin:4: Configurable 'utils.DatasetConfig'"
    )


def test_files_are_read_apart_and_folders_are_whole(tmp_path, capsys, monkeypatch):
    """What one file imports does not help another."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "only_in_a.py").write_text("def width(size=1):\n    return size\n")
    (tmp_path / "c.gin").write_text("only_in_a.width.size = 8\n")
    (tmp_path / "d.txt").write_text("not gin\n")
    (tmp_path / "a.gin").write_text(
        "from __gin__ import dynamic_registration\nimport only_in_a\nX = @only_in_a.width\n"
    )
    (tmp_path / "b.gin").write_text("M = %gin.REQUIRED\nX = %M\n")
    code, lines = _run(capsys, tmp_path)
    assert [line.split(":")[0] for line in lines] == [
        f"ok {tmp_path}/a.gin",
        f"ok {tmp_path}/b.gin",
        f"FAIL {tmp_path}/c.gin",
    ]
    assert code == 1
    code, lines = _run(capsys, f"--gin_file={tmp_path}/a.gin", tmp_path / "c.gin")
    assert (code, lines) == (0, [f"ok {tmp_path}/c.gin"])


def test_of_a_run_the_files_that_limba_writes_inside_are_left_out(tmp_path, capsys):
    for folder in ("run", "run/eval", "run/checkpoint_5/run", "mine/eval"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.gin").write_text("X = 1\nY = %X\n")
    (tmp_path / "run/checkpoint_5/state").mkdir()
    (tmp_path / "run/model.gin").write_text("X = 1\nY = %X\n")
    of_run = [f"ok {tmp_path}/run/config.gin", f"ok {tmp_path}/run/model.gin"]
    assert _run(capsys, tmp_path / "run") == (0, of_run)
    assert _run(capsys, tmp_path) == (0, [f"ok {tmp_path}/mine/eval/config.gin", *of_run])
    assert _run(capsys, tmp_path / "run/eval/config.gin")[1] == [f"ok {tmp_path}/run/eval/config.gin"]
    assert _run(capsys, tmp_path / "run/checkpoint_5")[1] == [f"ok {tmp_path}/run/checkpoint_5/run/config.gin"]


def test_bindings_are_checked_too(tmp_path, capsys):
    file = tmp_path / "run.gin"
    file.write_text(HEAD + "utils.DatasetConfig.seed = 3\n")
    assert _run(capsys, file, "--gin.utils.DatasetConfig.batch_size=8")[0] == 0
    code, lines = _run(capsys, file, "--gin.utils.DatasetConfig.batchsize=8")
    assert code == 1
    assert "--gin.utils.DatasetConfig.batchsize=8: Configurable" in lines[0]


def test_search_paths_come_before_our_own_files(tmp_path, capsys):
    theirs = tmp_path / "t5x" / "configs" / "runs"
    theirs.mkdir(parents=True)
    (theirs / "pretrain.gin").write_text("BROKEN = here\n")
    (tmp_path / "run.gin").write_text("include 't5x/configs/runs/pretrain.gin'\n")
    assert _run(capsys, tmp_path / "run.gin")[0] == 0
    code, lines = _run(capsys, f"--gin_search_paths={tmp_path}", tmp_path / "run.gin")
    assert code == 1
    assert f"{theirs}/pretrain.gin:1" in lines[0]


def test_a_module_that_exits_fails_its_file_only(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "leaves_early.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "a.gin").write_text("import leaves_early\n")
    (tmp_path / "b.gin").write_text("X = 1\n")
    code, lines = _run(capsys, tmp_path / "a.gin", tmp_path / "b.gin")
    assert code == 1
    assert "ends the process (3)" in lines[0]
    assert lines[1].startswith("ok ")


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no gin file below"):
        gin_check.main([str(tmp_path)])


def test_replacements_bind_what_t5x_does():
    text = t5x_files.replacement("t5x/examples/t5/mt5/large.gin", gin_files.REPOSITORY)
    assert isinstance(text, str)
    assert "mc4.250000.100extra" in text
    assert "gin/models/mt5/large.gin" in text
    run = t5x_files.replacement("t5x/contrib/gpu/t5/configs/runs/finetune.gin", gin_files.REPOSITORY)
    assert run == Path(gin_files.REPOSITORY) / "gin" / "t5x" / "configs" / "runs" / "finetune.gin"
    assert t5x_files.replacement("gin/runs/pretrain.gin", gin_files.REPOSITORY) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A = 1\nB = " + "[" * 100_000, "x.gin:2: brackets are too deep inside of each other"),
        ("A = 1\nB = " + "(" * 3000 + ")" * 3000, "x.gin:2: brackets are too deep inside of each other"),
        ("A = 1\n\nB = " + "9" * 5000, "x.gin:3: cannot read `B = 999"),
        ("A = 1\n\nB = 'a\0'", "x.gin:3: the line has a null byte"),
        ('A = 1\nB = "\\ud800"', r"x.gin:2: the line has half of a character, \ud800"),
        ("A = 1\n\nB = [1,\n", "x.gin:4: the file ends inside a bracket"),
        ("A = 1\nB = 'caf\udce9'", "x.gin is not UTF-8: byte 0xe9 at line 2, byte 9"),
        ("A = %B\nB = [1, {'x': %C}]\nC = %A\nD = %D", "x.gin: the macros A = %B = %C = %A stand for each other"),
    ],
)
def test_the_place_of_what_gin_cannot_read_is_named(tmp_path, capsys, text, words):
    file = tmp_path / "x.gin"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, lines = _run(capsys, file)
    assert code == 1 and words in lines[0] and len(lines[0]) < 500, lines


def test_includes_in_a_circle_are_named_as_a_chain(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, other in ("ab", "bc", "ca"):
        (tmp_path / f"{name}.gin").write_text(f"X = 1\ninclude '{other}.gin'\n")
    code, lines = _run(capsys, "a.gin")
    assert code == 1
    assert lines[0] == (
        "FAIL a.gin:2: c.gin:2: a.gin includes b.gin, which includes c.gin, which includes a.gin. Remove one of these "
        "lines."
    )
    # One file twice, and one after the other, is not a circle.
    (tmp_path / "c.gin").write_text("X = 2\n")
    (tmp_path / "a.gin").write_text("include 'b.gin'\ninclude 'c.gin'\ninclude 'b.gin'\n")
    assert _run(capsys, "a.gin")[0] == 0


def test_a_mark_before_the_text_is_read(tmp_path, capsys):
    (tmp_path / "x.gin").write_bytes(b"\xef\xbb\xbfA = 1\nB = %A\n")
    assert _run(capsys, tmp_path / "x.gin")[0] == 0


def test_what_is_no_file_is_said(tmp_path, capsys):
    (tmp_path / "x.gin").symlink_to("gone.gin")
    code, lines = _run(capsys, tmp_path / "x.gin")
    assert code == 1 and "x.gin is a link to gone.gin, which does not exist" in lines[0]


def test_the_task_of_a_run_is_looked_up_as_train_does(tmp_path, capsys, monkeypatch):
    """`import tasks` finds Limba's own package, whatever a project of T5X has."""
    run = "from __gin__ import dynamic_registration\n{}\ninclude 'gin/models/t5_1_1/tiny.gin'\n" + (
        "include 'gin/runs/pretrain.gin'\nMIXTURE_OR_TASK_NAME = {!r}\n"
    )
    file = tmp_path / "run.gin"
    monkeypatch.syspath_prepend(str(tmp_path))
    file.write_text(run.format("import tasks", "mine"))
    assert gin_check.main([str(file)]) == 1
    answer = capsys.readouterr().out
    assert answer.startswith(f"FAIL {file}: There is no task or mixture 'mine'.")
    assert re.search(r"`import tasks` found Limba's own package, .*/tasks\. A tasks\.py of yours needs another", answer)
    (tmp_path / "tasks.py").write_text("")
    assert gin_check.main([str(file)]) == 1
    assert f"{tmp_path / 'tasks.py'} is hidden by Limba's own package 'tasks': rename it" in capsys.readouterr().out
    file.write_text(run.format("from limba.addons.examples import quickstart", "quickstart_span_corruption"))
    assert gin_check.main([str(file)]) == 0
