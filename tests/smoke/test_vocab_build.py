"""`limba vocab build`, as users run it: a vocabulary of both kinds of a corpus."""

import pytest

from tasks.vocabularies import TokenizerVocabulary, sentencepiece_models
from tests import line

pytestmark = pytest.mark.smoke


def test_both_kinds_have_the_ids_that_were_asked_for(tmp_path):
    line.write_corpus(tmp_path / "corpus")
    for kind, name in (("sentencepiece", "spiece.model"), ("wordpiece", "tokenizer.json")):
        of_kind = (f"--kind={kind}", "--vocab_size=256", f"--out={tmp_path / name}")
        done = line.command(tmp_path, "limba", "vocab", "build", f"--data_files={tmp_path}/corpus/train-*", *of_kind)
        assert done.returncode == 0, done.stderr[-3000:]
    t5, bert = (sentencepiece_models.open_vocabulary(tmp_path / name) for name in ("spiece.model", "tokenizer.json"))
    assert (t5.vocab_size, sentencepiece_models.num_sentinels(t5)) == (256, 100)
    assert isinstance(bert, TokenizerVocabulary) and (bert.vocab_size, bert.mask_id) == (256, 4)
