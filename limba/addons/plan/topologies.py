"""TPU slices and GPU boxes: their names, chips, memory and peak rate.

A slice has Google's name: `v4-32` counts TensorCores (v2, v3, v4, v5p, TPU7x), `v5e-16` and `v6e-16` count chips. GPUs
are `h100-8`: a kind and a number of cards, eight to a box. Works before JAX is imported.
"""

import dataclasses
import difflib
import math
import os

from limba.devices import accelerators

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip or card.

    Attributes:
      platform: "tpu" or "gpu".
      device_kind: `jax.Device.device_kind`, or its beginning.
      peak: dense bf16 FLOP/s of a chip; of a card without bf16 those of float32, in which it trains.
      memory: bytes of a `jax.Device`. TPUs: the limit of XLA's compiler for that chip, which is less than the chip has.
        GPUs: all of the card; see `Topology.memory`.
      bandwidth: bytes/s between a chip and its memory.
      link: bytes/s that a chip sends to its neighbours in the slice or box, over all links, one way.
      network: bytes/s that a chip sends to another slice or box.
      devices_per_chip: 2 where each core is a `jax.Device` of its own.
      cores_per_chip: the number in a name counts cores.
    """

    platform: str
    device_kind: str
    peak: float
    memory: float
    bandwidth: float
    link: float
    network: float
    devices_per_chip: int = 1
    cores_per_chip: int = 1

    @property
    def peak_per_device(self) -> float:
        return self.peak / self.devices_per_chip


# Figures of cloud.google.com/tpu/docs and of NVIDIA's data sheets, without sparsity. Google's figures
# for links count both directions. A device's chip is the first one whose `device_kind` is in the device's.
#     platform, device_kind, peak, memory, bandwidth, link, network
CHIPS = {
    "v2": Chip("tpu", "TPU v2", 45e12, 7.48 * GIB, 700e9, 248e9, 3e9, devices_per_chip=2, cores_per_chip=2),
    "v3": Chip("tpu", "TPU v3", 123e12, 15.48 * GIB, 900e9, 328e9, 3e9, devices_per_chip=2, cores_per_chip=2),
    "v4": Chip("tpu", "TPU v4", 275e12, 30.75 * GIB, 1228e9, 300e9, 6e9, cores_per_chip=2),
    "v5e": Chip("tpu", "TPU v5 lite", 197e12, 15.75 * GIB, 819e9, 200e9, 3e9),
    "v5p": Chip("tpu", "TPU v5", 459e12, 95.74 * GIB, 2765e9, 600e9, 6e9, cores_per_chip=2),
    "v6e": Chip("tpu", "TPU v6", 918e12, 31.25 * GIB, 1640e9, 400e9, 12e9),
    "tpu7x": Chip("tpu", "TPU7x", 2307e12, 94.75 * GIB, 7380e9, 600e9, 12e9, devices_per_chip=2, cores_per_chip=2),
    "h100-pcie": Chip("gpu", "NVIDIA H100 PCIe", 756e12, 79.6 * GIB, 2.0e12, 64e9, 25e9),
    "h100": Chip("gpu", "NVIDIA H100", 989e12, 79.6 * GIB, 3.35e12, 450e9, 50e9),
    "h200": Chip("gpu", "NVIDIA H200", 989e12, 140.4 * GIB, 4.8e12, 450e9, 50e9),
    "a100-40gb": Chip("gpu", "NVIDIA A100-SXM4-40GB", 312e12, 39.5 * GIB, 1.555e12, 300e9, 25e9),
    "a100": Chip("gpu", "NVIDIA A100", 312e12, 79.3 * GIB, 2.039e12, 300e9, 25e9),
    "t4": Chip("gpu", "Tesla T4", 8.1e12, 14.7 * GIB, 320e9, 16e9, 3e9),
    "p100": Chip("gpu", "Tesla P100", 9.3e12, 15.8 * GIB, 732e9, 16e9, 3e9),
}

# Google's other names for a generation.
_ALIASES = {
    "v5litepod": "v5e",
    "v6litepod": "v6e",
    "v5": "v5p",
    "v7x": "tpu7x",
    "a100-80gb": "a100",
    "h100-sxm": "h100",
}

# Chips of a slice, as the accelerator types have them. Three dims: v4, v5p and TPU7x.
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
    "tpu7x": tuple(_CUBIC),
    "v5e": (1, 4, 8, 16, 32, 64, 128, 256),
    "v6e": (1, 4, 8, 16, 32, 64, 128, 256),
}
_GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
_GPUS_OF_A_BOX = 8
# Names of a kind that a message has beside its smallest and largest.
_NEAREST = 5


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
        return (_CUBIC if self.kind in ("v4", "v5p", "tpu7x") else _FLAT)[self.num_chips]

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
        """Bytes of a device that a program may use: of a GPU what `limba train` uses, or JAX's variable for it."""
        if self.chip.platform == "tpu":
            return self.chip.memory
        return self.chip.memory * float(os.environ.get(accelerators.GPU_MEMORY_VARIABLE, accelerators.GPU_MEMORY))

    @property
    def devices_of_a_box(self) -> int:
        """Devices that the fast links join."""
        if self.chip.platform == "gpu":
            return min(self.num_chips, _GPUS_OF_A_BOX)
        return self.num_chips * self.chip.devices_per_chip


def names() -> list[str]:
    """The names of all topologies of one slice."""
    tpus = [f"{kind}-{n * CHIPS[kind].cores_per_chip}" for kind, sizes in _CHIPS_OF_SLICES.items() for n in sizes]
    gpus = [f"{kind}-{n}" for kind, chip in CHIPS.items() if chip.platform == "gpu" for n in _GPUS]
    return tpus + gpus


def families() -> str:
    """The smallest and the largest topology of each kind, for messages."""
    kinds = dict.fromkeys(name.rpartition("-")[0] for name in names())
    ends = ([name for name in names() if name.rpartition("-")[0] == kind] for kind in kinds)
    return ", ".join(f"{of_kind[0]} to {of_kind[-1].rpartition('-')[2]}" for of_kind in ends)


def find(name: str, num_slices: int = 1) -> Topology:
    """The topology of a name.

    Raises:
      ValueError: for an unknown name, with the nearest ones; or several slices of GPUs.
    """
    spelled = name.strip().lower()
    kind, _, count = spelled.rpartition("-") if spelled not in CHIPS else (spelled, "", "")
    kind = _ALIASES.get(kind, kind)
    if f"{kind}-{count}" not in names():
        near = difflib.get_close_matches(spelled, names(), n=4, cutoff=0.5)
        same = [known for known in names() if known.rpartition("-")[0] == kind] if kind in CHIPS else []
        if count.isdecimal() and len(same) > _NEAREST:
            nearest = sorted(sorted(same, key=lambda known: abs(_count(known) - int(count)))[:_NEAREST], key=_count)
            raise ValueError(
                f"--topology {name} is not known; the nearest are {', '.join(nearest)}, and there are {same[0]} to "
                f"{same[-1]}."
            )
        raise ValueError(f"--topology {name} is not known; there are {', '.join(same or near) or families()}.")
    chip = CHIPS[kind]
    if num_slices < 1 or (num_slices > 1 and chip.platform == "gpu"):
        raise ValueError(
            f"--num_slices is {num_slices}; it is at least 1, and 1 for GPUs, whose boxes count in the name."
        )
    return Topology(f"{kind}-{count}", kind, int(count) // chip.cores_per_chip, num_slices)


def _count(name: str) -> int:
    return int(name.rpartition("-")[2])


def name_of(device_kind: str, num_devices: int) -> str | None:
    """The topology of a machine that is there, by its `jax.Device`s; None if it is not in the table."""
    for kind, chip in CHIPS.items():
        if chip.device_kind in device_kind:
            name = f"{kind}-{num_devices // chip.devices_per_chip * chip.cores_per_chip}"
            return name if name in names() else None
    return None


def peak_flops(device_kind: str) -> float | None:
    """`Chip.peak` of one `jax.Device`; None for CPUs and others that are not in the table."""
    return next((chip.peak_per_device for chip in CHIPS.values() if chip.device_kind in device_kind), None)
