"""A model on its way into a folder for ONNX Runtime, which Optimum loads, too."""

import abc
import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from limba.addons.engines import engine_export, t5_check
from limba.addons.engines.engine_export import END, TOKENIZER, PythonExport, is_fast
from limba.addons.engines.onnx import onnx_encoder_check, onnx_graphs, onnx_library, onnx_t5_check
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import auto_tokenizer, comparison_rows, encoder_outputs, t5_outputs, transformers_library
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families import heads
from limba.convert.families.config_files import t5_config
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer, tokenizer_folder
from limba.convert.model_files.model import AFamily, ANetwork, EncoderModel, Folder, Model, T5Model
from limba.files import json_text

QUANTIZATIONS = ("float32", "int8")
# Where the files in float32 are until the ones in int8 are checked.
_FLOAT32 = ".float32"
# Bytes of a weight.
_SIZES = {"float32": 4, "int8": 5}


class HfFiles(Protocol):
    """What `convert.exports` knows of a model's Hugging Face folder."""

    model: Model

    @property
    def vocabulary_file(self) -> Path | None: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]: ...

    def stored(self, format_: str, dtype: str) -> dict[str, SavedTensor]: ...


class OnnxExport(PythonExport[AFamily, ANetwork]):
    """See `PythonExport`.

    Attributes:
      copies: of the weights, in float32.

    Raises:
      ValueError: if transformers does not have the model.
    """

    check_by = "In ONNX Runtime"
    engine, link, package = "ONNX Runtime", "https://onnxruntime.ai/", "onnxruntime"
    copies: ClassVar[int] = 1

    def __init__(self, files: HfFiles, quantization: str, kind: str, *notes: str):
        super().__init__(files.model, quantization)
        self._files = files
        self.vocabulary_file, self.warnings = files.vocabulary_file, files.warnings
        optimum = f"from optimum.onnxruntime import ORTModelFor{kind}; model = ORTModelFor{kind}.from_pretrained"
        self.notes = (*notes, f'Optimum loads the folder (`pip install optimum-onnx`): `{optimum}(".")`.')

    @property
    def num_bytes(self) -> int:
        return self.copies * self.model.num_parameters * _SIZES[self.quantization]

    def write(self, folder: Path) -> None:
        for name, content in self._files.write_beside(folder, "float32").items():
            (folder / name).write_text(json_text.dumps(content, indent=2) + "\n", "utf-8")
        in_float32 = self._in_float32(folder)
        in_float32.mkdir(exist_ok=True)
        self._write_graphs(folder, self._files.stored("safetensors", "float32"), in_float32)
        if self.quantization == "int8":
            for file in in_float32.glob("*.onnx"):
                onnx_library.quantize(file, folder / file.name)

    @abc.abstractmethod
    def _write_graphs(self, folder: Path, tensors: Mapping[str, SavedTensor], target: Path) -> None:
        """Writes the files in float32 into `target`; the folder has the config.json."""

    def _in_float32(self, folder: Path) -> Path:
        return folder / _FLOAT32 if self.quantization == "int8" else folder

    def remove_unneeded(self, folder: Path) -> None:
        if self.quantization == "int8":
            shutil.rmtree(folder / _FLOAT32)

    def compare(self, folder: Path) -> list[Comparison]:
        content = json.loads((folder / "config.json").read_text("utf-8"))
        stored = self._files.stored("safetensors", "float32")
        own = Folder(self._explicit(content), stored, "safetensors", self.model.pad_id)
        in_float32 = dataclasses.replace(self.model.cast(np.dtype(np.float32)), folder=own)
        rows = [*auto_tokenizer.row(auto_tokenizer.check(folder)), *self._compare_text(folder)]
        rows += self._compare(in_float32, self._in_float32(folder))
        return rows if self.quantization == "float32" else [*rows, *self._compare_quantized(folder)]

    def _explicit(self, content: dict[str, Any]) -> Mapping[str, Any]:
        return content

    def _compare_text(self, folder: Path) -> list[Comparison]:
        """Whether tokenizer.json has the model's ids of a text."""
        if not is_fast(folder):
            return []
        tokenizer = engine_export.Tokenizer.from_file(str(folder / TOKENIZER))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return [comparison_rows.compare_vocabularies(self._text_ids(folder), tokenizer.encode(TEXT).ids)]

    @abc.abstractmethod
    def _text_ids(self, folder: Path) -> Sequence[int] | None:
        """The ids of `TEXT` in the folder, special ones included."""

    @abc.abstractmethod
    def _compare(self, model: Any, folder: Path) -> list[Comparison]:
        """Compares files in float32 with the model, which has a Hugging Face folder."""

    @abc.abstractmethod
    def _compare_quantized(self, folder: Path) -> list[Comparison]:
        """What int8 changes."""


class T5Export(OnnxExport):
    """Of a T5: the encoder, the decoder's first step, and those after it. See `OnnxExport`."""

    model: T5Model
    copies = 2  # both files of the decoder have its weights

    def __init__(self, files: HfFiles, quantization: str):
        super().__init__(files, quantization, "Seq2SeqLM", f"An input ends with `{END}`.")
        if self.model.head.labels:
            raise ValueError(
                f"{self.model.path} is a classifier of tokens on a T5, of which to-onnx writes none; `limba convert "
                "to-hf` exports it."
            )
        if not self.model.family.in_transformers:
            raise ValueError(
                f"{self.model.path} is a {self.model.family.title}, of which transformers has no class: torch writes "
                "ONNX files from these classes."
            )
        if self.model.family.layer_kind != "t5":
            raise ValueError(
                f"{self.model.path} is {self.model.family.title}, of which to-onnx writes no file; `limba convert "
                "to-hf` exports it."
            )
        tokenizer = hf_tokenizer.from_vocabulary(any_format.known_vocabulary(self.model))
        t5_check.require_usual_ids(self.model, tokenizer, self.engine)
        t5_config.model_config(self.model.config, self.model.family, "float32", None)

    def _write_graphs(self, folder: Path, tensors: Mapping[str, SavedTensor], target: Path) -> None:
        onnx_graphs.write_t5(folder, tensors, self.model.config.logits_via_embedding, target)

    def _explicit(self, content: dict[str, Any]) -> Mapping[str, Any]:
        return t5_config.explicit(content, self.model.config)

    def _text_ids(self, folder: Path) -> Sequence[int] | None:
        text = t5_outputs.text_tokens(self.model, TEXT)
        return text and [*text, *[engine_export.END_ID] * engine_export.appends_end(folder)]

    def _engine(self, folder: Path) -> onnx_t5_check.Engine:
        return onnx_t5_check.Engine(folder, self.model.config.decoder_start_token_id)

    def _compare(self, model: T5Model, folder: Path) -> list[Comparison]:
        return t5_check.compare(model, self._engine(folder), self.model)

    def _compare_quantized(self, folder: Path) -> list[Comparison]:
        return [*t5_check.compare_quantized(self.model, self._engine(folder), "int8", "int8")]

    def packages(self, folder: Path) -> Sequence[str]:
        return ("numpy", *engine_export.t5_packages(folder, self.vocabulary_file))

    def program(self, folder: Path) -> str:
        imports, opened, encoded, decoded = self._of_tokenizer(folder)
        text = "The <extra_id_0> of the <extra_id_1> is red." if is_fast(folder) else "The house is red."
        start = self.model.config.decoder_start_token_id
        return "\n".join(
            (
                "import numpy as np",
                "import onnxruntime",
                *imports,
                "",
                'folder = "."  # the folder of this file',
                f'files = [f"{{folder}}/{{name}}" for name in {list(onnx_graphs.OF_T5)}]'.replace("'", '"'),
                "encoder, first, following = map(onnxruntime.InferenceSession, files)",
                *opened,
                "",
                f'text = "{text}"  # as the model was trained',
                f"ids = np.array([{encoded}])",
                "mask = np.ones_like(ids)",
                '(states,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})',
                f'decoder, others, answer = first, {{"encoder_hidden_states": states}}, [{start}]',
                f"while len(answer) < 64 and answer[1:][-1:] != [{engine_export.END_ID}]:",
                '    feed = {"input_ids": np.array([answer[-1:]]), "encoder_attention_mask": mask, **others}',
                "    names = [output.name for output in decoder.get_outputs()]",
                "    outputs = dict(zip(names, decoder.run(names, feed)))",
                '    answer.append(int(outputs.pop("logits")[0, -1].argmax()))',
                '    others.pop("encoder_hidden_states", None)',
                '    others.update({name.replace("present", "past_key_values"): x for name, x in outputs.items()})',
                "    decoder = following",
                f"print({decoded})",
            )
        )

    def _of_tokenizer(self, folder: Path) -> tuple[Sequence[str], Sequence[str], str, str]:
        """Of the program: imports, what opens the tokenizer, the ids of a text, the text of ids."""
        if self.vocabulary_file is None:
            decoded = 'bytes(i - 3 for i in answer[1:] if 3 <= i < 259).decode(errors="ignore")'
            return (), (), "[*(byte + 3 for byte in text.encode()), 1]", decoded
        if is_fast(folder):
            ids = "tokenizer.encode(text).ids"
            return (
                ("from tokenizers import Tokenizer",),
                engine_export.opened(folder),
                ids if engine_export.appends_end(folder) else f"[*{ids}, {engine_export.END_ID}]",
                "tokenizer.decode(answer[1:], skip_special_tokens=False)",
            )
        opened = (engine_export.opened_pieces(),)
        decoded = "pieces.decode([i for i in answer[1:] if i < len(pieces)])"
        return ("import sentencepiece",), opened, f"[*pieces.encode(text), {engine_export.END_ID}]", decoded


class EncoderExport(OnnxExport):
    """Of an encoder with its head. See `OnnxExport`."""

    model: EncoderModel

    def __init__(self, files: HfFiles, quantization: str):
        if files.model.head.kind == heads.DETECTOR:
            raise ValueError(
                f"{files.model.path} detects replaced tokens, and Limba writes no ONNX file of that head: export its "
                "generator (limba convert to-hf --generator), or a classifier that begins with it."
            )
        kind = files.model.head.kind.replace(heads.PAIRS, heads.MASKED_LM)
        outputs = "`last_hidden_state` `[texts, tokens, width]` and `logits` are its outputs; 0 in the mask is padding."
        super().__init__(files, quantization, kind, outputs)
        transformers, family = transformers_library.version() or "", self.model.family
        if not transformers_library.has_model(family.model_type):
            raise ValueError(
                f"{self.model.path} is a {family.title}, of which transformers {transformers} has no class, and torch "
                "writes ONNX files from these classes; version 5 has one: pip install 'transformers>=5'."
            )
        if self.model.config.has_relative_keys and not transformers.startswith("4."):
            raise ValueError(
                f"{self.model.path}: transformers {transformers} has no "
                f"{self.model.config.position_embedding_type}; version 4 has: pip install 'transformers<5'."
            )

    def _write_graphs(self, folder: Path, tensors: Mapping[str, SavedTensor], target: Path) -> None:
        has_types = self.model.config.num_token_types > 1
        onnx_graphs.write_encoder(folder, self.model.head.kind, tensors, has_types, target)

    def _text_ids(self, folder: Path) -> Sequence[int] | None:
        assert self.vocabulary_file is not None
        order = encoder_outputs.order_of(self.model)
        return [int(order[id_]) for id_ in tokenizer_folder.encode(self.vocabulary_file, TEXT)]

    def _compare(self, model: EncoderModel, folder: Path) -> list[Comparison]:
        return onnx_encoder_check.compare(model, folder)

    def _compare_quantized(self, folder: Path) -> list[Comparison]:
        return [onnx_encoder_check.compare_quantized(self.model, folder, "int8")]

    def packages(self, folder: Path) -> Sequence[str]:
        return ("numpy", "tokenizers")

    def program(self, folder: Path) -> str:
        of_rows = "[0].mean(0))  # the mean of the tokens"
        shown = f'outputs["last_hidden_state"]{of_rows}'
        if self.model.head.labels:
            shown = 'outputs["logits"][0])  # in the order of the labels in config.json'
        return "\n".join(
            (
                "import numpy as np",
                "import onnxruntime",
                "from tokenizers import Tokenizer",
                "",
                'folder = "."  # the folder of this file',
                f'model = onnxruntime.InferenceSession(f"{{folder}}/{onnx_graphs.MODEL}")',
                *engine_export.opened(folder),
                "",
                'for text in ("The first text.", "The second one."):',
                "    row = tokenizer.encode(text)",
                "    feed = {",
                '        "input_ids": row.ids,',
                '        "attention_mask": row.attention_mask,',
                '        "token_type_ids": row.type_ids,',
                "    }",
                "    feed = {x.name: np.array([feed[x.name]]) for x in model.get_inputs()}",
                "    names = [output.name for output in model.get_outputs()]",
                "    outputs = dict(zip(names, model.run(names, feed)))",
                f"    print({shown}",
            )
        )
