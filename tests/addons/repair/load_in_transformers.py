"""Logits of folders in the installed transformers, by the class that config.json names.

python load_in_transformers.py OUT.npz REQUEST.json, a list of [NAME, FOLDER], with IDS and STARTS
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(out: str, request: str) -> None:
    asked = json.loads(Path(request).read_text("utf-8"))
    ids, starts = (torch.tensor(asked[key]) for key in ("ids", "starts"))
    found = {}
    for name, folder in asked["folders"]:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
        with torch.no_grad():
            more = {"decoder_input_ids": starts} if config.architectures[0].endswith("Generation") else {}
            output = model(ids, **more)
        logits = output.logits if "logits" in output else output.last_hidden_state
        found[name] = logits.float().numpy()
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
