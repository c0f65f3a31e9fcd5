import argparse

import pytest

from limba import run_configuration


def _bindings(*flags):
    parser = argparse.ArgumentParser()
    run_configuration.add_decoding_flags(parser)
    return run_configuration.decoding_bindings(parser.parse_args(flags))


def test_ways_to_decode():
    assert _bindings() == []
    assert _bindings("--beams", "4", "--max_decode_length=7") == [
        "models.EncoderDecoderModel.decode_fn = @decoding.beam_search",
        "answers.Answerer.num_decodes = 4",
        "answers.Answerer.max_decode_length = 7",
    ]
    sampling = "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample"
    assert _bindings("--greedy") == [sampling, "answers.Answerer.num_decodes = 1"]
    assert _bindings("--top_p=0.9", "--samples=3") == [
        sampling,
        "answers.Answerer.num_decodes = 3",
        "decoding.temperature_sample.temperature = 1.0",
        "decoding.temperature_sample.topk = 0",
        "decoding.temperature_sample.topp = 0.9",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--beams=2", "--top_p=0.9"), "--beams 2 and --top_p are different ways to decode"),
        (("--greedy", "--temperature=1", "--samples=2"), "--greedy and --temperature/--samples are different ways"),
        (("--top_k=4", "--top_p=0.9"), "cannot both cut"),
        (("--top_p=1.5",), "--top_p is 1.5; it is above 0 and at most 1"),
        (("--beams=0",), "--beams is 0; it is above 0"),
    ],
)
def test_what_cannot_be(flags, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        _bindings(*flags)
