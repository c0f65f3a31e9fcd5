"""The export loads in transformers without a missing key and computes what Limba computes."""

import numpy as np
import pytest

# Two float32 implementations of these small models differ by about 2e-6.
TOLERANCE = 1e-5


def test_reports_the_differences_that_it_found(exported):
    differences = exported.report["largest_logits_difference"]
    for file in ("model.safetensors", "flax_model.msgpack"):
        assert differences[f"limba vs export (Limba, from {file})"] == 0.0
        assert differences[f"limba vs export (NumPy, from {file})"] < TOLERANCE
    assert differences["limba vs export (PyTorch)"] < TOLERANCE


def test_pytorch_loads_it_and_gives_the_same_logits_and_tokens(exported):
    import torch
    from transformers import T5ForConditionalGeneration

    model, loading = T5ForConditionalGeneration.from_pretrained(exported.folder, output_loading_info=True)
    assert not any(loading.values()), loading
    inputs = torch.from_numpy(exported.inputs).long()
    mask = (inputs != 0).long()
    with torch.no_grad():
        decoder_inputs = torch.from_numpy(exported.decoder_inputs).long()
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits.numpy()
        tokens = model.generate(inputs, attention_mask=mask, max_new_tokens=exported.targets.shape[1], num_beams=1)
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    _assert_same_tokens(tokens.numpy(), exported.greedy_tokens())


def test_flax_loads_it_and_gives_the_same_logits_and_tokens(exported, flax_t5, caplog):
    model = flax_t5.from_pretrained(exported.folder)
    assert "newly initialized" not in caplog.text
    assert "were not used" not in caplog.text
    mask = (exported.inputs != 0).astype(np.int32)
    logits = model(exported.inputs, mask, decoder_input_ids=exported.decoder_inputs).logits
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    length = exported.targets.shape[1] + 1
    tokens = model.generate(exported.inputs, attention_mask=mask, max_length=length, num_beams=1).sequences
    _assert_same_tokens(np.asarray(tokens), exported.greedy_tokens())


def _assert_same_tokens(theirs: np.ndarray, ours: np.ndarray) -> None:
    """Hugging Face's tokens begin with the start token and end with the longest row."""
    theirs = theirs[:, 1:]
    np.testing.assert_array_equal(theirs, ours[:, : theirs.shape[1]])
    assert not ours[:, theirs.shape[1] :].any()
