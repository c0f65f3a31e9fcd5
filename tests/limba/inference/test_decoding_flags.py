import argparse

import pytest

from limba.inference import decoding_flags
from limba.models import decoding


def _arguments(*flags):
    parser = argparse.ArgumentParser()
    decoding_flags.add_flags(parser)
    return decoding_flags.from_flags(parser.parse_args(flags)).arguments()


def _way(*flags):
    """The function, its arguments, and the number of decodes."""
    arguments = _arguments(*flags)
    return arguments["decode_fn"].func, arguments["decode_fn"].keywords, arguments["num_decodes"]


def test_ways_to_decode():
    assert _arguments() == {} and _arguments("--max_decode_length=7") == {"max_decode_length": 7}
    assert _way("--beams", "4") == (decoding.beam_search, {"alpha": 0.6}, 4)
    assert _way("--beams", "4", "--alpha=0") == (decoding.beam_search, {"alpha": 0.0}, 4)
    assert _way("--greedy") == (decoding.temperature_sample, {"rescale_log_probs": False}, 1)
    assert _arguments("--seed=5") == {"random_seed": 5} and _arguments("--samples=2", "--seed=5")["random_seed"] == 5
    top_p = {"temperature": 1.0, "topk": 0, "topp": 0.9, "rescale_log_probs": False}
    assert _way("--top_p=0.9", "--samples=3") == (decoding.temperature_sample, top_p, 3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--beams=2", "--top_p=0.9"), "--beams and --top_p are different ways to decode"),
        (("--greedy", "--temperature=1", "--samples=2"), "--temperature/--samples and --greedy are different ways"),
        (("--top_k=4", "--top_p=0.9"), "cannot both cut"),
        (("--top_p=1.5",), "--top_p is 1.5; it is above 0 and at most 1"),
        (("--beams=0",), "--beams is 0; it is above 0"),
        (("--temperature=nan",), "--temperature is nan; it is above 0"),
        (("--temperature=0",), "--temperature is 0.0; it is above 0: --greedy takes the likeliest token"),
        (("--seed=-1",), "--seed is -1; it is a whole number of at least 0"),
        (("--seed=1", "--beams=2"), "--seed is of samples, and --beams draws nothing"),
        (("--seed=1", "--greedy"), "--seed is of samples, and --greedy draws nothing"),
        (("--alpha=-3",), "--alpha is -3.0; it is a number of at least 0"),
    ],
)
def test_what_cannot_be(flags, words):
    with pytest.raises(ValueError, match=words):
        _arguments(*flags)
