"""What a model card says of a T5."""

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.cards import run_example
from limba.addons.cards.card_example import AS_THEY_ARE, Example, Texts, neutral, section
from limba.addons.cards.model_card import Description
from limba.checkpoint_files import run_folder
from limba.convert.exports.t5_export import T5Export
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files.hf import hf_tokenizer
from limba.data import sentinels
from limba.network.t5 import T5Config
from limba.reports import markdown


def of_export(export: T5Export, folder: Path, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
    """Of an export whose tokenizer lies in the folder, with the text of `--example` and the run's configuration."""
    model, vocabulary = export.model, export.tokenizer.vocabulary
    if model.head.labels:
        return describe_classifier(
            model.family, model.config, model.head.labels, vocabulary, dtype, text, model.assumed
        )
    example = run_example.find(model.info, gin, str(model.path), bool(text))
    if text:
        example = example or Example("text", text)
        example = dataclasses.replace(example, kind="text", inputs=text, targets="")
    if example and export.tokenizer.sentinel_names:  # As transformers' tokenizer reads them.
        texts: dict[str, Any] = {name: sentinels.as_masks(getattr(example, name)) for name in ("inputs", "targets")}
        example = dataclasses.replace(example, **texts)
    tokenizer_class = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["tokenizer_class"]
    return describe(
        family=model.family,
        network=model.config,
        vocabulary=vocabulary,
        formats=formats,
        dtype=dtype,
        example=example,
        assumed=model.assumed,
        texts=Texts(_written(export.tokenizer), tokenizer_class in hf_tokenizer.T5_CLASSES),
    )


def _written(tokenizer: hf_tokenizer.Tokenizer) -> Callable[[str], str]:
    """What makes of a text the one that the model writes: the vocabulary's normalization."""
    file = tokenizer.model_file
    if file is None:
        return str
    from limba.tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, normalization

    vocabulary: Any
    if tokenizer.is_json:
        vocabulary = T5TokenizerVocabulary(str(file))
    else:
        vocabulary = SentencePieceVocabulary(str(file), extra_ids=tokenizer.extra_ids)
    return functools.partial(normalization.normalized, vocabulary)


def describe(
    family: T5Family,
    network: T5Config,
    vocabulary: Mapping[str, Any],
    formats: Sequence[str],
    dtype: str,
    example: Example | None = None,
    assumed: Collection[str] = (),
    texts: Texts = AS_THEY_ARE,
) -> Description:
    """Of a network whose vocabulary `run.json` describes so.

    Args:
      formats, dtype: of the weights, "safetensors" and "flax".
      example: for the section on the use; None takes a neutral one.
      assumed: fields of the network that the checkpoint did not say.
      texts: what becomes of the example's texts.
    """
    example = example or neutral(vocabulary)
    use = section(example, formats, network.num_decoder_layers <= network.num_encoder_layers, texts)
    if family.code:
        use = use.replace("LM.from_pretrained(folder)", "LM.from_pretrained(folder, trust_remote_code=True)")
    return Description(
        title=f"A {family.title} encoder-decoder",
        tag=family.name,
        # The hub's filters have "text2text-generation" no longer, but as a tag.
        pipeline="text-generation",
        task="text2text-generation",
        use="\n\n".join([use, *([family.code] if family.code else _of_version_5(family, network, formats))]),
        network=tuple(_network(network, vocabulary, dtype, assumed)),
        accuracy="accuracy of the next token",
        datasets=example.datasets,
    )


def _of_version_5(family: T5Family, network: T5Config, formats: Collection[str]) -> Iterator[str]:
    if "safetensors" not in formats:
        return
    if family.is_new:
        yield f"transformers has {family.model_class} since version 5."
    yield (
        "Use this program rather than a pipeline: transformers 5 has none for encoder-decoders. Its `text-generation`, "
        "which the hub may propose, is for decoders alone, and takes the text for the beginning of the answer."
    )
    if not network.logits_via_embedding:
        yield (
            "transformers 5 warns that it does not tie `shared.weight` to `lm_head.weight`. That is right: the output "
            "of this model is a matrix of its own, as config.json says."
        )


# As in training: a word has the label of its first piece, which may be a blank. A pipeline takes that for another word.
_LABEL_WORDS = """import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

folder = "."  # the folder of this file, or the name of its repository
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForTokenClassification.from_pretrained(folder)

words = {text!r}.split()
batch = tokenizer({words}, return_tensors="pt")
with torch.no_grad():
    labels = model(batch["input_ids"]).logits[0].argmax(-1).tolist()
word_ids = {word_ids}
for number, word in enumerate(words):
    if number in word_ids:
        print(word, model.config.id2label[labels[word_ids.index(number)]])"""
_OF_PIECES = {"words": "words, is_split_into_words=True", "word_ids": "batch.word_ids()"}
_OF_BYTES = {
    "words": '" ".join(words)',
    "word_ids": "[i for i, word in enumerate(words) for _ in word.encode() + b' ']",
}


def describe_classifier(
    family: T5Family,
    network: T5Config,
    labels: Sequence[str],
    vocabulary: Mapping[str, Any],
    dtype: str,
    text: str = "",
    assumed: Collection[str] = (),
) -> Description:
    """Of a classifier of tokens on the encoder; see `describe`. The text is that of `--example`."""
    fields = _OF_BYTES if run_folder.is_bytes(vocabulary) else _OF_PIECES
    use = markdown.python_block(_LABEL_WORDS.format(text=text or "A text .", **fields))
    rows = [row for row in _network(network, vocabulary, dtype, assumed) if row[0] != "output"]
    return Description(
        title=f"A {family.title} token classifier",
        tag=family.name,
        pipeline="token-classification",
        use=f"## Use\n\n{use}\n\nLabels: {', '.join(map(markdown.code, labels))}.",
        network=(("layers", str(network.num_encoder_layers)), *rows[1:]),
        accuracy="accuracy of the labels",
    )


def _network(
    config: T5Config, vocabulary: Mapping[str, Any], dtype: str, assumed: Collection[str]
) -> Iterator[tuple[str, str]]:
    def note(field: str) -> str:
        return " (assumed: the checkpoint did not say it)" if field in assumed else ""

    yield "layers", f"{config.num_encoder_layers} encoder, {config.num_decoder_layers} decoder"
    yield "width", f"{config.emb_dim}; {config.num_heads} heads of {config.head_dim}; feed-forward {config.mlp_dim}"
    yield "activation", f"{' × '.join(config.mlp_activations)}{note('mlp_activations')}"
    yield from getattr(config, "card_rows", ())  # of an add-on's network
    if "dropout_rate" in assumed:
        yield "dropout", f"{config.dropout_rate:g}{note('dropout_rate')}"
    yield "output", "the embedding (tied)" if config.logits_via_embedding else "a matrix of its own (untied)"
    yield "stored as", dtype
    sentinels = f", the last {vocabulary['extra_ids']} of them sentinels" if vocabulary["extra_ids"] else ""
    ids = f"{vocabulary['vocab_size']:,} ids{sentinels}"
    kinds = {run_folder.BYTES: "bytes", run_folder.T5_TOKENIZERS: "tokenizer.json"}
    kind = kinds.get(vocabulary["class"], "SentencePiece")
    yield "vocabulary", f"{kind}, {ids}; {config.vocab_size:,} rows of the embedding"
