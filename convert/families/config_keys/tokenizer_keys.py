"""The keys of tokenizer_config.json, beside a T5 and beside an encoder; see `config_keys`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from limba.convert.families.config_keys.keys import Table, carried, check, only, table, without_effect
from limba.files import untrusted_json

FILE = "tokenizer_config.json"

_AGAIN = "If the model was trained so, give --vocab a tokenizer that does it without this key."
_NO_CODE = "Load it in transformers with trust_remote_code, and see that its ids are those of the files; then "

_SPECIAL = "a special token of tokenizer.json, added where it is none"

_COMMON = (
    *without_effect(
        "says where the file comes from",
        *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "init_inputs"),
        *("full_tokenizer_file", "is_local", "local_files_only", "backend", "cache_dir", "device_map", "torch_dtype"),
        *("transformers_version", "processor_class", "use_fast", "from_slow", "trust_remote_code", "verbose"),
    ),
    *without_effect(
        "a row is as long as the task says",
        *("max_length", "max_seq_length", "truncation", "truncation_strategy", "stride", "padding"),
        *("pad_to_multiple_of", "pad_token_type_id", "return_token_type_ids"),
    ),
    *carried(
        truncation_side="on which side a row that is too long is cut",
        **dict.fromkeys(
            ("model_max_length", "max_len"),
            "the longest row of `limba embed`, `infer` and `serve`, and of `limba run` where its script goes by it",
        ),
        model_input_names="whether tokens of the second text of a pair have another type",
    ),
    *without_effect(
        "of the way back to text, or of no text",
        *("clean_up_tokenization_spaces", "spaces_between_special_tokens", "chat_template", "errors"),
    ),
    only("split_special_tokens", (False,), "special tokens in a text are taken apart: Limba's are not", _AGAIN),
    only("auto_map", ({},), "the class is code of its repository", f"{_NO_CODE}give --ignore_config_keys auto_map."),
    only("sp_model_kwargs", ({},), "SentencePiece draws one of several ways to tokenize: Limba takes the best", _AGAIN),
)
_CLASSES = ("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast", "ByT5Tokenizer")
_OF_TOKENIZER_JSON = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")
# Of other families, whose tokens are those of tokenizer.json too.
_OF_OTHERS = tuple(
    f"{name}Tokenizer{fast}"
    for name in ("Roberta", "Llama", "GPT2", "Gemma", "Bart", "MBart", "MBart50")
    for fast in ("", "Fast")
)

T5 = table(
    *_COMMON,
    *without_effect("a T5's positions are distances, and padding is on the right", "padding_side"),
    *carried(
        extra_ids="the sentinels behind the pieces",
        added_tokens_decoder="must have the ids that the vocabulary gives these tokens",
    ),
    only(
        "tokenizer_class",
        (*_CLASSES, *_OF_TOKENIZER_JSON, *_OF_OTHERS),
        "its ids may be others than the file's, which Limba takes",
        "Give --vocab the SentencePiece model of the model's own ids; or, if they are the file's, --ignore_config_keys "
        "tokenizer_class.",
    ),
    *without_effect("must be that of the vocabulary, or no key says it", "pad_token", "eos_token", "unk_token"),
    *without_effect("the vocabulary has it", "unk_id"),
    only("add_prefix_space", (True,), "no space is put before a text: the SentencePiece model says that", _AGAIN),
    only("add_bos_token", (False,), "a token before each text: a T5 has none", _AGAIN),
    only("add_eos_token", (True,), "no </s> behind a text: Limba's tasks put one", _AGAIN),
    only("do_lower_case", (False,), "text in small letters: the SentencePiece model says that", _AGAIN),
    only("keep_accents", (True,), "text without accents: the SentencePiece model says that", _AGAIN),
    only("remove_space", (True,), "spaces at the ends stay: the SentencePiece model says that", _AGAIN),
    *without_effect(
        "names of tokens whose ids are compared with the vocabulary",
        "additional_special_tokens",
        "extra_special_tokens",
    ),
    *without_effect("a T5 has no such token", "bos_token", "cls_token", "sep_token", "mask_token", "image_token"),
    *without_effect("of spaces after a sentinel, where Limba does as SentencePiece", "legacy", "legacy_behaviour"),
)
# Of a T5 with the general class and a tokenizer.json, and with a class of another family: CodeT5 has RoBERTa's, Pile-T5
# Llama's, which writes the template anew.
T5_OF_JSON = T5 | table(
    *carried(
        add_prefix_space="of tokenizer.json's pre_tokenizer",
        **dict.fromkeys(("add_bos_token", "add_eos_token"), "of tokenizer.json's template"),
    ),
    *without_effect("tokenizer.json has it", "trim_offsets", "use_default_system_prompt", "src_lang", "tgt_lang"),
)
ENCODER = table(
    *_COMMON,
    *without_effect("padding is on the right; left is refused where positions count it (BERT's)", "padding_side"),
    *carried(
        tokenizer_class="one of BERT's applies the three keys below to tokenizer.json",
        do_lower_case="must be that of tokenizer.json",
        strip_accents="must be that of tokenizer.json",
        tokenize_chinese_chars="must be that of tokenizer.json",
        **{f"{role}_token": "must be that of tokenizer.json" for role in ("pad", "unk", "cls", "sep", "mask")},
        **dict.fromkeys(("bos_token", "eos_token", "additional_special_tokens", "extra_special_tokens"), _SPECIAL),
        added_tokens_decoder="tokens of tokenizer.json with these flags, or added to it",
        add_prefix_space="of tokenizer.json's pre_tokenizer",
    ),
    *without_effect(
        "tokenizer.json has it",
        *("trim_offsets", "do_basic_tokenize", "never_split", "wordpieces_prefix"),
        *("add_bos_token", "add_eos_token", "legacy", "model_specific_special_tokens", "unk_id"),
        *("split_by_punct", "vocab_type"),
    ),
)


def of_t5(folder: Path, ignored: Collection[str]) -> dict[str, Any]:
    """As `read`, of a T5's folder, whose class says which keys are known."""
    content = untrusted_json.read_object(folder / FILE) if (folder / FILE).is_file() else {}
    kind, has_json = content.get("tokenizer_class"), (folder / "tokenizer.json").is_file()
    is_of_json = kind in _OF_OTHERS or (kind in _OF_TOKENIZER_JSON and has_json)
    return read(folder, T5_OF_JSON if is_of_json else T5, ignored)


def read(folder: Path, known: Table, ignored: Collection[str]) -> dict[str, Any]:
    """The tokenizer_config.json of a folder, empty if there is none; tokens with flags become their texts.

    Raises:
      ValueError: if it is damaged, or for a key as `config_keys.check`.
    """
    from limba.tasks.vocabularies import beside_tokenizer

    file = folder / FILE
    if not file.is_file():
        return {}
    content = beside_tokenizer.read(file)
    texts = {key: x["content"] if isinstance(x, dict) and "content" in x else x for key, x in content.items()}
    check(file, texts, known, ignored)
    return {key: x for key, x in texts.items() if key not in ignored}
