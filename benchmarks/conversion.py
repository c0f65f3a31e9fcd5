"""Peak memory and cpu-seconds of the conversions, of a random T5 1.1 that is made tensor by tensor.

    python -m benchmarks.conversion --size xl --folder /data/xl [--against convert_t5x_checkpoint_to_pytorch.py]

Prints one JSON line. A checkpoint in T5X's classic format becomes a Hugging Face folder (`to-hf`), that becomes a
checkpoint of Limba (`from-hf`), each in a process of its own, with the check that users get (`--no-check` leaves it
out). `--against` lets transformers' own script convert the same checkpoint to PyTorch. The script is in its repository
and in its packages up to 4.40, below `models/t5/`; it needs T5X, from the checkout T5X_DIR, in the interpreter
T5X_PYTHON, with torch and transformers.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from convert.families import heads, networks, t5_1_1
from convert.families.config_files import t5_config
from convert.t5x import t5x_state
from convert.tensors import tensor_parts
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.network.t5 import T5Config

# Widths and depths of T5 1.1 (arXiv:1910.10683, appendix of T5 1.1's release).
SIZES = {
    "tiny": (64, 4, 16, 128, 2),
    "small": (512, 6, 64, 1024, 8),
    "base": (768, 12, 64, 2048, 12),
    "large": (1024, 16, 64, 2816, 24),
    "xl": (2048, 32, 64, 5120, 24),
}
VOCAB_SIZE = 32128
_SLACK = 10**9


def config_of(size: str) -> T5Config:
    emb_dim, num_heads, head_dim, mlp_dim, num_layers = SIZES[size]
    return T5Config(
        vocab_size=VOCAB_SIZE,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
    )


def random_tensor(shape: tuple[int, ...], seed: int) -> SavedTensor:
    """Uniform in +-0.05, the same numbers however it is read: each is a hash of its place."""

    def read(index: Index) -> np.ndarray:
        place = np.zeros([len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)], np.uint32)
        for dim, (part, size) in enumerate(zip(index, shape, strict=True)):
            along = np.arange(*part.indices(size), dtype=np.uint32)
            place *= np.uint32(size)
            place += along.reshape([-1 if i == dim else 1 for i in range(len(shape))])
        place += np.uint32(seed * 7919)
        for _ in range(2):
            place ^= place >> np.uint32(16)
            place *= np.uint32(0x45D9F3B)
        return (place >> np.uint32(8)).astype(np.float32) * np.float32(0.1 / 2**24) - np.float32(0.05)

    return SavedTensor(shape, np.dtype(np.float32), read)


def make_checkpoint(config: T5Config, folder: Path) -> None:
    """A checkpoint in T5X's classic format, of random parameters and without an optimizer's state."""
    tensors = {
        f"target/{name}": random_tensor(shape, seed)
        for seed, (name, shape) in enumerate(networks.shapes(config, heads.OF_T5).items())
    }
    step = np.int32(1000)
    tensors["state/step"] = SavedTensor((), step.dtype, lambda index: np.asarray(step))
    folder.mkdir(parents=True)
    t5x_state.write(folder, "classic", dict(sorted(tensors.items())), "float32", lambda count: None)


def measure(command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs a command; its peak resident memory, that of its children added, its cpu-seconds, and how it ended."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | (env or {}), start_new_session=True
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, _resident_bytes(process.pid))
            time.sleep(0.05)
        output.seek(0)
        output_lines = output.read().decode(errors="replace").strip().splitlines()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result: dict[str, Any] = {
        "peak_gb": round(peak / 1e9, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime, 1),
        "seconds": round(time.monotonic() - start, 1),
    }
    if process.returncode:
        result["failed"] = f"exit code {process.returncode}: {output_lines[-1:]}"
    return result


def _resident_bytes(session: int) -> int:
    """Resident memory of all processes of a session; pages of files that they share count for each."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == session:
                total += int((process / "statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            continue  # It has just ended.
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small", help="of T5 1.1 (small)")
    parser.add_argument("--folder", type=Path, help="where the files are made, 3 times the model (a temporary folder)")
    parser.add_argument("--no-check", action="store_true", help="convert without the check")
    parser.add_argument("--against", type=Path, metavar="SCRIPT", help="also transformers' own")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="limba-conversion-"))
    config = config_of(args.size)
    checkpoint = folder / "t5x" / "checkpoint_1000"
    make_checkpoint(config, checkpoint)
    vocabulary = folder / "spiece.model"
    with vocabulary.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d e f g h"] * 10),
            model_writer=file,
            vocab_size=12,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    shapes = networks.shapes(config, heads.OF_T5)
    num_bytes = sum(
        tensor_parts.num_bytes(SavedTensor(s, np.dtype(np.float32), lambda i: np.zeros(0))) for s in shapes.values()
    )
    largest = max(4 * int(np.prod(shape)) for shape in shapes.values())
    convert = [sys.executable, "-m", "convert"]
    check = ["--no-check"] if args.no_check else []
    exported = folder / "hf"
    result: dict[str, Any] = {
        "size": args.size,
        "parameters": num_bytes // 4,
        "model_gb": round(num_bytes / 1e9, 2),
        "allowed_gb": round((1.5 * largest + _SLACK) / 1e9, 2),
        "checked": not args.no_check,
        "to_hf": measure(
            [
                *convert,
                "to-hf",
                str(checkpoint),
                str(exported),
                "--vocab",
                str(vocabulary),
                "--format",
                "safetensors",
                *check,
            ]
        ),
        "from_hf": measure([*convert, "from-hf", str(exported), str(folder / "limba"), *check]),
    }
    if args.against:
        config_file = folder / "config.json"
        config_file.write_text(json.dumps(t5_config.model_config(config, t5_1_1.FAMILY, "float32", None)), "utf-8")
        python = os.environ.get("T5X_PYTHON", sys.executable)
        command = [
            python,
            str(args.against),
            "--t5x_checkpoint_path",
            str(checkpoint),
            "--config_file",
            str(config_file),
        ]
        env = {"PYTHONPATH": os.environ.get("T5X_DIR", ""), "USE_TF": "0", "JAX_PLATFORMS": "cpu"}
        result["transformers"] = measure([*command, "--pytorch_dump_path", str(folder / "torch")], env)
    print(json.dumps(result))
    if args.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
