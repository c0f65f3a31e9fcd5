"""What a model must beat: the best predictor that knows token frequencies and nothing else.

python -m tasks.unigram_baseline quickstart_span_corruption --module tasks.quickstart
"""

import argparse
import sys
from collections.abc import Iterable

import numpy as np

from limba import data


def unigram_cross_entropy(batches: Iterable[data.Batch]) -> float:
    """Cross entropy, in nats per token, of the best constant prediction on exactly these targets.

    That is the entropy of the empirical distribution of `decoder_target_tokens` where `decoder_loss_weights` > 0.
    """
    counts = np.zeros(0, np.int64)
    for batch in batches:
        tokens = batch["decoder_target_tokens"][batch["decoder_loss_weights"] > 0]
        new = np.bincount(tokens, minlength=len(counts))
        new[: len(counts)] += counts
        counts = new
    if not counts.sum():
        raise ValueError("There is no target token to count.")
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def main(argv: list[str] | None = None) -> None:
    # Only the command needs TensorFlow.
    from tasks import pipeline, preview

    parser = argparse.ArgumentParser(prog="python -m tasks.unigram_baseline", description=__doc__.partition("\n")[0])
    parser.add_argument("task", help="a task or mixture in the SeqIO registry")
    parser.add_argument("--module", help="the module that registers it, such as tasks.quickstart")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--inputs_length", type=int, default=512)
    parser.add_argument("--targets_length", type=int, help="computed from the objective if not given")
    parser.add_argument("--seed", type=int, default=0, help="that of the evaluation (0)")
    args = parser.parse_args(argv)
    try:
        task = pipeline.find_provider(args.task, args.module)
        lengths = preview.feature_lengths(task, args.inputs_length, args.targets_length)
        config = data.DatasetConfig(args.task, lengths, args.split, 32, seed=args.seed)
        for name, batches in pipeline.get_eval_batches(config).items():
            print(f"{name}: {unigram_cross_entropy(batches):.4f} nats per target token")
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
