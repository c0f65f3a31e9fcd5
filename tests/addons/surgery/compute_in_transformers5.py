"""Runs in an environment with transformers 5 and torch: the tokens and logits of a text in folders.

python compute_in_transformers5.py OUT.npz TEXT FOLDER…
"""

import sys

import numpy as np
import torch
import transformers


def main(out: str, text: str, *folders: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    found = {}
    for number, folder in enumerate(folders):
        batch = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        with torch.no_grad():
            found |= {f"ids{number}": batch.input_ids.numpy(), f"logits{number}": model(**batch).logits.numpy()}
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
