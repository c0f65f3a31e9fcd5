import importlib
import logging
import os

import gin
import pytest

from limba import cli
from limba.addons.plan.lint import gin_check
from limba.gin_config import gin_files, macros
from limba.gin_config.messages import GinError
from limba.gin_config.recipe import Recipe

RUN = "include 'gin/models/t5_1_1/tiny.gin'\ninclude 'gin/runs/pretrain.gin'\n"
GIVEN = "MODEL_DIR = 'x'\nMIXTURE_OR_TASK_NAME = 'y'\nTASK_FEATURE_LENGTHS = {\n    'inputs': 8,\n    'targets': 8}\n"
EVAL = (
    "MIXTURE_OR_TASK_NAME = 'y'\nTASK_FEATURE_LENGTHS = None\n"
    "include 'gin/models/t5_1_1/tiny.gin'\ninclude 'gin/runs/eval.gin'\n"
)
OF_EVAL = "CHECKPOINT_PATH = 'c'\nEVAL_OUTPUT_DIR = 'o'\n"
NO_EFFECT = "so it has no effect."


@pytest.fixture(autouse=True)
def no_configuration():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def write(tmp_path):
    def _write(text, name="run.gin"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)

    return _write


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (RUN + "TRAIN_STPES = 10\n", 3, f"nothing reads TRAIN_STPES, {NO_EFFECT} Did you mean TRAIN_STEPS"),
        (RUN + GIVEN + "EVAL_STEP = 10\n", 8, f"nothing reads EVAL_STEP, {NO_EFFECT} Did you mean EVAL_STEPS"),
        (RUN + "train_steps = 10\n", 3, f"nothing reads train_steps, {NO_EFFECT} Did you mean TRAIN_STEPS"),
        ("train/BATCH_SIZE = 3\n" + RUN, 1, f"nothing reads train/BATCH_SIZE, {NO_EFFECT}"),
        (EVAL + "CHECKPOINT_PTH = 'c'\n", 5, "Did you mean CHECKPOINT_PATH"),
        ("include 't5x/configs/runs/pretrain.gin'\nUSE_CACHED_TASK = False\n", 2, "Did you mean USE_CACHED_TASKS"),
    ],
)
def test_a_macro_of_a_name_near_to_one_that_is_read(write, text, line, says):
    file = write(text)
    with pytest.raises(GinError) as error:
        gin_files.parse_gin_flags([file], ["DROPOUT_RATE = 0.0"] if "tiny.gin" in text else [])
    assert str(error.value).startswith(f"{file}:{line}: ") and says in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        (RUN + "Q = 1\n", 3, "Q"),
        ("MY_STEPS = %TRAIN_STEPS\n" + RUN, 1, "MY_STEPS"),
        ("# %SIZ is read in a comment only\nSIZ = 1\n" + RUN, 2, "SIZ"),
        ("NUM_EMBEDDINGS = 384\n" + RUN, 1, "NUM_EMBEDDINGS"),  # in four of six files of a project of T5X
    ],
)
def test_a_macro_that_nothing_reads_is_warned_of(write, caplog, text, line, name):
    file = write(text)
    gin_files.parse_gin_flags([file], ["DROPOUT_RATE = 0.0"])
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{file}:{line}: nothing reads {name}, {NO_EFFECT} Take the line out."
    ]


def test_of_an_included_file_and_of_two_names(write):
    inner = write("\nTRAIN_STPES = 10\n", "inner.gin")
    outer = write(f"{RUN}include {inner!r}\nBATCHSIZE = 8\n")
    with pytest.raises(GinError) as error:
        gin_files.parse_gin_flags([outer], [])
    assert error.value.places == ((outer, 4),)
    for says in (
        f"{outer}:4: nothing reads BATCHSIZE, {NO_EFFECT} Did you mean BATCH_SIZE, ",
        f" {inner}:2: nothing reads TRAIN_STPES, {NO_EFFECT} Did you mean TRAIN_STEPS, ",
    ):
        assert says in str(error.value)


@pytest.mark.parametrize(
    "name", ["TRAIN_STEP", "train_steps", "NUM_MICROBATCHES", "train/TRAIN_STEPS", "EVAL_OUTPUT_DIR"]
)
def test_an_override_of_a_name_that_no_file_has(write, name):
    """Also of a name that other runs have: on the command line it would have no effect."""
    with pytest.raises(GinError, match=rf"--gin\.{name} overrides a name that no gin file uses\. "):
        gin_files.parse_gin_flags([write(RUN)], [f"{name} = 10"])


@pytest.mark.parametrize(
    ("text", "bindings"),
    [
        ("STEPS = 7\nTRAIN_STEPS = %STEPS\n" + RUN, []),  # through a macro, before it is overridden
        (
            RUN + "STEPS = %gin.REQUIRED\ntrain_script.train.total_steps = %STEPS\n",
            ["train_script.train.total_steps = 3"],
        ),
        (RUN + "BATCH = 4\n", ["BATCH_SIZE = %BATCH"]),  # only the command line reads it
        (RUN + "train/SEED = 1\ntrain/data.DatasetConfig.seed = %train/SEED\n", ["train/SEED = 2"]),
        (RUN, ["TRAIN_STEPS = 5", "MIXTURE_OR_TASK_MODULE = 'm'"]),
    ],
)
def test_what_any_line_reads_is_right(write, caplog, text, bindings):
    imports = (
        "from __gin__ import dynamic_registration\nfrom limba import train as train_script\n"
        "from limba.data import contract as data\n"
    )
    with caplog.at_level(logging.INFO, "limba"):
        gin_files.parse_gin_flags([write(imports + text)], bindings)
    assert "does not read" not in caplog.text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("TRAIN_STEPS = '300'", "TRAIN_STEPS is '300', and train.total_steps is a whole number: write 300."),
        ("TRAIN_STEPS = 1e3", "TRAIN_STEPS is 1000.0, and train.total_steps is a whole number: write 1000."),
        ("STEPS = 'many'\nTRAIN_STEPS = %STEPS", "STEPS is 'many', and train.total_steps is a whole number."),
        ("BATCH_SIZE = '8'", "BATCH_SIZE is '8', and DatasetConfig.batch_size is a whole number: write 8."),
        ("RANDOM_SEED = [1]", "RANDOM_SEED is a list of 1, and train.random_seed is a whole number or None."),
        ("DROPOUT_RATE = '0.1'", "DROPOUT_RATE is '0.1', and T5Config.dropout_rate is a number: write 0.1."),
        (
            "MIXTURE_OR_TASK_MODULE = 3",
            "MIXTURE_OR_TASK_MODULE is 3, and DatasetConfig.module is a text in quotes or None.",
        ),
    ],
)
def test_a_value_of_a_wrong_type_names_the_macro_and_its_line(write, line, says):
    file = write(f"{RUN}{line}\n")
    with pytest.raises(GinError) as error:
        gin_files.parse_gin_flags([file], [] if "DROPOUT_RATE" in line else ["DROPOUT_RATE = 0.0"])
    assert str(error.value) == f"{file}:3: {says}"


def test_a_value_of_a_wrong_type_on_the_command_line_names_the_macro(write):
    with pytest.raises(GinError, match=r"^EVAL_STEPS is 'all', and train\.eval_steps is a whole number or None\.$"):
        gin_files.parse_gin_flags([write(RUN)], ["DROPOUT_RATE = 0.0", "EVAL_STEPS = 'all'"])


def test_what_a_module_of_the_user_s_asks_for_is_read(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "asks_gin.py").write_text("import gin\n\n\ndef size():\n    return gin.query_parameter('%MY_SIZE')\n")
    gin_files.parse_gin_flags([write(f"import asks_gin\n{RUN}MY_SIZE = 3\n")], [])
    with pytest.raises(GinError, match="nothing reads MY_SISE"):
        gin_files.parse_gin_flags([write(f"import asks_gin\n{RUN}MY_SISE = 3\n")], [])


@pytest.mark.parametrize(
    ("text", "neighbour", "note"),
    [
        (EVAL + "TRAIN_STEPS = 5\n", "", "TRAIN_STEPS of {}:5 (gin/runs/training.gin does)"),  # a recipe's, in `eval`
        (RUN + "NUM_MICROBATCHES = 2\n", "", "NUM_MICROBATCHES of {}:3 (gin/runs/batch_per_device.gin does)"),
        (RUN + "SPLIT = 'b'\n", "eval/data.DatasetConfig.split = %SPLIT", "SPLIT of {}:3 ({}/mine.gin does)"),
        (RUN + "BEAM_SIZE = 2\n", "", "BEAM_SIZE of {}:3 (T5X's runs do)"),
    ],
)  # fmt: skip
def test_what_only_other_runs_read_is_noted(write, tmp_path, caplog, text, neighbour, note):
    write(f"# A run of the user's own.\n{neighbour}\n", "mine.gin")
    file = write(text)
    with caplog.at_level(logging.INFO, "limba"):
        gin_files.parse_gin_flags([file], ["DROPOUT_RATE = 0.0"])
    expected = note.replace("{}/", f"{tmp_path}/").replace("{}", file)
    assert f"This run does not read {expected}" in caplog.text


def test_what_t5x_s_own_files_leave_unread_is_noted(write, tmp_path, caplog):
    own = write("LEFT_OVER = 1\n", "checkout/t5x/examples/t5/own.gin")
    with caplog.at_level(logging.INFO, "limba"):
        gin_files.parse_gin_flags([write(RUN + "include 't5x/examples/t5/own.gin'\n")], [], f"{tmp_path}/checkout")
    assert f"This run does not read LEFT_OVER of {own}:1 (as T5X has it)" in caplog.text


def test_the_names_of_limba_s_own_files_are_read():
    bound, read = set(), {macros._MENTIONS}
    for file in macros._of_limba():
        recipe = Recipe.parse(file.read_text(encoding="utf-8"), str(file))
        bound, read = bound | recipe.macros.keys(), read | recipe.macros_read
    assert bound <= read


@pytest.mark.parametrize("command", ["train", "eval", "infer", "precompile", "plan", "lint", "profile", "gin-check"])
def test_every_command_that_parses_gin(write, command, capsys):
    file = write(RUN + GIVEN + OF_EVAL.replace("CHECKPOINT", "CHEKCPOINT") + "TRAIN_STEPS = 1\nDROPOUT_RATE = 0.0\n")
    main = importlib.import_module(cli.COMMANDS[command][0]).main
    arguments = [file, *(["gin/runs/eval.gin"] if command == "eval" else [])]
    if command == "gin-check":
        assert main(arguments) == 1
        assert f"FAIL {file}:8: nothing reads CHEKCPOINT_PATH" in capsys.readouterr().out
        return
    with pytest.raises(GinError, match=r"run\.gin:8: nothing reads CHEKCPOINT_PATH.* Did you mean .*CHECKPOINT_PATH"):
        main([*arguments, *(["--topology", "v4-8"] if command == "plan" else [])])
    with pytest.raises(GinError, match=r"--gin\.TRAIN_STEP overrides a name that no gin file uses"):
        main([*arguments, "--gin.TRAIN_STEP=10", *(["--topology", "v4-8"] if command == "plan" else [])])


# ------------------------------------------------------ gin-check ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bindings", "says"),
    [
        (RUN, ["TRAIN_STEP = 10"], "--gin.TRAIN_STEP overrides a name that no gin file uses. Did you mean TRAIN_STEPS"),
        (RUN + "OTHER = 1\n", [], None),  # a warning
        ("TRAIN_STPES = 10\n", [], ":1: nothing reads TRAIN_STPES, so it has no effect. Did you mean TRAIN_STEPS"),
        ("OTHER = 1\n", ["TRAIN_STEP = 10"], "Did you mean TRAIN_STEPS"),
        ("OTHER = 1\n", ["TRAIN_STEPS = 10"], None),  # a part: the files that include it may read any name
        ("OTHER = 1\nTRAIN_STEPS = 2\n", [], None),
        ("TRAIN_STEPS_2 = 1\n", [], None),  # a file beside it reads this one
    ],
)
def test_gin_check_knows_runs_from_parts(write, text, bindings, says):
    write("two/data.DatasetConfig.seed = %TRAIN_STEPS_2\n", "two.gin")
    file = write(text)
    wrong = gin_check.check(file, [], bindings, "")
    assert wrong is None if says is None else wrong.startswith(file) and says in wrong


def test_gin_check_knows_the_names_of_the_other_files_that_it_is_given(write):
    """In another folder, where a run includes it from."""
    part, run = write("TRAIN_STEPS_2 = 1\n", "parts/part.gin"), write("a/data.DatasetConfig.seed = %TRAIN_STEPS_2\n")
    assert "Did you mean TRAIN_STEPS" in gin_check.check(part, [], [], "")
    gin.clear_config()
    assert gin_check.check(part, [], [], "", [run, part]) is None


def test_gin_check_reads_mounted_buckets(write, tmp_path, monkeypatch, capsys):
    (tmp_path / "buckets" / "mine").mkdir(parents=True)
    (tmp_path / "buckets" / "mine" / "size.gin").write_text("TRAIN_STPES = 3\n")
    monkeypatch.setattr(gin_files.storage, "_mounts", [])
    file = write("include 'gs://mine/size.gin'\n")
    assert gin_check.main([f"--buckets={tmp_path}/buckets", file]) == 1
    assert "gs://mine/size.gin:1: nothing reads TRAIN_STPES" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("MODEL = @my_torch_net.Net()", "MODEL"),
        ("models.EncoderDecoderModel.module = @my_torch_net.Net()", "EncoderDecoderModel.module"),
        ("train_script.train.trainer_cls = @my_torch_net.Net", "train.trainer_cls"),
    ],
)
def test_a_class_of_pytorch_is_refused_where_the_files_are_read(write, tmp_path, monkeypatch, capsys, line, name):
    """So a dry run and gin-check refuse it as the run does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_torch_net.py").write_text(
        "Module = type('Module', (), {'__module__': 'torch.nn.modules.module'})\n\n\nclass Net(Module):\n    pass\n"
    )
    head = (
        "from __gin__ import dynamic_registration\nfrom limba import models\nfrom limba import train as train_script\n"
    )
    file = write(f"{head}import my_torch_net\n{RUN}{GIVEN}TRAIN_STEPS = 1\n{line}\n")
    train = importlib.import_module("limba.train").main
    for dry in ([], ["--dry_run"]):
        gin.clear_config()
        with pytest.raises(GinError, match=rf"{name} is my_torch_net\.Net, a class of PyTorch; networks"):
            train([file, *dry])
    assert gin_check.main([file]) == 1
    assert f"FAIL {file}: {name} is my_torch_net.Net" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([f"M{i} = {i}" for i in range(5001)], r"run\.gin has more than 5,000 lines, those of its includes"),
        ([f"TRAIN_STEP{i} = {i}" for i in range(52)], r"run\.gin:3: nothing reads TRAIN_STEP0 and 51 other names"),
        ([*(f"M{i} = %M{i + 1}" for i in range(300)), "M300 = 1"], r"run\.gin: M\d+ stands for more than 200 macros"),
        (["M000 = 1", *(f"M{i + 1:03} = [%M{i:03}]" for i in range(300))], "M200 stands for more than 200 macros"),
    ],
)
def test_what_takes_a_time_that_grows_with_the_square_is_limited(write, lines, says):
    with pytest.raises(GinError, match=says):
        gin_files.parse_gin_flags([write(RUN + "\n".join(lines) + "\n")], [])


def test_a_neighbour_larger_than_memory_is_not_read(write, tmp_path):
    (tmp_path / "holes.gin").touch()
    os.truncate(tmp_path / "holes.gin", 20 * 2**30)  # Without a byte on the disk.
    with pytest.raises(GinError, match="nothing reads TRAIN_STPES"):
        gin_files.parse_gin_flags([write(RUN + "TRAIN_STPES = 10\n")], [])
