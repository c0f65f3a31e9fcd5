"""Our objectives against T5's own preprocessors, whose facts `make_t5_objectives.py` has written down."""

import json
import pathlib

import numpy as np
import pytest

from tasks import objectives
from tasks.objectives import span_objectives, text_objectives

T5 = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "t5_objectives.json").read_text())
VOCAB_SIZE = T5["vocab_size"]
NUM_EXAMPLES = 10_000


def corrupt(objective, tokens, lengths=None, num_sentinels=100):
    return objective.corrupt(
        tokens,
        np.full(len(tokens), tokens.shape[1]) if lengths is None else lengths,
        objectives.example_seeds(0, 0, len(tokens)),
        objectives.VocabularyIds(VOCAB_SIZE, num_sentinels, eos_id=1),
    )


def windows(objective, count=NUM_EXAMPLES):
    """Text for 512 inputs; some windows at the end are shorter."""
    tokens = np.random.default_rng(0).integers(3, 30000, (count, objective.raw_length(512))).astype(np.int32)
    lengths = np.full(count, tokens.shape[1])
    lengths[-200:] = np.random.default_rng(1).integers(2, tokens.shape[1], 200)
    return np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 0), lengths


def reconstruct(inputs, targets):
    """The text: the spans of the targets, put where their sentinels stand in the inputs."""
    spans, text = {}, []
    for token in targets:
        if token >= VOCAB_SIZE - 100:
            assert token == VOCAB_SIZE - 1 - len(spans)
            spans[token] = current = []
        else:
            current.append(token)
    for token in inputs:
        text.extend(spans.pop(token) if token >= VOCAB_SIZE - 100 else [token])
    assert not spans
    return text


# -------------------------------------------------------- lengths -----------------------------------------------------


def test_lengths_of_span_corruption():
    """288 combinations of inputs, density and span. In 30 of them T5's lengths are not those of the window it makes."""
    differing = 0
    for inputs_length, density, span, tokens, targets, noise_tokens, spans in T5["span_corruption"]["rows"]:
        objective = objectives.SpanCorruption(density, span)
        made = corrupt(objective, np.full((1, objective.raw_length(inputs_length)), 7, np.int32), num_sentinels=2000)
        ours = objective.raw_length(inputs_length), objective.lengths(inputs_length)["targets"]
        assert made.inputs_lengths[0] <= inputs_length and ours[1] - 1 <= made.targets_lengths[0] <= ours[1]
        if ours == (tokens, targets):
            assert (made.targets[0] == 7).sum() == noise_tokens and (made.targets[0] > 30000).sum() == spans
        else:  # less than half a span is masked, or every other token is: T5's inputs are cut, or its targets padded
            differing += 1
            assert ours[0] <= tokens and ours[1] <= targets + 1
            assert (density == 0.5 and span == 1) or noise_tokens / span <= 0.5
    assert (len(T5["span_corruption"]["rows"]), differing) == (288, 30)


def test_lengths_of_the_other_objectives():
    # `iid_15_u_u.gin` has 192 targets for 512 inputs.
    assert objectives.lengths(objectives.IidDenoising()) == {"inputs": 512, "targets": 192}
    for density, facts in T5["distributions"]["prefix"].items():
        objective = objectives.PrefixLM(float(density))
        assert objective.raw_length(512) == 511
        assert objective.lengths(512) == {"inputs": 512, "targets": 511 - facts["min"] + 1}
    for objective in (objectives.BertStyle(), objectives.mass_style(), objectives.Deshuffling()):
        assert (objective.raw_length(512), objective.lengths(512)) == (511, {"inputs": 512, "targets": 512})
    assert objectives.FullLM().lengths(512) == {"targets": objectives.FullLM().raw_length(512)} == {"targets": 512}


# ----------------------------------------------- given masks, token for token ----------------------------------------


def _segments(mask):
    """Lengths of the runs of a mask, text and noise in turn."""
    ends = np.flatnonzero(np.diff(mask, append=-1)) + 1
    return np.diff(ends, prepend=0)


@pytest.mark.parametrize("example", T5["examples"], ids=lambda e: f"{e['kind']}-{e['density']}-{len(e['tokens'])}")
def test_a_given_mask_makes_t5_s_example(example, monkeypatch):
    mask, tokens = np.array(example["mask"]), np.array([example["tokens"]], np.int32)
    match example["kind"]:
        case "span":
            objective = objectives.SpanCorruption(example["density"], example["span"])
            runs = _segments(mask)
            monkeypatch.setattr(span_objectives, "_random_segments", lambda items, n, seeds, draw: runs[None, draw::2])
        case "iid":
            objective = objectives.IidDenoising(example["density"])
            monkeypatch.setattr(span_objectives, "random_uniform", lambda *_, **__: 1.0 - mask[None])
        case "prefix":
            objective = objectives.PrefixLM(example["density"])
            drawn = (mask.sum() - 1 + 0.5) / (len(mask) - 1)
            monkeypatch.setattr(text_objectives, "random_uniform", lambda *_, **__: np.array([[drawn]]))
    made = corrupt(objective, tokens)
    assert made.inputs[0, : made.inputs_lengths[0]].tolist() == [*example["inputs"], 1]
    assert made.targets[0, : made.targets_lengths[0]].tolist() == [*example["targets"], 1]


# -------------------------------------------- 10,000 examples of 512 inputs ------------------------------------------


def _check_ends_and_padding(made, lengths):
    for tokens, number in ((made.inputs, made.inputs_lengths), (made.targets, made.targets_lengths)):
        assert (tokens[np.arange(len(tokens)), number - 1] == 1).all()
        assert not tokens[np.arange(tokens.shape[1]) >= number[:, None]].any()
        assert number.max() <= lengths
        assert (tokens == 1).sum() == len(tokens)


def _share_of_lengths(spans, up_to):
    return [(spans == n).mean() for n in range(1, up_to + 1)]


def test_span_corruption():
    objective, facts = objectives.SpanCorruption(), T5["distributions"]["span"]
    tokens, lengths = windows(objective)
    made = corrupt(objective, tokens, lengths)
    _check_ends_and_padding(made, 512)
    for row in range(NUM_EXAMPLES):
        inputs = made.inputs[row, : made.inputs_lengths[row] - 1].tolist()
        targets = made.targets[row, : made.targets_lengths[row] - 1].tolist()
        assert reconstruct(inputs, targets) == tokens[row, : lengths[row]].tolist()
    full = made.targets[:-200, :-1]
    assert full.shape[1] == 113 and (made.inputs_lengths[:-200] == 512).all()
    assert [set((full < 32000).sum(axis=1))] == [set(facts["noise_tokens"])]
    starts = np.flatnonzero(full.ravel() >= VOCAB_SIZE - 100)
    spans = np.diff(starts, append=full.size) - 1
    # Four standard errors of a share of 280,000 spans are below 0.004.
    assert _share_of_lengths(spans, 8) == pytest.approx(facts["share_of_span_lengths"], abs=0.004)
    positions = np.tile(np.arange(100, 668, dtype=np.int32), (NUM_EXAMPLES, 1))
    masked = corrupt(objective, positions).targets[:, :-1]
    density = np.bincount(masked[masked < 32000] - 100, minlength=568).reshape(8, 71).mean(axis=1) / NUM_EXAMPLES
    # Five standard errors of the difference, 0.0011.
    assert density == pytest.approx(facts["density_by_71st"], abs=0.0055)


def test_iid_denoising():
    objective, facts = objectives.IidDenoising(), T5["distributions"]["iid"]
    tokens, lengths = windows(objective)
    made = corrupt(objective, tokens, lengths)
    _check_ends_and_padding(made, 512)
    assert made.targets_lengths.max() == 192
    masked = (made.targets >= 3) & (made.targets < 32000)
    spans = (made.inputs >= VOCAB_SIZE - 100).sum(axis=1)
    for row in range(NUM_EXAMPLES):
        inputs = made.inputs[row, : made.inputs_lengths[row] - 1]
        targets = made.targets[row, : made.targets_lengths[row] - 1]
        # Sentinels count down in both; the spans between them, in turn, are the text.
        is_sentinel = [feature >= VOCAB_SIZE - 100 for feature in (inputs, targets)]
        for feature, marks in zip((inputs, targets), is_sentinel, strict=True):
            assert np.array_equal(feature[marks], VOCAB_SIZE - 1 - np.arange(marks.sum()))
        text_spans = np.split(inputs, np.flatnonzero(is_sentinel[0]))
        noise_spans = np.split(targets, np.flatnonzero(is_sentinel[1]))
        assert _in_turn(text_spans, noise_spans) == tokens[row, : lengths[row]].tolist()
    full = slice(0, NUM_EXAMPLES - 200)
    for name, values in (
        ("noise_tokens", masked[full].sum(axis=1)),
        ("spans", spans[full]),
        ("targets_without_eos", made.targets_lengths[full] - 1),
    ):
        mean, deviation = facts[name]
        # Two samples of 10,000: five standard errors of the difference of means.
        assert values.mean() == pytest.approx(mean, abs=5 * deviation * np.sqrt(2 / NUM_EXAMPLES)), name
        assert values.std() == pytest.approx(deviation, rel=0.04), name


def _in_turn(text_spans, noise_spans):
    """The spans of inputs and targets, each behind its sentinel but perhaps the first, put together in turn."""
    text, noise = [span[1:] for span in text_spans[1:]], [span[1:] for span in noise_spans[1:]]
    # What stands before the first sentinel of a feature has none: the window begins with it.
    first, second = ([text_spans[0], *text], [*noise]) if len(text_spans[0]) else ([noise_spans[0], *noise], text)
    parts = []
    for i in range(max(len(first), len(second))):
        parts += [*(first[i : i + 1]), *(second[i : i + 1])]
    return np.concatenate(parts).tolist()


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_prefix_lm(density):
    objective, facts = objectives.PrefixLM(density), T5["distributions"]["prefix"][str(density)]
    tokens, lengths = windows(objective)
    made = corrupt(objective, tokens, lengths)
    _check_ends_and_padding(made, 512)
    for row in range(NUM_EXAMPLES):
        inputs = made.inputs[row, : made.inputs_lengths[row] - 1]
        targets = made.targets[row, : made.targets_lengths[row] - 1]
        assert len(inputs) and len(targets)
        assert np.array_equal(np.concatenate([inputs, targets]), tokens[row, : lengths[row]])
    prefixes = made.inputs_lengths[:-200] - 1
    assert (prefixes.min(), prefixes.max()) == (facts["min"], facts["max"])
    assert prefixes.mean() == pytest.approx(facts["mean"], abs=5 * facts["std"] * np.sqrt(2 / NUM_EXAMPLES))
    assert prefixes.std() == pytest.approx(facts["std"], rel=0.03)


def test_bert_style_and_deshuffling():
    tokens, lengths = windows(objectives.BertStyle())
    text = np.arange(511) < lengths[:, None]
    made = {x.name: corrupt(x, tokens, lengths) for x in (objectives.BertStyle(), objectives.mass_style())}
    made["deshuffling"] = corrupt(objectives.Deshuffling(), tokens, lengths)
    for batch in made.values():
        _check_ends_and_padding(batch, 512)
        assert np.array_equal(batch.targets[:, :-1] * text, tokens)
        assert np.array_equal(batch.inputs_lengths, lengths + 1) and np.array_equal(batch.targets_lengths, lengths + 1)
    bert, mass = (made[name].inputs[:, :-1] for name in ("bert_0.15", "mass_0.15"))
    changed = text & (bert != tokens)
    assert changed[:-200].mean() == pytest.approx(0.15, abs=0.001)
    assert (bert[changed] == VOCAB_SIZE - 1).mean() == pytest.approx(T5["bert"]["sentinels"], abs=0.012)
    drawn = bert[changed & (bert != VOCAB_SIZE - 1)]
    assert drawn.min() >= 3 and drawn.max() < VOCAB_SIZE and drawn.mean() == pytest.approx(VOCAB_SIZE / 2, rel=0.02)
    assert (mass[text & (mass != tokens)] == VOCAB_SIZE - 1).all()
    shuffled = made["deshuffling"].inputs[:, :-1] * text
    assert np.array_equal(np.sort(shuffled, axis=1), np.sort(tokens, axis=1))
    # One of 511 tokens stays in its place, on average.
    assert (shuffled == tokens)[:-200].sum() / (NUM_EXAMPLES - 200) == pytest.approx(1, abs=0.05)
