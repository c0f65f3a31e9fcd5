"""Each kind of score is that of transformers' class of the export, by its formula written in PyTorch."""

import functools
import json

import gin
import jax
import numpy as np
import pytest
import sentencepiece

from convert import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.pages import scoreboard
from limba.addons.pairs import eval_pairs
from limba.addons.pairs.text_scorer import TextScorer
from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.models import DecoderOnlyModel, EncoderDecoderModel, EncoderOnlyModel
from limba.network import decoder_only
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.network.t5 import Transformer
from tasks.vocabularies import SentencePieceVocabulary, TokenizerVocabulary
from tests.addons.pairs import test_eval_pairs
from tests.addons.pairs.test_eval_pairs import Evaluator
from tests.convert.conftest import FAMILIES, SMALL
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file  # noqa: F401
from tests.limba import small

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PAIR = {"good": "bona badițo gade", "bad": "bona badi gade", "phenomenon": "made"}


def _scorer(model, run, **options):
    restore = checkpointing.RestoreCheckpointConfig(path=str(run), mode="latest")
    params, _ = load_model_params(model, small.partitioner(), restore)
    return TextScorer(model, small.partitioner(), params, batch_size=3, **options)


def _pair_scores(model, run, tmp_path, kind, pair):
    (tmp_path / "made.jsonl").write_text(json.dumps(pair) + "\n", "utf-8")
    eval_pairs.evaluate_pairs(
        model=model,
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=str(run), mode="latest"),
        partitioner=small.partitioner(),
        output_dir=str(tmp_path / "out"),
        files=[str(tmp_path / "made.jsonl")],
        inference_evaluator_cls=Evaluator,
        score=kind,
    )
    (line,) = (tmp_path / f"out/inference_eval/made.{kind}-pairs-000010.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)[f"score_{side}"] for side in ("good", "bad")]


@pytest.fixture(scope="module")
def t5(new_run, spiece_model, tmp_path_factory):
    """The model and its run, and what transformers' class of the export says of inputs and targets."""
    home = tmp_path_factory.mktemp("t5")
    run = new_run(home / "run", **FAMILIES["t5_1_1"])
    to_hf(run, home / "hf", verify=False)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(home / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "hf")
    vocabulary = SentencePieceVocabulary(str(spiece_model), extra_ids=100)
    config = any_format.open_model(run).config
    model = EncoderDecoderModel(Transformer(config), vocabulary, vocabulary, optimizer_def=None)

    @torch.no_grad()
    def log_probability(inputs, targets, skip):
        logits = theirs(input_ids=torch.tensor([inputs]), labels=torch.tensor([targets])).logits[0].double()
        found = torch.log_softmax(logits, -1)[torch.arange(len(targets)), torch.tensor(targets)]
        return float(found[skip:].sum())

    @torch.no_grad()
    def rank(inputs, targets):
        """The worst rank of the targets behind the sentinel."""
        logits = theirs(input_ids=torch.tensor([inputs]), labels=torch.tensor([targets])).logits[0][1:]
        own = logits[torch.arange(len(targets) - 1), torch.tensor(targets[1:])]
        return 1 + int((logits > own[:, None]).sum(-1).max())

    @torch.no_grad()
    def vector(text):
        """The mean of the encoder's vectors, EOS's too, of length 1."""
        found = theirs.encoder(input_ids=torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0].mean(0)
        return (found / found.norm()).numpy()

    return model, home / "hf", run, tokenizer, log_probability, rank, vector


def _words(tokenizer, text):
    """The ids of each word: in these texts its first piece begins with a blank."""
    words = []
    for id_, piece in zip(tokenizer(text, add_special_tokens=False).input_ids, tokenizer.tokenize(text), strict=True):
        if piece.startswith("▁"):
            words.append([])
        words[-1].append(id_)
    assert len(words) == len(text.split())
    return words


def _blanked(words, first, end, sentinels):
    join = functools.partial(sum, start=[])
    inputs = [*join(words[:first]), sentinels[0], *join(words[end:]), 1]
    return inputs, [sentinels[0], *join(words[first:end]), sentinels[1] if end < len(words) else 1]


def test_a_t5(t5, tmp_path, monkeypatch):
    model, _, run, tokenizer, log_probability, *_ = t5
    sentinels = tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>"])
    texts = [PAIR["good"], "fi gogo ba mumu cedi lu ba", PAIR["bad"], "bona"]
    words = {text: _words(tokenizer, text) for text in texts}
    scorer = _scorer(model, run)

    def whole(text):
        return sum(log_probability(*_blanked(words[text], i, i + 1, sentinels), 1) for i in range(len(words[text])))

    expected = [whole(text) for text in texts]
    assert [found.score for found in scorer.score(texts)] == pytest.approx(expected, abs=1e-4)
    assert scorer.score(texts)[1].num_tokens == sum(map(len, words[texts[1]])) + 7
    assert _pair_scores(model, run, tmp_path, "whole", PAIR) == pytest.approx(expected[:3:2], abs=1e-4)
    first, second = (log_probability(*_blanked(words[text], 1, 2, sentinels), 0) for text in texts[:3:2])
    assert _pair_scores(model, run, tmp_path, "words", PAIR) == pytest.approx([first, second], abs=1e-4)
    rest = [log_probability(*_blanked(words[text], 1, len(words[text]), sentinels), 1) for text in texts[:3:2]]
    assert _pair_scores(model, run, tmp_path, "continuation", PAIR) == pytest.approx(rest, abs=1e-4)
    (found,) = scorer.continuations(["bona"], [" badițo gade"], ends=True)
    assert found.score == pytest.approx(rest[0], abs=1e-4)
    with pytest.raises(ValueError, match="Take --score whole"):
        scorer.score(texts, "pieces")
    # Its positions are relative: it took minutes and gigabytes, and then there was no memory.
    with pytest.raises(
        ValueError, match=r"text 1 has [\d,]+ tokens, and the model reads at most 32,768: texts are not cut"
    ):
        scorer.score(["bona", "bona " * 40_000])

    def exhausted(params, batches, *_):
        list(batches)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

    monkeypatch.setattr(scorer._scorer, "_infer", exhausted)
    with pytest.raises(ValueError, match=r"the longest text so far, text 1, has rows of \d+ tokens, of which 3 are"):
        scorer.score(["bona", "bona " * 9, "bona"])


def test_a_scoreboard(t5, tmp_path, capsys):
    """Figures of an export, and of the run that is made of it, are those of its class in transformers."""
    _, export, _, tokenizer, log_probability, rank, vector = t5
    sentinels = tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>"])
    texts = [PAIR["good"], "fi gogo ba mumu cedi lu ba", "bona"]
    pairs = [PAIR, PAIR | {"good": PAIR["bad"], "bad": PAIR["good"], "phenomenon": "turned"}]
    (tmp_path / "held.txt").write_text("\n\n".join(texts) + "\n", "utf-8")
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), "utf-8")
    (tmp_path / "corpus.txt").write_text("Fi gogo ba, mumu cedi lu ba!\nbona ba\n", "utf-8")
    from_hf.from_hf(export, tmp_path / "run", verify=False)
    queries = [*zip(texts, [*texts[1:], PAIR["bad"]], strict=True), ("gogo", "bona ba"), ("ba bona", "gogo fi")]
    (tmp_path / "queries.csv").write_text("".join(f"{a},{b}\n" for a, b in [("query", "answer"), *queries]), "utf-8")
    files = {"text": "held.txt", "pairs": "pairs.jsonl", "retrieval": "queries.csv", "train": "corpus.txt"}
    files["output_dir"] = "out"
    flags = [x for name, file in files.items() for x in (f"--{name}", str(tmp_path / file))]
    assert scoreboard.main([str(tmp_path / "run"), str(export), *flags]) == 0
    found = json.loads((tmp_path / "out/scoreboard.json").read_text("utf-8"))
    blanked = []
    for text in texts:
        words = _words(tokenizer, text)
        blanked.append([_blanked(words, i, i + 1, sentinels) for i in range(len(words))])
    nats = [-sum(log_probability(*one, 1) for one in of_text) for of_text in blanked]
    ranks = [rank(*one) for of_text in blanked for one in of_text]
    first, second = (
        log_probability(*_blanked(_words(tokenizer, PAIR[side]), 1, 2, sentinels), 0) for side in ("good", "bad")
    )
    run, of_export, *others = found["rows"]
    assert run["figures"] == of_export["figures"] and (run["kind"], run["step"]) == ("T5", 10)
    of_texts, without = (run[x]["held"] for x in ("figures", "without_leaks"))
    assert of_texts["nats/character"]["value"] == pytest.approx(sum(nats) / sum(map(len, texts)), abs=1e-4)
    assert of_texts["median rank"]["value"] == np.median(ranks)
    assert of_texts["word found %"]["value"] == pytest.approx(100 * np.mean(np.array(ranks) == 1))
    of_others = (nats[0] + nats[2]) / (len(texts[0]) + len(texts[2]))
    assert without["nats/character"]["value"] == pytest.approx(of_others, abs=1e-4)
    assert found["sets"][0]["leaks"] == {"touched": 1, "in_a_row": 1, "whole": 1, "short": 2}
    accuracy = {name: x["value"] for name, x in run["figures"]["pairs"].items()}
    is_won = 100.0 * (first > second)
    assert accuracy == {"accuracy %": 50, "accuracy %/made": is_won, "accuracy %/turned": 100 - is_won}
    cosines = np.stack([vector(query) for query, _ in queries]) @ np.stack([vector(x) for _, x in queries]).T
    nearer = (cosines > np.diag(cosines)[:, None]).sum(1)
    of_queries = {name: x["value"] for name, x in run["figures"]["queries"].items()}
    assert np.median(nearer) > 0, nearer
    assert of_queries == {"answer found %": 100 * np.mean(nearer == 0), "median rank": 1 + np.median(nearer)}
    assert [row["name"] for row in others] == ["unigram", "bigram", "trigram", "chance"]
    said = capsys.readouterr().out
    assert "– [1]" in said and "[1] It reads from left to right, and has no blanks." in said
    assert not gin.config._CONFIG


@pytest.mark.parametrize("variant", ["bert"])
def test_an_encoder(new_encoder, tokenizer_file, tmp_path, variant):  # noqa: F811
    run = new_encoder(tmp_path / "run", **VARIANTS[variant])
    to_hf(run, tmp_path / "hf", verify=False)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = EncoderOnlyModel(
        MaskedLanguageModel(any_format.open_model(run).config), TokenizerVocabulary(str(tokenizer_file)), None
    )

    @torch.no_grad()
    def log_probability(ids, hidden, place):
        """Of the token at a place of a row, where the tokens at some places are masked."""
        row = torch.tensor([[tokenizer.mask_token_id if i in hidden else id_ for i, id_ in enumerate(ids)]])
        return float(torch.log_softmax(theirs(input_ids=row).logits[0, place].double(), -1)[ids[place]])

    pair = {"good": "w7 w9 w30 w11", "bad": "w7 w8 w30 w12"}
    ids = {side: tokenizer(text).input_ids for side, text in pair.items()}
    assert len(ids["good"]) == 6
    alone = [sum(log_probability(of_text, {i}, i) for i in range(1, 5)) for of_text in ids.values()]
    scorer = _scorer(model, run)
    for kind in ("whole", "pieces"):  # A word is a piece here.
        assert [x.score for x in scorer.score([*pair.values()], kind)] == pytest.approx(alone, abs=1e-4)
    words = [sum(log_probability(of_text, {2, 4}, i) for i in (2, 4)) for of_text in ids.values()]
    assert _pair_scores(model, run, tmp_path, "words", pair) == pytest.approx(words, abs=1e-4)
    rest = [sum(log_probability(of_text, {*range(i, 5)}, i) for i in (2, 3, 4)) for of_text in ids.values()]
    assert _pair_scores(model, run, tmp_path, "continuation", pair) == pytest.approx(rest, abs=1e-4)
    found = scorer.continuations(["w7"], [" w9 w30 w11"])
    assert found[0].score == pytest.approx(rest[0], abs=1e-4) and found[0].num_tokens == 3
    assert np.abs(np.subtract(alone, rest)).min() > 0.01
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([[2, 7, 4, 3]])).logits[0, 2]
    first, second = (f" w{int(i)}" for i in logits.argsort(descending=True)[:2])
    likeliest = _scorer(model, run, finds_ranks=True).continuations(["w7", "w7"], [first, second], ends=False)
    assert [one.is_likeliest for one in likeliest] == [True, False]
    by_word = _scorer(model, run, finds_ranks=True).score_words([*pair.values()])
    assert by_word.scores == pytest.approx(alone, abs=1e-4)
    with torch.no_grad():
        row = [x if i != 2 else tokenizer.mask_token_id for i, x in enumerate(ids["good"])]
        logits = theirs(input_ids=torch.tensor([row])).logits[0, 2]
    assert by_word.ranks[1] == 1 + int((logits > logits[ids["good"][2]]).sum())
    assert by_word.owners.tolist() == [0] * 4 + [1] * 4
    with pytest.raises(ValueError, match=r"text 0 has 52 tokens, and the model reads at most 48: texts are not cut"):
        scorer.score([" ".join(["w7"] * 50)])
    with pytest.raises(
        ValueError, match=r"text 1 cannot be scored: a sentence has the special token '\[MASK\]' in its text"
    ):
        scorer.score(["w7", "w8 [MASK]"])
    with pytest.raises(ValueError, match="text 1 has no token to score"):
        scorer.score(["w7", ""])


def _without_cross_attention(params):
    """transformers' T5 with the parameters of a decoder: what its cross-attention adds is 0."""
    sizes = {"d_model": "emb_dim", "d_kv": "head_dim", "d_ff": "mlp_dim", "num_heads": "num_heads"}
    config = transformers.T5Config(
        vocab_size=SMALL["vocab_size"],
        **{theirs: SMALL[ours] for theirs, ours in sizes.items()},
        num_layers=1,
        num_decoder_layers=2,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=True,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    decoder = params["decoder"]
    tensors = {
        "shared.weight": decoder["token_embedder"]["embedding"],
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": decoder["relpos_bias"][
            "rel_embedding"
        ].T,
        "decoder.final_layer_norm.weight": decoder["decoder_norm"]["scale"],
    }
    for i in range(2):
        of_layer, block = decoder[f"layers_{i}"], f"decoder.block.{i}.layer"
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            kernel = of_layer["self_attention"][ours]["kernel"]
            tensors[f"{block}.0.SelfAttention.{theirs}.weight"] = kernel.T
        for name, of_dense in of_layer["mlp"].items():
            tensors[f"{block}.2.DenseReluDense.{name}.weight"] = of_dense["kernel"].T
        tensors[f"{block}.0.layer_norm.weight"] = of_layer["pre_self_attention_layer_norm"]["scale"]
        tensors[f"{block}.2.layer_norm.weight"] = of_layer["pre_mlp_layer_norm"]["scale"]
        inner = SMALL["num_heads"] * SMALL["head_dim"]
        tensors[f"{block}.1.EncDecAttention.o.weight"] = np.zeros((SMALL["emb_dim"], inner), np.float32)
    made = {name: torch.tensor(np.ascontiguousarray(x)) for name, x in tensors.items()}
    assert not model.load_state_dict(made, strict=False).unexpected_keys
    assert len(tensors) - 2 == len(jax.tree.leaves(params))
    return model


def test_a_decoder(spiece_model, tmp_path):
    """Its recipes compute in bfloat16, and scores do not."""
    vocabulary = SentencePieceVocabulary(str(spiece_model), extra_ids=100)
    sizes = {name: x for name, x in SMALL.items() if not name.endswith("coder_layers")}
    gated = {"mlp_activations": ("gelu", "linear"), "logits_via_embedding": True}
    config = decoder_only.TransformerConfig(**sizes, **gated, num_layers=2, dtype="bfloat16")
    model = DecoderOnlyModel(decoder_only.DecoderWrapper(config), vocabulary, optimizer_def=None)
    params = test_eval_pairs._save(model, tmp_path / "run", 10)
    theirs = _without_cross_attention(params)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(spiece_model))

    @torch.no_grad()
    def log_probabilities(text):
        """Of the tokens of a text, and of EOS."""
        ids = [*tokenizer.encode(text), 1]
        read = {"input_ids": torch.tensor([[1]]), "decoder_input_ids": torch.tensor([[0, *ids[:-1]]])}
        found = torch.log_softmax(theirs(**read).logits[0].double(), -1)
        return found[torch.arange(len(ids)), torch.tensor(ids)].numpy()

    texts = [PAIR["good"], PAIR["bad"], "gogo"]
    of_texts = [log_probabilities(text) for text in texts]
    scorer = TextScorer(model, small.partitioner(), params, batch_size=3)
    whole = [x.sum() for x in of_texts]
    assert [found.score for found in scorer.score(texts)] == pytest.approx(whole, abs=1e-4)
    first = len(tokenizer.encode("bona"))
    ends = [len(tokenizer.encode(text.rpartition(" ")[0])) for text in texts[:2]]
    expected = {
        "whole": whole[:2],
        "words": [x[first:end].sum() for x, end in zip(of_texts, ends, strict=False)],
        "continuation": [x[first:].sum() for x in of_texts[:2]],
    }
    for kind, values in expected.items():
        assert _pair_scores(model, tmp_path / "run", tmp_path, kind, PAIR) == pytest.approx(values, abs=1e-4)
    found = scorer.continuations(["", "bona"], ["gogo", " badi gade"], ends=False)
    # Its first token is a blank, which nothing stands before.
    assert tokenizer.id_to_piece(tokenizer.encode("gogo")[0]) == "▁"
    behind = of_texts[1][first:-1].sum()
    assert [one.score for one in found] == pytest.approx([of_texts[2][:-1].sum(), behind], abs=1e-4)
