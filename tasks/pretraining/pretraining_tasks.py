"""One call makes a corpus a pre-training task, or a mixture of denoisers."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from limba.tasks import objectives
from limba.tasks.pretraining import denoising
from limba.tasks.registry import Feature, Mixture, MixtureRegistry, Task, TaskRegistry, registering
from limba.tasks.sources import corpora
from limba.tasks.vocabularies import PassThroughVocabulary, Vocabulary, sentencepiece_models


@registering.once(TaskRegistry)
def register_pretraining_task(
    name: str,
    *,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    text_column: str = "text",
    objective: objectives.Objective | None = None,
    mode: str = "",
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    shuffle_buffer_size: int = 4096,
    line_by_line: bool = False,
) -> Task:
    """Registers an objective over a corpus as a SeqIO task with the features `inputs` and `targets`, EOS on both.

    Without an objective it is span corruption. A language model (`objectives.FullLM`) has `targets` only, BERT's
    (`objectives.MaskedLM`) also `target_positions`, and with pairs `pair_start` and `pair_labels`. Nothing is read:
    files may be made later. Registering a name again with the same arguments is harmless.

    Args:
      data_files: per split a file, a pattern or a list of them (jsonl, json, parquet, txt, csv, also compressed), or a
        SeqIO source.
      vocabulary: a SeqIO vocabulary, or the path of a SentencePiece model, which gets 100 sentinels.
      text_column: the column with the text.
      objective: what the model learns, such as `objectives.PrefixLM()` or one of your own; None is span corruption.
      mode: text in front of the inputs that says which objective is meant, where a model has several.
      noise_density, mean_noise_span_length: see `objectives.SpanCorruption`; spans of 20 are right for bytes.
      shuffle_buffer_size: examples in the shuffle buffers of all readers together.
      line_by_line: see `denoising.Denoise`.

    Raises:
      ValueError: if the name is taken by a task with other arguments; if the objective is none, if there is also an
        argument of span corruption, or a mode where there are no inputs.
    """
    if objective is None:
        objective = objectives.SpanCorruption(noise_density, mean_noise_span_length)
    elif (noise_density, mean_noise_span_length) != (0.15, 3.0):
        raise ValueError(
            f"Task {name!r} has the objective {objective}, and noise_density {noise_density} and "
            f"mean_noise_span_length {mean_noise_span_length} beside it: give these to the objective."
        )
    if missing := objectives.missing_names(type(objective)):
        raise ValueError(
            f"The objective {objective!r} of task {name!r} lacks {', '.join(sorted(missing))} of objectives.Objective; "
            "write objective=objectives.SpanCorruption(), or another class of tasks.objectives."
        )
    if mode and objective.main_feature != "inputs":
        raise ValueError(f"Task {name!r} has the mode {mode!r}, and {objective} has no inputs to put it in front of.")
    if mode and isinstance(objective, objectives.MaskedLM):
        raise ValueError(f"Task {name!r} has the mode {mode!r}, and rows of MaskedLM begin with [CLS]: leave it out.")
    names = ("inputs", "targets") if objective.main_feature == "inputs" else ("targets",)
    feature = Feature(sentencepiece_models.open_vocabulary(vocabulary), not objective.eos_after_documents)
    features = dict.fromkeys(names, feature)
    if isinstance(objective, objectives.MaskedLM):
        names = ("target_positions", *(("pair_start", "pair_labels") if objective.pairs else ()))
        features |= dict.fromkeys(names, Feature(PassThroughVocabulary(2**31 - 1), add_eos=False))
    return TaskRegistry.add(
        name,
        source=corpora.open_source(data_files, text_column),
        preprocessors=[denoising.Denoise(objective, text_column, mode=mode, line_by_line=line_by_line)],
        output_features=features,
        shuffle_buffer_size=shuffle_buffer_size,
    )


@registering.once(MixtureRegistry)
def register_ul2_mixture(
    name: str,
    *,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    text_column: str = "text",
    denoisers: Sequence[objectives.Denoiser] = objectives.UL2_DENOISERS,
    rates: Mapping[str, float] | None = None,
    shuffle_buffer_size: int = 4096,
) -> Mixture:
    """Registers UL2's mixture of denoisers over one corpus: a task per denoiser, `<name>_<denoiser>`, and the mixture.

    Each task goes through the whole corpus, in an order of its own. Lengths come from `objectives.ul2_lengths`. Half of
    the tokens in spans of 3 are, with 512 inputs, 128 spans: such a vocabulary needs `extra_ids=128`.

    Args:
      data_files, vocabulary, text_column, shuffle_buffer_size: see `register_pretraining_task`; each task has buffers.
      denoisers: the objectives with the text that stands for each.
      rates: by the denoiser's name; None mixes them evenly, as UL2 does.

    Raises:
      ValueError: as `register_pretraining_task`; if rates are not given for exactly the denoisers.
    """
    names = [denoiser.name for denoiser in denoisers]
    rates = dict.fromkeys(names, 1.0) if rates is None else dict(rates)
    if sorted(rates) != sorted(names):
        raise ValueError(f"Mixture {name!r} has rates for {sorted(rates)}, and its denoisers are {sorted(names)}.")
    source = corpora.open_source(data_files, text_column)  # One for all tasks, which is opened once.
    weighted = []
    for denoiser in denoisers:
        task = register_pretraining_task(
            f"{name}_{denoiser.name}",
            data_files=source,
            vocabulary=vocabulary,
            text_column=text_column,
            objective=denoiser.objective,
            mode=denoiser.mode,
            shuffle_buffer_size=shuffle_buffer_size,
        )
        weighted.append((task.name, rates[denoiser.name]))
    return MixtureRegistry.add(name, weighted)
