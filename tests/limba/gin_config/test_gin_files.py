import gin
import pytest

from limba import command_line, train
from limba.gin_config import gin_files
from limba.network import t5


@pytest.fixture(autouse=True)
def _clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def gin_file(tmp_path):
    def write(text, name="run.gin"):
        path = tmp_path / name
        path.write_text("from __gin__ import dynamic_registration\nfrom limba.network import t5 as network\n" + text)
        return str(path)

    return write


SMALL = "SIZE = 8\nnetwork.T5Config:\n  vocab_size = 128\n  emb_dim = %SIZE\n"


def test_files_then_bindings(gin_file):
    arguments = command_line.rewrite_gin_flags(["--gin_file=x", "--gin.SIZE=16", "--gin.network.T5Config.num_heads=2"])
    assert arguments == ["--gin_file=x", "--gin_bindings=SIZE = 16", "--gin_bindings=network.T5Config.num_heads = 2"]
    bindings = [a.removeprefix("--gin_bindings=") for a in arguments[1:]]
    gin_files.parse_gin_flags([gin_file(SMALL)], bindings)
    config = gin.get_configurable(t5.T5Config)()
    assert (config.emb_dim, config.num_heads, config.vocab_size) == (16, 2, 128)
    assert gin_files.value_of("network.T5Config.emb_dim") == 16
    assert gin_files.value_of("network.T5Config.head_dim") is None and gin_files.value_of("train.eval_steps") is None


def test_later_files_override_earlier_ones(gin_file):
    gin_files.parse_gin_flags([gin_file(SMALL), gin_file("SIZE = 32\n", "later.gin")], [])
    assert gin.get_configurable(t5.T5Config)().emb_dim == 32


def test_our_own_files_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        gin_files.GinError, match=r"gin/models/t5_1_1/smal\.gin\. Did you mean gin/models/t5_1_1/small"
    ) as e:
        gin_files.parse_gin_flags(["gin/models/t5_1_1/smal.gin"], [])
    assert f"searched {tmp_path}, " in str(e.value)


def test_search_paths_come_first(tmp_path, gin_file):
    gin_file("SIZE = 64\n", "included.gin")
    main = gin_file("SIZE = 1\ninclude 'included.gin'\nnetwork.T5Config.emb_dim = %SIZE\n", "main.gin")
    gin_files.parse_gin_flags([main], ["network.T5Config.vocab_size = 128"], search_paths=str(tmp_path))
    assert gin.get_configurable(t5.T5Config)().emb_dim == 64


@pytest.mark.parametrize(
    ("text", "bindings", "words"),
    [
        ("network.T5Confg.emb_dim = 8\n", [], ["T5Confg", "Did you mean T5Config"]),
        ("network.T5Config.embdim = 8\n", [], ["embdim", "emb_dim"]),
        (SMALL, ["SISE = 4"], ["SISE", "Did you mean SIZE"]),
        (SMALL, ["SIZE = four"], ["four", "quotes"]),
        ("network.T5Config.emb_dim = %MODEL\n", [], ["MODEL", "gin/models/"]),
        ("network.T5Config.emb_dim = %WIDTH\n", [], ["WIDTH", "--gin.WIDTH="]),
        ("import no_such_module\n", [], ["no_such_module"]),
        (
            "FLAG = 'False'\nOTHER = %FLAG\nnetwork.T5Config.scan_layers = %OTHER\n",
            [],
            ["T5Config.scan_layers (OTHER) is the text 'False'; write True or False, without quotes"],
        ),
        (f"network.T5Config.scan_layers = '{'x' * 999}'\n", [], ["the text 'xxxx", "…'; write True or False"]),
    ],
)
def test_mistakes_name_themselves_and_the_nearest(gin_file, text, bindings, words):
    with pytest.raises(gin_files.GinError) as error:
        gin_files.parse_gin_flags([gin_file(text)], bindings)
    for word in words:
        assert word in str(error.value)


def test_a_switch_of_a_users_function_may_take_texts(gin_file):
    def read_from(path=False):
        return path

    gin.external_configurable(read_from, module="users_own")
    gin_files.parse_gin_flags([gin_file(SMALL)], [])
    gin.bind_parameter("read_from.path", "corpus/more")
    gin_files.check_names([])
    gin.bind_parameter("read_from.path", "false")
    with pytest.raises(gin_files.GinError, match=r"^read_from\.path is the text 'false'; write True or False"):
        gin_files.check_names([])


def test_required_macros(gin_file):
    gin_files.parse_gin_flags([gin_file("STEPS = %gin.REQUIRED\nnetwork.T5Config.emb_dim = %STEPS\n")], [])
    with pytest.raises(gin_files.GinError, match=r"STEPS is required: add --gin\.STEPS=100"):
        gin_files.require_bindings(STEPS="100", OTHER="1")


@pytest.mark.parametrize("command", ["eval", "infer"])
@pytest.mark.parametrize("module", ["my.tasks", None])
def test_evaluation_imports_the_tasks_of_the_run(gin_file, command, module):
    """A run's file gives the module, if any; a model's alone gives none."""
    run = "MODEL = 1\nMIXTURE_OR_TASK_NAME = 'x'\nTASK_FEATURE_LENGTHS = None\n"
    if module:
        run += f"MIXTURE_OR_TASK_MODULE = {module!r}\n"
    outputs = [f"{name} = 'out'" for name in ("CHECKPOINT_PATH", f"{command.upper()}_OUTPUT_DIR")]
    gin_files.parse_gin_flags([gin_file(run), f"gin/runs/{command}.gin"], outputs)
    assert gin.get_bindings(f"{command}/DatasetConfig")["module"] == module


def test_the_folder_gin_holds_no_python():
    assert not list((gin_files.REPOSITORY / "gin").rglob("*.py"))


def test_recipes_parse():
    for recipe in sorted((gin_files.REPOSITORY / "gin" / "recipes").glob("*.gin")):
        gin.clear_config()
        gin_files.parse_gin_flags([str(recipe)], ["MODEL_DIR = 'x'"])
        # Fine-tuning counts its own steps, or epochs.
        lengths = ("TRAIN_STEPS", "TRAIN_STEPS_RELATIVE", "TRAIN_EPOCHS")
        assert any((gin.query_parameter(f"%{name}") or 0) > 0 for name in lengths), recipe
        header = recipe.read_text().partition("from __gin__")[0]
        assert "bash launch/" in header and ("expect" in header or "Required:" in header), recipe


@pytest.mark.parametrize(
    ("binding", "seed"),
    [
        ("train/utils.DatasetConfig.seed = 5", 5),
        ("train/data.DatasetConfig.seed = 6", 6),
        ("train/DatasetConfig.seed = 7", 7),
    ],
)
def test_bindings_know_a_class_by_all_its_names(gin_file, binding, seed):
    file = gin_file("from limba.data import contract as data\ntrain/data.DatasetConfig.seed = 1\n")
    gin_files.parse_gin_flags([file], [binding])
    assert gin.query_parameter("train/data.DatasetConfig.seed") == seed


def test_functions_of_scripts_by_both_names(gin_file):
    gin_files.configurable(train.train, "limba.train")
    file = gin_file("import __main__ as train_script\ntrain_script.train.eval_period = 1\n")
    gin_files.parse_gin_flags([file], ["train.eval_period = 2", "train_script.train.eval_steps = 3"])
    assert gin.query_parameter("train.eval_period") == 2
    assert gin.query_parameter("train.eval_steps") == 3


@pytest.mark.parametrize(
    ("binding", "parameter"),
    [
        ("train.actions = {'TRAIN': [@trainer.TerminateOnNanAction()]}", "train.actions"),
        ("train_script.train.actions = {'TRAIN': [@trainer.TerminateOnNanAction()]}", "train.actions"),
        ("Trainer.learning_rate_fn = @optax.constant_schedule()", "Trainer.learning_rate_fn"),
        ("trainer.Trainer.learning_rate_fn = @optax.constant_schedule()", "Trainer.learning_rate_fn"),
        ("train/DatasetConfig.seed = @optax.constant_schedule()", "train/data.DatasetConfig.seed"),
    ],
)
def test_values_of_the_command_line_name_modules_that_no_file_imports(gin_file, binding, parameter):
    gin_files.configurable(train.train, "limba.train")
    text = "from limba.data import contract as data\nfrom t5x import trainer\nimport __main__ as train_script\n"
    text += (
        "train_script.train.eval_period = 1\ntrainer.Trainer.num_microbatches = 1\ntrain/data.DatasetConfig.seed = 1\n"
    )
    gin_files.parse_gin_flags([gin_file(text)], [binding])
    assert "@" in repr(gin.query_parameter(parameter))


def test_files_that_include_the_next_twice_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        (tmp_path / f"{number}.gin").write_text(f"include '{number + 1}.gin'\n" * 2)
    (tmp_path / "10.gin").write_text("X = 1\n")
    with pytest.raises(gin_files.GinError, match=r"0\.gin includes more than 500 files"):
        gin_files.parse_files(["0.gin"])


def test_all_required_macros_are_named_at_once(gin_file):
    required = "A = %gin.REQUIRED\nB = %gin.REQUIRED\nNUM_MICROBATCHES = %gin.REQUIRED\n"
    gin_files.parse_gin_flags([gin_file(required + "network.T5Config.emb_dim = [%A, %B]\n")], [])
    with pytest.raises(
        gin_files.GinError, match=r"A is required: add --gin\.A=1 .* B is required: add --gin\.B=…"
    ) as error:
        gin_files.require_bindings(A="1")
    assert "NUM_MICROBATCHES" not in str(error.value), "which this run does not read"


def test_files_in_buckets(gin_file, monkeypatch):
    bucket = {"gs://bucket/far.gin": b"SIZE = 5\n"}
    monkeypatch.setattr(gin_files.storage, "is_file", lambda path: str(path) in bucket)
    monkeypatch.setattr(gin_files.storage, "read_bytes", lambda path: bucket[str(path)])
    gin_files.parse_gin_flags([gin_file(SMALL), "gs://bucket/far.gin"], [])
    assert gin.query_parameter("%SIZE") == 5
    with pytest.raises(gin_files.GinError, match=r"There is no gin file gs://bucket/farther\.gin\."):
        gin_files.parse_gin_flags(["gs://bucket/farther.gin"], [])
    with pytest.raises(
        gin_files.GinError, match=r"ftp://bucket/far\.gin: paths are folders of this machine, gs://BUCKET"
    ):
        gin_files.parse_gin_flags(["ftp://bucket/far.gin"], [])


def test_the_configuration_in_use_is_written(gin_file, tmp_path):
    class Writer:
        texts = None

        def write_texts(self, step, texts):
            self.texts = (step, texts)

    gin_files.parse_gin_flags([gin_file(SMALL)], [])
    gin.get_configurable(t5.T5Config)()
    writer = Writer()
    gin_files.summarize_gin_config(str(tmp_path / "run"), writer, 3)
    written = (tmp_path / "run" / "config.gin").read_text()
    assert "emb_dim = %SIZE" in written
    assert writer.texts == (3, {"config": written})


def test_arithmetic_of_gin_files():
    assert gin_files.sum_fn(1, 2) == 3
    assert gin_files.bool_fn(0) is False
    assert gin_files.string_split_fn("a/b/c", "/", 1) == ["a", "b/c"]
    assert gin_files.string_split_fn("a/b/c", "/", index=2) == "c"


def test_a_binding_that_a_scope_hides_is_said(gin_file, caplog):
    text = "from limba.data import contract as data\ntrain/data.DatasetConfig.seed = 1\n"
    gin_files.parse_gin_flags([gin_file(text)], ["train/data.DatasetConfig.seed = 2", "data.DatasetConfig.split = 'a'"])
    assert not caplog.records
    gin_files.parse_gin_flags([gin_file(text)], ["utils.DatasetConfig.seed = 3"])
    assert not caplog.records, "nothing refers to this scope"
    use = "from limba import train\ntrain.train.train_dataset_cfg = @train/data.DatasetConfig()\n"
    gin_files.parse_gin_flags([gin_file(text + use)], ["utils.DatasetConfig.seed = 3"])
    assert (
        "--gin.utils.DatasetConfig.seed has no effect on train/utils.DatasetConfig.seed, which is bound to 1"
        in caplog.text
    )


def test_a_file_that_is_not_there_is_answered_with_the_nearest_beside_it(tmp_path, monkeypatch):
    (tmp_path / "my_recipe.gin").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gin_files.GinError) as error:
        gin_files.parse_gin_flags(["my_recip.gin"], [], search_paths=f".,{tmp_path}")
    assert str(error.value).startswith("There is no gin file my_recip.gin. Did you mean my_recipe.gin? ")
    (tmp_path / "sum/run").mkdir(parents=True)  # as `limba run` leaves it
    for file in ("sum/run.gin", "sum/run/model.gin"):
        (tmp_path / file).write_text("A = 1")
    with pytest.raises(gin_files.GinError, match=r"no gin file sum/model\.gin\. Did you mean sum/run/model\.gin\?"):
        gin_files.parse_gin_flags(["sum/model.gin"], [])
    assert str(error.value).count(str(tmp_path)) == 1, "each folder once"


@pytest.mark.parametrize(("value", "shown"), [("None", "None"), ("5", "5"), ("['a']", "a list of 1")])
def test_a_model_dir_that_is_no_folder_is_named(gin_file, value, shown):
    file = gin_file("MODEL_DIR = %gin.REQUIRED\nnetwork.T5Config.emb_dim = %MODEL_DIR\n")
    gin_files.parse_gin_flags([file], [f"MODEL_DIR = {value}"])
    with pytest.raises(gin_files.GinError, match=rf"MODEL_DIR is {shown}; it is a folder, as a text in quotes"):
        gin_files.require_training_bindings()


@pytest.mark.parametrize("binding", ["TRAIN_STEPS_RELATIVE = 20", "TRAIN_EPOCHS = 0.5"])
def test_the_last_step_is_not_required_beside_what_wins_over_it(gin_file, binding):
    file = gin_file(
        "MODEL_DIR = '/tmp/run'\nTRAIN_STEPS = %gin.REQUIRED\nTRAIN_STEPS_RELATIVE = None\nTRAIN_EPOCHS = None\n"
        "network.T5Config.emb_dim = %TRAIN_STEPS\n"
    )
    gin_files.parse_gin_flags([file], [])
    with pytest.raises(gin_files.GinError, match=r"TRAIN_STEPS is required: add --gin\.TRAIN_STEPS=100000"):
        gin_files.require_training_bindings()
    gin_files.parse_gin_flags([file], [binding])
    gin_files.require_training_bindings()
    assert gin_files.value_of("%TRAIN_STEPS") == 0


def test_macros_that_stand_for_each_other_on_the_command_line(gin_file):
    file = gin_file("A = 1\nB = %A\n")
    with pytest.raises(gin_files.GinError, match=r"--gin\.A = %B: the macros A = %B = %A stand for each other"):
        gin_files.parse_gin_flags([file], ["A = %B"])


def test_a_name_that_no_file_can_have_is_cut(gin_file):
    with pytest.raises(gin_files.GinError, match=r"There is no gin file x{200}…\.") as error:
        gin_files.parse_gin_flags([gin_file(f"include '{'x' * 5000}.gin'\n")], [])
    assert len(str(error.value)) < 500
