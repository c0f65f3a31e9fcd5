"""Tokens per second of decoding: Limba beside transformers' `generate` in PyTorch, in one run.

    python -m benchmarks.decoding --size small --batch_size 8 --new_tokens 64 --rounds 3

Prints a JSON line for each dtype and way; progress goes to stderr. The sides are processes that take turns
(benchmarks/sides.py). Both decode the same rows of random tokens with a new T5 1.1, `--new_tokens` each, with nothing
ending earlier: greedily, sampling at temperature 1, and with four beams.

- `limba`: `predict_batch` of the model, compiled, as `limba infer` calls it.
- `huggingface`: T5ForConditionalGeneration.generate in eager PyTorch with its cache; in bfloat16 all parameters are.
"""

import argparse
import dataclasses
import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import sides
from benchmarks.train_step import DTYPES, SIZES, T5_1_1, huggingface_config

WAYS = ("greedy", "sample", "beams")
NUM_BEAMS = 4


@dataclasses.dataclass(frozen=True)
class Workload:
    """What every side decodes.

    Attributes:
      sizes: fields of `limba.network.t5.T5Config`, without `dtype`.
      dtype: of activations; of parameters too in PyTorch.
      way: "greedy", "sample" or "beams".
      batch_size, inputs, new_tokens: rows, tokens of each row's input, and of its answer.
    """

    sizes: dict[str, Any]
    dtype: str
    way: str
    batch_size: int
    inputs: int
    new_tokens: int

    def rows(self) -> Any:
        """Inputs, int32 `[batch_size, inputs]`."""
        import numpy as np

        rng = np.random.default_rng(0)
        return rng.integers(3, self.sizes["vocab_size"], (self.batch_size, self.inputs), dtype=np.int32)


class _EndlessVocabulary:
    """Whose end of a sequence is no token."""

    eos_id, pad_id, extra_ids = -1, 0, 100

    def __init__(self, vocab_size: int):
        self.vocab_size = self.base_vocab_size = vocab_size


def limba_model(workload: Workload) -> Any:
    """A T5 that decodes in the way of the workload."""
    from limba import models
    from limba.models import beam_search, decoding
    from limba.network import t5
    from limba.optimizers import adafactor

    config = t5.T5Config(**workload.sizes, dtype=workload.dtype, dropout_rate=0.0)
    vocabulary: Any = _EndlessVocabulary(config.vocab_size)
    decode: Any = beam_search.beam_search if workload.way == "beams" else decoding.temperature_sample
    return models.EncoderDecoderModel(
        t5.Transformer(config), vocabulary, vocabulary, adafactor.Adafactor(), decode_fn=decode
    )


def new_parameters(model: Any, workload: Workload) -> Any:
    """Of bfloat16 where activations are, as PyTorch's: they are read once a token."""
    import jax
    import jax.numpy as jnp

    shapes = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens"), (1, 8))
    params = model.get_initial_variables(jax.random.key(0), input_shapes=shapes)["params"]
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params) if workload.dtype == "bfloat16" else params


def predict(model: Any, workload: Workload, params: Any, rows: Any, rng: Any) -> Any:
    """Answers `[batch_size, new_tokens]`."""
    import jax.numpy as jnp

    batch = {
        "encoder_input_tokens": rows,
        "decoder_input_tokens": jnp.zeros((workload.batch_size, workload.new_tokens), jnp.int32),
    }
    temperature = {"sample": {"temperature": 1.0}, "greedy": {"temperature": 0.0}}.get(workload.way, {})
    num_decodes = NUM_BEAMS if workload.way == "beams" else 1
    return model.predict_batch(params, batch, rng, num_decodes=num_decodes, decoder_params=temperature)


def _limba(workload: Workload) -> sides.Side:
    import jax

    model, rows = limba_model(workload), workload.rows()
    params = jax.jit(functools.partial(new_parameters, model, workload))()
    compiled = jax.jit(functools.partial(predict, model, workload)).lower(params, rows, jax.random.key(1)).compile()

    def run(num_steps: int) -> None:
        for step in range(num_steps):
            tokens = compiled(params, rows, jax.random.key(step))
        assert jax.block_until_ready(tokens).shape == (workload.batch_size, workload.new_tokens)

    return run, {"versions": {"jax": jax.__version__}}


def _huggingface(workload: Workload) -> sides.Side:
    import torch

    torch.set_flush_denormal(True)
    import transformers

    config = huggingface_config(workload.sizes, feed_forward_proj="gated-gelu")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model: Any = transformers.T5ForConditionalGeneration(config)
    model.to(device, getattr(torch, workload.dtype)).eval()
    inputs = torch.from_numpy(workload.rows()).long().to(device)
    ways = {"greedy": {}, "sample": {"do_sample": True, "top_k": 0}, "beams": {"num_beams": NUM_BEAMS}}
    length = {"max_new_tokens": workload.new_tokens, "min_new_tokens": workload.new_tokens}

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            answers = model.generate(input_ids=inputs, **length, **ways[workload.way])
        assert answers.shape == (workload.batch_size, workload.new_tokens + 1)
        if device == "cuda":
            torch.cuda.synchronize()

    return run, {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}


SIDES = {"limba": _limba, "huggingface": _huggingface}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decoding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=SIZES, default="small", help="a T5 1.1 (small)")
    parser.add_argument("--batch_size", type=int, default=8, help="rows (8)")
    parser.add_argument("--inputs", type=int, default=128, help="tokens of inputs (128)")
    parser.add_argument("--new_tokens", type=int, default=64, help="tokens of answers (64)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32"], help="of activations (float32)")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), help="of choosing tokens (all)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name in ("batch_size", "inputs", "new_tokens", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1")
    return args


def measure(workload: Workload, rounds: int) -> dict[str, Any]:
    """A report per side."""
    label = f"{workload.way}, {workload.dtype}"
    with tempfile.TemporaryDirectory() as folder:
        script, fields = Path(__file__).resolve(), dataclasses.asdict(workload)
        reports = sides.measure(script, label, fields, list(SIDES), 1, rounds, Path(folder))
    for report in reports.values():
        if not isinstance(report, str):
            report["tokens_per_second"] = round(workload.batch_size * workload.new_tokens / report["seconds"], 1)
    return reports


def main() -> None:
    args = parse_arguments()
    if args.serve:
        sides.serve(args.serve, lambda workload: SIDES[args.serve](Workload(**workload)))
        return
    shape = (args.batch_size, args.inputs, args.new_tokens)
    for dtype in args.dtype:
        for way in args.way:
            reports = measure(Workload(T5_1_1 | SIZES[args.size], dtype, way, *shape), args.rounds)
            if isinstance(reports["limba"], str):
                raise SystemExit(f"benchmarks.decoding: limba, {way} in {dtype}: {reports['limba']}")
            facts = {"size": args.size, "batch_size": shape[0], "inputs": shape[1], "new_tokens": shape[2]}
            line = {"benchmark": "decoding", **facts, "dtype": dtype, "way": way, "rounds": args.rounds}
            print(json.dumps({**line, "cpus": os.cpu_count(), **reports}), flush=True)


if __name__ == "__main__":
    main()
