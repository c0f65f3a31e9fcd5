"""What transformers makes of exports, and models that it saves itself. Runs where its version is 4, and where it is 5.

python run_in_transformers.py REQUEST.json, with `version` and perhaps
  `folders`: of exports, to run on `tokens.npz` beside them and in a pipeline, and to save again as `<folder>_again`;
  `new`: [class, settings, folder] of models to make of random numbers.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[3]))  # It is started by its path, where Limba is not installed.
from benchmarks.families_in_transformers import save_new

TEXT = "w7 w9 [MASK] w6"
PIPELINES = {
    "MaskedLM": "fill-mask",
    "PreTraining": "fill-mask",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
}


def main(request_file: str) -> None:
    os.environ["USE_TF"] = "0"
    import transformers

    request = json.loads(Path(request_file).read_text())
    assert transformers.__version__.startswith(request["version"]), transformers.__version__
    for folder in request.get("folders", ()):
        _run(Path(folder), request["version"])
    for class_name, settings, folder in request.get("new", ()):
        save_new(class_name, settings, folder)


def _run(folder: Path, version: str) -> None:
    import torch
    import transformers

    class_name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, loading = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
    with np.load(folder / "tokens.npz") as content:
        batch = {name: torch.tensor(array).long() for name, array in content.items()}
    with torch.no_grad():
        outputs = model(**batch)
    has_pairs = class_name == "BertForPreTraining"
    logits = (outputs.prediction_logits if has_pairs else outputs.logits).numpy()
    of_pairs = {"pair_logits": outputs.seq_relationship_logits.numpy()} if has_pairs else {}
    kind = class_name.rpartition("For")[2]
    pipe = transformers.pipeline(PIPELINES[kind], model=str(folder), device="cpu")
    pipe.tokenizer.save_pretrained(f"{folder}_again")
    model.save_pretrained(f"{folder}_again")
    found = {"tokens": pipe.tokenizer(TEXT).input_ids, "pair": pipe.tokenizer("w7", "w8").input_ids}
    answers = pipe(TEXT, top_k=None) if kind == "SequenceClassification" else pipe(TEXT)
    kept = ("token", "sequence", "label", "score", "entity", "index")
    found["answers"] = [
        {k: x if isinstance(x, str) else float(x) for k, x in one.items() if k in kept} for one in answers
    ]
    found["lost"] = [name for name in loading["missing_keys"] if "embed_positions" not in name]
    found["extra"] = sorted(loading["unexpected_keys"])
    np.savez(folder / f"in_{version}.npz", logits=logits, found=json.dumps(found), **of_pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])
