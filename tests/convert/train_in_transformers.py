"""Trains models that Limba exported for a step, and saves them as transformers' Trainer does.

python train_in_transformers.py FOLDER OUT [FOLDER OUT …]
"""

import json
import sys
from pathlib import Path

import torch
import transformers


def train(folder: str, out: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    is_t5 = "t5" in transformers.AutoConfig.from_pretrained(folder).model_type
    kind = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForMaskedLM
    model = kind.from_pretrained(folder).train()
    # Leaves truncation and padding in the tokenizer.
    batch = tokenizer(["w7 w8 ba", "w9"], truncation=True, max_length=8, padding="max_length", return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    Path(out, "trainer_state.json").write_text(json.dumps({"global_step": 11}))


def main(*folders: str) -> None:
    for source, target in zip(folders[::2], folders[1::2], strict=True):
        train(source, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
