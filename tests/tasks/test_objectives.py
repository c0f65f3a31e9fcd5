import subprocess
import sys

import numpy as np
import pytest

from tasks import objectives

FIRST_SENTINEL = 32099


def reference_lengths(inputs_length, density, span):
    """Longest text whose corrupted inputs fit, by trying every length; and the length of its targets."""
    best = None
    for length in range(2, 4 * inputs_length):
        noise = round(length * density)
        spans = round(noise / span)
        if length - noise + spans + 1 <= inputs_length:
            best = length, noise + spans + 1
        elif best:
            return best
    return best


def corrupt(tokens, lengths=None, seed=0, objective=None):
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else np.asarray(lengths)
    return (objective or objectives.SpanCorruption()).corrupt(
        tokens,
        lengths,
        objectives.example_seeds(seed, 0, len(tokens)),
        vocab_size=FIRST_SENTINEL + 1,
        num_sentinels=100,
        eos_id=1,
    )


def reconstruct(inputs, targets):
    """Puts the spans of the targets where their sentinels stand in the inputs."""
    assert inputs[-1] == targets[-1] == 1
    spans, text = {}, []
    for token in targets[:-1].tolist():
        if token > FIRST_SENTINEL - 100:
            spans[token] = []
            current = token
        else:
            spans[current].append(token)
    for token in inputs[:-1].tolist():
        text.extend(spans.pop(token) if token > FIRST_SENTINEL - 100 else [token])
    assert not spans
    return text


@pytest.mark.parametrize(
    ("inputs_length", "raw", "targets"), [(512, 568, 114), (256, 284, 58), (1024, 1137, 229), (128, 141, 29)]
)
def test_lengths_of_t5(inputs_length, raw, targets):
    assert reference_lengths(inputs_length, 0.15, 3.0) == (raw, targets)
    assert objectives.SpanCorruption().raw_length(inputs_length) == raw
    assert objectives.span_corruption_lengths(inputs_length) == {"inputs": inputs_length, "targets": targets}


@pytest.mark.parametrize(("density", "span"), [(0.15, 20.0), (0.15, 8.0), (0.3, 3.0), (0.25, 5.0)])
def test_lengths_agree_with_trying_every_length(density, span):
    for inputs_length in (100, 200, 333, 512, 1024):
        objective = objectives.SpanCorruption(density, span)
        raw, targets = reference_lengths(inputs_length, density, span)
        assert (objective.raw_length(inputs_length), objective.lengths(inputs_length)["targets"]) == (raw, targets)


def test_inputs_and_targets_give_back_the_text():
    tokens = np.random.default_rng(0).integers(3, 30000, (200, 568)).astype(np.int32)
    lengths = np.full(200, 568)
    lengths[-3:] = 2, 17, 300
    batch = corrupt(tokens, lengths)
    for row in range(200):
        inputs = batch.inputs[row, : batch.inputs_lengths[row]]
        targets = batch.targets[row, : batch.targets_lengths[row]]
        assert reconstruct(inputs, targets) == tokens[row, : lengths[row]].tolist()
        assert not batch.inputs[row, batch.inputs_lengths[row] :].any()
        assert not batch.targets[row, batch.targets_lengths[row] :].any()


def test_sentinels_count_down_and_the_window_begins_with_text_and_ends_with_noise():
    tokens = np.full((64, 568), 7, np.int32)
    batch = corrupt(tokens)
    assert batch.inputs.shape == (64, 512)
    assert batch.targets.shape == (64, 114)
    expected = FIRST_SENTINEL - np.arange(28)
    for row in range(64):
        assert np.array_equal(batch.inputs[row][batch.inputs[row] > 32000], expected)
        assert np.array_equal(batch.targets[row][batch.targets[row] > 32000], expected)
    assert (batch.inputs[:, 0] == 7).all()
    assert (batch.inputs[:, -2] == expected[-1]).all()


def test_masked_positions_and_spans_are_those_of_random_segments():
    # 85 of 568 tokens in 28 spans: positions are masked with density 0.15 on average, spans are 3 long.
    tokens = np.tile(np.arange(3, 571, dtype=np.int32), (4000, 1))
    targets = corrupt(tokens, seed=1).targets[:, :-1]
    masked = targets[targets < 32000] - 3
    share = np.bincount(masked, minlength=568) / 4000
    assert len(masked) == 4000 * 85
    assert share[0] == 0 and share[-1] == 1
    assert abs(share[50:500].mean() - 0.15) < 0.005
    # A random cut of 85 items into 28 segments: length 1 has probability 27/84.
    starts = np.flatnonzero(targets.ravel() > 32000)
    lengths = np.diff(np.append(starts, targets.size)) - 1
    assert abs((lengths == 1).mean() - 27 / 84) < 0.005
    assert abs(lengths.mean() - 85 / 28) < 1e-9


def test_a_row_depends_on_its_seed_alone():
    tokens = np.random.default_rng(0).integers(3, 30000, (10, 100)).astype(np.int32)
    objective = objectives.SpanCorruption()
    args = {"vocab_size": 32100, "num_sentinels": 100, "eos_id": 1}
    seeds = objectives.example_seeds(5, 0, 10)
    whole = objective.corrupt(tokens, np.full(10, 100), seeds, **args)
    order = np.array([7, 2, 9])
    part = objective.corrupt(tokens[order], np.full(3, 100), objectives.example_seeds(5, 0, 10)[order], **args)
    assert np.array_equal(part.inputs, whole.inputs[order])
    assert np.array_equal(objectives.example_seeds(5, 7, 1), seeds[7:8])
    other = objective.corrupt(tokens, np.full(10, 100), objectives.example_seeds(6, 0, 10), **args)
    assert not np.array_equal(other.inputs, whole.inputs)


def test_too_many_sentinels_says_what_to_do():
    # 4096 bytes with spans of 3 need more than 200 sentinels; ByT5's spans of 20 do not.
    with pytest.raises(
        ValueError, match=r"needs 227 sentinels, and the vocabulary has 100; set mean_noise_span_length"
    ):
        objectives.SpanCorruption().check_sentinels(4096, 100)
    objectives.SpanCorruption(mean_noise_span_length=20).check_sentinels(4096, 100)
    with pytest.raises(ValueError, match="extra_ids=100"):
        objectives.SpanCorruption().check_sentinels(512, 0)


@pytest.mark.parametrize("arguments", [(0.0, 3.0), (1.0, 3.0), (0.15, 0.5)])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="T5 uses"):
        objectives.SpanCorruption(*arguments)


def test_needs_no_tensorflow():
    code = "import sys, tasks.objectives; assert not {'tensorflow', 'seqio', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
