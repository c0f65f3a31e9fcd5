"""Runs in an environment with transformers 5: loads tokenizers and writes what they make of texts.

python tokenize_in_transformers5.py REQUEST.json OUT.json
"""

import json
import sys
from pathlib import Path

import transformers
from transformers import AutoTokenizer


def main(request_file: str, out: str) -> None:
    assert transformers.__version__.startswith("5."), transformers.__version__
    results = {}
    for folder, texts in json.loads(Path(request_file).read_text()).items():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        results[folder] = {
            "ids": [tokenizer(text).input_ids for text in texts],
            "sentinel": tokenizer.convert_tokens_to_ids("<extra_id_0>"),
            "size": len(tokenizer),
            "class": type(tokenizer).__name__,
            "special": sorted(tokenizer.all_special_tokens),
            "decoded": tokenizer.decode(tokenizer("ba <extra_id_0> ce").input_ids, skip_special_tokens=True),
            "most": tokenizer.model_max_length,
        }
        tokenizer.save_pretrained(f"{folder}/saved_by_5")
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
