"""transformers' side of `benchmarks/families_beside_transformers.py`: it has no Limba, and runs in version 4 and 5.

python families_in_transformers.py REQUEST.json, with
  `new`: [class, settings, folder] of models to make of random numbers;
  `compared`: folders, each with `batches.npz` and perhaps an `export` beside it, to run and to train on them with
    AdamW at `rate`. What came out is `found.npz` in the folder: `outputs` of the first batch, `export_outputs`, and
    `losses` of the steps.
"""

import json
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

WEIGHT_DECAY, EPSILON = 0.01, 1e-8


def main(request_file: str) -> None:
    os.environ["USE_TF"] = "0"
    # transformers looks for a package `kernels`, which a file of this folder is not.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    import torch

    torch.set_num_threads(1)  # Steps of so small a model are faster in one.
    request = json.loads(Path(request_file).read_text())
    for class_name, settings, folder in request.get("new", ()):
        save_new(class_name, settings, folder)
    for folder in map(Path, request.get("compared", ())):
        with np.load(folder / "batches.npz") as content:
            batches = {key: torch.tensor(array) for key, array in content.items()}
        found = {}
        if (export := folder.parent / "export").is_dir():
            found["export_outputs"] = outputs(_load(export), batches, 0)[0].detach().numpy()
        model = _load(folder)
        found["outputs"] = outputs(model, batches, 0)[0].detach().numpy()
        np.savez(folder / "found.npz", losses=losses(model, batches, request["rate"]), **found)


def save_new(class_name: str, settings: dict[str, Any], folder: str) -> None:
    """Norms multiply by about 0.8, so that an exchanged one shows; T5Gemma's by 1 + the parameter."""
    import torch
    import transformers

    stem = re.sub(r"(For[A-Z]\w+|Model)$", "", class_name)
    config = getattr(transformers, f"{stem}Config")(**settings)
    model = getattr(transformers, class_name)(config)
    # The seed does not depend on the folder: pytest names folders by how often tests ran.
    of_norm = -0.2 if "Gemma" in class_name else 0.8
    rng = np.random.default_rng(zlib.crc32(json.dumps([class_name, settings], sort_keys=True).encode()))
    for name, tensor in model.named_parameters():
        if "embed_positions" not in name:  # which are no parameters of RoFormer's, but sines
            center = of_norm if "norm" in name.lower().split(".")[-2] and name.endswith("weight") else 0.03
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(rng.normal(center, 0.2, tensor.shape).astype(np.float32)))
    model.save_pretrained(folder)


def _load(folder: Path) -> Any:
    """Without dropout, which draws other numbers in each library."""
    import torch
    import transformers

    class_name = json.loads((folder / "config.json").read_text())["architectures"][0]
    # T5Gemma's own attention alone has its soft caps.
    how = {"attn_implementation": "eager"} if "Gemma" in class_name else {}
    return getattr(transformers, class_name).from_pretrained(folder, **how).to(torch.float32).eval()


def outputs(model: Any, batches: dict[str, Any], step: int) -> tuple[Any, Any]:
    """The logits of a batch and the loss; of an encoder alone its hidden states, and their distance from targets."""
    batch = {key: array[step] for key, array in batches.items()}
    targets = batch.pop("states", None)
    if targets is None:
        found = model(**batch)
        return found.logits, found.loss
    states = model.get_encoder()(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    return states, (((states - targets) ** 2) * real).sum() / (real.sum() * states.shape[-1])


def losses(model: Any, batches: dict[str, Any], rate: float) -> list[float]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), rate, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    found = []
    for step in range(len(batches["input_ids"])):
        optimizer.zero_grad()
        loss = outputs(model, batches, step)[1]
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is None:  # Of an expert without tokens: PyTorch's step would skip its momentum and decay.
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
