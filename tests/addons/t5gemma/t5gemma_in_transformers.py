"""Runs where transformers is 5: what a T5Gemma loses in steps from a new network, and what it makes of an export.

python t5gemma_in_transformers.py REQUEST.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(request_file: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    request = json.loads(Path(request_file).read_text())
    _train(Path(request["new"]), request["class"], request["config"], request["rate"])
    _run(Path(request["export"]))


def _train(folder: Path, class_name: str, config: dict, rate: float) -> None:
    """Saves a new network in a folder with batches, and the losses of a step with each."""
    torch.manual_seed(0)
    of_class = getattr(transformers, class_name.replace("ForConditionalGeneration", "Config"))
    model = getattr(transformers, class_name)(of_class(**config)).train()
    for parameter in model.parameters():  # norms too, so that none can stand for another
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    losses = []
    with np.load(folder / "batches.npz") as batches:
        for inputs, targets in zip(batches["inputs"], batches["targets"], strict=True):
            inputs, labels = (torch.tensor(x, dtype=torch.long) for x in (inputs, targets))
            labels = labels.masked_fill(labels == 0, -100)
            loss = model(input_ids=inputs, attention_mask=(inputs != 0).long(), labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    np.save(folder / "losses.npy", losses)


def _run(folder: Path) -> None:
    """Writes the logits and greedy tokens of the export in a folder with a batch, and what loading complains of."""
    model, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    model = model.eval()
    batch = {name: torch.tensor(x, dtype=torch.long) for name, x in np.load(folder / "batch.npz").items()}
    asked = {"input_ids": batch["inputs"], "attention_mask": (batch["inputs"] != 0).long()}
    with torch.no_grad():
        logits = model(**asked, decoder_input_ids=batch["decoder_inputs"]).logits.numpy()
        tokens = model.generate(**asked, max_new_tokens=8, num_beams=1, do_sample=False).numpy()[:, 1:]
    complaints = json.dumps({kind: sorted(map(str, found)) for kind, found in loading.items() if found})
    np.savez(folder / "answer.npz", logits=logits, tokens=tokens, complaints=complaints)


if __name__ == "__main__":
    main(*sys.argv[1:])
