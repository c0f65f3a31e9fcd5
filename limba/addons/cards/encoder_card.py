"""What a model card says of an encoder."""

from limba.addons.cards import filled_example, run_example
from limba.addons.cards.model_card import Description
from limba.convert.exports.encoder_export import EncoderExport
from limba.convert.families import heads
from limba.convert.families.heads import Head
from limba.convert.model_files.hf import tokenizer_folder
from limba.reports import markdown

# What the hub calls the use of a kind of head.
_PIPELINES = {
    **dict.fromkeys((heads.MASKED_LM, heads.PAIRS), "fill-mask"),
    heads.SEQUENCE: "text-classification",
    heads.TOKENS: "token-classification",
    heads.DETECTOR: "feature-extraction",
}

_NOUNS = {
    heads.REGRESSION: "regressor",
    heads.SINGLE_LABEL: "classifier",
    heads.MULTI_LABEL: "classifier of several labels",
}

_PROGRAM_OF_DETECTORS = """import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

folder = "."  # the folder of this file, or the name of its repository
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForPreTraining.from_pretrained(folder)
batch = tokenizer({text}, return_tensors="pt")
with torch.no_grad():
    is_replaced = model(**batch).logits[0] > 0
print(tokenizer.convert_ids_to_tokens(batch.input_ids[0][is_replaced]))"""


def check_example(export: EncoderExport, text: str) -> None:
    """Raises ValueError for a text of `--example` that the card cannot show."""
    if export.model.head.kind in (heads.MASKED_LM, heads.PAIRS) and text and _mask(export) not in text:
        raise ValueError(f"--example {text!r}: the model fills {_mask(export)}, which the text does not have.")


def _mask(export: EncoderExport) -> str:
    return tokenizer_folder.special_tokens(export.vocabulary_file)["mask"]


def describe(export: EncoderExport, text: str, gin: str, dtype: str) -> Description:
    """Of an export whose weights are of this dtype, with the text of `--example` and the run's configuration."""
    model = export.model
    config, family, head = model.config, model.family, model.head
    parts = ["## Use", *export.warnings]
    of_run = None
    if not text and head.kind not in (heads.TOKENS, heads.DETECTOR):
        of_run = run_example.find(model.info, gin, str(model.path))
    if head.labels:
        what = {heads.REGRESSION: "Scores are numbers", heads.MULTI_LABEL: "Labels, of which any may be right"}.get(
            head.problem, "Labels"
        )
        what = "The score is a number" if head.is_number and len(head.labels) == 1 else what
        parts.append(f"{what}: {', '.join(map(markdown.code, head.labels))}.")
        if of_run is not None and of_run.kind == "row":
            text = of_run.inputs
            answer = f", which says {markdown.code(of_run.targets)}" if of_run.targets else ""
            parts.append(f"The text is a row of the {of_run.data}{answer}.")
    elif head.kind == heads.DETECTOR:
        text = text or "1, 2, 3, 7, 5, 6."
        parts.append("The program prints the tokens that the model takes for replaced ones.")
    else:
        mask = _mask(export)
        example = filled_example.find(of_run, text, mask)
        text = example.text
        parts.insert(1, filled_example.sentence(model, export.vocabulary_file, example, mask))
    parts.insert(1, markdown.python_block(_program(head, text)))
    positions = config.position_embedding_type.replace("_", " ")
    return Description(
        title=f"A {family.title} {_NOUNS[head.problem] if head.labels else 'encoder'}",
        tag=family.name,
        pipeline=_PIPELINES[head.kind],
        use="\n\n".join(parts),
        network=(
            ("layers", str(config.num_layers)),
            ("width", f"{config.emb_dim}; {config.num_heads} heads of {config.head_dim}; MLP {config.mlp_dim}"),
            ("activation", " × ".join(config.mlp_activations)),
            ("norms", f"{config.norm.replace('_', ' ')}, {config.norm_position}"),
            ("positions", positions),
            ("stored as", dtype),
            ("vocabulary", f"{export.vocabulary['vocab_size']:,} ids; {config.vocab_size:,} rows of the embedding"),
        ),
        accuracy=f"accuracy of the {'labels' if head.labels else 'masked tokens'}",
    )


def _program(head: Head, text: str) -> str:
    """The use in transformers."""
    if head.kind == heads.DETECTOR:
        return _PROGRAM_OF_DETECTORS.format(text=repr(text))
    kind = head.kind
    options = ', aggregation_strategy="first"' if kind == heads.TOKENS else ""
    if head.is_number:
        options = ', function_to_apply="none"'  # Version 4 would apply a sigmoid.
    if kind == heads.SEQUENCE and head.problem_type is not None:
        options += ", top_k=None"  # all of them, not the largest alone
    begin = (
        "from transformers import pipeline\n\n"
        'folder = "."  # the folder of this file, or the name of its repository\n'
        f'model = pipeline("{_PIPELINES[kind]}", model=folder{options})\n'
    )
    if not head.labels:
        return f'{begin}for answer in model({text!r}):\n    print(answer["sequence"], answer["score"])'
    first, separator, second = (text or "A text.").partition("[SEP]")
    asked = repr(first.strip())
    if kind == heads.SEQUENCE and separator:
        asked = f'{{"text": {asked}, "text_pair": {second.strip()!r}}}'
    return f"{begin}print(model({asked}))"
