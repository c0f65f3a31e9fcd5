"""Words for a classifier on a RoBERTa: a blank is read before the first, as run_ner.py has it."""

from pathlib import Path

from limba.convert.model_files.hf import tokenizer_folder
from limba.files import json_text, untrusted_json


def with_blank_before(file: str | Path) -> Path:
    """A byte-level tokenizer.json that reads a blank before each text, as transformers' `add_prefix_space` makes it.

    The file itself where it is of another kind, or does so already.
    """
    content = untrusted_json.read_object(Path(file))
    part = content.get("pre_tokenizer") or {}
    found = [x for x in part.get("pretokenizers") or [part] if x.get("add_prefix_space") is False]
    # The post-processor keeps that blank in the characters of the first piece.
    for step in (*found, *tokenizer_folder.processors(content.get("post_processor"))):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = True
    return (
        tokenizer_folder.temporary_file(json_text.dumps(content, ensure_ascii=False).encode()) if found else Path(file)
    )
