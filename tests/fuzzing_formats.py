"""The formats that `tests/fuzzing.py` damages: how valid files are made, and what reads them."""

import functools
import io
import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np

from convert import from_hf, to_t5x
from convert.families import heads
from convert.families.config_files import t5_config
from convert.families.table import t5_families
from convert.model_files import any_format, t5_files
from convert.model_files.hf import folder_tokenizer, hf_folder, hf_tokenizer
from convert.model_files.model import ModelHints
from convert.tensors import flax_files, safetensors_files, weight_files
from limba.addons.torch_files import torch_files
from limba.checkpoint_files import run_folder, saved_tensors, small_files
from limba.checkpoint_files.saved_tensors import from_array
from limba.files import output_folder
from limba.network.t5 import T5Config
from tests.convert import vocabularies
from tests.fuzzing import GIN_WORDS, JSON_WORDS, YAML_WORDS, Format

CONFIG = T5Config(
    vocab_size=256, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1, num_decoder_layers=1
)
# How many shards the weights of the tiny model have at this size.
_SHARD_BYTES = 6000


def _whole(tensors):
    for tensor in tensors.values():
        np.asarray(tensor)


def _arrays():
    rng = np.random.default_rng(0)
    return {f"layer/{i}/kernel": rng.normal(size=(3, 4)).astype(np.float32) for i in range(6)}


def _write(module, folder):
    module.write(folder, {name: from_array(array) for name, array in _arrays().items()}, lambda _: None, 10**9)


# ------------------------------------------------------- PyTorch -----------------------------------------------------


def _torch_pickle():
    """The pickle of a state_dict, as PyTorch writes it; this test needs no PyTorch."""
    parts = [b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01("]
    for i, name in enumerate(_arrays()):
        key = str(i).encode()
        parts += [
            b"X" + struct.pack("<I", len(name)) + name.encode(),
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
            + key,
            b"X\x03\x00\x00\x00cpuK\x0ctQK\x00K\x03K\x04\x86K\x04K\x01\x86\x89h\x00)RtR",
        ]
    return b"".join(parts) + b"u}X\x09\x00\x00\x00_metadataNsb."


def _make_torch_zip(folder):
    with zipfile.ZipFile(folder / weight_files.FILES["torch"], "w") as archive:
        archive.writestr("archive/data.pkl", _torch_pickle())
        archive.writestr("archive/byteorder", "little")
        for i, array in enumerate(_arrays().values()):
            archive.writestr(f"archive/data/{i}", array.tobytes())


def _make_torch_legacy(folder):
    file = io.BytesIO()
    for value in (torch_files._LEGACY_MAGIC, 1001, {"protocol_version": 1001, "little_endian": True}):
        pickle.dump(value, file, 2)
    file.write(_torch_pickle())
    arrays = list(_arrays().values())
    pickle.dump([str(i) for i in range(len(arrays))], file, 2)
    for array in arrays:
        file.write(struct.pack("<q", array.size) + array.tobytes())
    (folder / weight_files.FILES["torch"]).write_bytes(file.getvalue())


def _read_torch(folder):
    _whole(torch_files.open_tensors([folder / weight_files.FILES["torch"]]))
    torch_files.training_step(folder / weight_files.FILES["torch"])


# ---------------------------------------------------- Hugging Face ---------------------------------------------------


@functools.cache
def _spiece():
    folder = Path(hf_tokenizer.temporary_file(b"")).parent
    return vocabularies.train(folder / "x.model", vocabularies.sentences(200), vocab_size=150).read_bytes()


def _make_tokenizer(folder):
    (folder / "spiece.model").write_bytes(_spiece())
    hf_tokenizer.write(hf_tokenizer.from_file(folder / "spiece.model", 100), folder)
    (folder / "spiece.model").unlink()


def _make_folder(folder):
    family = t5_families()["t5_1_1"]
    config = T5Config(**{field: getattr(CONFIG, field) for field in _sizes()}, mlp_activations=("gelu", "linear"))
    rng = np.random.default_rng(0)
    table = family.table(config, heads.OF_T5)
    tensors = {t.name: from_array(rng.normal(size=t.shape).astype(np.float32)) for t in table}
    safetensors_files.write(folder, tensors, lambda _: None, _SHARD_BYTES)
    (folder / "config.json").write_text(json.dumps(t5_config.model_config(config, family, "float32", 64)))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7, "log_history": [{"loss": 1.5}]}))
    (folder / "conversion_report.json").write_text(json.dumps({"step": 7, "checked": True}))
    _make_tokenizer(folder)


def _sizes():
    return ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")


def _read_folder(folder):
    file = folder / "config.json"
    opened = t5_files.read_files(folder, file, t5_config.read(file))
    _whole(opened.tensors)
    hf_folder.training_step(folder, output_folder.read_report(folder))
    weight_files.find(folder)


def _make_spiece(folder):
    (folder / "spiece.model").write_bytes(_spiece())


def _read_spiece(folder):
    from tasks.vocabularies import SentencePieceVocabulary
    from tasks.vocabularies.sentencepiece_models import check_vocabulary

    vocabulary = SentencePieceVocabulary(str(folder / "spiece.model"), extra_ids=100)
    check_vocabulary(vocabulary)
    tokens = [int(token) for token in vocabulary.encode("Bălan ﬁ Ｆull ① cu 12.")]
    vocabulary.decode(tokens)
    hf_tokenizer.describe(folder / "spiece.model")


def _convert(folder):
    """A conversion, whose output is whole or not there."""
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    try:
        from_hf.from_hf(folder, out, verify=False)
    except BaseException:
        assert not out.exists() or not any(out.iterdir()), f"left behind: {sorted(out.iterdir())}"
        raise
    any_format.open_model(out)


# ------------------------------------------------------ checkpoints --------------------------------------------------


def _make_checkpoint(folder):
    model = folder.parent / "model"
    model.mkdir()
    _make_folder(model)
    from_hf.from_hf(model, folder.parent / "run", verify=False)
    (checkpoint,) = (folder.parent / "run").glob("checkpoint_*")
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)


def _make_classic(folder):
    whole = folder.parent / "whole"
    whole.mkdir()
    _make_checkpoint(whole)
    to_t5x.to_t5x(whole, folder.parent / "t5x", verify=False)
    (checkpoint,) = (folder.parent / "t5x").glob("checkpoint_*")
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)


def _read_checkpoint(folder):
    _whole(saved_tensors.open_tensors(folder))
    any_format.open_checkpoint(folder, ModelHints(mlp_activations=("gelu", "linear")))


def _read_record(folder):
    """The record of a run as a stranger writes it: its checksums are right."""
    files = {
        file.name: file.read_bytes() for file in (folder / "run").iterdir() if not file.name.startswith("checksums-")
    }
    small_files.write_files(folder / "run", files)
    run_folder.load_run_info(folder)
    any_format.open_checkpoint(folder)


# ------------------------------------------------- configurations and data -------------------------------------------


def _make_gin(folder):
    (folder / "main.gin").write_text(
        "from __gin__ import dynamic_registration\nfrom limba.network import t5 as network\n"
        f"include '{folder / 'sizes.gin'}'\nA = [1, 2.5, 'x', {{'y': (%SIZE, None)}}]\nLABELS = %A\n"
        "network.T5Config:\n  vocab_size = 128\n  emb_dim = %SIZE\nscope/network.T5Config.dropout_rate = 0.1\n"
    )
    (folder / "sizes.gin").write_text("# sizes\nSIZE = 8\nMODEL_DIR = 'runs/x'\n")


def _read_gin(folder):
    import gin

    from limba.gin_config import gin_files

    main = folder / "main.gin"
    text = main.read_bytes().replace(str(folder.parent / "valid").encode(), str(folder).encode())
    main.write_bytes(text)
    gin.clear_config(clear_constants=False)
    t5_files.read_gin((folder / "sizes.gin").read_bytes().decode("latin-1"), str(folder / "sizes.gin"))
    gin_files.parse_gin_flags([str(main)], [])


def _make_run_json(folder):
    content = {"model_name_or_path": "t5-small", "output_dir": "out", "train_file": "a.csv", "do_train": True}
    more = {"learning_rate": 1e-3, "max_steps": 10, "seed": 3, "report_to": ["tensorboard"]}
    (folder / "run.json").write_text(json.dumps(content | more, indent=1))


def _read_run_json(folder):
    from limba.addons.run.keys import script_keys

    script_keys.from_command_line([str(folder / "run.json")])


def _make_sweep(folder):
    (folder / "sweep.yaml").write_text(
        "method: random\nmetric: {name: training_eval/x/loss, goal: minimize}\nparameters:\n"
        "  train.steps: {values: [8, 16]}\n  rate: {distribution: log_uniform_values, min: 1e-4, max: 1e-2}\n"
        "  size: {min: 1, max: 5}\ngin_files: [a.gin]\ntrials: 20\nseed: 3\n"
    )


def _read_sweep(folder):
    from limba.addons.sweep import sweep_file

    sweep, _ = sweep_file.load(folder / "sweep.yaml")
    json.dumps(sweep.identity)
    for parameter in sweep.parameters:
        parameter.at(0.3)


def _make_data(folder):
    rows = [{"text": f"This is sentence {i}.", "n": i, "list": [i, [i]]} for i in range(40)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "validation.csv").write_text("text,n\n" + "".join(f'"A ""text"" {i}",{i}\n' for i in range(40)))
    (folder / "test.txt").write_text("".join(f"line {i} ä\n" for i in range(40)))


def _read_data(folder):
    from tasks.sources import corpora

    for split, file in (("train", "train.jsonl"), ("validation", "validation.csv"), ("test", "test.txt")):
        source = corpora.HuggingFaceSource({split: str(folder / file)}, ["text"])
        list(source.documents(split))


@functools.cache
def _batches(corpus):
    from limba.data import contract
    from tasks import pretraining
    from tasks.pipeline import task_batches
    from tasks.vocabularies import ByteVocabulary

    pretraining.register_pretraining_task("fuzzed", data_files={"train": corpus}, vocabulary=ByteVocabulary(100))
    config = contract.DatasetConfig("fuzzed", {"inputs": 32, "targets": 16}, "train", 4, seed=0, num_readers=2)
    return task_batches.get_train_batches(config)


def _corpus(folder):
    corpus = folder.parent / "corpus.txt"
    if not corpus.exists():
        corpus.write_text("".join(f"This is line {i} of the corpus.\n" for i in range(200)))
    return str(corpus)


def _make_positions(folder):
    batches = _batches(_corpus(folder))
    for _ in range(3):
        next(batches)
    for name, state in batches.save_state().items():
        (folder / name).write_bytes(state)


def _read_positions(folder):
    batches = _batches(_corpus(folder))
    batches.restore_state({file.name: file.read_bytes() for file in folder.iterdir()})
    next(batches)


FORMATS = {
    "safetensors": Format(lambda f: _write(safetensors_files, f), lambda f: _whole(
        safetensors_files.open_tensors([f / safetensors_files.FILE])), "*.safetensors", JSON_WORDS),
    "msgpack": Format(lambda f: _write(flax_files, f), lambda f: _whole(
        flax_files.open_tensors([f / flax_files.FILE])), "*.msgpack"),
    "pickle": Format(_make_torch_zip, _read_torch, "*.bin"),
    "pickle-legacy": Format(_make_torch_legacy, _read_torch, "*.bin"),
    "hf-json": Format(_make_folder, _read_folder, "[cm]*.json", JSON_WORDS),
    "hf-folder": Format(_make_folder, _read_folder, "*"),
    "tokenizer": Format(_make_tokenizer, folder_tokenizer.read, "*.json", JSON_WORDS),
    "sentencepiece": Format(_make_spiece, _read_spiece, "*.model"),
    "gin": Format(_make_gin, _read_gin, "*.gin", GIN_WORDS, names_file=False),
    "run-json": Format(_make_run_json, _read_run_json, "*.json", JSON_WORDS, names_file=False),
    "sweep-yaml": Format(_make_sweep, _read_sweep, "*.yaml", YAML_WORDS),
    "orbax": Format(_make_checkpoint, _read_checkpoint, "state/**/*", JSON_WORDS),
    "classic": Format(_make_classic, _read_checkpoint, "**/*", JSON_WORDS),
    "run-record": Format(_make_checkpoint, _read_record, "run/*", JSON_WORDS),
    "positions": Format(_make_positions, _read_positions, "reader-*", JSON_WORDS),
    "data-files": Format(_make_data, _read_data, "*", JSON_WORDS),
    "conversion": Format(_make_folder, _convert, "*", JSON_WORDS),
}  # fmt: skip
