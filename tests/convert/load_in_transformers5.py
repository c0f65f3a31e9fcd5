"""Runs in an environment with transformers 5 and torch: loads an export and writes what it computes.

python load_in_transformers5.py EXPORT REQUEST.json OUT.npz
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, T5ForConditionalGeneration


def main(folder: str, request_file: str, out: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    request = json.loads(Path(request_file).read_text())
    inputs, decoder_inputs = torch.tensor(request["inputs"]), torch.tensor(request["decoder_inputs"])
    model, loading = T5ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    mask = (inputs != 0).long()
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits
        tokens = model.generate(inputs, attention_mask=mask, max_new_tokens=decoder_inputs.shape[1], num_beams=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    np.savez(
        out,
        logits=logits.numpy(),
        tokens=tokens.numpy(),
        ids=json.dumps([tokenizer(text).input_ids for text in request["texts"]]),
        sentinels=[tokenizer.convert_tokens_to_ids(f"<extra_id_{i}>") for i in (0, 99)],
        loading=json.dumps({what: sorted(map(str, found)) for what, found in loading.items()}),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
