"""T5Gemma in engines: CTranslate2 holds it without soft caps and windows, T5Gemma 2 is refused by name."""

import pytest

from limba.addons.engines.to_ct2 import to_ct2
from limba.addons.engines.to_gguf import to_gguf
from limba.addons.engines.to_onnx import to_onnx
from limba.network.gemma_layers import GemmaLayers
from tests.addons.t5gemma import test_t5gemma2
from tests.addons.t5gemma.test_t5gemma import FIELDS

MODERN = GemmaLayers(num_kv_heads=2, rotary_base=500.0, query_pre_attn_scalar=5.0, norm_epsilon=1e-3)


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    fields = {"num_encoder_layers": 2, "num_decoder_layers": 1, "logits_via_embedding": True, "gemma_layers": MODERN}
    return new_run(tmp_path_factory.mktemp("gemma"), **FIELDS | fields)


def test_ctranslate2_computes_what_the_model_does(run, tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")
    rows = {row["what"]: row for row in to_ct2(run, tmp_path / "out")["comparison"]}
    assert rows["log-probabilities, CTranslate2"]["value"] < 2e-4
    assert rows["other greedy tokens, CTranslate2"]["value"] == 0


def test_what_an_engine_does_not_compute_is_refused_by_name(run, new_run, tmp_path):
    capped = new_run(tmp_path / "run", **FIELDS, gemma_layers=GemmaLayers(attn_logit_softcapping=50.0))
    with pytest.raises(ValueError, match="has attn_logit_softcapping 50, which CTranslate2 does not compute"):
        to_ct2(capped, tmp_path / "out")
    with pytest.raises(ValueError, match=r"is T5Gemma, and llama\.cpp has no such encoder-decoder"):
        to_gguf(run, tmp_path / "out")
    with pytest.raises(ValueError, match="is T5Gemma, of which to-onnx writes no file"):
        to_onnx(run, tmp_path / "out")
    other = new_run(tmp_path / "second", **test_t5gemma2.FIELDS)
    for convert in (to_ct2, to_gguf, to_onnx):
        with pytest.raises(ValueError, match="is T5Gemma 2, "):
            convert(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
