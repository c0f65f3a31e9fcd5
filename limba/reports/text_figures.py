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
HEAD = ("", "nats per token", "per character", "likeliest", "among five")


def rows(line: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Cells of a table under `HEAD`, of a line of metrics; empty where it has no figures of text.

    N-grams do not have to guess whether a span ends. So the model's second row, of its probabilities among text pieces
    alone, is what compares with theirs.
    """
    if _NATS not in line:
        return []
    made = [_row("the model", line, line[_NATS])]
    predictors = [name for name in PREDICTORS if f"{name}/{_NATS}" in line]
    if predictors:
        share = line[_RENORMALIZED] / line[_NATS] if line[_NATS] else 1.0
        told = {_PER_CHARACTER: line[_PER_CHARACTER] * share} if _PER_CHARACTER in line else {}
        told |= {name: line[f"{name}_renormalized"] for name in (_RIGHT, _TOP_5) if f"{name}_renormalized" in line}
        made.append(_row("the model, told that text follows", told, line[_RENORMALIZED]))
    for name in predictors:
        of_predictor = {key.removeprefix(f"{name}/"): x for key, x in line.items() if key.startswith(f"{name}/")}
        made.append(_row(PREDICTORS[name], of_predictor, of_predictor[_NATS]))
    return made


def table(line: Mapping[str, float]) -> str:
    """`rows` as text, without a newline at its end."""
    return "\n".join(results_table.aligned_behind_names([HEAD, *rows(line)]))


def in_words(line: Mapping[str, float]) -> str:
    """The nats per text token of a line that has them, with those of n-grams behind them."""
    others = [f"{name} {line[f'{key}/{_NATS}']:.4f}" for key, name in PREDICTORS.items() if f"{key}/{_NATS}" in line]
    told = f" (told that text follows {line[_RENORMALIZED]:.4f}; {', '.join(others)})" if others else ""
    return f"{line[_NATS]:.4f}{told}"


def _row(name: str, figures: Mapping[str, float], nats: float) -> tuple[str, ...]:
    per_character = f"{figures[_PER_CHARACTER]:.3f}" if _PER_CHARACTER in figures else ""
    shares = (f"{figures[key]:.1%}" if key in figures else "" for key in (_RIGHT, _TOP_5))
    return (name, f"{nats:.3f}", per_character, *shares)
