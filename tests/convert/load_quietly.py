"""Loads exports in transformers and uses them; what transformers says of each goes to stderr, after a line of its name.

python load_quietly.py FOLDER …
"""

import sys
from pathlib import Path

import torch
import transformers

CALLS = ({}, {"max_new_tokens": 3}, {"num_beams": 2, "max_new_tokens": 3})


def main(*folders: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    for folder in folders:
        transformers.utils.logging.warning_once.cache_clear()  # It says a thing once a process.
        print(f"== {Path(folder).name}", file=sys.stderr, flush=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer("ba <extra_id_0> ce", return_tensors="pt")
        if (Path(folder) / "generation_config.json").is_file():
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
            for call in CALLS:
                model.generate(**inputs, **call)
        else:
            model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
            with torch.no_grad():
                model(**inputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
