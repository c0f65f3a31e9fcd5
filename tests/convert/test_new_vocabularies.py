"""Exports with vocabularies of `limba vocab build`: both versions of transformers give training's ids and classes."""

import json
from pathlib import Path

import pytest

from convert.model_files.hf import hf_tokenizer, tokenizer_folder
from limba.addons.vocab_build import command as build_command
from limba.files import json_text
from tasks.vocabularies import SentencePieceVocabulary, TokenizerVocabulary, tokenizer_texts
from tests.convert import vocabularies

KINDS = {"sentencepiece": "spiece.model", "wordpiece": "tokenizer.json", "bpe": "tokenizer.json"}
LENGTH = 64
CLASSES = {"sentencepiece": ("T5TokenizerFast", "T5Tokenizer")}
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
SPECIAL = {
    "sentencepiece": {"<pad>", "</s>", "<unk>"} | {f"<extra_id_{i}>" for i in range(100)},
    **{kind: {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} for kind in ("wordpiece", "bpe")},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, tuple[Path, list[str], list[list[int]]]]:
    """By kind: the tokenizer of an export, and some thousand texts with training's ids."""
    root = tmp_path_factory.mktemp("new")
    (root / "text.txt").write_text("\n".join(vocabularies.sentences(3000)), "utf-8")
    found = {}
    for kind, name in KINDS.items():
        file, folder = root / kind / name, root / f"{kind} export"
        options = ["--data_files", str(root / "text.txt"), "--vocab_size", "512", "--out", str(file)]
        build_command.main(["--kind", kind, *options])
        folder.mkdir()
        model_type = "t5" if kind == "sentencepiece" else "bert"
        (folder / "config.json").write_text(json_text.dumps({"model_type": model_type}))
        if kind == "sentencepiece":
            vocabulary = SentencePieceVocabulary(str(file), 100)
            tokenizer = hf_tokenizer.from_vocabulary(hf_tokenizer.describe(file))
            hf_tokenizer.write(tokenizer, folder, inputs_length=LENGTH)
        else:
            vocabulary = TokenizerVocabulary(str(file))
            tokenizer_folder.write(file, folder, vocabulary.pad_id, LENGTH, has_pairs=False)
        texts = list(tokenizer_texts.texts_of(vocabulary).plain)
        found[kind] = folder, texts, tokenizer_texts.encoder_of(vocabulary)(texts)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_4(folders, kind):
    from transformers import AutoTokenizer

    folder, texts, ids = folders[kind]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer).__name__ == CLASSES.get(kind, GENERAL)[0] and tokenizer.model_max_length == LENGTH
    assert {*tokenizer.all_special_tokens} == SPECIAL[kind]
    assert tokenizer(texts, add_special_tokens=False).input_ids == ids
    hidden = tokenizer.decode([*range(len(tokenizer))], skip_special_tokens=True)
    assert not [token for token in SPECIAL[kind] if token in hidden]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_5(folders, kind, forks5, tmp_path):
    folder, texts, ids = folders[kind]
    (tmp_path / "request.json").write_text(json.dumps({str(folder): texts}))
    script = Path(__file__).parent / "model_files/hf/tokenize_in_transformers5.py"
    done = forks5.run(script, tmp_path / "request.json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "out.json").read_text())[str(folder)]
    assert (result["class"], result["most"]) == (CLASSES.get(kind, GENERAL)[1], LENGTH)
    assert {*result["special"]} == SPECIAL[kind]
    # With </s>, or between [CLS] and [SEP].
    inner = [found[:-1] if kind == "sentencepiece" else found[1:-1] for found in result["ids"]]
    assert inner == ids
