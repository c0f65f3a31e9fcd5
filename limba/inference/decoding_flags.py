"""Flags for decoding: `--beams 4`, or `--temperature 0.8 --top_p 0.9 --samples 3`.

They are arguments of `limba.inference.answering.Answerer` and not gin bindings: a run's own configuration names the
model's way of decoding in a scope, where a binding without one has no effect.
"""

import argparse
import dataclasses
import functools
import math
from typing import Any

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, Range
from limba.models import decoding


@dataclasses.dataclass(frozen=True)
class Decoding:
    """A way to decode, by its flags (see `add_flags`); None leaves a value to the run.

    Raises:
      ValueError: for ways that exclude each other, or a value out of range.
    """

    beams: int | None = None
    alpha: float | None = None
    greedy: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    samples: int | None = None
    seed: int | None = None
    max_decode_length: int | None = None

    def __post_init__(self) -> None:
        search = [name for name in ("beams", "alpha") if getattr(self, name) is not None]
        ways = ["/".join(f"--{name}" for name in names) for names in (search, self._sampling) if names]
        ways += ["--greedy"] * self.greedy
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are different ways to decode; give one of them.")
        if self.top_k is not None and self.top_p is not None:
            raise ValueError("--top_k and --top_p cannot both cut the distribution; give one of them.")
        for name in ("beams", "temperature", "top_k", "top_p", "samples", "max_decode_length"):
            value, limit = getattr(self, name), 1 if name == "top_p" else None
            if value is not None and not (0 < value < math.inf and (limit is None or value <= limit)):
                greedy = ": --greedy takes the likeliest token" if name == "temperature" and value == 0 else ""
                most = f" and at most {limit}" if limit else ""
                raise ValueError(f"--{name} is {value}; it is above 0{most}{greedy}.")
        number_ranges.check("--alpha", self.alpha, Range(or_none=True), " (0: no penalty)")
        number_ranges.check("--seed", self.seed, AT_LEAST_0._replace(below=2**32, or_none=True))
        if self.seed is not None and (search or self.greedy):
            raise ValueError(f"--seed is of samples, and {ways[0]} draws nothing: leave it out, or give --temperature.")

    @property
    def _sampling(self) -> list[str]:
        return [name for name in ("temperature", "top_k", "top_p", "samples") if getattr(self, name) is not None]

    def arguments(self) -> dict[str, Any]:
        """Of `limba.inference.answering.Answerer`."""
        given: dict[str, Any] = {}
        if self.beams is not None or self.alpha is not None:
            alpha = 0.6 if self.alpha is None else self.alpha
            given = {"decode_fn": functools.partial(decoding.beam_search, alpha=alpha), "num_decodes": self.beams or 1}
        elif self._sampling or self.greedy:
            sampling = {"temperature": self.temperature or 1.0, "topk": self.top_k or 0, "topp": self.top_p or 0.0}
            options: dict[str, Any] = {} if self.greedy else sampling
            decode_fn = functools.partial(decoding.temperature_sample, rescale_log_probs=False, **options)
            given = {"decode_fn": decode_fn, "num_decodes": self.samples or 1}
        if self.seed is not None:
            given["random_seed"] = self.seed
        if self.max_decode_length is not None:
            given["max_decode_length"] = self.max_decode_length
        return given


AS_BOUND = Decoding()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `Decoding`."""
    group = parser.add_argument_group("decoding lines of text (default: the run's own way, else beam search)")
    group.add_argument("--beams", type=int, metavar="N", help="beam search with N beams, all of which are returned")
    group.add_argument("--alpha", type=float, metavar="A", help="its length penalty (0.6); 0 is none")
    group.add_argument("--greedy", action="store_true", help="the likeliest token at each step")
    group.add_argument("--temperature", type=float, metavar="T", help="sample; 1 is the model's own distribution")
    group.add_argument("--top_k", type=int, metavar="K", help="sample among the K likeliest tokens")
    group.add_argument("--top_p", type=float, metavar="P", help="sample among the likeliest tokens of probability P")
    group.add_argument("--samples", type=int, metavar="N", help="samples of each line")
    group.add_argument("--seed", type=int, metavar="N", help="of samples (0); the same seed draws the same ones")
    group.add_argument("--max_decode_length", type=int, metavar="N", help="tokens of an answer (114)")


def from_flags(flags: argparse.Namespace) -> Decoding:
    """The values of the flags that `add_flags` added. Raises what `Decoding` raises."""
    return Decoding(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Decoding)})
