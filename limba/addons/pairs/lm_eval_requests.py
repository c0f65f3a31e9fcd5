"""Answers to the three kinds of requests of lm-eval (EleutherAI's harness), by the scores of docs/scores.md."""

from collections.abc import Callable, Sequence
from typing import Any

from limba.addons.pairs.text_scorer import TextScore, TextScorer

BLANK = "<extra_id_0>"
# Of a task that says none.
_ENDS = ("\n\n",)


class Requests:
    """What lm-eval's class `LM` asks a model for; each request has its arguments in `args`.

    Args:
      scorer: of the model.
      answer: the greedy answer to each line; None refuses to generate.
      blank: what is put behind a context that is to be continued: `BLANK` for encoder-decoders, else "".
      is_decoder: whether the model reads from left to right alone. Its texts are then scored without their end, as
        lm-eval's own class for decoders does.
    """

    def __init__(
        self,
        scorer: TextScorer,
        answer: Callable[[Sequence[str]], list[str]] | None,
        blank: str = "",
        is_decoder: bool = False,
    ):
        self._scorer, self._answer, self._blank, self._is_decoder = scorer, answer, blank, is_decoder

    def loglikelihood(self, requests: Sequence[Any], **others: Any) -> list[tuple[float, bool]]:
        """Of `(context, continuation)`: the log probability, and whether each of its tokens is the likeliest.

        Behind a context it is the score "continuation", without the end. A continuation without a context, such as a
        sentence of BLiMP, has the score "whole", which is without the end with decoders. Other models never find it
        the likeliest.
        """
        del others
        found: dict[int, tuple[float, bool]] = {}
        alone = [i for i, request in enumerate(requests) if not request.args[0]]
        if alone:
            scores = self._whole([requests[i].args[1] for i in alone])
            found |= {i: (one.score, one.is_likeliest) for i, one in zip(alone, scores, strict=True)}
        behind = [i for i, request in enumerate(requests) if request.args[0]]
        if behind:
            contexts, texts = zip(*(requests[i].args for i in behind), strict=True)
            scores = self._scorer.continuations(contexts, texts, ends=False)
            found |= {i: (one.score, one.is_likeliest) for i, one in zip(behind, scores, strict=True)}
        return [found[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], **others: Any) -> list[float]:
        """Of `(text,)`: the score "whole", as above; of models that are no decoders a pseudo-log-likelihood."""
        del others
        return [one.score for one in self._whole([request.args[0] for request in requests])]

    def generate_until(self, requests: Sequence[Any], **others: Any) -> list[str]:
        """Of `(context, {"until": [...], …})`: the greedy continuation, up to the first of these texts.

        Raises:
          ValueError: for an encoder, and for a request to sample.
        """
        del others
        if self._answer is None:
            raise ValueError("An encoder generates no text: choose tasks that compare given answers.")
        if sampled := next((x.args[1] for x in requests if x.args[1].get("do_sample")), None):
            raise ValueError(f"A task asks to sample ({sampled}), and answers are greedy: set do_sample: false in it.")
        lines = [f"{request.args[0].rstrip()} {self._blank}".rstrip() for request in requests]
        return [_until(text, request.args[1]) for text, request in zip(self._answer(lines), requests, strict=True)]

    def _whole(self, texts: Sequence[str]) -> list[TextScore]:
        if self._is_decoder:
            return self._scorer.continuations([""] * len(texts), texts, ends=False)
        return [one._replace(is_likeliest=False) for one in self._scorer.score(texts)]


def _until(answer: str, options: Any) -> str:
    """The answer up to the next blank, and up to the first text of `until`."""
    text = answer.removeprefix(BLANK).partition("<extra_id_")[0].strip()
    ends = options.get("until") or _ENDS
    for end in [ends] if isinstance(ends, str) else ends:
        text = text.partition(end)[0] if end else text
    return text
