"""Models as ONNX files, by `torch.onnx.export` from transformers' classes.

Files, inputs and outputs are named as Optimum names them. torch and transformers are imported when a function is
called.
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from limba.addons.engines.onnx import onnx_functions, onnx_library
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import transformers_library

ENCODER, DECODER, DECODER_WITH_PAST = "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
OF_T5 = (ENCODER, DECODER, DECODER_WITH_PAST)
MODEL = "model.onnx"
STATES, LOGITS, PAIR_LOGITS = "last_hidden_state", "logits", "seq_relationship_logits"
# A file of ONNX ends at 2 GiB; larger models have their weights in a file beside it.
MOST_BYTES = 2**31 - 2**27
_OUTPUT = "lm_head.weight"
# RoFormer's class computes these itself.
_COMPUTED = "embed_positions"


def names_of_past(num_layers: int, prefix: str) -> list[str]:
    """`present.0.decoder.key` … of attention in the decoder, `present.0.encoder.key` … of that on the encoder."""
    kinds = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    return [f"{prefix}.{i}.{kind}" for i in range(num_layers) for kind in kinds]


def write_t5(folder: Path, tensors: Mapping[str, SavedTensor], is_tied: bool, target: Path) -> None:
    """Writes the three files of a T5: the encoder, the decoder's first step, and those after it.

    Args:
      folder: has the config.json.
      tensors: of the class for generation, by Hugging Face's names.
      is_tied: whether the embedding is the output, and logits are divided by sqrt(d_model).
      target: the folder to write into.

    Raises:
      ValueError: if the tensors are not exactly those of the class, or hold NaN or infinite values.
    """
    import torch

    model = _filled("Seq2SeqLM", folder, tensors)
    config = model.config
    scale = config.d_model**-0.5 if is_tied else 1.0
    ids, mask = torch.full((2, 5), 2), torch.ones(2, 5, dtype=torch.long)
    states = torch.zeros(2, 5, config.d_model)
    layers = config.num_decoder_layers
    # Longer than 1: a length of 1 would be taken for a constant.
    past = [torch.zeros(2, config.num_heads, length, config.d_kv) for _ in range(layers) for length in (3, 3, 5, 5)]
    presents, pasts = names_of_past(layers, "present"), names_of_past(layers, "past_key_values")
    own = [name for name in presents if ".decoder." in name]
    encode, decoder = functools.partial(onnx_functions.encode, model), [model.decoder, model.lm_head]
    first, following = (
        onnx_functions.module(functools.partial(step, model, scale), decoder)
        for step in (onnx_functions.first_step, onnx_functions.following_step)
    )
    inputs = {"encoder_attention_mask": mask, "input_ids": ids}
    graphs = (
        (ENCODER, onnx_functions.module(encode, [model.encoder]), {"input_ids": ids, "attention_mask": mask}, [STATES]),
        (DECODER, first, inputs | {"encoder_hidden_states": states}, [LOGITS, *presents]),
        (
            DECODER_WITH_PAST,
            following,
            inputs | {"input_ids": ids[:, :1]} | dict(zip(pasts, past, strict=True)),
            [LOGITS, *own],
        ),
    )
    for name, module, arguments, outputs in tqdm(graphs, desc="writing", disable=None):
        _write(target / name, module, arguments, outputs)


def write_encoder(folder: Path, kind: str, tensors: Mapping[str, SavedTensor], has_types: bool, target: Path) -> None:
    """Writes model.onnx of an encoder with its head, or of a T5's with one for labels.

    Args:
      folder, tensors, target: as of `write_t5`.
      kind: the ending of the class, "MaskedLM".
      has_types: whether `token_type_ids` are an input.

    Raises:
      ValueError: as `write_t5`.
    """
    import torch

    model = _filled(kind, folder, tensors)
    ids = torch.full((2, 5), 2)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    types = {"token_type_ids": torch.zeros_like(ids)} if has_types else {}
    module = onnx_functions.module(functools.partial(onnx_functions.states_and_logits, model), [model])
    _write(target / MODEL, module, inputs | types, [STATES, LOGITS, *([PAIR_LOGITS] if kind == "PreTraining" else [])])


def _filled(kind: str, folder: Path, tensors: Mapping[str, SavedTensor]) -> Any:
    """A class of transformers with these weights, in float32."""
    import torch

    transformers = onnx_library.transformers()
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(folder, **transformers_library.NO_CODE)
    auto_class = getattr(transformers, f"AutoModelFor{kind}")
    model = auto_class.from_config(
        config, dtype=torch.float32, attn_implementation="eager", **transformers_library.NO_CODE
    ).eval()
    model.tie_weights()
    if _OUTPUT in tensors:  # Version 5 ties the output of every T5.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    parameters, own = dict(model.named_parameters(remove_duplicate=False)), model.state_dict()
    filled = {id(parameters[name]) for name in tensors.keys() & parameters.keys()}
    missing = [name for name, one in parameters.items() if id(one) not in filled and _COMPUTED not in name]
    wrong = [name for name, t in tensors.items() if name not in own or tuple(own[name].shape) != tuple(t.shape)]
    if missing or wrong:
        raise ValueError(
            f"{type(model).__name__} of transformers {transformers.__version__} has others than {folder}: it lacks "
            f"{missing[:3]}, and does not have {wrong[:3]} in these shapes."
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(torch.from_numpy(np.array(np.asarray(tensor))))
    return model


def _write(file: Path, module: Any, inputs: Mapping[str, Any], outputs: Sequence[str]) -> None:
    """Writes one file. The inputs' rows and lengths are free, but for a length of 1."""
    import torch

    free = torch.export.Dim.DYNAMIC
    # Keys and values have their length behind the heads.
    shapes = tuple({0: free} | ({1 if x.ndim < 4 else 2: free} if 1 not in x.shape else {}) for x in inputs.values())
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            input_names=[*inputs],
            output_names=outputs,
            dynamic_shapes=(shapes,),
            verbose=False,
        )
    num_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
    program.save(str(file), external_data=num_bytes > MOST_BYTES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself: of torchvision, which is not needed, and of names that it will change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
