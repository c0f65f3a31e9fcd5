"""Commands on a model whose numbers are not finite: exit code 1, one message with row, layer and remedy, no output."""

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from flax import traverse_util

from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.checkpoints import checkpointing
from limba.checkpoints.train_state import TrainState
from tests import line
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures

pytestmark = pytest.mark.slow

TASKS = """
from tasks import pretraining, vocabularies

pretraining.register_pretraining_task(
    "few", data_files={"validation": "CORPUS"}, vocabulary=vocabularies.SentencePieceVocabulary("VOCAB", 100)
)
"""
LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 16}"
TASK = ("--task", "few", "--module", "few_tasks", "--eval_steps", "2", LENGTHS)
OF_TASK = (
    "RUN/checkpoint_10/run/config.gin", "gin/runs/infer.gin", LENGTHS, "--gin.CHECKPOINT_PATH='RUN'",
    "--gin.INFER_OUTPUT_DIR='NEW'", "--gin.MIXTURE_OR_TASK_NAME='few'", "--gin.MIXTURE_OR_TASK_MODULE='few_tasks'",
    "--gin.infer/data.DatasetConfig.batch_size=4",
)  # fmt: skip
SHORT = ("--max_decode_length", "1", "--beams", "2")
MLP = "encoder/layers_0/mlp/wo"
WEIGHT = (
    f"The parameter {MLP}/kernel has NaN or infinite values. The first layer whose output is not finite is {MLP}, from "
    "row 0 of the batch on. These parameters give no results: take an earlier checkpoint, or copy or convert this one "
    "again."
)
TOKEN = (
    "The parameter token_embedder/embedding has NaN or infinite values. The first layer whose output is not finite is "
    "token_embedder, from row ROW of the batch on."
)
# The command, which run it reads, and its message. NEW is not there, FILE has three lines.
COMMANDS = {
    "eval": (
        ("eval", "--run_dir", "WEIGHT", *TASK),
        f"The loss of batch 0 (counted from 0) of few, step 10 is not finite. {WEIGHT}",
    ),
    "infer": (
        ("infer", "--run_dir", "TOKEN", "--input", "an", "--input_file", "FILE", "--output_file", "NEW", *SHORT),
        f"The output for line 2 of FILE, 'ce ba', is not finite. {TOKEN.replace('ROW', '2')}",
    ),
    "infer of a task": (
        ("infer", *(word.replace("RUN", "WEIGHT") for word in OF_TASK), "--gin.infer.mode='predict'"),
        f"The output for example 0 of few, shard 0 is not finite. {WEIGHT}",
    ),
    "embed": (
        ("embed", "--run_dir", "TOKEN", "--input_file", "FILE", "--output_file", "NEW.npy"),
        f"The output for line 2 of FILE, 'ce ba', is not finite. {TOKEN.replace('ROW', '1')}",
    ),
    "check": (
        ("convert", "check", "HUGE", "HUGE"),
        "The logits of HUGE/checkpoint_10 for row 0 of the check (random tokens) are not finite. The first layer whose "
        "output is not finite is encoder/layers_0/mlp",
    ),
}


def _save(source, directory, edit):
    """The run with other weights."""
    tensors = {name: np.array(t) for name, t in any_format.open_model(source).tensors.items()}
    edit(tensors)
    params = traverse_util.unflatten_dict({name: jnp.asarray(x) for name, x in tensors.items()}, sep="/")
    files = {
        file.name: file.read_bytes()
        for file in (source / "checkpoint_10" / "run").iterdir()
        if "checksums" not in file.name
    }
    checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig())
    checkpointer.save(TrainState(step=jnp.int32(10), params=params, opt_state={}), None, files)
    checkpointer.close()
    return directory


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run, spiece_model):  # noqa: F811
    """A folder with runs of one network whose numbers are not finite, each in another way, and what they read."""
    root = tmp_path_factory.mktemp("not_finite")
    first = new_run(root / "saved", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    to_hf(first, root / "export", formats=["safetensors"], verify=False)
    from_hf(root / "export", root / "run", verify=False)
    token = min(set(_ids(spiece_model, "ce ba")) - set(_ids(spiece_model, "an ba")))

    def of_weight(tensors):
        tensors[f"{MLP}/kernel"][0, 0] = np.nan

    def of_token(tensors):
        tensors["token_embedder/embedding"][token] = np.inf

    def huge(tensors):
        for name in tensors:
            tensors[name] *= 1e30 if name.startswith("encoder/layers_0/mlp") else 1

    names = {
        name: str(_save(root / "run", root / name.lower(), edit))
        for name, edit in (("WEIGHT", of_weight), ("TOKEN", of_token), ("HUGE", huge))
    }
    line.write_corpus(root / "corpus")
    tasks = TASKS.replace("CORPUS", str(root / "corpus/validation-0.jsonl")).replace("VOCAB", str(spiece_model))
    (root / "few_tasks.py").write_text(tasks)
    (root / "lines.txt").write_text("an ba\nce ba\nan\n")
    return root, names | {"FILE": str(root / "lines.txt")}


def _ids(spiece_model, text):  # noqa: F811
    return sentencepiece.SentencePieceProcessor(model_file=str(spiece_model)).encode(text)


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_with_the_row_and_the_layer(place, tmp_path, forks, command):
    root, names = place
    words, message = COMMANDS[command]
    for name, value in (names | {"NEW": str(tmp_path / "out")}).items():
        words, message = [word.replace(name, value) for word in words], message.replace(name, value)
    result = line.forked(forks, root, "limba", *words, PYTHONPATH=str(root))
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr[-3000:]
    assert f"error: {message}" in result.stderr
    assert not [path for path in tmp_path.glob("out*") if path.is_file() and path.suffix != ".unfinished"]
    assert not list(tmp_path.glob("out/few*")) and "->" not in result.stdout
