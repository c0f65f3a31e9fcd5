"""The figures of text targets as a table: a model's, and those of n-grams of its training corpus beside them."""

from collections.abc import Mapping

from limba.reports import results_table

# Names of metrics.jsonl; those of n-grams are behind the name of the predictor.
_NATS, _PER_CHARACTER, _RIGHT, _TOP_5 = (
    *("nats_per_text_token", "nats_per_character"),
    *("text_accuracy", "text_top_5_accuracy"),
)
_RENORMALIZED = f"{_NATS}_renormalized"
PREDICTORS = {
    "unigram": "unigram",
    "left_bigram": "bigram of the token before",
    "left_trigram": "trigram of two tokens before",
    "both_sided_ngrams": "n-grams of both sides",
}
AMONG_ALL = "the model, among all tokens"
# Before the first figure of a table or a chart.
EXPLAINED = (
    "Nats per token are the mean of -ln(p) of the right token: lower is better. The model chooses among tokens of "
    "text, as n-grams do: it need not guess whether a blank ends."
)
HEAD = ("", "nats per token", "per character", "likeliest", "among five")


def rows(line: Mapping[str, float], first: Mapping[str, float] | None = None) -> list[tuple[str, ...]]:
    """Cells of a table under `HEAD`, of a line of metrics; empty where it has no figures of text.

    N-grams do not have to guess whether a span ends. So the model's rows, and those of the headlines, are of its
    probabilities among pieces of text alone; its last row is of those among all pieces.

    Args:
      first: the line of the run's first evaluation, if the run has more than one.
    """
    if _NATS not in line:
        return []
    made = [_of_model(when(first), first)] if first is not None and headline(first) is not None else []
    made.append(_of_model("the model", line))
    for name in (name for name in PREDICTORS if f"{name}/{_NATS}" in line):
        of_predictor = {key.removeprefix(f"{name}/"): x for key, x in line.items() if key.startswith(f"{name}/")}
        made.append(_row(PREDICTORS[name], of_predictor, of_predictor[_NATS]))
    if _RENORMALIZED in line:
        made.append(_row(AMONG_ALL, line, line[_NATS]))
    return made


def headline(line: Mapping[str, float]) -> float | None:
    """Nats per text token among pieces of text alone; None for a line without figures of text."""
    return line.get(headline_name(line))


def headline_name(line: Mapping[str, float]) -> str:
    """The name of `headline` in metrics.jsonl."""
    return _RENORMALIZED if _RENORMALIZED in line else _NATS


def when(first: Mapping[str, float]) -> str:
    """The name of the row of a first evaluation."""
    return "before the first step" if first["step"] == 0 else f"the model at step {first['step']:,.0f}"


def table(line: Mapping[str, float], first: Mapping[str, float] | None = None) -> str:
    """`rows` as text, without a newline at its end."""
    return "\n".join(results_table.aligned_behind_names([HEAD, *rows(line, first)]))


def in_words(line: Mapping[str, float], first: Mapping[str, float] | None = None) -> str:
    """The headline of a line that has figures of text; behind it those of its first evaluation and of n-grams."""
    others = [f"{when(first)} {headline(first):.4f}"] if first is not None and headline(first) is not None else []
    others += [f"{name} {line[f'{key}/{_NATS}']:.4f}" for key, name in PREDICTORS.items() if f"{key}/{_NATS}" in line]
    others += [f"among all tokens {line[_NATS]:.4f}"] if _RENORMALIZED in line else []
    return f"{headline(line):.4f}" + (f" ({', '.join(others)})" if others else "")


def _of_model(name: str, line: Mapping[str, float]) -> tuple[str, ...]:
    if _RENORMALIZED not in line:
        return _row(name, line, line[_NATS])
    share = line[_RENORMALIZED] / line[_NATS] if line[_NATS] else 1.0
    figures = {_PER_CHARACTER: line[_PER_CHARACTER] * share} if _PER_CHARACTER in line else {}
    figures |= {name: line[f"{name}_renormalized"] for name in (_RIGHT, _TOP_5) if f"{name}_renormalized" in line}
    return _row(name, figures, line[_RENORMALIZED])


def _row(name: str, figures: Mapping[str, float], nats: float) -> tuple[str, ...]:
    per_character = f"{figures[_PER_CHARACTER]:.3f}" if _PER_CHARACTER in figures else ""
    shares = (f"{figures[key]:.1%}" if key in figures else "" for key in (_RIGHT, _TOP_5))
    return (name, f"{nats:.3f}", per_character, *shares)
