"""Writes `golden/t5_objectives.json`: facts from a run of T5's preprocessors, with which ours are compared.

    PYTHONPATH=<the unpacked wheel of t5 0.9.4> python tests/tasks/make_t5_objectives.py

T5 is not a dependency of Limba, and nothing of it is copied here: its functions are called, and their results written.
"""

import importlib.util
import json
import os
import pathlib
import sys
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 10_000
VOCAB_SIZE = 32100
LENGTHS = [16, 64, 100, 128, 256, 333, 512, 1024, 2048]
SPAN_CORRUPTIONS = [
    [density, span] for density in (0.1, 0.15, 0.25, 0.5) for span in (1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 20.0, 64.0)
]


def load_t5():
    """`t5/data/preprocessors.py` without its package, which imports more than is needed and installed."""
    package = next(p for p in map(pathlib.Path, sys.path) if (p / "t5" / "data" / "preprocessors.py").is_file())
    sys.modules.setdefault("babel", types.ModuleType("babel"))
    spec = importlib.util.spec_from_file_location("t5_preprocessors", package / "t5" / "data" / "preprocessors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


t5 = load_t5()
vocabulary = types.SimpleNamespace(vocab_size=VOCAB_SIZE)


def masks(mask_fn, length, density, count=NUM_EXAMPLES, **arguments):
    def mask(i):
        return mask_fn(length, density, seeds=tf.stack([[i, 2 * i], [i + 7, 3 * i + 1]]), **arguments)

    seeds = tf.data.Dataset.range(count).map(lambda i: tf.cast(i, tf.int32))
    return np.stack(list(seeds.map(mask, num_parallel_calls=2).as_numpy_iterator()))


def run_lengths(mask):
    """Lengths of the runs of True in all rows."""
    edges = np.diff(np.pad(mask.astype(np.int8), [(0, 0), (1, 1)]), axis=1)
    return np.argwhere(edges == -1)[:, 1] - np.argwhere(edges == 1)[:, 1]


def lengths_of_span_corruption():
    rows = []
    for density, span in SPAN_CORRUPTIONS:
        for length in LENGTHS:
            tokens, targets = t5.random_spans_helper(
                length, density, span, extra_tokens_per_span_inputs=1, extra_tokens_per_span_targets=1
            )
            # What a window of that length becomes.
            mask = masks(t5.random_spans_noise_mask, tokens, density, 1, mean_noise_span_length=span)[0]
            rows.append([length, density, span, tokens, targets, int(mask.sum()), len(run_lengths(mask[None]))])
    return rows


def examples():
    """Given masks, and what T5 makes of them."""
    rng = np.random.default_rng(0)
    result = []
    for kind, density, span in [("span", 0.15, 3.0), ("span", 0.5, 3.0), ("iid", 0.15, None), ("prefix", 0.5, None)]:
        for length in (20, 57):
            tokens = rng.integers(3, 30000, length)
            inputs_fn, targets_fn = t5.noise_span_to_unique_sentinel, t5.nonnoise_span_to_unique_sentinel
            if kind == "span":
                mask = masks(t5.random_spans_noise_mask, length, density, 3, mean_noise_span_length=span)[-1]
            elif kind == "iid":
                mask = masks(t5.iid_noise_mask, length, density, 3)[-1]
            else:
                mask = masks(t5.random_prefix_noise_mask, length, density, 3)[-1]
                inputs_fn, targets_fn = t5.drop_nonnoise_tokens, t5.drop_noise_tokens
            inputs, targets = (
                f(tf.constant(tokens, tf.int32), tf.constant(mask), vocabulary, None).numpy().tolist()
                for f in (inputs_fn, targets_fn)
            )
            result.append(
                {"kind": kind, "density": density, "span": span, "tokens": tokens.tolist(),
                 "mask": mask.astype(int).tolist(), "inputs": inputs, "targets": targets}
            )  # fmt: skip
    return result


def distributions():
    span = masks(t5.random_spans_noise_mask, 568, 0.15, mean_noise_span_length=3.0)
    iid = masks(t5.iid_noise_mask, 511, 0.15)
    prefix = {str(d): masks(t5.random_prefix_noise_mask, 511, d).sum(axis=1) for d in (0.5, 0.25)}
    spans = run_lengths(span)
    iid_spans = np.array([len(run_lengths(row[None])) for row in iid])
    iid_targets = iid.sum(axis=1) + np.array([len(run_lengths(row[None])) for row in ~iid])
    return {
        "span": {
            "noise_tokens": sorted(set(span.sum(axis=1).tolist())),
            "share_of_span_lengths": [float((spans == n).mean()) for n in range(1, 9)],
            "density_by_71st": span.reshape(NUM_EXAMPLES, 8, 71).mean(axis=(0, 2)).round(5).tolist(),
        },
        "iid": {
            "noise_tokens": [float(iid.sum(axis=1).mean()), float(iid.sum(axis=1).std())],
            "spans": [float(iid_spans.mean()), float(iid_spans.std())],
            "targets_without_eos": [float(iid_targets.mean()), float(iid_targets.std())],
            "share_of_span_lengths": [float((run_lengths(iid) == n).mean()) for n in range(1, 5)],
        },
        "prefix": {
            d: {"min": int(p.min()), "max": int(p.max()), "mean": float(p.mean()), "std": float(p.std())}
            for d, p in prefix.items()
        },
    }  # fmt: skip


def bert():
    """Shares of what BERT-style masking makes of 10,000 masked tokens, and the range of its random tokens."""
    tokens = tf.fill([NUM_EXAMPLES], 7)
    seeds = tf.constant([[1, 2], [3, 4]])
    made = t5.noise_token_to_random_token_or_sentinel(tokens, tf.ones([NUM_EXAMPLES], tf.bool), vocabulary, seeds)
    is_sentinel = made.numpy() == VOCAB_SIZE - 1
    drawn = t5.noise_token_to_random_token(tokens, tf.ones([NUM_EXAMPLES], tf.bool), vocabulary, seeds).numpy()
    return {"sentinels": float(is_sentinel.mean()), "drawn": [int(drawn.min()), int(drawn.max())]}


if __name__ == "__main__":
    facts = {
        "made_by": "tests/tasks/make_t5_objectives.py with t5 0.9.4",
        "vocab_size": VOCAB_SIZE,
        "span_corruption": {
            "columns": ["inputs_length", "density", "span", "tokens", "targets", "noise_tokens", "spans"],
            "rows": lengths_of_span_corruption(),
        },
        "examples": examples(),
        "distributions": distributions(),
        "bert": bert(),
    }
    path = pathlib.Path(__file__).parent / "golden" / "t5_objectives.json"
    text = json.dumps(facts, indent=1)
    path.write_text(text + "\n")
    print(f"{path}: {len(text)} characters")
