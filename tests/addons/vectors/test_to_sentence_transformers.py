"""Folders of sentence-transformers: the library's vectors are those of `limba embed`."""

import dataclasses
import functools
import json
import types

import numpy as np
import pytest
import safetensors.numpy

from convert.__main__ import main
from convert.families import heads
from convert.model_files import any_format
from convert.tensors import tensor_parts
from convert.to_hf import to_hf
from limba.addons.publish import push
from limba.addons.serve.base_engine import BaseEngine
from limba.addons.vectors.sentence_folder import SentenceFolder
from limba.addons.vectors.to_sentence_transformers import to_sentence_transformers
from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.files import disk
from limba.inference import text_batches
from limba.inference.embedding import Embedder
from limba.inference.text_batches import row_of
from limba.models import ContrastiveModel, EncoderDecoderModel, EncoderOnlyModel
from limba.network.t5 import Transformer
from tasks.pipeline import converters
from tasks.vocabularies import SentencePieceVocabulary, TokenizerVocabulary
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import CLASSIFIERS, VARIANTS, new_encoder, tokenizer_file  # noqa: F401
from tests.limba import small

WORDS = ["w7 w9 w30", "w5", " ".join(f"w{i}" for i in range(6, 46))]
# RoBERTa's padding is 1 and it has 48 positions; ModernBERT's layers are scanned, and its positions without end.
ENCODERS = {"roberta": ("max", 48), "bert": ("mean", 48), "mpnet": ("first", 48), "modernbert": ("first", 512)}
# One class holds two networks of Limba's, whose kernels or fields are others.
ENCODERS |= {"roformer": ("mean", 512), "t5_buckets": ("mean", 512)}


@pytest.fixture(scope="module")
def library():
    """tests/run.sh installs it."""
    return pytest.importorskip("sentence_transformers")


def _embedded(model, run, texts, pooling):
    """As `limba embed` has it."""
    restore = checkpointing.RestoreCheckpointConfig(path=str(run), mode="latest")
    embedder = Embedder(
        model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner(), batch_size=4, pooling=pooling
    )
    return np.array(embedder.embed(texts))


@pytest.mark.parametrize("variant", ["roformer", "t5_buckets"])
def test_two_networks_of_one_class(new_encoder, tmp_path, variant):  # noqa: F811
    report = to_sentence_transformers(new_encoder(tmp_path / "run", **VARIANTS[variant]), tmp_path / "folder")
    rows = {row["what"]: row["value"] for row in report["comparisons"]["safetensors"]}
    assert rows["parameters that differ"] == rows["settings that differ"] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", ENCODERS)
def test_vectors_of_encoders(library, new_encoder, tokenizer_file, tmp_path, variant):  # noqa: F811
    run = new_encoder(tmp_path / "run", **VARIANTS[variant])
    pooling, longest = ENCODERS[variant]
    report = to_sentence_transformers(run, tmp_path / "folder", pooling)
    rows = {row["what"]: row["value"] for row in report["comparisons"]["safetensors"]}
    assert rows["parameters that differ"] == rows["settings that differ"] == 0
    found = library.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    assert found.max_seq_length == longest
    # A folder of transformers, which may have another id of padding, becomes the same.
    to_hf(run, tmp_path / "hf", verify=False)
    to_sentence_transformers(tmp_path / "hf", tmp_path / "again", pooling)
    for file in ("model.safetensors", "1_Pooling/config.json", "tokenizer.json", "config.json"):
        assert (tmp_path / "folder" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    scanned = VARIANTS[variant].get("scan_layers", False)
    config = dataclasses.replace(any_format.open_model(run).config, scan_layers=scanned)
    network, vocabulary = heads.OF_MASKED_LM.network(config), TokenizerVocabulary(str(tokenizer_file))
    model = EncoderOnlyModel(network, vocabulary, optimizer_def=None)
    expected = _embedded(model, run, WORDS, pooling)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found.encode(WORDS), expected, rtol=0, atol=1e-5)


def test_vectors_of_a_t5(library, new_run, spiece_model, sentences, tmp_path):
    run = new_run(tmp_path / "run", **FAMILIES["mt5"])
    arguments = ["to-sentence-transformers", str(run), str(tmp_path / "folder"), "--family", "mt5", "--normalize"]
    assert main(arguments) == 0
    names = {*safetensors.numpy.load_file(tmp_path / "folder/model.safetensors")}
    assert "shared.weight" in names and not any(name.startswith(("decoder", "lm_head")) for name in names)
    opened = any_format.open_model(run)
    vocabulary = SentencePieceVocabulary(str(spiece_model), extra_ids=100)
    model = EncoderDecoderModel(Transformer(opened.config), vocabulary, vocabulary, optimizer_def=None)
    texts = [*sentences[:8], "ba <extra_id_0> ce", "ba,<extra_id_1>. ce"]
    expected = _embedded(model, run, texts, "mean")
    found = library.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    assert type(found[0].auto_model).__name__ == "MT5EncoderModel" and found.max_seq_length == 512
    vectors = found.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=0, atol=1e-5)

    # One reading of a text: the folder's, that of `limba infer` and of `limba serve`; of a task, behind a space.
    of_model = text_batches.Sequences(vocabulary, vocabulary, 8)
    server = types.SimpleNamespace(
        has_blanks=True, input_vocabulary=vocabulary, texts=of_model, max_input_tokens=512, has_one_temperature=False
    )
    server._encode = functools.partial(BaseEngine._encode, server)
    for text in texts:
        ids = found.tokenizer(text).input_ids
        assert ids == of_model.encode(text).ids == [*vocabulary.encode(text.replace(",<", ", <")), 1]
        assert all(ids == BaseEngine.read(server, text, max_tokens).ids for max_tokens in (0, 8))


def test_a_run_that_was_trained_to_give_vectors(library, new_encoder, tokenizer_file, tmp_path):  # noqa: F811
    """Pooling, normalization and length are the run's, for `limba embed` too, and the loss is the library's."""
    head = heads.Head(heads.VECTORS, pooling="first", normalize=True, max_length=20)
    run = new_encoder(tmp_path / "run", head, **VARIANTS["bert"])
    report = to_sentence_transformers(run, tmp_path / "folder")
    assert (report["pooling"], report["normalize"], report["max_seq_length"]) == ("first", True, 20)
    assert "It was trained with Limba on pairs of texts" in (tmp_path / "folder/README.md").read_text()
    found = library.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    network = head.network(any_format.open_model(run, takes_vectors=True).config)
    vocabulary = TokenizerVocabulary(str(tokenizer_file))
    model = ContrastiveModel(network, vocabulary, optimizer_def=None)
    texts = [" ".join(f"w{i}" for i in range(first, first + 4)) for first in range(5, 21)]
    expected = _embedded(model, run, texts, None)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.encode(texts), expected, rtol=0, atol=1e-5)
    assert found.max_seq_length == 20
    other = to_sentence_transformers(run, tmp_path / "other", "mean", has_unit_length=False, max_length=30)
    assert (other["pooling"], other["normalize"], other["max_seq_length"]) == ("mean", False, 30)
    with pytest.raises(ValueError, match="was trained to give vectors of texts, and has neither a head nor a decoder"):
        to_hf(run, tmp_path / "hf")

    torch = pytest.importorskip("torch")
    sides = [torch.tensor(x) for x in (expected[:8], expected[8:])]
    tokens = np.array([row_of(vocabulary, text).ids for text in texts], np.int32)
    batch = converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": tokens[:8], "targets": tokens[8:]}, False)
    restore = checkpointing.RestoreCheckpointConfig(path=str(run), mode="latest")
    params, _ = load_model_params(model, small.partitioner(), restore)
    for kind, symmetric in (("MultipleNegativesRankingLoss", False), ("MultipleNegativesSymmetricRankingLoss", True)):
        theirs = getattr(library.losses, kind)(found).compute_loss_from_embeddings(sides, None).item()
        ours = ContrastiveModel(network, vocabulary, optimizer_def=None, symmetric=symmetric).loss_fn(
            params, batch, None
        )
        assert float(ours[0]) == pytest.approx(theirs, rel=1e-5)


def test_the_files_alone(new_encoder, tmp_path, capsys):  # noqa: F811
    """The encoder of a classifier, in bfloat16 and shorter. Names of classes are the old ones; push takes all files."""
    variant, head = CLASSIFIERS["bert rows"]
    run = new_encoder(tmp_path / "run", head, **VARIANTS[variant])
    folder = tmp_path / "folder"
    options = ["--pooling", "first", "--max_seq_length", "20", "--dtype", "bfloat16", "--normalize"]
    assert main(["to-sentence-transformers", str(run), str(folder), *options]) == 0

    def read(name):
        return json.loads((folder / name).read_text())

    assert [(module["path"], module["type"]) for module in read("modules.json")] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    pooling = read("1_Pooling/config.json")
    assert pooling.pop("word_embedding_dimension") == 24
    assert {name for name, value in pooling.items() if value} == {"pooling_mode_cls_token"} and len(pooling) == 4
    assert read("sentence_bert_config.json")["max_seq_length"] == 20
    assert read("config.json")["architectures"] == ["BertModel"] and "id2label" not in read("config.json")
    tensors = any_format.open_model(folder).tensors
    of_run = any_format.open_model(run).tensors
    name = "encoder/layers_1/mlp/wo/kernel"
    assert tensors[name].dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(tensors[name], np.float32), np.asarray(of_run[name]), rtol=2**-8)
    report = read("conversion_report.json")
    assert "1_Pooling/config.json" in push._files(folder, report) and push._others(folder, report["files"]) == []
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="1_Pooling is a link to"):
        push._files(folder, report)


def test_bad_input(new_run, new_encoder, tmp_path, capsys, monkeypatch):  # noqa: F811
    def error(*arguments):
        capsys.readouterr()
        assert main(["to-sentence-transformers", *map(str, arguments)]) == 1
        return capsys.readouterr().err

    out = tmp_path / "out"
    umt5 = new_run(tmp_path / "umt5", **FAMILIES["umt5"])
    assert "is of umT5, whose encoder sentence-transformers does not load alone" in error(umt5, out)
    run = new_encoder(tmp_path / "run", **VARIANTS["bert"])
    assert "--max_seq_length 49: it is at least 1, and at most 48, the model's positions" in error(
        run, out, "--max_seq_length", 49
    )
    assert "does not exist" in error(tmp_path / "nothing" / "here", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    assert "is not empty, and not a conversion of Limba's" in error(run, tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", lambda path: 1000)
        assert "0.00 GB are free there" in error(run, out)
    # A mistake in what is written is found, and nothing is left.
    written = SentenceFolder.tensors

    def exchanged(self, dtype):
        tensors = written(self, dtype)
        query = "encoder.layer.0.attention.self.query.weight"
        return tensors | {query: tensor_parts.transposed(tensors[query])}

    monkeypatch.setattr(SentenceFolder, "tensors", exchanged)
    assert "What was written is not the model's encoder, nothing was kept: parameters that differ: 1" in error(run, out)
    assert not out.exists() and not [*tmp_path.glob(".*")]
