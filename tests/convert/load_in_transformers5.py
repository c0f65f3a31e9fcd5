"""Runs in an environment with transformers 5 and torch: loads exports, writes what they compute, and saves them again.

python load_in_transformers5.py REQUESTS.json, a list of [EXPORT, INPUTS.npz, OUT]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM


def main(requests_file: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    for folder, inputs_file, out in json.loads(Path(requests_file).read_text()):
        batch = np.load(inputs_file)
        inputs, decoder_inputs = torch.tensor(batch["inputs"]).long(), torch.tensor(batch["decoder_inputs"]).long()
        model, loading = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        mask = (inputs != 0).long()
        with torch.no_grad():
            logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits
            tokens = model.generate(inputs, attention_mask=mask, max_new_tokens=decoder_inputs.shape[1], num_beams=1)
        model.save_pretrained(out)
        np.savez(
            Path(out) / "computed.npz",
            logits=logits.numpy(),
            tokens=tokens.numpy(),
            loading=json.dumps({what: sorted(map(str, found)) for what, found in loading.items()}),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
