"""NorT5 beside HPLT's own code: logits both ways, greedy tokens with both caches, and twenty steps of AdamW.

    python -m benchmarks.nort5_beside_hplt --code FOLDER

FOLDER has configuration_nort5.py and modeling_nort5.py, of https://github.com/hplt-project/HPLT-WP4
(encoder-decoder/huggingface_prototype) or of a model's repository. They run as they are: look at them before. Of two
sizes that --seed draws HPLT's class makes a model with its own random numbers. `from-hf` and `to-hf` convert it; then
both compute a batch, decode it token by token, and train on the same 20 batches in float32 and without dropout.

The exit code is 1 if outputs differ by more than 1e-5, losses by more than 1e-4, a greedy token at all, or a tensor of
the export from that of the folder.
"""

import argparse
import contextlib
import functools
import importlib
import io
import json
import random
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from benchmarks import families_beside_transformers as beside
from benchmarks import families_in_transformers as in_torch
from convert.families import networks
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba import models
from limba.models import decoding
from tests.addons.nort5 import nort5_folder

_INPUTS, _TARGETS, _GREEDY = 40, 20, 12


def load_code(folder: Path) -> tuple[Any, Any]:
    """The class of the configuration and that of the model; the files import each other as parts of a package."""
    package = types.ModuleType("hplt_code")
    package.__path__ = [str(folder)]
    sys.modules["hplt_code"] = package
    found: list[Any] = [importlib.import_module(f"hplt_code.{name}_nort5") for name in ("configuration", "modeling")]
    # Later versions of transformers than HPLT's have this function with fewer arguments.
    found[1].softmax_backward_data = _softmax_gradient
    return found[0].NorT5Config, found[1].NorT5ForConditionalGeneration


def _softmax_gradient(parent: Any, gradient: Any, output: Any, dim: int, again: Any) -> Any:
    del parent, again
    return output * (gradient - (gradient * output).sum(dim, keepdim=True))


def new_model(code: tuple[Any, Any], seed: int, folder: Path) -> Any:
    """A model with HPLT's first kernels, its norms and biases away from 1 and 0, and its folder."""
    import torch

    rng = random.Random(seed)
    num_heads, width = rng.choice((2, 3, 4)), rng.choice((8, 16))
    fields = {"emb_dim": num_heads * width, "num_heads": num_heads, "num_encoder_layers": rng.choice((2, 3))}
    fields |= {"mlp_dim": rng.choice((40, 56)), "num_buckets": rng.choice((8, 32))}
    nort5_folder.write(folder, seed, **fields)
    torch.manual_seed(seed)
    config = json.loads((folder / "config.json").read_text())
    model = code[1](code[0](**{key: x for key, x in config.items() if key not in ("architectures", "auto_map")}))
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 1:
                x.add_(torch.randn_like(x) * 0.1 - (0.2 if name.endswith("norm.weight") else 0.0))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return model.eval()


def batches_of(seed: int, first: int, num_ids: int) -> dict[str, np.ndarray]:
    """Rows with padding, `[steps, rows, length]`."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(first, num_ids, (beside.STEPS, beside.ROWS, _INPUTS))
    labels = rng.integers(first, num_ids, (beside.STEPS, beside.ROWS, _TARGETS))
    inputs[:, 1, 25:], inputs[:, 2, -1:], labels[:, 0, 12:] = 0, 0, -100
    return {"input_ids": inputs, "attention_mask": (inputs != 0).astype(np.int64), "labels": labels}


def greedy_in_torch(model: Any, inputs: np.ndarray, start: int) -> np.ndarray:
    """The likeliest tokens, one after the other, with the cache of HPLT's class."""
    import torch

    ids = torch.tensor(inputs)
    seen = {"attention_mask": (ids != 0).long(), "return_dict": True}
    tokens, past, found = torch.full((len(ids), 1), start), None, []
    with torch.inference_mode():
        encoded = model.get_encoder()(ids, **seen)
        for _ in range(_GREEDY):
            step = {"decoder_input_ids": tokens, "encoder_outputs": encoded, "past_key_values": past}
            output = model(**step, **seen, use_cache=True)
            past, tokens = output.past_key_values, output.logits[:, -1:].argmax(-1)
            found.append(tokens.numpy()[:, 0])
    return np.stack(found, 1)


def greedy_in_limba(opened: Any, inputs: np.ndarray) -> np.ndarray:
    """The same with Limba's cache."""
    module = networks.plain(opened.config).network()
    vocabulary = types.SimpleNamespace(eos_id=-1, vocab_size=opened.config.vocab_size)
    decode = functools.partial(decoding.temperature_sample, topk=1)
    model = models.EncoderDecoderModel(module, vocabulary, vocabulary, None, decode_fn=decode)
    params = traverse_util.unflatten_dict({n: np.asarray(x) for n, x in opened.tensors.items()}, sep="/")
    zeros = np.zeros((len(inputs), _GREEDY), np.int32)
    batch = {"encoder_input_tokens": inputs.astype(np.int32), "decoder_input_tokens": zeros}
    return np.asarray(jax.jit(model.predict_batch)(params, batch | {"decoder_target_tokens": zeros}))


def compare(code: tuple[Any, Any], seed: int, home: Path) -> tuple[str, bool]:
    """A line about a model, and whether it holds."""
    import safetensors.torch
    import torch

    theirs = new_model(code, seed, home / "hf")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from_hf(home / "hf", home / "run", verify=False)
        to_hf(home / "run", home / "export", verify=False)
    opened, again = (any_format.open_model(home / name) for name in ("run", "export"))
    wrong = [
        x for x in opened.tensors if not np.array_equal(np.asarray(opened.tensors[x]), np.asarray(again.tensors[x]))
    ]
    batches = batches_of(seed, len(nort5_folder.SPECIAL) + len(nort5_folder.SENTINELS), opened.config.vocab_size)
    ours = beside.in_limba(opened, batches)
    inputs, start = batches["input_ids"][0], opened.config.decoder_start_token_id
    different = int(np.sum(greedy_in_limba(opened, inputs) != greedy_in_torch(theirs, inputs, start)))
    tensors = {key: torch.tensor(x) for key, x in batches.items()}
    first = in_torch.outputs(theirs, {key: x.clone() for key, x in tensors.items()}, 0)[0].detach().numpy()
    theirs.load_state_dict(safetensors.torch.load_file(home / "export/model.safetensors"))
    of_export = in_torch.outputs(theirs, {key: x.clone() for key, x in tensors.items()}, 0)[0].detach().numpy()
    # The class writes into the labels that it is given.
    losses = np.array(in_torch.losses(theirs, {key: x.clone() for key, x in tensors.items()}, beside.RATE))
    real = batches["labels"][0] != -100
    outputs = max(np.abs(ours[0] - x)[real].max() for x in (first, of_export))
    of_losses = np.abs(ours[1] - losses).max()
    sizes = (
        f"{opened.config.emb_dim} wide, {opened.config.num_encoder_layers} layers, {opened.num_parameters:,} parameters"
    )
    holds = outputs <= beside.MOST_OUTPUTS and of_losses <= beside.MOST_LOSSES and not different and not wrong
    columns = (sizes, f"{outputs:.1e}", f"{different} of {_GREEDY * len(inputs)}", f"{of_losses:.1e}")
    course = f"{losses[0]:.2f} to {losses[-1]:.2f}", str(len(wrong)), "yes" if holds else "NO"
    return " | ".join((*columns, *course)), bool(holds)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nort5_beside_hplt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--code", required=True, type=Path, metavar="FOLDER", help="with HPLT's two files")
    parser.add_argument("--seed", type=int, default=0, help="draws the sizes, the numbers and the batches")
    flags = parser.parse_args(argv)
    if missing := [x for x in ("configuration", "modeling") if not (flags.code / f"{x}_nort5.py").is_file()]:
        parser.error(f"--code {flags.code} has no {missing[0]}_nort5.py; give the folder of HPLT's two files.")
    jax.config.update("jax_platforms", "cpu")
    code, all_hold = load_code(flags.code), True
    print("model | outputs | greedy tokens that differ | losses | loss, first to last | tensors that differ | holds")
    for seed in (2 * flags.seed, 2 * flags.seed + 1):
        with tempfile.TemporaryDirectory() as home:
            line, holds = compare(code, seed, Path(home))
        print(line)
        all_hold &= holds
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
