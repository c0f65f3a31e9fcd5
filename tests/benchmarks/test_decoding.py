"""The benchmark of decoding at a tiny size: what it decodes, and that nothing ends early."""

import pytest

from benchmarks import compiled_decoding, decoding

SIZES = {
    "vocab_size": 64,
    "emb_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "mlp_dim": 16,
    "mlp_activations": ("gelu", "linear"),
    "logits_via_embedding": False,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["sample", "beams"])
def test_limba_decodes_all_tokens(way, monkeypatch):
    import jax

    answers = []
    wait = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda x: answers.append(wait(x)) or answers[-1])
    run, facts = decoding._limba(decoding.Workload(SIZES, "float32", way, batch_size=3, inputs=5, new_tokens=7))
    run(1)
    assert answers[-1].shape == (3, 7) and (answers[-1] > 0).sum() > 15, "a 0 is what follows an end"
    assert facts["versions"]["jax"] == jax.__version__


def test_bad_numbers_are_refused(capsys):
    with pytest.raises(SystemExit):
        decoding.parse_arguments(["--new_tokens", "0"])
    assert "--new_tokens is 0; it must be at least 1" in capsys.readouterr().err


def test_a_token_is_counted_on_gpus_alone(capsys):
    with pytest.raises(SystemExit):
        compiled_decoding.main(["--topology", "v4-8"])
    assert "--topology is v4-8; only of GPUs the program says what a token reads" in capsys.readouterr().err
