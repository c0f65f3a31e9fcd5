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
        objectives.VocabularyIds(FIRST_SENTINEL + 1, num_sentinels=100, eos_id=1),
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


def test_a_length_of_somebody_else_costs_no_time():
    objective = objectives.SpanCorruption()
    raw = objective.raw_length(2**62)
    assert objective._lengths_of_window(raw)["inputs"] <= 2**62 < objective._lengths_of_window(raw + 1)["inputs"]


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
    ids = objectives.VocabularyIds(32100, num_sentinels=100, eos_id=1)
    seeds = objectives.example_seeds(5, 0, 10)
    whole = objective.corrupt(tokens, np.full(10, 100), seeds, ids)
    order = np.array([7, 2, 9])
    part = objective.corrupt(tokens[order], np.full(3, 100), objectives.example_seeds(5, 0, 10)[order], ids)
    assert np.array_equal(part.inputs, whole.inputs[order])
    assert np.array_equal(objectives.example_seeds(5, 7, 1), seeds[7:8])
    other = objective.corrupt(tokens, np.full(10, 100), objectives.example_seeds(6, 0, 10), ids)
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
    with pytest.raises(ValueError, match=r"T5 (and BERT use|uses)"):
        objectives.SpanCorruption(*arguments)


ALL = [
    objectives.SpanCorruption(), objectives.byt5_span_corruption(), objectives.IidDenoising(), objectives.PrefixLM(),
    objectives.PrefixLM(0.2), objectives.FullLM(), objectives.BertStyle(), objectives.mass_style(),
    objectives.Deshuffling(), *(denoiser.objective for denoiser in objectives.UL2_DENOISERS[1:-1]),
]  # fmt: skip


@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.name)
@pytest.mark.parametrize("length", [16, 100, 512])
def test_full_windows_fit_the_lengths_and_rows_depend_on_their_seeds_alone(objective, length):
    tokens = np.random.default_rng(0).integers(3, 30000, (300, objective.raw_length(length))).astype(np.int32)
    ids = objectives.VocabularyIds(32128, num_sentinels=128, eos_id=1)
    seeds, lengths = objectives.example_seeds(1, 0, 300), np.full(300, tokens.shape[1])
    made = objective.corrupt(tokens, lengths, seeds, ids)
    for name, limit in objective.lengths(length).items():
        number, feature = getattr(made, f"{name}_lengths"), getattr(made, name)
        assert 0 < number.max() <= limit
        assert not feature[np.arange(feature.shape[1]) >= number[:, None]].any()
        # Nothing is wasted on full windows, but what chance leaves of i.i.d. targets.
        assert number.max() >= limit - max(2, limit // 20) or isinstance(objective, objectives.IidDenoising)
    order = np.array([7, 2, 290])
    part = objective.corrupt(tokens[order], lengths[order], seeds[order], ids)
    assert all(np.array_equal(a, b[order]) for a, b in zip(part[:4], made[:4], strict=True))
    # A single masked span is the end of the window, in T5 as here: nothing is drawn.
    if not isinstance(objective, objectives.FullLM) and (made.inputs > 30000).sum(axis=1).max() != 1:
        other = objective.corrupt(tokens, lengths, objectives.example_seeds(2, 0, 300), ids)
        assert not np.array_equal(other.inputs, made.inputs)


def test_iid_denoising_unmasks_what_does_not_fit():
    """With few sentinels many windows ask for more spans: their ends stay text, and nothing is lost."""
    tokens = np.random.default_rng(0).integers(3, 30000, (500, 100)).astype(np.int32)
    objective, seeds, lengths = objectives.IidDenoising(), objectives.example_seeds(0, 0, 500), np.full(500, 100)
    free = objective.corrupt(tokens, lengths, seeds, objectives.VocabularyIds(32100, num_sentinels=100, eos_id=1))
    made = objective.corrupt(tokens, lengths, seeds, objectives.VocabularyIds(32100, num_sentinels=12, eos_id=1))
    for feature in (made.inputs, made.targets):
        assert feature[feature > 30000].min() >= 32100 - 12
    changed = (free.inputs != made.inputs).any(axis=1)
    assert 0.3 < changed.mean() < 0.9
    for row in range(500):
        both = np.concatenate([made.inputs[row], made.targets[row]])
        assert np.array_equal(np.sort(both[(both > 1) & (both < 30000)]), np.sort(tokens[row]))


def test_sentinels_of_the_other_objectives():
    with pytest.raises(ValueError, match=r"512 inputs with noise_density 0.25 needs 120 sentinels.*at most \d+ inputs"):
        objectives.IidDenoising(0.25).check_sentinels(512, 100)
    objectives.IidDenoising().check_sentinels(512, 100)
    for objective in (objectives.IidDenoising(), objectives.BertStyle()):
        with pytest.raises(ValueError, match="extra_ids=100"):
            objective.check_sentinels(512, 0)
    for objective in (objectives.PrefixLM(), objectives.FullLM(), objectives.Deshuffling()):
        objective.check_sentinels(512, 0)
    # Of UL2's denoisers one needs more than T5's 100: half of 766 tokens in spans of 3.
    needing = []
    for denoiser in objectives.UL2_DENOISERS:
        denoiser.objective.check_sentinels(512, 128)
        try:
            denoiser.objective.check_sentinels(512, 100)
        except ValueError:
            needing.append(denoiser.name)
    assert needing == ["x_span3"]


def test_ul2_is_table_1_of_its_paper():
    *masking, sequential = objectives.UL2_DENOISERS
    assert [(d.mode, d.objective.mean_noise_span_length, d.objective.noise_density) for d in masking] == [
        ("[NLU]", 3, 0.15),
        ("[NLU]", 8, 0.15),
        ("[NLG]", 3, 0.5),
        ("[NLG]", 8, 0.5),
        ("[NLG]", 64, 0.15),
        ("[NLG]", 64, 0.5),
    ]
    assert (sequential.mode, sequential.objective) == ("[S2S]", objectives.PrefixLM())
    assert objectives.ul2_lengths(512) == {"inputs": 512, "targets": 512}


@pytest.mark.parametrize(
    "make",
    [
        lambda: objectives.PrefixLM(0.6),
        lambda: objectives.IidDenoising(0),
        lambda: objectives.BertStyle(random_token_rate=2),
    ],
)
def test_bad_arguments_of_the_other_objectives(make):
    with pytest.raises(ValueError, match=r"T5 (and BERT use|uses)"):
        make()


@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.name)
def test_lengths_that_hold_nothing_are_refused(objective):
    with pytest.raises(ValueError, match="at least"):
        objective.lengths(1)


def test_needs_no_tensorflow():
    code = "import sys, tasks.objectives; assert not {'tensorflow', 'seqio', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
