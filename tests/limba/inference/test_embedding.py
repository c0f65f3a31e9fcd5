"""Vectors of texts, and the command that writes them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import models
from limba.addons.vectors import embed
from limba.checkpoints import checkpointing, train_state
from limba.inference import embedding
from limba.network.encoders import encoder
from limba.optimizers import definitions
from tasks.vocabularies import TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small

WORDS = ["red", "blue", "green", "cat", "dog"]
LINES = ["red cat", "dog " * 40, "blue", "green dog red"]
IDS = [[2, 5, 8, 3], [2, *[9] * 40, 3], [2, 6, 3], [2, 7, 9, 5, 3]]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedding")
    vocabulary = TokenizerVocabulary(str(vocabularies.write_words(folder / "tokenizer.json", WORDS)))
    sizes = {"vocab_size": 128, "emb_dim": 16, "num_heads": 1, "head_dim": 16, "mlp_dim": 16, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=48)
    model = models.EncoderOnlyModel(encoder.MaskedLanguageModel(config), vocabulary, definitions.adamw())
    return model, small.random_params(model), folder


def _embedder(model, params, folder, **options):
    if not list(folder.glob("checkpoint_*")):
        checkpointer = checkpointing.Checkpointer(folder, checkpointing.SaveCheckpointConfig())
        checkpointer.save(train_state.TrainState(step=jnp.int32(0), params=params, opt_state={}), None, {})
        checkpointer.close()
    restore = checkpointing.RestoreCheckpointConfig(path=str(folder), mode="latest")
    partitioner = small.partitioner()
    return embedding.Embedder(model=model, restore_checkpoint_cfg=restore, partitioner=partitioner, **options)


def test_each_line_has_the_vectors_that_it_has_alone(bert):
    model, params, _ = bert
    rows = _embedder(*bert, batch_size=2, pooling="none").embed(LINES)
    assert [row.shape for row in rows] == [(len(ids), 16) for ids in IDS]
    for row, ids in zip(rows, IDS, strict=True):
        of_encoder = lambda module, tokens: module.encoder(tokens, None, None, None, False)  # noqa: E731
        alone = jax.jit(lambda p, x, of=of_encoder: model.module.apply({"params": p}, x, method=of))(
            params, np.array([ids])
        )
        np.testing.assert_allclose(row, alone[0], atol=1e-5)
    for pooling, pooled in {"mean": np.mean, "max": np.max, "first": lambda x, axis: x[0]}.items():
        vectors = _embedder(*bert, batch_size=3, pooling=pooling).embed(LINES)
        np.testing.assert_allclose(vectors, [pooled(row, axis=0) for row in rows], atol=1e-5)


def test_vectors_are_float32_s_of_a_network_that_was_trained_in_bfloat16(bert):
    model, params, folder = bert
    expected = np.array(_embedder(*bert).embed(LINES))
    trained = models.EncoderOnlyModel(
        encoder.MaskedLanguageModel(dataclasses.replace(model.module.config, dtype=jnp.bfloat16)),
        model.input_vocabulary,
        definitions.adamw(),
    )
    np.testing.assert_allclose(_embedder(trained, params, folder).embed(LINES), expected, atol=1e-6)
    faster = np.array(_embedder(trained, params, folder, dtype=None).embed(LINES))
    assert 1e-4 < np.abs(faster - expected).max() < 0.1


def test_long_lines_are_cut_and_counted(bert):
    embedder = _embedder(*bert, max_inputs_length=8, pooling="none")
    assert [len(row) for row in embedder.embed(LINES)] == [4, 8, 3, 5] and embedder.num_cut == 1
    assert len(_embedder(*bert, pooling="none").embed(["red " * 99])[0]) == 48, "the network's longest row"


def test_a_line_that_is_cut_keeps_its_last_sep_as_in_transformers(bert):
    model, params, _ = bert
    row = _embedder(*bert, max_inputs_length=8, pooling="none").embed(LINES[1:2])[0]
    of_encoder = lambda module, tokens: module.encoder(tokens, None, None, None, False)  # noqa: E731
    alone = model.module.apply({"params": params}, np.array([[2, *[9] * 6, 3]]), method=of_encoder)
    np.testing.assert_allclose(row, alone[0], atol=1e-5)


def test_what_cannot_be_embedded(bert):
    with pytest.raises(ValueError, match=r"Line 2, 'caf\\udce9', is not UTF-8"):
        _embedder(*bert).embed(["red", "caf\udce9"])
    with pytest.raises(ValueError, match="--pooling sum: use one of mean, max, first, none"):
        _embedder(*bert, pooling="sum")
    with pytest.raises(ValueError, match="DecoderOnlyModel has no encoder"):
        embedding.Embedder(model=object.__new__(models.DecoderOnlyModel), restore_checkpoint_cfg=None, partitioner=None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--input", "a"], "give --output_file FILE"),
        (["--input", "a", "--output_file", "a.txt"], "with --pooling mean its name ends in .npy"),
        (["--input", "a", "--output_file", "a.npy", "--pooling", "none"], "with --pooling none its name ends in .npz"),
        (["--input", "a", "--output_file", "a.npy", "--pooling", "sum"], "--pooling sum: use one of"),
        (["--output_file", "a.npy"], "nothing to embed"),
    ],
)
def test_flags_that_cannot_be(flags, words, capsys):
    with pytest.raises(SystemExit):
        embed.main(["--run_dir", "runs/none", *flags])
    assert words in capsys.readouterr().err


def test_another_name_of_the_column_has_its_flag_as_the_remedy(tmp_path):
    (tmp_path / "rows.csv").write_text("本文,節\nwords,1\n")
    flags = ["--run_dir", "runs/none", "--input_file", str(tmp_path / "rows.csv"), "--output_file", f"{tmp_path}/e.npy"]
    with pytest.raises(ValueError, match=r"The columns are '本文', '節'\..* --text_column NAME\."):
        embed.main(flags)
    with pytest.raises(ValueError, match="There is no column 'texts'") as error:
        embed.main([*flags, "--text_column", "texts"])
    assert "--text_column NAME" not in str(error.value) and not (tmp_path / "e.npy").exists()


def test_files(bert, tmp_path, capsys):
    def made(restore_checkpoint_cfg, **options):
        return _embedder(*bert, **options, max_inputs_length=8)

    file = tmp_path / "new" / "vectors.npy"
    embed.embed(embedder_cls=made, restore_checkpoint_cfg=None, inputs=LINES, output_file=file)
    vectors = np.load(file)
    assert vectors.shape == (4, 16) and vectors.dtype == np.float32
    said = capsys.readouterr().out
    assert f"4 lines of 16 numbers in {file}" in said and "1 of 4 lines were longer" in said
    assert "does not know" not in said
    unknown = ["red cat", "Ա"]
    embed.embed(embedder_cls=made, restore_checkpoint_cfg=None, inputs=unknown, output_file=tmp_path / "new" / "u.npy")
    assert "warning: 1 of 2 inputs have characters that the vocabulary does not know ('Ա' 1 time)" in (
        capsys.readouterr().out
    )
    (tmp_path / "new" / "u.npy").unlink()
    file = tmp_path / "tokens.npz"
    embed.embed(embedder_cls=made, restore_checkpoint_cfg=None, inputs=LINES, output_file=file, pooling="none")
    found = np.load(file)
    assert found["lengths"].tolist() == [4, 8, 3, 5] and found["vectors"].shape == (20, 16)
    np.testing.assert_allclose(found["vectors"][:4].mean(axis=0), vectors[0], atol=1e-5)
    assert sorted(x.name for x in tmp_path.rglob("*.np*")) == ["tokens.npz", "vectors.npy"]
