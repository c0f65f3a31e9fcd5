"""Files that people give in place of a gin file: what each is, and what to do with it."""

import re
from pathlib import PurePosixPath

from limba.files import untrusted_json

# A file of gin may import it for one function; the code of T5 before T5X names it in each.
_MESH = re.compile(r"^[ \t]*(?:import|from)[ \t]+(mesh_tensorflow|t5\.models\.mesh_transformer)\b", re.MULTILINE)
_MARKUP = re.compile(r"\s*<(?:!DOCTYPE|html|\?xml)", re.IGNORECASE)
# What Python has and gin has not, at the beginning of a line.
_PYTHON = re.compile(r"^(?:def \w+\(|class \w+[(:]|if __name__)", re.MULTILINE)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".npz", ".gguf")
# Behind blank lines and comments. Each matches in one way only: with two ways n lines would take 2**n steps.
_YAML = re.compile(r"\A(?:[^\S\n]*(?:#.*)?\n)*+(?:---|%YAML)")
# Keys of a config.json of a model, and of a script's run.
_OF_MODEL, _OF_RUN = {"model_type", "architectures"}, {"output_dir", "train_file", "dataset_name", "model_name_or_path"}


def named(name: str) -> str:
    """As `described`, of a file of bytes, by its name alone."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _WEIGHTS:
        return (
            f"it holds weights: `limba convert from-hf {PurePosixPath(name).parent} runs/NAME` makes a run of a model."
        )
    return "it is a SentencePiece model: bind VOCABULARY_FILE to it." if suffix == ".model" else ""


def described(name: str, text: str) -> str:
    """A sentence or two for a file that is no gin file; "" for one that may be.

    Args:
      name: of the file.
      text: its content.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if mesh := _MESH.search(text):
        return (
            f"it is a configuration of Mesh TensorFlow (it imports {mesh[1]}), as T5's first checkpoints have it, and "
            "Limba reads those of T5X. Take the same sizes from gin/models/t5_1_0 or gin/models/t5_1_1. Google has its "
            "checkpoints for T5X too (gs://t5-data/pretrained_models/t5x); restore your own with T5X once."
        )
    if suffix == ".json" or text.lstrip()[:1] in ("{", "["):
        return _of_json(name, text)
    if suffix in (".yaml", ".yml") or _YAML.match(text):
        return f"it is YAML: a sweep is run by `limba sweep {name}`. A gin file binds values: NAME = value."
    if suffix in (".py", ".ipynb") or _PYTHON.search(text):
        return (
            "it is Python: a gin file imports a module of tasks by its name, import my_tasks, and the scripts of "
            "Hugging Face are named by `limba run`."
        )
    if _MARKUP.match(text):
        return "it is a web page (HTML): download the file itself, of GitHub by its button Raw."
    return ""


def _of_json(name: str, text: str) -> str:
    try:
        value = untrusted_json.parse(text, name)
    except ValueError:
        return (
            "" if not name.endswith(".json") else "it is JSON by its name, and a gin file binds values: NAME = value."
        )
    keys = {*value} if isinstance(value, dict) else set()
    if keys & _OF_MODEL:
        folder = PurePosixPath(name).parent
        return (
            "it is the config.json of a model of Hugging Face. With its weights `limba convert from-hf "
            f"{folder} runs/NAME` makes a run of it; from scratch `limba run --config_name {name}` trains it."
        )
    if keys & _OF_RUN:
        return f"it is JSON with the keys of a script of Hugging Face: `limba run {name}` runs it."
    return "it is JSON, and a gin file binds values: NAME = value."
