import math

import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.inference import likeliest
from limba.models import beam_search
from tests.limba import small


def test_probabilities_of_the_same_words_are_summed_up():
    decodes = [
        ("<extra_id_0> house <extra_id_1>", math.log(0.25)),
        ("<extra_id_0> garden", math.log(0.2)),
        ("<extra_id_0> house.", math.log(0.125)),
        ("<extra_id_0> house <extra_id_1> is", math.log(0.125)),
        ("<extra_id_1> nothing for the blank", math.log(0.1)),
        ("", math.log(0.1)),
    ]
    found = likeliest.fills(decodes)
    assert [word for word, _ in found] == ["house", "garden", "house."]
    assert [share for _, share in found] == pytest.approx([0.375, 0.2, 0.125])


def test_words_that_do_not_end_count_beside_an_answer_that_does():
    """As of a young model: of a search with ends, the empty answer is the only one that has ended."""
    sentinel, word, eos = 3, 2, 1
    logits = np.full((4, 5), -9.0, np.float32)  # by the token before
    logits[[0, sentinel, sentinel, word], [sentinel, eos, word, 4]] = (9, 0, 1, 9)

    def tokens_to_logits(state):
        return jnp.asarray(logits)[jnp.minimum(state.cur_token[:, 0], 3)], state.cache

    def search(function):
        given = {"cache": {}, "tokens_to_logits": tokens_to_logits, "eos_id": eos, "num_decodes": 2}
        tokens, _ = function(inputs=jnp.zeros((1, 3), jnp.int32), **given)
        return tokens[0, :, :2].tolist()

    assert search(beam_search.beam_search)[-1] == [sentinel, eos]
    assert search(likeliest._search_without_ends)[-1] == [sentinel, word]


class _Answerer:
    def __init__(self, restore_checkpoint_cfg, num_decodes=None, decode_fn=None, max_decode_length=None):
        assert num_decodes == 3

    def decodes(self, lines):
        assert lines == ["The old <extra_id_0> sleeps.", "A <extra_id_0> barks."]
        yield [("<extra_id_0> cat", math.log(0.5)), ("<extra_id_0> ,", math.log(0.25))]
        yield [("", 0.0)]


def test_the_word_stands_beside_the_likeliest_ones(capsys):
    likeliest.show_likeliest(
        model=small.model(),
        answerer_cls=_Answerer,
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(),
        sentences=[("The old <extra_id_0> sleeps.", "dog"), ("A <extra_id_0> barks.", "dog")],
        decoding=likeliest.Decoding(beams=3, alpha=0.0),
    )
    assert capsys.readouterr().out.splitlines() == [
        "The old ___ sleeps.",
        "  truth: dog; likeliest: “cat” 50.0%, “,” 25.0%",
        "A ___ barks.",
        "  truth: dog; likeliest: no word (the model's likeliest answer, of 100.0%, is empty)",
    ]
