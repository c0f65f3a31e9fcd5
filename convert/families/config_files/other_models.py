"""What a folder, a file or a config.json is that is no T5 and no encoder of Hugging Face, and what to do with it."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from limba.files import setting_names
from limba.files.untrusted_files import cut, shown

_SAVE_IN_4 = "Load it in transformers 4 with {}, and save it: that writes safetensors."


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of folder, known by its files.

    Attributes:
      files: patterns, of each of which there is a file.
      what: it is, a clause.
      remedy: sentences, with `{here}` for the folder, and `{top}` for the one with config.json, in which it may lie.
    """

    files: tuple[str, ...]
    what: str
    remedy: str

    def found(self, names: Sequence[str]) -> list[str]:
        """The names that the first pattern fits."""
        return sorted(fnmatch.filter(names, self.files[0]))

    def remedy_in(self, here: PurePath, top: PurePath) -> str:
        """The remedy for the folder `here` in the folder `top`, or for that itself."""
        return self.remedy.format(here=here, top=top)


# The first that fits counts.
_FOLDERS = (
    Kind(
        ("adapter_config.json",),
        "a PEFT adapter, which changes another model",
        "Convert it with its base: limba convert from-peft {here} OUT --base BASE.",
    ),
    Kind(("model_index.json",), "a pipeline of diffusers", "Give the folder of its text encoder, if that is a T5."),
    Kind(
        ("operative_config.gin", "model.ckpt-*"),
        "a checkpoint of Mesh TensorFlow's T5",
        "Google has the same models for T5X (gs://t5-data/pretrained_models/t5x), which Limba reads. For your own, "
        "restore it with T5X once, or convert it with transformers 4: python -m "
        "transformers.models.t5.convert_t5_original_tf_checkpoint_to_pytorch.",
    ),
    Kind(
        ("*model.ckpt*.index",),
        "a checkpoint of TensorFlow 1, such as Google's first BERTs",
        "Convert it with transformers 4: transformers convert --model_type bert.",
    ),
    Kind(("tf_model*.h5",), "a model of TensorFlow 2 (tf_model.h5)", _SAVE_IN_4.format("from_tf=True")),
    Kind(
        ("flax_model-*-of-*.msgpack",),
        "a model of Flax in parts without their index, flax_model.msgpack.index.json",
        "Copy or download the index too.",
    ),
    Kind(
        ("zero_to_fp32.py",),
        "a checkpoint of DeepSpeed, in parts",
        "Put them together: python zero_to_fp32.py . pytorch_model.bin, in {here}.",
    ),
    Kind(
        ("*_optim_states.pt",),
        "a checkpoint of DeepSpeed, in parts",
        "Put them together in the folder that has zero_to_fp32.py, the one around {here}: python zero_to_fp32.py . "
        "pytorch_model.bin.",
    ),
    Kind(
        ("mp_rank_00_model_states.pt",),
        "a model that DeepSpeed saved",
        "Convert the file: limba convert from-hf {here}/mp_rank_00_model_states.pt OUT --config {top}/config.json.",
    ),
    Kind(("*.gguf",), "a model of llama.cpp (GGUF)", "Take the model that it was made from: its weights are rounded."),
    Kind(("*.onnx",), "a model of ONNX", "Take the model that it was exported from."),
    Kind(("saved_model.pb",), "a SavedModel of TensorFlow", "Take the model that it was exported from."),
    Kind(("model.bin", "*vocabulary*"), "a model of CTranslate2", "Take the model that it was converted from."),
    Kind(("*.tflite",), "a model of TensorFlow Lite", "Take the model that it was converted from."),
    Kind(
        ("*.distcp",),
        "a checkpoint of PyTorch in parts of its processes",
        "Put them together: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {here} "
        "{top}/pytorch_model.bin.",
    ),
    Kind(("*.ckpt",), "a checkpoint of PyTorch Lightning", "Save its model alone: module.model.save_pretrained(OUT)."),
    Kind(
        ("manifest.ocdbt",),
        "a checkpoint of Orbax",
        "If T5X or Limba wrote it, give the folder checkpoint_<step> around it to `limba convert from-t5x`.",
    ),
)
_OF_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "*.model", "vocab.txt")
_FILES = {
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"), "a packed folder: unpack it, and give that"),
    **dict.fromkeys(
        (".safetensors", ".msgpack"), "the weights of a folder: give the folder, in which config.json lies too"
    ),
    ".h5": "a model of TensorFlow 2: load it in transformers 4 with from_tf=True, and save it",
    ".onnx": "a model of ONNX: take the model that it was exported from",
    ".gguf": "a model of llama.cpp: take the model that it was made from",
    ".model": "a SentencePiece model: give it with --vocab, beside a model",
    ".gin": "a gin file: `limba train` reads it",
}


def of_folder(names: Sequence[str]) -> Kind | None:
    """The kind of a folder with files of these names, and no weights that are read; None if it is none of them."""
    for kind in _FOLDERS:
        if all(fnmatch.filter(names, file) for file in kind.files):
            return kind
    is_tokenizer = "config.json" not in names and any(fnmatch.filter(names, file) for file in _OF_TOKENIZERS)
    if not is_tokenizer:
        return None
    return Kind((), "a tokenizer alone", f"Give it with {setting_names.shown('--vocab')}, beside a model.")


def of_file(path: Path) -> str:
    """What a file is whose kind is not converted, and what to do, in a clause; "" for one that may be read."""
    return _FILES.get(path.suffix, "")


_DECODER = "a decoder alone"
_OTHER = "an encoder-decoder of another network"
_ENCODER = "an encoder of another network"
_TYPES = {
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2"),
        _DECODER,
    ),
    **dict.fromkeys(("opt", "bloom", "falcon", "phi", "phi3", "mpt", "xglm", "ctrl", "xlnet", "olmo"), _DECODER),
    **dict.fromkeys(("pegasus", "marian", "m2m_100", "blenderbot", "prophetnet", "led", "bigbird_pegasus"), _OTHER),
    **dict.fromkeys(("encoder-decoder", "plbart", "nllb-moe"), _OTHER),
    **dict.fromkeys(("distilbert", "albert", "deberta"), _ENCODER),
    **dict.fromkeys(("big_bird", "longformer", "funnel", "nystromformer", "nomic_bert", "mobilebert"), _ENCODER),
}
_HINTS = {
    "big_bird": "; Limba's blocks are DeepSpeed's, and have other global and random ones",
}


def refuse_type(file: Path, model_type: Any, known: Sequence[str]) -> ValueError:
    """The error for a config.json whose `model_type` no family has."""
    converted = f"converted are {', '.join(known)} and the encoders of docs/conversion.md"
    if model_type is None:
        return ValueError(f"{file}: model_type is missing; write the family's into the file: {converted}.")
    is_known = isinstance(model_type, str) and model_type in _TYPES
    what = f", {_TYPES[model_type]}{_HINTS.get(model_type, '')}" if is_known else ""
    return ValueError(f"{file}: model_type is {shown(model_type)}{what}; {converted}.")


# What a class has in place of T5's output, and the class that is the T5 in it.
_HEADS = {
    "ForSequenceClassification": ("a head for labels of texts", "T5ForConditionalGeneration"),
    "ForQuestionAnswering": ("a head for the ends of answers", "T5ForConditionalGeneration"),
}


def check_classes(file: Path, content: Mapping[str, Any]) -> None:
    """Raises ValueError if `architectures` of a config.json, which says the head, is no list of names."""
    classes = content.get("architectures")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise ValueError(
            f"{file}: architectures is {shown(classes)}; it is a list of the name of a class, such as "
            '["T5ForConditionalGeneration"]. Write the one of the model.'
        )


def is_encoder_alone(content: Mapping[str, Any]) -> bool:
    """Whether a T5's config.json is of a `T5EncoderModel` or its relatives."""
    return _class(content).endswith("EncoderModel")


def is_token_classifier(content: Mapping[str, Any]) -> bool:
    """Whether a T5's config.json is of a `T5ForTokenClassification` or its relatives: an encoder with labels."""
    return _class(content).endswith("ForTokenClassification")


def _class(content: Mapping[str, Any]) -> str:
    classes = content.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else ""


def refuse_head(file: Path, content: Mapping[str, Any]) -> None:
    """Raises ValueError if `architectures` of a T5's config.json is a class with a head in place of T5's output."""
    name = _class(content)
    for ending, (head, class_within) in _HEADS.items():
        if name.endswith(ending):
            raise ValueError(
                f"{file}: architectures is {cut(name)}, a T5 with {head}, which Limba's T5s do not have. The T5 in it: "
                f"{class_within}.from_pretrained(FOLDER).save_pretrained(OUT) in transformers, and convert OUT. Train "
                "the labels as answers (docs/finetune.md), or on the encoder (docs/encoders.md)."
            )
