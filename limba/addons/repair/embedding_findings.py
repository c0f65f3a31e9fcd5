"""The embedding and the output: whether they are there, under which names, and whether config.json is right of them.

T5's class has the embedding under three names, and the output under one, which is the embedding where config.json says
that they are tied. transformers 4 ties before it loads, so the last name counts. Version 5 ties afterwards, and up to
5.15 it takes `lm_head` for an embedding that is not called `shared`.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from limba.addons.repair.findings import Change, Line, right, wrong
from limba.addons.repair.hub_folder import CONFIG, HubFolder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.t5_family import TRANSFORMER
from limba.convert.tensors import tensor_parts
from limba.files.untrusted_files import shown, shown_list

_TIE, _SCALE = "tie_word_embeddings", "scale_decoder_outputs"
_UNTIED = {_TIE: False, _SCALE: False}


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of tensors in a folder.

    Attributes:
      embedding: the one that every reader looks for.
      others: further ones of the embedding.
      output: of the matrix that gives the logits; "" for a class without one.
    """

    embedding: str
    others: tuple[str, ...]
    output: str


def names(folder: HubFolder) -> Names:
    family, found = folder.family, folder.tensors
    if isinstance(family, EncoderFamily):
        embedding = next(row.theirs for row in family.rows if row.limba == "token_embedder")
        own = any(name.startswith(f"{family.prefix}.") for name in found)
        embedding = embedding if own else embedding.removeprefix(f"{family.prefix}.")
        return Names(f"{embedding}.weight", (), f"{family.output}.weight")
    prefix = f"{TRANSFORMER}." if any(name.startswith(f"{TRANSFORMER}.") for name in found) else ""
    in_family = [
        family.tensor_name(f"{prefix}{name}.weight")
        for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    ]
    return Names(in_family[0], tuple(in_family[1:3]), in_family[3] if folder.generates else "")


def look(folder: HubFolder) -> Iterator[Line]:
    """The lines of the embedding, the output, and the number of rows."""
    named = names(folder)
    present = [name for name in (named.embedding, *named.others) if name in folder.tensors]
    is_tied = folder.config.get(_TIE, True) is not False
    if not present:
        yield _missing(folder, named, is_tied)
        return
    if flat := [name for name in present if len(folder.tensors[name].shape) != 2 or 0 in folder.tensors[name].shape]:
        shape = shown_list(folder.tensors[flat[0]].shape)
        yield wrong(
            "embedding-missing",
            f"{folder.weights_file}: {flat[0]} has the shape {shape}, and an embedding has rows and columns.",
            "Save the model again where it was trained, or take another copy.",
        )
        return
    yield right("embedding-missing", ", ".join(present))
    first = folder.tensors[present[0]]
    differ = [name for name in present[1:] if not tensor_parts.equal(first, folder.tensors[name])]
    if differ:
        yield wrong(
            "embeddings-differ",
            f"{folder.weights_file}: {present[0]} and {differ[0]} are other numbers, and the class has one embedding "
            "under both names.",
            "Which of the two was trained is not in the files: leave the other one out of the weights.",
        )
        return
    yield right("embeddings-differ")
    yield _named(folder, named, present)
    output = folder.tensors.get(named.output)
    is_copy = output is not None and tensor_parts.equal(first, output)
    further = present[1:] if named.embedding in present else []  # Else `embedding-name` takes the others away.
    copies = [*further, *([named.output] if is_copy and is_tied else [])]
    yield _doubled(folder, copies)
    if named.output:
        is_t5 = folder.family.has_decoder
        yield (_tied_t5 if is_t5 else _tied_encoder)(folder, named, present[0], output, is_copy)
    yield _rows(folder, first)


def _missing(folder: HubFolder, named: Names, is_tied: bool) -> Line:
    if is_tied and named.output in folder.tensors:
        return wrong(
            "embedding-missing",
            f"{folder.weights_file} has {named.output} and no {named.embedding}; {CONFIG} says that they are one "
            f"matrix ({_TIE}).",
            f"{named.output} becomes {named.embedding}.",
            Change(renamed={named.output: named.embedding}),
        )
    return wrong(
        "embedding-missing",
        f"{folder.weights_file} has no {named.embedding}, nor another name of it: transformers draws a random one.",
        "Save the model again where it was trained, or take another copy.",
    )


def _named(folder: HubFolder, named: Names, present: list[str]) -> Line:
    if named.embedding in present:
        return right("embedding-name", named.embedding)
    return wrong(
        "embedding-name",
        f"{folder.weights_file}: the embedding is {present[0]}, and there is no {named.embedding}. transformers 5.0 to "
        f"5.15 take {named.output or 'a random matrix'} for it without a word, and other readers stop.",
        f"It becomes {named.embedding}.",
        Change(renamed={present[0]: named.embedding}, dropped=present[1:]),
    )


def _doubled(folder: HubFolder, copies: list[str]) -> Line:
    if not copies:
        return right("embedding-doubled")
    found = f"{', '.join(copies)} {'has' if len(copies) == 1 else 'have'} the embedding's numbers once more"
    if folder.format == "torch":  # PyTorch keeps the numbers once, and each name of them.
        return right("embedding-doubled", f"{found}, as usual in {folder.weights_file}")
    return wrong(
        "embedding-doubled", f"{folder.weights_file}: {found}.", "The copies are left out.", Change(dropped=copies)
    )


def _tied_t5(folder: HubFolder, named: Names, embedding: str, output: SavedTensor | None, is_copy: bool) -> Line:
    """Whether both keys of config.json say of the output what it is; see `families.config_files.t5_config`."""
    given = folder.files[CONFIG]
    tie, scale = (given.get(key, ...) for key in (_TIE, _SCALE))
    said = f"{CONFIG}: {_shown(_TIE, tie)}, {_shown(_SCALE, scale)}"
    # Version 5 refuses 0 and null; version 4 takes them for false.
    tie, scale = (value if type(value) is bool or value is ... else None for value in (tie, scale))
    tie = True if tie is ... else tie
    scale = tie if scale is ... else scale
    if output is not None and not is_copy:
        if (tie, scale) == (False, False):
            return right("tied-flag", "untied")
        found = f"{said}, and {named.output} of {folder.weights_file} is another matrix than the embedding."
        if given.get(_SCALE) is True:
            return wrong(
                "tied-flag",
                f"{found} Version 5 divides its logits by sqrt(d_model), version 4 takes the embedding for it.",
                "Which logits were trained is not in the files. If they are not divided, set both keys to false.",
            )
        return wrong(
            "tied-flag",
            f"{found} Version 4 takes the embedding in its place.",
            "Both keys become false: the output is a matrix of its own, and its logits are not divided.",
            Change(settings={CONFIG: _UNTIED}),
        )
    if output is not None:  # The same numbers, under both names.
        if (tie, scale) in ((True, True), (False, False)):
            return right("tied-flag", "tied" if tie else "untied, and the output has the embedding's numbers")
    elif (tie, scale) == (True, True):
        return right("tied-flag", "tied")
    elif tie is True and scale is False:
        return wrong(
            "tied-flag",
            f"{said}, and there is no {named.output}: the embedding is the output, and its logits are not divided. "
            "Version 4 divides them by sqrt(d_model).",
            f"{named.output} becomes a copy of the embedding, and both keys false.",
            Change(copied={named.output: embedding}, settings={CONFIG: _UNTIED}),
        )
    elif tie is False:
        return wrong(
            "tied-flag",
            f"{said}, and {folder.weights_file} has no {named.output}: version 4 draws a random one, version 5 takes "
            "the embedding.",
            "Take a copy of the model that has it. If the embedding is the output, and the logits are divided by "
            "sqrt(d_model) as in T5 1.0, set both keys to true.",
        )
    return wrong(
        "tied-flag",
        f"{said}: each version of transformers reads another of the two.",
        "Set both to true if the embedding is the output too, else to false.",
    )


def _tied_encoder(folder: HubFolder, named: Names, embedding: str, output: SavedTensor | None, is_copy: bool) -> Line:
    del embedding
    tie = folder.files[CONFIG].get(_TIE, folder.family.defaults.get(_TIE, ...))
    said = f"{CONFIG}: {_shown(_TIE, tie)}"
    # Version 5 ties the output's bias only where it ties the output, and else draws it: zeros.
    bias = named.output.replace(".weight", ".bias")
    of_head = bias.replace("decoder.bias", "bias")
    copied = {bias: of_head} if of_head in folder.tensors and bias not in folder.tensors else {}
    also = f" {bias} becomes a copy of {of_head}." if copied else ""
    if output is not None and not is_copy and tie is not False:
        return wrong(
            "tied-flag",
            f"{said}, and {named.output} of {folder.weights_file} is another matrix than the embedding, which "
            "transformers takes in its place.",
            f"{_TIE} becomes false.{also}",
            Change(settings={CONFIG: {_TIE: False}}, copied=copied),
        )
    if type(tie) is not bool and tie is not ...:
        return wrong(
            "tied-flag",
            f"{said}: version 5 refuses it, and version 4 takes it for {str(bool(tie)).lower()}.",
            "Write true if the embedding is the output too, else false.",
        )
    if output is not None and tie is False and copied:
        return wrong(
            "tied-flag",
            f"{said}, and {folder.weights_file} has no {bias}: version 5 takes zeros for it, version 4 {of_head}.",
            also.strip(),
            Change(copied=copied),
        )
    if output is None and tie is False and _has_masked_lm(folder):
        return wrong(
            "tied-flag",
            f"{said}, and {folder.weights_file} has no {named.output}: transformers draws a random one.",
            f"Take a copy of the model that has it. If the embedding is the output, set {_TIE} to true.",
        )
    return right("tied-flag", "untied" if tie is False else "tied")


def _has_masked_lm(folder: HubFolder) -> bool:
    classes = folder.files[CONFIG].get("architectures") or ()
    return any(str(name).endswith(("ForMaskedLM", "ForPreTraining")) for name in classes)


def _rows(folder: HubFolder, embedding: SavedTensor) -> Line:
    rows, said = embedding.shape[0], folder.files[CONFIG].get("vocab_size")
    if said == rows:
        return right("vocab-size", f"{rows:,}")
    return wrong(
        "vocab-size",
        f"{CONFIG}: vocab_size is {shown(said)}, and the embedding of {folder.weights_file} has {rows:,} rows.",
        f"vocab_size becomes {rows}.",
        Change(settings={CONFIG: {"vocab_size": rows}}),
    )


def _shown(key: str, value: object) -> str:
    return f"{key} is {'missing' if value is ... else shown(value)}"


def renamed(tensors: Mapping[str, SavedTensor], change: Change) -> dict[str, SavedTensor]:
    """The tensors after a change of their names."""
    kept = {change.renamed.get(name, name): t for name, t in tensors.items() if name not in change.dropped}
    return kept | {new: tensors[old] for new, old in change.copied.items()}
