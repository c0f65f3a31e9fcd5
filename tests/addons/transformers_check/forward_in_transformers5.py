"""Runs where transformers is 5: whether `torch_forward` gives what `from_pretrained` does.

python forward_in_transformers5.py REPOSITORY SITE_PACKAGES BATCH.npz OUT.json FOLDER…

SITE_PACKAGES has JAX, which that environment lacks.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers import AutoModelForSeq2SeqLM


def main(repository: str, site_packages: str, batch_file: str, out: str, *folders: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    sys.path.insert(0, repository)
    sys.path.append(site_packages)
    from limba.addons.transformers_check import torch_forward
    from limba.checkpoint_files.saved_tensors import from_array

    batch = dict(np.load(batch_file))
    found = {}
    for folder in map(Path, folders):
        tensors = {name: from_array(x) for name, x in load_file(folder / "model.safetensors").items()}
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        inputs = torch.tensor(batch["encoder_input_tokens"]).long()
        asked = {"input_ids": inputs, "attention_mask": (inputs != 0).long()}
        with torch.no_grad():
            logits = model(**asked, decoder_input_ids=torch.tensor(batch["decoder_input_tokens"]).long()).logits.numpy()
            tokens = model.generate(**asked, max_new_tokens=6, num_beams=1, do_sample=False).numpy()[:, 1:]
        ours = torch_forward.logits(folder, tensors, batch)
        found[folder.name] = {
            "class": type(model).__name__,
            "same logits": np.array_equal(ours, logits),
            "same tokens": torch_forward.greedy(folder, tensors, batch["encoder_input_tokens"], 6).tolist()
            == np.pad(tokens, ((0, 0), (0, 6 - tokens.shape[1]))).tolist(),
            "logits": ours.tolist(),
        }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
