"""The model that a Hugging Face script names: `model_name_or_path`, `config_name`, `model_type`, `tokenizer_name` of
`limba run`."""

import dataclasses
import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from limba.addons.run import blank_before, given_config
from limba.checkpoint_files import run_folder
from limba.convert import from_hf
from limba.convert.families import byt5, heads
from limba.convert.families.config_files import new_network, t5_config
from limba.convert.families.heads import Head
from limba.convert.families.networks import Network
from limba.convert.families.table import (
    all_families,
    encoder_families,
    find_encoder,
    find_t5,
    no_class,
    of_model_type,
    t5_config_class,
)
from limba.convert.model_files import any_format, encoder_files, encoder_vocabularies, t5_vocabularies, trimmed_model
from limba.convert.model_files.hf import hf_folder, hf_tokenizer, hub_models, tokenizer_folder, tokenizer_settings
from limba.convert.model_files.model import Model, ModelHints
from limba.convert.t5x import limba_run, model_gin
from limba.data.sentinels import NAME
from limba.files import json_text, storage, untrusted_files
from limba.files.local_paths import local_path
from limba.files.repository import REPOSITORY
from limba.files.storage import AnyPath
from limba.gin_config import closed_list
from limba.gin_config.recipe import Include, Recipe
from limba.network import own_layers
from limba.network.encoders.config import EncoderConfig

logger = logging.getLogger(__name__)

# Of transformers' VERY_LARGE_INTEGER, which stands for no length.
_ENDLESS = 10**29
# What a model.gin imports.
_OF_MODEL_GIN = ("limba", "tasks", "seqio", "gin", "__gin__")
# Rows of an embedding without a token, up to a multiple of which sizes are padded: 32,128 for T5's 32,100.
_PADDING = 128


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """The model that a training starts from; no weight is read yet.

    Attributes:
      path: what was named: a folder of transformers', a run, a file of weights, or a config.json.
      opened: the model with its weights; None where training is from scratch.
      hints: where the vocabulary is, if it is not beside a config.json.
      vocabulary: as `run.json` describes it.
      network: its configuration.
      content: of the config.json of a T5, with every size, where there are no weights.
    """

    path: Path
    opened: Model | None
    hints: ModelHints
    vocabulary: Mapping[str, Any]
    network: Network
    content: Mapping[str, Any] | None = None

    @property
    def has_weights(self) -> bool:
        return self.opened is not None

    @property
    def encoder(self) -> EncoderConfig | None:
        """The network, where it is an encoder and no T5."""
        return self.network if isinstance(self.network, EncoderConfig) else None

    @property
    def head(self) -> Head:
        """What stands on the network."""
        if self.opened is not None:
            return self.opened.head
        return heads.OF_T5 if self.encoder is None else heads.OF_MASKED_LM

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of an encoder with labels."""
        return self.head.labels

    @property
    def tokenizer_length(self) -> int | None:
        """The `model_max_length` of the tokenizer; None where its files do not say it, or it is endless."""
        settings = self.opened.tokenizer_settings if self.opened is not None else tokenizer_settings.NONE
        if self.hints.vocab is not None or self.opened is None:
            place = Path(self.hints.vocab) if self.hints.vocab is not None else self.path.parent
            settings = tokenizer_settings.of_folder(place if place.is_dir() else place.parent)
        length = settings.config.get("model_max_length")
        return length if isinstance(length, int) and 0 < length < _ENDLESS else None

    def head_fields(self, network: str) -> dict[str, Any]:
        """The fields of a network of `limba.network.encoders.classifier`, with this encoder: those of its head, or of a
        new one as the class of Hugging Face has it."""
        if self.labels:
            return self.head.fields
        assert self.encoder is not None
        kind = heads.kind_of(network)
        if self.no_export:  # as BERT's
            return Head(kind, activation="tanh" if kind == heads.SEQUENCE else None).fields
        folder = self.opened.folder if self.opened is not None else None
        of_class = find_encoder(self.encoder).heads[kind].fields(folder.content if folder else {}, self.encoder)
        return dataclasses.replace(Head(kind), **of_class).fields

    def shared_modules(self, network: str) -> dict[str, str]:
        """The modules of a new head with labels that begin with those of the masked language model's, as in
        transformers, and the names of these."""
        if self.encoder is None or self.head not in (heads.OF_MASKED_LM, heads.OF_PAIRS) or self.no_export:
            return {}
        return find_encoder(self.encoder).shared_modules(heads.kind_of(network))

    def for_rows_with(self, network: str) -> "StartingModel":
        """The model as a network of `limba.network.encoders.classifier` begins with it in transformers; "" is a T5.

        A classifier of rows begins with the pooler of a BERT's files. A new one of words, of a RoBERTa, reads a blank
        before the first word: run_ner.py opens its tokenizer with `add_prefix_space`.
        """
        if self.encoder is None or self.opened is None:
            return self
        if network == "SequenceClassifier" and hf_folder.is_folder(self.path):
            found = _resized(encoder_files.open_folder(self.path, self.hints, keeps_pooler=True))
            return dataclasses.replace(self, opened=found)
        file = self.opened.vocabulary_file
        if network != "TokenClassifier" or self.labels or self.opened.family.model_type != "roberta" or file is None:
            return self
        spaced = run_folder.with_vocabulary_file(self.vocabulary, str(blank_before.with_blank_before(file)))
        settings = self.opened.tokenizer_settings
        settings = dataclasses.replace(settings, config={**settings.config, "add_prefix_space": True})
        opened = dataclasses.replace(self.opened, vocabulary=spaced, tokenizer_settings=settings)
        return dataclasses.replace(self, opened=opened, vocabulary=spaced)

    def at_step(self, step: int) -> "StartingModel":
        """The model with weights that `write` gives a step."""
        assert self.opened is not None
        return dataclasses.replace(self, opened=dataclasses.replace(self.opened, step=step, step_from=str(self.path)))

    def kept_in(self, folder: Path) -> "StartingModel":
        """The model, whose files `folder` has too: `write` may write into the folder where it was."""
        assert self.opened is not None
        return dataclasses.replace(self, path=folder, opened=dataclasses.replace(self.opened, path=folder))

    @functools.cached_property
    def no_export(self) -> str:
        """Why no class of Hugging Face holds the network; "" if one does."""
        return no_class(self.network)

    @property
    def gin(self) -> str:
        """The text of OUT/model.gin that `write` will write; its vocabulary lies elsewhere."""
        vocabulary = self.vocabulary
        if self.encoder is not None:
            vocabulary = run_folder.with_vocabulary_file(vocabulary, run_folder.TOKENIZER)
        return model_gin.write(self.network, self.head, vocabulary, str(self.path))

    def write(self, out: Path) -> Path:
        """Writes OUT/model.gin, which is returned, and OUT/checkpoint_<step> if there are weights; see `from_hf`.

        What is there already is left.

        Raises:
          ValueError: if a model.gin there names modules that are none of this model's.
        """
        gin_file = out / limba_run.MODEL_GIN
        if gin_file.is_file():
            if names := self._other_modules(gin_file):
                raise ValueError(
                    f"{gin_file} names {untrusted_files.some(names, 3)}, which the model does not need: it may come "
                    "from somebody else. Choose another output_dir, or remove this one."
                )
            return gin_file
        if self.opened is not None:
            from_hf.write(self.opened, out)
            return gin_file
        path = self.path
        if self.content is not None:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "config.json"
            storage.replace_text(path, json_text.dumps(self.content, indent=2))
        from_hf.from_hf(path, out, hints=self.hints)
        return gin_file

    def _other_modules(self, gin_file: Path) -> list[str]:
        """The modules, and files of them, that a model.gin names and that no model.gin of this model would."""
        recipe = Recipe.parse(untrusted_files.read_text(gin_file), str(gin_file))
        includes = [x.file for x in recipe.statements if isinstance(x, Include)]
        names = [name for name in recipe.modules if name.partition(".")[0] not in _OF_MODEL_GIN]
        names += [
            name for name in includes if ".." in name or not (REPOSITORY / name).is_file()
        ] + closed_list.modules_in(recipe.bindings)
        layers = [x for x in recipe.bindings if x.parameter in own_layers.FIELDS]
        names += [str(x.value) for x in layers if x.value != getattr(self.network, x.parameter, None)]
        return [*map(untrusted_files.cut, names)]


def has_decoder(model: str | None, config: str | None) -> bool:
    """Whether `model` and `config`, as of `open_model`, name a T5 or an encoder; no weights are downloaded."""
    path = from_hf.find(model, with_runs=True, with_weights=False) if model is not None else _config_file(config or "")
    is_weights = model is not None and path.is_file()
    return any_format.has_decoder(_config_file(config) if is_weights and config is not None else path)


def open_model(
    model: str | None,
    config: str | None,
    tokenizer: str | None,
    ignored: tuple[str, ...] = (),
    learns_sentinels: bool = False,
) -> StartingModel:
    """Finds a model and its vocabulary, on this machine or on the hub.

    Args:
      model: model_name_or_path: a folder, a name, a run of Limba's or one of its checkpoints, or a file of weights
        such as a .pth.
      config: config_name: a config.json, a folder or a name. The network of a file of weights, or of a training from
        scratch; of a folder of transformers' its settings, with the sizes that the weights have; of a run, whose
        network it must be, the rates of dropout.
      tokenizer: tokenizer_name: a folder, a SentencePiece model or a name; None takes the model's own.
      ignored: keys of the model's files that have no effect.
      learns_sentinels: whether a ByT5 learns those that its tokenizer names; a new network does in any case.

    Raises:
      FileNotFoundError: if something is not there, or has no vocabulary.
      ValueError: if it is damaged, neither a T5 nor an encoder that Limba has, or of another network than `config`.
    """
    path = from_hf.find(model, with_runs=True) if model is not None else _config_file(config or "")
    config_file = _config_file(config) if model is not None and config is not None else None
    is_weights = model is not None and path.is_file()
    if is_weights and config_file is None:
        raise ValueError(
            f"model_name_or_path {model!r} is a file of weights; give its network as config_name (model_cfg)."
        )
    has_decoder = any_format.has_decoder(config_file if is_weights and config_file else path)
    if has_decoder:
        hints = _hints(tokenizer, ignored, learns_sentinels or model is None)
    else:
        hints = ModelHints(vocab=tokenizer and str(_local_tokenizer(tokenizer)))
    hints = dataclasses.replace(hints, ignore_config_keys=ignored)
    if model is None:
        return _new_t5(path, hints, has_tokenizer=tokenizer is not None) if has_decoder else _new_encoder(path, hints)
    if is_weights and config_file is not None:
        opened = any_format.open_weights(path, config_file, hints)
        if opened.step:
            logger.warning(
                "%s is of step %d, as %s says. The weights are taken; steps and the optimizer begin at 0.",
                *(path, opened.step, opened.step_from),
            )
    elif hf_folder.is_folder(path) and not from_hf.has_weights(path):
        raise FileNotFoundError(
            f"model_name_or_path {model!r} has no weights ({path}); to train from scratch add initialize_from_scratch."
        )
    else:
        opened = any_format.open_model(path, hints)
        if config_file is not None and opened.folder is not None:
            opened, hints = given_config.open_folder(opened, config_file, hints)
        elif config_file is not None:
            opened = given_config.of_checkpoint(opened, config_file, hints)
    if has_decoder:
        _check_head(path, opened.head)
        if opened.vocabulary is None:
            raise _no_vocabulary(path)
    if opened.folder is not None:
        from_hf.say_notes(config_file or path / "config.json", ignored)
    else:
        opened = dataclasses.replace(opened, step_from="the checkpoint")
    rows, opened = opened.config.vocab_size, _resized(opened)
    if (ids := opened.config.vocab_size) > rows:
        logger.warning(
            "The tokenizer has %d ids, and the embedding of %s %d rows: %d are added, each the mean of these, as "
            "transformers' resize_token_embeddings does. Ids below %d keep their rows: the tokenizer must be the "
            "model's with tokens added.",
            *(ids, opened.path, rows, ids - rows, rows),
        )
    return StartingModel(path, opened, hints, any_format.known_vocabulary(opened), opened.config)


def _resized(opened: Model) -> Model:
    """The model with a row of the embedding for each id of its tokenizer, as `resize_token_embeddings` adds them.

    A new row is the mean of all others, and so is one of the output; transformers draws it around that.
    """
    if opened.vocabulary is None:
        return opened
    described = opened.vocabulary
    if not opened.family.has_decoder and (file := opened.vocabulary_file) is not None:
        described = tokenizer_folder.describe(file)
    rows, ids = opened.config.vocab_size, described.get("vocab_size", 0)
    if ids <= rows:
        return opened
    return trimmed_model.replaced(opened, rows, [[id_] for id_ in range(rows)], ids, opened.vocabulary)


@functools.cache
def default_config(model_type: str, tokenizer: str | None, overrides: str = "") -> Path:
    """A config.json of the network that transformers' class of a `model_type` has by default, as run_mlm.py makes it.

    The embedding has at least a row for each token. The file lies in a temporary folder, for as long as the process
    lives.

    Args:
      overrides: "key=value,key=value" in place of the defaults, as transformers' `update_from_string` takes them.

    Raises:
      FileNotFoundError: if there is no such tokenizer.
      ValueError: if none is given, or a network from scratch cannot be of this type.
    """
    overridden = parsed_overrides(overrides)
    content = default_content(model_type) | overridden
    if tokenizer is None:
        raise ValueError(f"model_type is {model_type!r}, and a network from scratch needs a tokenizer: tokenizer_name.")
    file = hf_tokenizer.temporary_file(json_text.dumps(content).encode(), "config.json")
    cure: dict[str, int] = {}
    if any_format.has_decoder(file):
        vocabulary = t5_vocabularies.of_folder(file.parent, _hints(tokenizer, (), learns_sentinels=True))
        assert vocabulary is not None  # The hints name it.
        tokens = _with_sentinels(vocabulary)["vocab_size"]
    else:
        given = encoder_vocabularies.of_new_network(file, ModelHints(vocab=str(_local_tokenizer(tokenizer))))
        assert given is not None  # The hints name it.
        tokens = tokenizer_folder.describe(given[0])["vocab_size"]
        content["vocab_size"] = max(content["vocab_size"], tokens)
        defaults = [family.default_pad_id for family in encoder_families().values() if family.model_type == model_type]
        if max(defaults) >= tokens:  # ModernBERT's is a row near the end of its embedding.
            cure["pad_token_id"] = tokenizer_folder.special_ids(given[0])["pad"]
        file.write_text(json_text.dumps(content), "utf-8")
    logger.info(
        "The network is that of transformers' %s by default, from scratch, with %d rows in the embedding; config_name "
        "names another one.",
        *(model_type, content["vocab_size"]),
    )
    cure |= {"vocab_size": tokens}
    unused = content["vocab_size"] - tokens
    if unused >= _PADDING and "vocab_size" not in overridden:
        logger.warning(
            "The tokenizer has %s tokens: %s of the %s rows of the embedding are never used, as in transformers' "
            "script. For a smaller network write --config_overrides %s.",
            *(f"{tokens:,}", f"{unused:,}", f"{content['vocab_size']:,}"),
            ",".join([*filter(None, [overrides]), *(f"{key}={value}" for key, value in cure.items())]),
        )
    return file


def default_content(model_type: str) -> dict[str, Any]:
    """A config.json with the class's sizes.

    Raises:
      ValueError: for a type of which there are none.
    """
    family = of_model_type(model_type)
    if family is None or not family.defaults:
        known = dict.fromkeys(family.model_type for family in all_families().values() if family.defaults)
        raise ValueError(
            f"model_type is {model_type!r}; a network by transformers' defaults is of {', '.join(known)}. Of others "
            "that Limba has write a config.json, and name it as config_name."
        )
    return {"model_type": model_type, **family.defaults}


def parsed_overrides(overrides: str) -> dict[str, Any]:
    """Keys and values of "key=value,key=value"; the reader of the config.json says which keys there are.

    Raises:
      ValueError: for a part without a value.
    """
    found = {}
    for part in filter(None, overrides.split(",")):
        key, equals, text = (word.strip() for word in part.partition("="))
        if not (key and equals and text):
            raise ValueError(f"config_overrides has {part!r}; it is key=value, and commas stand between several.")
        text = {"true": "true", "y": "true", "yes": "true", "false": "false", "n": "false"}.get(text.lower(), text)
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _config_file(config: str) -> Path:
    path = from_hf.find(config, with_weights=False)
    return path if path.is_file() else path / "config.json"


def _new_t5(file: Path, hints: ModelHints, has_tokenizer: bool) -> StartingModel:
    content = t5_config.read(file, hints.ignore_config_keys)
    content = t5_config.family_of(content).completed(content)
    _check_head(file, t5_config.head_of(file, content))
    given, content = t5_vocabularies.of_config(file, content, file.parent, hints)
    if given is None:
        raise _no_vocabulary(file)
    vocabulary = _with_sentinels(given)
    if vocabulary != given:
        hints = dataclasses.replace(hints, vocab=run_folder.vocabulary_file(vocabulary))
        content = _with_rows_for_sentinels(content, given, vocabulary)
    network = t5_config.network_config(file, content)
    network = dataclasses.replace(network, family=find_t5(network, vocabulary, hints.family).name)
    # The completed config.json lies elsewhere.
    if run_folder.is_bytes(vocabulary):
        hints = dataclasses.replace(hints, family=byt5.FAMILY.name, extra_ids=vocabulary["extra_ids"])
    elif not has_tokenizer:
        hints = dataclasses.replace(
            hints, vocab=run_folder.vocabulary_file(vocabulary), extra_ids=vocabulary["extra_ids"]
        )
    return StartingModel(file, None, hints, vocabulary, network, content)


def _with_sentinels(vocabulary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The vocabulary with the sentinels that `AutoTokenizer` adds to a T5's tokenizer.json; itself if it adds none.

    They stand behind all other tokens, `<extra_id_0>` first, in versions 4 and 5 of transformers. Another class than
    T5's adds none. The new tokenizer.json lies in a temporary folder.

    Args:
      vocabulary: as `run.json` describes it; other files of its tokenizer are beside it.
    """
    if vocabulary["class"] != run_folder.T5_TOKENIZERS:
        return vocabulary
    file = Path(vocabulary["tokenizer_file"])
    config = hf_tokenizer.read_json(file.parent / "tokenizer_config.json")
    kind = config.get("tokenizer_class") or hf_tokenizer.read_json(file.parent / "config.json").get("tokenizer_class")
    extra_ids = config.get("extra_ids", hf_tokenizer.DEFAULT_EXTRA_IDS)
    opened = tokenizers.Tokenizer.from_file(str(file))
    others = [_text_of(token) for token in config.get("additional_special_tokens") or ()]
    if (
        kind not in (None, *hf_tokenizer.T5_CLASSES)
        or not isinstance(extra_ids, int)
        or extra_ids < 1
        or any(NAME.fullmatch(token) for token in (*opened.get_vocab(), *others))
    ):
        return vocabulary
    opened.add_special_tokens([*others, *(f"<extra_id_{number}>" for number in range(extra_ids))])
    written = hf_tokenizer.temporary_file(opened.to_str().encode(), run_folder.TOKENIZER)
    return hf_tokenizer.from_json(written).vocabulary


def _text_of(token: Any) -> str:
    """A token of tokenizer_config.json, which has its name alone or its fields."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _with_rows_for_sentinels(
    content: Mapping[str, Any], given: Mapping[str, Any], vocabulary: Mapping[str, Any]
) -> dict[str, Any]:
    """A config.json with a row of the embedding for each token of a vocabulary that got sentinels; and says so."""
    rows = max(content["vocab_size"], vocabulary["vocab_size"])
    logger.info(
        "%s has no sentinels: %d tokens are added behind its %d, <extra_id_0> first, as transformers' T5Tokenizer adds "
        "them. The embedding has %d rows; vocab_size of the config.json is %d.",
        run_folder.vocabulary_file(given),
        vocabulary["vocab_size"] - given["vocab_size"],
        given["vocab_size"],
        rows,
        content["vocab_size"],
    )
    return {**content, "vocab_size": rows}


def _new_encoder(file: Path, hints: ModelHints) -> StartingModel:
    network, head, _ = new_network.read_network(file, hints.ignore_config_keys)
    _check_head(file, head)
    found = encoder_vocabularies.of_new_network(file, hints)
    if found is None:
        raise _no_vocabulary(file)
    return StartingModel(file, None, hints, tokenizer_folder.describe(found[0]), network)


def _check_head(path: Path, head: Head) -> None:
    if head.labels:
        raise ValueError(
            f"{path} is a {head.class_name} of the labels {', '.join(head.labels)}, and a new network, or a T5, begins "
            "without labels in `limba run`; docs/encoders.md shows a classifier."
        )


def no_class_of_run(checkpoint: AnyPath) -> str:
    """Why no class of Hugging Face holds a checkpoint of Limba; "" if one does."""
    info = run_folder.load_run_info(checkpoint)
    of_class = t5_config_class(run_folder.network_class(info)) if any_format.has_decoder(checkpoint) else EncoderConfig
    return no_class(of_class.from_json(info["network"]))


def _no_vocabulary(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} has no tokenizer beside it; give tokenizer_name: a folder of transformers', a spiece.model or a name."
    )


def _local_tokenizer(tokenizer: str) -> Path:
    """The file or folder of a tokenizer, downloaded if it is a name on the hub."""
    path = local_path(tokenizer)
    if path.exists():
        return path
    if not hub_models.is_name(tokenizer):
        raise FileNotFoundError(f"tokenizer_name {tokenizer!r} is neither a folder, a file nor a name on the hub.")
    hf = hub_models.client()
    logger.info("There is no file or folder %s: %s is asked for %s.", path, hf.constants.ENDPOINT, tokenizer)
    try:
        return hub_models.download(tokenizer, with_weights=False)
    except (FileNotFoundError, ConnectionError) as error:
        raise type(error)(
            f"tokenizer_name is {tokenizer!r}, and there is no file or folder {path}: `limba vocab build` makes one. "
            f"{error}"
        ) from error


def _hints(tokenizer: str | None, ignored: tuple[str, ...], learns_sentinels: bool) -> ModelHints:
    if tokenizer is None:
        return ModelHints(learns_sentinels=learns_sentinels)
    path = _local_tokenizer(tokenizer)
    if path.is_file():
        return ModelHints(vocab=str(path))
    hints = ModelHints(learns_sentinels=learns_sentinels, ignore_config_keys=ignored)
    vocabulary = t5_vocabularies.of_folder(path, hints)
    if vocabulary is None:
        raise FileNotFoundError(f"tokenizer_name {tokenizer!r}: {path} has no tokenizer.")
    if run_folder.is_bytes(vocabulary):
        return ModelHints(family=byt5.FAMILY.name, extra_ids=vocabulary["extra_ids"])
    return ModelHints(vocab=run_folder.vocabulary_file(vocabulary), extra_ids=vocabulary["extra_ids"])
