"""The names of `t5.data` and `t5.data.utils` that task modules use besides SeqIO's own."""

import seqio

# T5's English vocabulary, which lacks the sentinels, and how many follow it.
DEFAULT_SPM_PATH = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
DEFAULT_EXTRA_IDS = 100

# T5's name for a rate of mixtures; `tasks.registry.mixtures` has those of corpora whose examples nobody has counted.
rate_num_examples = seqio.mixing_rate_num_examples


def get_default_vocabulary() -> seqio.SentencePieceVocabulary:
    """T5's English vocabulary with its 100 sentinels. Its file is read when it is used."""
    return seqio.SentencePieceVocabulary(DEFAULT_SPM_PATH, DEFAULT_EXTRA_IDS)
