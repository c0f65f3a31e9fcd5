"""Devices whose memory is not enough: one message in place of XLA's pages."""

import re
import sys
from collections.abc import Sequence
from typing import Any

from limba.files import shell_words

_GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": _GIB, "T": 2**40}
# XLA's sentences: of an allocation, of a program for a GPU, of a program for a TPU.
_ASKED = (
    r"allocating (?P<bytes>\d+) bytes",
    r"allocate (?P<amount>[\d.]+)(?P<unit>[KMGT])iB",
    r"Used (?P<amount>[\d.]+)(?P<unit>[KMGT]) of [\d.]+[KMGT] (?:hbm|smem|vmem)",
)
_THERE = r"Used [\d.]+[KMGT] of (?P<amount>[\d.]+)(?P<unit>[KMGT]) (?:hbm|smem|vmem)"
# Part of JAX's name of a device: limba plan's name of the chip, and what it counts for each device.
_CHIPS = (
    *(("H100", "h100", 1), ("H200", "h200", 1), ("A100", "a100", 1), ("TPU v4", "v4", 2)),
    *(("TPU v5 lite", "v5e", 1), ("TPU v5e", "v5e", 1), ("TPU v5", "v5p", 2), ("TPU v6", "v6e", 1)),
    ("TPU7x", "tpu7x", 1),
)
_REMEDIES = {
    "limba.train": (
        "--gin.trainer.Trainer.num_microbatches=2 (activations of half a batch), "
        "--gin.network.T5Config.remat_policy=\"'minimal'\" or \"'full'\" (activations computed again), "
        '--gin.partitioning.PjitPartitioner.logical_axis_rules="@partitioning.fsdp_logical_axis_rules()" '
        "(parameters spread over the devices), or a smaller BATCH_SIZE"
    ),
    "limba.eval": "a smaller --gin.eval/data.DatasetConfig.batch_size",
    "limba.infer": "a smaller batch (--gin.answers.Answerer.batch_size or --gin.infer/data.DatasetConfig.batch_size)",
}


def is_cause(error: BaseException) -> bool:
    """Whether a device had no memory left."""
    return "RESOURCE_EXHAUSTED" in str(error) and any(
        kind.__name__ == "JaxRuntimeError" for kind in type(error).__mro__
    )


def describe(error: BaseException, command: str, argv: Sequence[str]) -> str:
    """What was asked, what there is, and what helps.

    Args:
      command: the command's module, such as "limba.train".
      argv: its command line, for that of `limba plan`.
    """
    text = str(error)
    asked = next((found for pattern in _ASKED if (found := re.search(pattern, text))), None)
    devices = _devices()
    there = re.search(_THERE, text)
    room = _amount(there) if there else _limit(devices)
    said = f"{_shown(_amount(asked))} were asked for" if asked else "an array did not fit"
    where = f"{len(devices)} x {devices[0].device_kind}" if devices else "this machine"
    has = f"; each device of {where} has {_shown(room)}" if room else f" on {where}"
    remedy = _REMEDIES.get(command)
    helps = f" Less memory: {remedy}." if remedy else ""
    return f"Out of memory: {said}{has}.{helps}{_plan(command, argv, devices)}"


def _amount(found: re.Match[str]) -> float:
    parts = found.groupdict()
    if parts.get("bytes"):
        return float(parts["bytes"])
    return float(parts["amount"]) * _UNITS[parts["unit"]]


def _shown(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:,.2f} GiB"


def _devices() -> list[Any]:
    return list(sys.modules["jax"].devices()) if "jax" in sys.modules else []


def _limit(devices: Sequence[Any]) -> float | None:
    stats = devices[0].memory_stats() if devices else None
    return (stats or {}).get("bytes_limit")


def _plan(command: str, argv: Sequence[str], devices: Sequence[Any]) -> str:
    """The sentence with `limba plan` for the same gin files."""
    if command != "limba.train":
        return ""
    kind = devices[0].device_kind if devices else ""
    chip = next(((name, count) for part, name, count in _CHIPS if part in kind), None)
    topology = f"{chip[0]}-{chip[1] * len(devices)}" if chip else "NAME"
    gin = [word for word in argv if word.startswith("--gin") or word.endswith(".gin")]
    words = " ".join(map(shell_words.quoted, gin))
    return f" What fits, before it is tried: limba plan {words} --topology {topology}"
