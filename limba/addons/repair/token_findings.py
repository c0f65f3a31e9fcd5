"""The ids of special tokens in the three files that say them, the size of the vocabulary, and the longest row."""

import math
from collections.abc import Iterator
from typing import Any

from limba.addons.repair import hub_folder
from limba.addons.repair.findings import Change, Line, not_looked_at, right, wrong
from limba.addons.repair.hub_folder import CONFIG, GENERATION, TOKENIZER, HubFolder, Tokens
from limba.convert.families.config_files import encoder_config
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.files.untrusted_files import shown, shown_list

_START = "decoder_start_token_id"
# What T5's class takes where config.json says nothing.
_OF_T5 = {"pad": 0, "eos": 1}
_ROLES = ("pad", "eos", "bos", "cls", "sep", "mask")
_LENGTHS = ("model_max_length", "max_len")
_LENGTH_OF_T5 = 512
# transformers writes 1e30 for no limit.
_MOST_TOKENS = 10**9


def look(folder: HubFolder) -> Iterator[Line]:
    """The lines of ids, of the size of the vocabulary, and of the longest row."""
    tokens = hub_folder.tokens_of(folder)
    yield from (_of_role(folder, tokens, role) for role in _ROLES)
    if not folder.is_encoder_alone and not folder.is_classifier:
        yield _of_start(folder)
    yield _vocabulary(folder, tokens)
    yield from _lengths(folder)


def _of_role(folder: HubFolder, tokens: Tokens | None, role: str) -> Line:
    """Whether config.json, generation_config.json and the tokenizer say the same of a role."""
    code, key = f"{role}-id", f"{role}_token_id"
    usual = _OF_T5.get(role) if folder.family.has_decoder else None
    if isinstance(folder.family, EncoderFamily) and role == "pad":
        usual = folder.family.default_pad_id
    said: dict[str, Any] = {CONFIG: folder.files[CONFIG].get(key, usual)}
    if folder.family.has_decoder:
        said[GENERATION] = folder.files[GENERATION].get(key)
    needed = _needed(folder, role)
    said = {file: value for file, value in said.items() if value is not None or file in needed}
    of_tokenizer = None if tokens is None else tokens.special_ids.get(role)
    if of_tokenizer is None:
        if len({str(value) for value in said.values()}) < 2 and None not in said.values():
            return right(code, _told(said) if said else "no file says one")
        source = next((file for file in (GENERATION, CONFIG) if said.get(file) is not None), None)
        if source is None:
            return wrong(code, f"{_told(said)}.", f"{_NEEDS[role]} Write the one that was trained.")
        other = CONFIG if source == GENERATION else GENERATION
        return wrong(
            code,
            f"{_told(said)}, and the tokenizer has no such token.",
            f"{_NEEDS[role] if None in said.values() else f'`generate` goes by {GENERATION}.'} {other} takes the id of "
            f"{source}.",
            Change(settings={other: {key: said[source]}}),
        )
    assert tokens is not None
    others = {file: value for file, value in said.items() if not _holds(value, of_tokenizer)}
    told = _told(said | {tokens.file: of_tokenizer})
    if not others:
        return right(code, told)
    family = folder.family
    if isinstance(family, EncoderFamily) and role == "pad":
        given = usual if said[CONFIG] is None else said[CONFIG]
        positions = {family.first_position(value) for value in (given, of_tokenizer) if type(value) is int}
        if family.fixed_pad_id is not None or len(positions) > 1:
            return wrong(
                code,
                f"{told}. {family.title} begins its positions behind pad_token_id.",
                "Exchange the two tokens in the tokenizer, and their rows in the embedding and in the output's bias.",
            )
    return wrong(
        code,
        f"{told}.",
        f"The tokenizer made the rows that the model was trained on: {' and '.join(others)} "
        f"take{'s' if len(others) == 1 else ''} {of_tokenizer}.",
        Change(settings={file: {key: of_tokenizer} for file in others}),
    )


# What the file needs an id for.
_NEEDS = {"eos": "Without an id `generate` does not stop.", "pad": "transformers needs an id, and null is none."}


def _needed(folder: HubFolder, role: str) -> tuple[str, ...]:
    """The files that have to say an id: transformers takes no default, nor another file's, for what they lack."""
    family = folder.family
    if role == "eos" and folder.generates:
        return (folder.of_generate,)
    if role != "pad":
        return ()
    if not isinstance(family, EncoderFamily):
        return (CONFIG,)
    counts = family.fixed_pad_id is None and family.first_position(0) != family.first_position(1)
    return (CONFIG,) if counts else ()


def _holds(value: Any, id_: int) -> bool:
    """Whether a value says this id; several ids may end a text. transformers 5 refuses true for 1."""
    ids = value if isinstance(value, list) else [value]
    return all(type(one) is int for one in ids) and id_ in ids


def _told(said: dict[str, Any]) -> str:
    shown_ids = ((file, shown_list(value) if isinstance(value, list) else shown(value)) for file, value in said.items())
    return ", ".join(f"{value} in {file}" for file, value in shown_ids)


def _of_start(folder: HubFolder) -> Line:
    """What the decoder begins with: `generate` goes by generation_config.json, training by config.json."""
    said = {file: folder.files[file].get(_START) for file in (CONFIG, GENERATION)}
    said = {file: value for file, value in said.items() if value is not None}
    rows = folder.config.get("vocab_size")
    if not said:
        begins_with_pad = folder.config.get("pad_token_id", 0) == 0
        return wrong(
            "start-id",
            f"neither {CONFIG} nor {GENERATION} has {_START}: `generate` and training stop, or begin otherwise.",
            f"It becomes 0, padding, in {CONFIG}." if begins_with_pad else "Write the one that was trained, mostly 0.",
            Change(settings={file: {_START: 0} for file in (CONFIG, folder.of_generate)}) if begins_with_pad else None,
        )
    # `generate` takes the beginning of a text where the file lacks the decoder's, and nothing of config.json.
    begins = folder.files[GENERATION].get("bos_token_id")
    if folder.of_generate not in said and begins != said[CONFIG]:
        return wrong(
            "start-id",
            f"{_told(said)}, and {GENERATION} has none: `generate` goes by it, and stops, or begins otherwise.",
            f"{GENERATION} takes the id of {CONFIG}.",
            Change(settings={GENERATION: {_START: said[CONFIG]}}),
        )
    if len({str(value) for value in said.values()}) > 1:
        return wrong(
            "start-id",
            f"{_told(said)}.",
            f"`generate` goes by {GENERATION}: {CONFIG} takes its id. If the other one was trained, change "
            f"{GENERATION}, and leave this out.",
            Change(settings={CONFIG: {_START: said[GENERATION]}}),
        )
    value = next(iter(said.values()))
    if type(value) is not int or value < 0 or (type(rows) is int and value >= rows):
        return wrong("start-id", f"{_told(said)}, which is no id of the vocabulary.", "Write the one that was trained.")
    return right("start-id", _told(said))


def _vocabulary(folder: HubFolder, tokens: Tokens | None) -> Line:
    if tokens is None:
        return not_looked_at("vocabulary", "the folder has no tokenizer")
    rows = next((t.shape[0] for name, t in folder.tensors.items() if t.shape and _is_embedding(name)), None)
    if rows is None:
        return not_looked_at("vocabulary", "there is no embedding")
    if tokens.size > rows:
        return wrong(
            "vocabulary",
            f"{tokens.file} has ids up to {tokens.size - 1:,}, and the embedding {rows:,} rows: such tokens end in an "
            "error.",
            "Take the tokenizer of this model, or add rows where it was trained: resize_token_embeddings.",
        )
    return right("vocabulary", f"{tokens.size:,} ids of {tokens.file}, {rows:,} rows")


def _is_embedding(name: str) -> bool:
    return name.endswith(("shared.weight", "embed_tokens.weight", "word_embeddings.weight", "tok_embeddings.weight"))


def _lengths(folder: HubFolder) -> Iterator[Line]:
    """Whether rows are cut at the length that the network reads."""
    config = folder.files[TOKENIZER]
    key = next((key for key in _LENGTHS if config.get(key) is not None), _LENGTHS[0])
    told = config.get(key)
    is_number = isinstance(told, int | float) and not isinstance(told, bool) and not math.isnan(told)
    length = told if isinstance(told, int | float) and is_number and told < _MOST_TOKENS else None
    what = f"{TOKENIZER}: {key} is {shown(told) if key in config else 'missing'}"
    if folder.family.has_decoder:
        wanted = folder.files[CONFIG].get("n_positions", _LENGTH_OF_T5)
        wanted = wanted if type(wanted) is int and 0 < wanted < _MOST_TOKENS else _LENGTH_OF_T5
    else:
        try:
            network = encoder_config.read(folder.path / CONFIG, ()).network
        except ValueError as error:
            yield not_looked_at("length-cuts", str(error).rstrip("."))
            yield not_looked_at("length-too-long", str(error).rstrip("."))
            return
        wanted = network.longest_row
    if wanted is None:
        yield right("length-cuts", what)
        yield right("length-too-long", "the network reads rows of any length")
        return
    change = Change(settings={TOKENIZER: {key: wanted}})
    if folder.family.has_decoder and told is not None and not is_number:
        yield wrong("length-cuts", f"{what}, which is no number of tokens.", f"{key} becomes {wanted}.", change)
    elif length is not None and length < wanted:
        yield wrong(
            "length-cuts",
            f"{what}: rows are cut there, and the network reads {wanted:,} tokens.",
            f"{key} becomes {wanted}.",
            change,
        )
    else:
        yield right("length-cuts", what)
    if not folder.family.has_decoder and config and (length is None or length > wanted):
        yield wrong(
            "length-too-long",
            f"{what}, and the network reads {wanted:,} tokens: longer texts end in an error.",
            f"{key} becomes {wanted}.",
            change,
        )
    else:
        yield right("length-too-long", "positions are relative" if folder.family.has_decoder else f"{wanted:,} tokens")
