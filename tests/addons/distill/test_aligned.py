"""A teacher with another vocabulary: where both have written the same, by decoding; its answers, by loops in NumPy."""

import os

import jax
import numpy as np
import pytest

from convert.compare import forward
from convert.model_files import any_format
from limba.addons.distill import aligned, answers, teacher
from limba.addons.distill.distilled_model import LOG_PROBS, TEMPERATURE, TOKENS, WEIGHTS
from limba.data import sentinels
from limba.data.contract import encoder_decoder_features
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests.convert import vocabularies
from tests.limba import small

TOP_K = 3


@pytest.fixture(scope="module")
def of_teacher(spiece_model):
    return SentencePieceVocabulary(str(spiece_model), 100)


@pytest.fixture(scope="module")
def of_student(tmp_path_factory):
    file = vocabularies.train(tmp_path_factory.mktemp("other") / "spiece.model", vocab_size=150)
    return SentencePieceVocabulary(str(file), 100)


def _row(vocabulary, text):
    """The tokens of a text, with the sentinels that it names and EOS."""
    found = []
    for number, part in enumerate(text.split("|")):
        found += [sentinels.of_vocabulary(vocabulary)[number - 1]] * (number > 0)
        found += vocabulary.encode(part) if part else []
    return [*found, vocabulary.eos_id]


TEXTS = [" ".join(vocabularies.sentences(40)[i : i + 3]) for i in range(0, 12, 3)]


def test_where_two_vocabularies_have_written_the_same(of_student, of_teacher):
    translation = aligned.Translation(of_student, of_teacher)
    num_aligned = num_tokens = 0
    for text in TEXTS:
        words = text.split()
        parts = ["", " ".join(words[:3]), " ".join(words[3:5]), words[5]]
        ids = _row(of_student, "|".join(parts))
        row = translation.targets(ids)
        assert len(row.at) == len(ids) and row.ids == _row(
            of_teacher, "|".join(["", *map(" ".join, (words[:3], words[3:5], words[5:6]))])
        )
        places = [x for x in row.at if x >= 0]
        assert places == sorted(set(places))
        for place, at in enumerate(row.at):
            before, others = of_student.decode(ids[:place]), of_teacher.decode(row.ids[:at])
            if at >= 0:
                assert before == others
            elif ids[place - 1] != of_student.tokenizer.piece_to_id("▁"):  # Two places with the same text.
                assert all(of_teacher.decode(row.ids[:k]) != before for k in range(len(row.ids)))
        # At the beginning of each word, and at each special token.
        begins = [
            place
            for place, id_ in enumerate(ids)
            if id_ >= 150 or id_ == 1 or of_student.tokenizer.id_to_piece(id_)[0] == "▁"
        ]
        assert all(row.at[place] >= 0 for place in begins)
        num_aligned, num_tokens = num_aligned + len(places), num_tokens + len(ids)
    assert 0.5 < num_aligned / num_tokens < 1


def test_a_piece_of_megabytes_is_looked_up_by_the_lengths_that_tokens_have():
    class Text(bytes):
        """Counts its beginnings that are looked at."""

        looked = 0

        def __getitem__(self, key):
            Text.looked += 1
            return super().__getitem__(key)

    tokens = aligned._Tokens([b"a", None, b"aab", b"ab", b"a", b""])
    assert tokens.longest(Text(b"aa" * 10**6)) == (0, b"a") and Text.looked <= 3
    assert tokens.longest(b"aabb") == (2, b"aab") and tokens.longest(b"b") == (None, b"")


def test_a_text_that_goes_on_behind_a_sentinel_gets_no_space(of_student, of_teacher):
    translation, first = aligned.Translation(of_student, of_teacher), sentinels.of_vocabulary(of_student)[0]
    texts = aligned.piece_texts(of_teacher)
    for text in TEXTS:
        ids = of_student.encode(text)
        pieces = [*map(of_student.tokenizer.id_to_piece, ids)]
        inside = next(i for i, piece in enumerate(pieces) if i > 3 and piece[0] != "▁")
        found = translation.inputs([*ids[: inside - 1], first, *ids[inside:], of_student.eos_id])
        place = found.index(sentinels.of_vocabulary(of_teacher)[0])
        assert found[-1] == of_teacher.eos_id
        behind = b"".join(texts[id_] for id_ in found[place + 1 : -1])
        assert behind.decode() == "".join(pieces[inside:]).replace("▁", " ")


def test_bytes_end_where_each_token_of_the_teacher_does(of_teacher):
    bytes_ = ByteVocabulary(100)
    ids = _row(bytes_, "|" + TEXTS[0])
    row = aligned.Translation(bytes_, of_teacher).targets(ids)
    assert [x for x in row.at if x >= 0] == list(range(len(row.ids)))
    # An unknown token of the student's ends no row, and is nothing that the teacher could have written.
    row = aligned.Translation(bytes_, of_teacher).targets([*ids[:3], bytes_.unk_id, *ids[3:]])
    assert row.at[3] == -1 and row.ids.count(of_teacher.unk_id) == 1
    # Behind letters that the teacher's normalization changes nothing is the same.
    row = aligned.Translation(bytes_, of_teacher).targets(_row(bytes_, "|a ＡＢ a a a a a|"))
    assert [i for i, at in enumerate(row.at) if at >= 0][:3] == [0, 1, 2] and row.at[4:-2] == [-1] * (len(row.at) - 6)
    # A row of bytes has no space before its first word.
    text = TEXTS[1]
    found = aligned.Translation(of_teacher, bytes_).inputs(_row(of_teacher, text))
    assert found == [*bytes_.encode(text), bytes_.eos_id]
    # Nor is a sentinel that the teacher does not have.
    few = aligned.Translation(bytes_, SentencePieceVocabulary(of_teacher.sentencepiece_model_file, 1))
    row = few.targets([*ids, sentinels.of_vocabulary(bytes_)[1], *ids])
    assert len(row.ids) < len(ids) and row.at[len(ids) :] == [-1] * (len(ids) + 1)


def _taught(made, teachers, students):
    opened = any_format.open_model(made.run)
    devices = small.partitioner(1).mesh.devices.flat
    likeliest = teacher.Likeliest(opened, teachers, TOP_K, 1.0, "float32", devices)
    return opened, teacher.AlignedLikeliest(likeliest, aligned.Translation(students, teachers))


def _ids(row):
    return np.trim_zeros(row, "b").tolist()


def _batch(vocabulary, inputs=96, targets=64):
    rows = {
        name: np.zeros((len(TEXTS), length), np.int32) for name, length in (("inputs", inputs), ("targets", targets))
    }
    for place, text in enumerate(TEXTS):
        words = text.split()
        given = {"inputs": " ".join(words[:4]) + "| " + " ".join(words[8:]), "targets": "|" + " ".join(words[4:8])}
        for name, of_row in given.items():
            ids = _row(vocabulary, of_row)[: rows[name].shape[1]]
            rows[name][place, : len(ids)] = ids
    return encoder_decoder_features(**rows)


def test_the_same_vocabulary_gives_the_same_answers(all_exported, of_teacher):
    _, likeliest = _taught(all_exported["t5_1_1-t5"], of_teacher, of_teacher)
    batch = _batch(of_teacher)
    expected, found = likeliest._likeliest(batch), likeliest(batch)
    # Padding and unknown pieces have no text.
    used = (found[WEIGHTS] > 0) & ~np.isin(expected[TOKENS], (0, 2)).any(-1)
    assert used.sum() > 0.9 * (batch["decoder_target_tokens"] > 0).sum() and found[TOKENS].shape == (4, 64, TOP_K)
    assert np.array_equal(found[TOKENS][used], expected[TOKENS][used])
    assert np.abs(found[LOG_PROBS] - expected[LOG_PROBS])[used].max() < 1e-5
    with pytest.raises(ValueError, match=r"these are packed: set DatasetConfig\.pack = False"):
        likeliest(batch | {"encoder_segment_ids": np.ones((4, 96), np.int32)})


def test_answers_by_loops(all_exported, of_teacher):
    """Of bytes: each of the teacher's tokens begins with one."""
    students = ByteVocabulary(100)
    opened, likeliest = _taught(all_exported["t5_1_1-t5"], of_teacher, students)
    likeliest._CANDIDATES = 1000  # all of the teacher's tokens
    batch = _batch(students, 220, 150)
    found = likeliest(batch)
    translation = aligned.Translation(students, of_teacher)
    texts = aligned.piece_texts(of_teacher)
    num = 0
    for place, ids in enumerate(batch["decoder_target_tokens"]):
        row = translation.targets(_ids(ids))
        inputs = translation.inputs(np.trim_zeros(batch["encoder_input_tokens"][place], "b").tolist())
        features = encoder_decoder_features(np.int32([inputs]), np.int32([row.ids]))
        logits = forward.logits(
            opened.config, opened.tensors, {k: x for k, x in features.items() if k.endswith("tokens")}
        )
        probs = np.exp(logits[0] - logits[0].max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        for i, at in enumerate(row.at):
            assert found[WEIGHTS][place, i] == (at >= 0)
            if at < 0:
                continue
            expected = np.zeros(students.vocab_size)
            for token, text in enumerate(texts):
                if text:
                    expected[text[0] + 3] += probs[at, token]
            for a, b in zip(sentinels.of_vocabulary(students), sentinels.of_vocabulary(of_teacher), strict=True):
                expected[a] += probs[at, b]
            expected[1] += probs[at, 1]
            assert np.abs(np.exp(found[LOG_PROBS][place, i]) - -np.sort(-expected)[:TOP_K]).max() < 1e-5
            assert np.abs(expected[found[TOKENS][place, i]] - -np.sort(-expected)[:TOP_K]).max() < 1e-5
            num += 1
    assert num > 40


def test_the_target_has_the_probability_of_all_tokens_that_write_it(all_exported, of_teacher, of_student, monkeypatch):
    """A student whose one token is two of the teacher's: the first of them gives it what both have together."""
    _, likeliest = _taught(all_exported["t5_1_1-t5"], of_student, of_teacher)
    likeliest._likeliest.top_k = of_teacher.vocab_size  # all

    # A teacher that is nearly sure of its targets, so that several tokens together have something to bring.
    def sure(params, read):
        return jax.nn.log_softmax(8 * jax.nn.one_hot(read["decoder_target_tokens"], of_student.vocab_size))

    monkeypatch.setattr(likeliest._likeliest, "log_probs", sure)
    batch = _batch(of_teacher)
    found = likeliest(batch)
    translation, num = likeliest._translation, 0
    inputs, targets = batch["encoder_input_tokens"][0], batch["decoder_target_tokens"][0]
    row = translation.targets(_ids(targets))
    read = encoder_decoder_features(np.int32([translation.inputs(_ids(inputs))]), np.int32([row.ids]))
    log_probs = np.asarray(sure(None, read))[0]
    for i, (at, until) in enumerate(zip(row.at, [*row.at[1:], -1], strict=True)):
        if at < 0 or until <= at + 1 or translation.table[row.ids[at]] == targets[i]:
            continue
        together = sum(log_probs[k, row.ids[k]] for k in range(at, until))
        of_tokens = np.exp(log_probs[at])[translation.table == targets[i]].sum()
        (shown,) = np.exp(found[LOG_PROBS][0, i])[found[TOKENS][0, i] == targets[i]]
        assert np.exp(together) > 0.01 and shown == pytest.approx(of_tokens + np.exp(together), rel=1e-4)
        first = translation.table[row.ids[at]]
        (left,) = np.exp(found[LOG_PROBS][0, i])[found[TOKENS][0, i] == first]
        of_first = np.exp(log_probs[at])[translation.table == first].sum()
        assert left == pytest.approx(of_first - np.exp(together), rel=1e-4)
        num += 1
    assert num == 2


# ------------------------------------------------ kept answers ------------------------------------------------------


class _Counted:
    fingerprint = "abc"

    def __init__(self):
        self.asked = 0

    def temperatures(self, rows):
        return np.full(rows, 2.0, np.float32)

    def __call__(self, batch):
        self.asked += 1
        rng = np.random.default_rng(int(batch["decoder_target_tokens"].sum()))
        shape = (*batch["decoder_target_tokens"].shape, TOP_K)
        return {
            TEMPERATURE: self.temperatures(shape[0]),
            TOKENS: rng.integers(0, 70_000, shape).astype(np.int32),
            LOG_PROBS: -rng.random(shape).astype(np.float32),
            WEIGHTS: rng.integers(0, 2, shape[:2]).astype(np.float32),
        }


def _features(seed, rows=3):
    rng = np.random.default_rng(seed)
    return encoder_decoder_features(*(rng.integers(1, 60, (rows, length)).astype(np.int32) for length in (9, 6)))


def _kept(folder, process=0, num_tokens=70_000):
    counted = _Counted()
    return counted, answers.KeptAnswers(counted, str(folder), num_tokens, TOP_K, process)


def _equal(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)


def test_kept_answers_are_those_of_the_teacher(tmp_path):
    counted, kept = _kept(tmp_path / "new")
    given = [kept(_features(seed)) for seed in range(3)]
    assert counted.asked == 3 and all(_equal(x, _Counted()(_features(seed))) for seed, x in enumerate(given))
    mixed = _features(0)
    rows = {name: x[::-1] for name, x in mixed.items()}
    again, other = _kept(tmp_path / "new", process=1)
    found = other(rows)
    assert again.asked == 0 and all(np.array_equal(x[::-1], given[0][name]) for name, x in found.items())
    # A new row asks the teacher for its batch, and is kept by this process.
    rows["encoder_input_tokens"] = rows["encoder_input_tokens"].copy()
    rows["encoder_input_tokens"][0, 0] += 1
    other(rows)
    other(rows)
    assert again.asked == 1 and len(list((tmp_path / "new").glob("*.answers"))) == 2


def test_what_a_kill_or_a_stranger_left_is_asked_again(tmp_path):
    _, kept = _kept(tmp_path)
    expected = [kept(_features(seed)) for seed in range(2)]
    (file,) = tmp_path.glob("*.answers")
    content = file.read_bytes()
    size = len(content) // 6
    damaged = bytearray(content[:-5])
    damaged[size // 2] ^= 1
    file.write_bytes(damaged)
    counted, kept = _kept(tmp_path)
    assert [_equal(kept(_features(seed)), x) for seed, x in enumerate(expected)] == [True, True] and counted.asked == 2
    counted, kept = _kept(tmp_path)
    assert [_equal(kept(_features(seed)), x) for seed, x in enumerate(expected)] == [True, True] and counted.asked == 0
    # Tokens that the student does not have, with a right checksum.
    counted, kept = _kept(tmp_path, num_tokens=69_000)
    kept(_features(0))
    assert counted.asked == 1
    # A position that counts 255 times, with a right checksum.
    counted, kept = _kept(tmp_path)
    kept(_features(0))
    records = np.fromfile(file, kept._record)
    records[WEIGHTS][:] = 255
    for record in records:
        record["checksum"] = answers._checksum(record)
    records.tofile(file)
    counted, kept = _kept(tmp_path)
    assert [_equal(kept(_features(seed)), x) for seed, x in enumerate(expected)] == [True, True] and counted.asked == 2
    # Holes: numbers without a key end what is read.
    with file.open("r+b") as opened:
        opened.truncate(size * 10**7)
    assert _equal(_kept(tmp_path)[1](_features(0)), expected[0])
    assert file.stat().st_size < 100 * size
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="is no file; remove it, or set TEACHER_ANSWERS to another folder"):
        _kept(tmp_path)[1](_features(0))
    file.unlink()
    (tmp_path / "elsewhere").write_bytes(b"mine")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"\.answers is a link to .*elsewhere"):
        _kept(tmp_path)[1](_features(0))
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    with pytest.raises(ValueError, match=r"TEACHER_ANSWERS\) is 'gs://a/b'; give a folder of this machine"):
        _kept("gs://a/b")
