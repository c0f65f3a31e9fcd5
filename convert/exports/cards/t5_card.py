"""What a model card says of a T5."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.exports.cards import markdown
from limba.convert.exports.cards.card_example import AS_THEY_ARE, Example, Texts, neutral, section
from limba.convert.exports.cards.model_card import Description
from limba.convert.families.t5_family import T5Family
from limba.network.t5 import T5Config


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
