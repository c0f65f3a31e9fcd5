"""What a request asks for, checked: the fields are OpenAI's, and what is not carried out is refused by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.addons.serve import candidates
from limba.files import json_text, untrusted_json

_COMPLETION = ("model", "prompt", "max_tokens", "temperature", "n", "stream", "stream_options", "seed", "candidates")
_EMBEDDING = ("model", "input", "encoding_format")
# Fields that clients of OpenAI's send along, and the values with which they change nothing; None is one of each.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "suffix": ("",),
    "dimensions": (),
}
_MOST_SHOWN = 40


class RequestError(Exception):
    """A request that gets no answer.

    Attributes:
      status: of HTTP.
      message: what is wrong, and what is allowed.
      field: of the request; None if it is none of them.
    """

    def __init__(self, status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, dict(headers or {})


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
      name: of the model.
      max_new_tokens: of an answer.
      max_texts: in one request: as many as wait at most.
    """

    name: str
    max_new_tokens: int
    max_texts: int


@dataclasses.dataclass(frozen=True)
class Completion:
    """What `/v1/completions` is asked for.

    Attributes:
      temperature: 0 is greedy.
      stream: whether the answers come in pieces.
      counts_tokens: whether a stream ends with the numbers of tokens.
      num_candidates: words of each blank with their probabilities; a field of ours.
    """

    prompts: list[str]
    max_tokens: int
    temperature: float
    stream: bool
    counts_tokens: bool
    num_candidates: int


def parse(body: bytes) -> dict[str, Any]:
    """The object of a request. Raises RequestError, 400, if it is none."""
    try:
        return untrusted_json.parse_object(body, "The body")
    except ValueError as error:
        raise RequestError(400, str(error)) from None


def completion(body: Mapping[str, Any], limits: Limits) -> Completion:
    """The fields of `/v1/completions`. Raises RequestError: 404 for another model, 413 for too much, else 422."""
    _check_fields(body, _COMPLETION, limits)
    if body.get("n") not in (None, 1) or isinstance(body.get("n"), bool):
        raise _refused("n", body["n"], "1: a text has one answer")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise _refused("stream", stream, "true or false")
    temperature = _temperature(body.get("temperature"))
    if (seed := body.get("seed")) is not None and (temperature or not isinstance(seed, int)):
        raise _refused("seed", seed, "a whole number at a temperature of 0, which draws nothing; else left out")
    return Completion(
        _texts(body, "prompt", limits),
        _max_tokens(body.get("max_tokens"), limits),
        temperature,
        stream,
        _counts_tokens(body.get("stream_options"), stream),
        _num_candidates(body.get("candidates"), stream),
    )


def _counts_tokens(options: Any, stream: bool) -> bool:
    """`stream_options.include_usage`."""
    if options is None:
        return False
    if not stream or not isinstance(options, dict) or options.keys() - {"include_usage"}:
        raise _refused("stream_options", options, 'for "stream": true, and has include_usage alone')
    if not isinstance(counts := options.get("include_usage", False), bool):
        raise _refused("stream_options", options, '{"include_usage": true}, or false')
    return counts


def _num_candidates(value: Any, stream: bool) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= candidates.MOST:
        raise _refused("candidates", value, f"a whole number from 0 to {candidates.MOST}")
    if value and stream:
        raise _refused("candidates", value, "for answers without a stream; leave one of them out")
    return value


def embedding(body: Mapping[str, Any], limits: Limits) -> tuple[list[str], bool]:
    """The texts of `/v1/embeddings`, and whether vectors go out in base64. Raises RequestError, as `completion`."""
    _check_fields(body, _EMBEDDING, limits)
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise _refused("encoding_format", body["encoding_format"], '"float" or "base64" (float32, little endian)')
    return _texts(body, "input", limits), body.get("encoding_format") == "base64"


def _check_fields(body: Mapping[str, Any], names: tuple[str, ...], limits: Limits) -> None:
    for field, value in body.items():
        if field in names or field == "user" or value is None:
            continue
        neutral = _NEUTRAL.get(field)
        if neutral is None:
            raise RequestError(
                422, f"There is no field {_shown(field)}; there are {', '.join(names)}.", field[:_MOST_SHOWN]
            )
        if value not in neutral:
            allowed = " or ".join(map(json_text.dumps, neutral)) or "null"
            raise _refused(field, value, f"{allowed}, or left out: this server does nothing else with it")
    if body.get("model") is not None:
        check_model(body["model"], limits)


def check_model(name: Any, limits: Limits) -> None:
    """Raises RequestError, 404, for another model than the server's."""
    if name != limits.name:
        raise RequestError(404, f"model is {_shown(name)}; this server has {limits.name!r}, or leave it out.", "model")


def _texts(body: Mapping[str, Any], field: str, limits: Limits) -> list[str]:
    value = body.get(field)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise _refused(field, value, "a text, or a list of texts")
    if empty := [number for number, text in enumerate(texts, 1) if not text.strip()]:
        raise RequestError(422, f"{field}: text {empty[0]} of {len(texts)} is empty; write something.", field)
    if len(texts) > limits.max_texts:
        raise RequestError(413, f"{field} has {len(texts)} texts; at most {limits.max_texts} are taken at once.", field)
    return texts


def _max_tokens(value: Any, limits: Limits) -> int:
    if value is None:
        return limits.max_new_tokens
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limits.max_new_tokens:
        raise _refused("max_tokens", value, f"a whole number from 1 to {limits.max_new_tokens}")
    return value


def _temperature(value: Any) -> float:
    if value is None:
        return 0.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 2:  # NaN is in no range.
        raise _refused("temperature", value, "a number from 0 (the likeliest token at each step) to 2")
    return float(value)


def _refused(field: str, value: Any, allowed: str) -> RequestError:
    return RequestError(422, f"{field} is {_shown(value)}; it is {allowed}.", field)


def _shown(value: Any) -> str:
    """A value as the client wrote it, cut; texts between single quotes."""
    text = repr(value) if isinstance(value, str | float) else json_text.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
