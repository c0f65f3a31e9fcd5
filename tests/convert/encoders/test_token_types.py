"""Token types of a template that the network has no row for."""

import json
import types

import pytest

from convert.model_files import encoder_vocabularies
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer


@pytest.mark.parametrize(("given", "rows", "is_refused"), [(1, 2, False), (2, 2, True), (2, 3, False), (2, 1, False)])
def test_a_type_without_a_row_is_refused(tmp_path, given, rows, is_refused):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    content = json.loads(file.read_text())
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": given}}]
    template = {"type": "TemplateProcessing", "single": pair[:1], "pair": pair, "special_tokens": {}}
    file.write_text(json.dumps({**content, "post_processor": template}))
    config = types.SimpleNamespace(vocab_size=10_000, num_token_types=rows)
    model = types.SimpleNamespace(path="bert", vocabulary_file=file, config=config)
    if is_refused:
        with pytest.raises(ValueError, match="gives tokens of a pair the type 2, and bert has 2 token types"):
            encoder_vocabularies.known(model)
    else:
        assert encoder_vocabularies.known(model)["class"] == "TokenizerVocabulary"
