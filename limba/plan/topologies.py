"""TPU slices and GPU boxes: their names, chips, memory and peak rate.

A slice has Google's name: `v4-32` counts TensorCores (v2, v3, v4, v5p), `v5e-16` and `v6e-16` count chips. GPUs are
`h100-8`: a kind and a number of cards, eight to a box. Imports nothing, so that it answers before JAX is there.
"""

import dataclasses
import difflib
import math
import os

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of chip or card.

    Attributes:
      platform: "tpu" or "gpu".
      device_kind: what a `jax.Device` of it calls itself, or begins with.
      peak: dense bf16 FLOP/s of a chip.
      memory: bytes of a `jax.Device` that a program may use. TPUs: what XLA's compiler for that chip allows, which is
        less than the chip has. GPUs: what the card has; see `usable_memory`.
      link: bytes/s that a chip sends to its neighbours in the slice or box, over all links, one way.
      network: bytes/s that a chip sends to another slice or box.
      devices_per_chip: 2 where each core is a `jax.Device` of its own.
      cores_per_chip: what the number in a name counts.
      source: where the figures are from.
    """

    platform: str
    device_kind: str
    peak: float
    memory: float
    link: float
    network: float
    devices_per_chip: int = 1
    cores_per_chip: int = 1
    source: str

    @property
    def peak_per_device(self) -> float:
        return self.peak / self.devices_per_chip


def _google(page: str) -> str:
    return f"cloud.google.com/tpu/docs/{page}"


_NVIDIA = "NVIDIA's data sheets, without sparsity"

# The first whose `device_kind` a device's begins with is that device's chip.
CHIPS = {
    "v2": Chip(
        platform="tpu", device_kind="TPU v2", peak=45e12, memory=7.48 * GIB, link=248e9, network=3e9,
        devices_per_chip=2, cores_per_chip=2, source=_google("v2"),
    ),
    "v3": Chip(
        platform="tpu", device_kind="TPU v3", peak=123e12, memory=15.48 * GIB, link=328e9, network=3e9,
        devices_per_chip=2, cores_per_chip=2, source=_google("v3"),
    ),
    "v4": Chip(
        platform="tpu", device_kind="TPU v4", peak=275e12, memory=30.75 * GIB, link=300e9, network=6e9,
        cores_per_chip=2, source=_google("v4"),
    ),
    "v5e": Chip(
        platform="tpu", device_kind="TPU v5 lite", peak=197e12, memory=15.75 * GIB, link=200e9, network=3e9,
        source=_google("v5e"),
    ),
    "v5p": Chip(
        platform="tpu", device_kind="TPU v5", peak=459e12, memory=95.74 * GIB, link=600e9, network=6e9,
        cores_per_chip=2, source=_google("v5p"),
    ),
    "v6e": Chip(
        platform="tpu", device_kind="TPU v6", peak=918e12, memory=31.25 * GIB, link=400e9, network=12e9,
        source=_google("v6e"),
    ),
    "h100-pcie": Chip(
        platform="gpu", device_kind="NVIDIA H100 PCIe", peak=756e12, memory=79.6 * GIB, link=64e9, network=25e9,
        source=_NVIDIA,
    ),
    "h100": Chip(
        platform="gpu", device_kind="NVIDIA H100", peak=989e12, memory=79.6 * GIB, link=450e9, network=50e9,
        source=_NVIDIA,
    ),
    "h200": Chip(
        platform="gpu", device_kind="NVIDIA H200", peak=989e12, memory=140.4 * GIB, link=450e9, network=50e9,
        source=_NVIDIA,
    ),
    "a100-40gb": Chip(
        platform="gpu", device_kind="NVIDIA A100-SXM4-40GB", peak=312e12, memory=39.5 * GIB, link=300e9, network=25e9,
        source=_NVIDIA,
    ),
    "a100": Chip(
        platform="gpu", device_kind="NVIDIA A100", peak=312e12, memory=79.3 * GIB, link=300e9, network=25e9,
        source=_NVIDIA,
    ),
}  # fmt: skip

# Google's own names for a generation, beside ours.
_ALIASES = {"v5litepod": "v5e", "v6litepod": "v6e", "v5": "v5p", "a100-80gb": "a100", "h100-sxm": "h100"}

# Chips of a slice, as the accelerator types have them. Three dims: v4 and v5p.
_FLAT = {
    1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16), 512: (16, 32),
    1024: (32, 32),
}  # fmt: skip
_CUBIC = {
    4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8),
    512: (8, 8, 8), 1024: (8, 8, 16),
}  # fmt: skip
_CHIPS_OF_SLICES = {
    "v2": (4, 16, 64, 128, 256),
    "v3": (4, 16, 32, 64, 128, 256, 512, 1024),
    "v4": tuple(_CUBIC),
    "v5p": tuple(_CUBIC),
    "v5e": (1, 4, 8, 16, 32, 64, 128, 256),
    "v6e": (1, 4, 8, 16, 32, 64, 128, 256),
}
_GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
_GPUS_OF_A_BOX = 8


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, several slices of one kind, or GPU boxes.

    Attributes:
      name: such as `v4-32`.
      kind: key of `CHIPS`.
      num_chips: of one slice; of all boxes.
      num_slices: joined by the data centre's network; 1 for GPUs.
    """

    name: str
    kind: str
    num_chips: int
    num_slices: int = 1

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def all_chips(self) -> int:
        return self.num_chips * self.num_slices

    @property
    def num_devices(self) -> int:
        """`jax.Device`s of all slices."""
        return self.all_chips * self.chip.devices_per_chip

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips of a TPU slice by axis."""
        return (_CUBIC if self.kind in ("v4", "v5p") else _FLAT)[self.num_chips]

    @property
    def num_hosts(self) -> int:
        """Virtual machines: 4 chips each, but for one-host slices of v5e and v6e; GPU boxes have up to 8 cards."""
        if self.chip.platform == "gpu":
            return math.ceil(self.num_chips / _GPUS_OF_A_BOX)
        if self.kind in ("v5e", "v6e") and self.num_chips <= 8:
            return self.num_slices
        return self.num_chips // 4 * self.num_slices

    @property
    def memory(self) -> float:
        """Bytes of a device that a program may use. JAX takes three quarters of a GPU, unless it is told otherwise."""
        if self.chip.platform == "tpu":
            return self.chip.memory
        return self.chip.memory * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))

    @property
    def devices_of_a_box(self) -> int:
        """Devices that the fast links join."""
        if self.chip.platform == "gpu":
            return min(self.num_chips, _GPUS_OF_A_BOX)
        return self.num_chips * self.chip.devices_per_chip


def names() -> list[str]:
    """Of every topology of one slice."""
    tpus = [f"{kind}-{n * CHIPS[kind].cores_per_chip}" for kind, sizes in _CHIPS_OF_SLICES.items() for n in sizes]
    gpus = [f"{kind}-{n}" for kind, chip in CHIPS.items() if chip.platform == "gpu" for n in _GPUS]
    return tpus + gpus


def find(name: str, num_slices: int = 1) -> Topology:
    """The topology of a name.

    Raises:
      ValueError: for a name that is none, with the nearest ones; or several slices of GPUs.
    """
    spelled = name.strip().lower()
    kind, _, count = spelled.rpartition("-") if spelled not in CHIPS else (spelled, "", "")
    kind = _ALIASES.get(kind, kind)
    if f"{kind}-{count}" not in names():
        near = difflib.get_close_matches(spelled, names(), n=4, cutoff=0.5)
        same = [known for known in names() if known.rpartition("-")[0] == kind] if kind in CHIPS else []
        raise ValueError(f"--topology {name} is none that is known; there are {', '.join(same or near or names())}.")
    chip = CHIPS[kind]
    if num_slices < 1 or (num_slices > 1 and chip.platform == "gpu"):
        raise ValueError(
            f"--num_slices is {num_slices}; it is at least 1, and 1 for GPUs, whose boxes count in the name."
        )
    return Topology(f"{kind}-{count}", kind, int(count) // chip.cores_per_chip, num_slices)


def chip_of(device_kind: str) -> Chip | None:
    """The chip of a `jax.Device.device_kind`; None for CPUs and what is not in the table."""
    return next((chip for chip in CHIPS.values() if chip.device_kind in device_kind), None)


def peak_flops(device_kind: str) -> float | None:
    """Dense bf16 FLOP/s of one `jax.Device`; None where it is not known, and for CPUs."""
    chip = chip_of(device_kind)
    return None if chip is None else chip.peak_per_device
