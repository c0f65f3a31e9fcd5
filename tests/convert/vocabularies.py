"""Small SentencePiece models in T5's layout, and the text that they are trained on."""

import random
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

NUM_PIECES = 412


def sentences(count: int) -> list[str]:
    rng = random.Random(0)
    syllables = [consonant + vowel for consonant in "bcdfghlmnprstvzșț" for vowel in "aeiouăâî"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(500)]
    return [
        " ".join(rng.choices(words, k=rng.randint(3, 14))).capitalize()
        + rng.choice(".?!,;")
        + f" {rng.randint(0, 999)}"
        for _ in range(count)
    ]


def _greek():
    rng = random.Random(0)
    syllables = [a + b for a in "βγδζθκλμνπρστφχ" for b in "αεηιοω"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    return [" ".join(rng.choices(words, k=8)) for _ in range(800)]


GREEK = _greek()


def train(path: Path, text: list[str] | None = None, **options) -> Path:
    """A SentencePiece model in T5's layout: padding 0, EOS 1, unknown 2. Without a text, of 3,000 sentences."""
    usual = {"vocab_size": NUM_PIECES, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text or sentences(3000)), model_writer=file, **(usual | options)
        )
    return path


def with_sentinels(spiece_model: Path, count: int) -> bytes:
    """The SentencePiece model with sentinels as pieces of its own behind the last one, as SeqIO sets them."""
    model = sentencepiece_model_pb2.ModelProto.FromString(spiece_model.read_bytes())
    for i in reversed(range(count)):
        piece = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        model.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=piece)
    return model.SerializeToString()


def with_ties(path: Path, longest: float = -16.4) -> Path:
    """A model to which "xx" is as likely as twice "x": libraries choose differently, as they round sums differently."""
    train(path)
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    for i, (piece, score) in enumerate((("▁x", -4.1), ("x", -4.1), ("xx", -8.2), ("xxxx", longest)), NUM_PIECES - 4):
        model.pieces[i].piece, model.pieces[i].score = piece, score
    path.write_bytes(model.SerializeToString())
    return path


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_words(file: Path, words: Sequence[str]) -> Path:
    """A tokenizer.json whose tokens are BERT's special ones and these words."""
    import tokenizers

    ids = {word: i for i, word in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    file.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(file))
    return file
