"""Our tasks and mixtures as SeqIO's: `seqio.get_mixture_or_task` finds them, and T5X trains on them.

Importing this registers with SeqIO what is registered with us, now and later; `tasks/__init__.py` does so as soon as
`seqio` is imported.
"""

from typing import Any

import seqio
import tensorflow as tf

from limba.tasks.registry import Feature, Mixture, MixtureRegistry, Task, TaskRegistry
from limba.tasks.registry.tasks import is_mixture
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import Vocabulary

# Its names are those of a source of SeqIO's.
seqio.DataSource.register(ShardedSource)


def _leave_ours_to_ours(kind: Any) -> None:
    """Ours know which of SeqIO's they equal; SeqIO's say False to all classes but their own.

    T5X trains only where `vocabulary of the task != vocabulary of the model` is false, and gin binds ours to the model.
    """
    of_seqio = kind.__eq__

    def is_equal(self: Any, other: object) -> bool:
        return NotImplemented if isinstance(other, Vocabulary) else of_seqio(self, other)

    kind.__eq__ = is_equal


for _kind in (seqio.ByteVocabulary, seqio.PassThroughVocabulary, seqio.SentencePieceVocabulary):
    _leave_ours_to_ours(_kind)


def seqio_provider(provider: Any) -> Any:
    """SeqIO's task or mixture of that name for one of ours; one of SeqIO's is itself."""
    if not isinstance(provider, Task | Mixture):
        return provider
    registry: Any = seqio.MixtureRegistry if is_mixture(provider) else seqio.TaskRegistry
    if provider.name in registry.names():
        return registry.get(provider.name)
    return _mixture(provider) if isinstance(provider, Mixture) else _task(provider)


def _task(task: Task) -> seqio.Task:
    return seqio.Task(
        task.name,
        source=task.source,
        output_features={name: _feature(feature) for name, feature in task.output_features.items()},
        preprocessors=list(task.preprocessors),
        postprocess_fn=task.postprocessor,
        metric_fns=list(task.metric_fns),
        shuffle_buffer_size=task.shuffle_buffer_size,
    )


def _feature(feature: Any) -> seqio.Feature:
    if not isinstance(feature, Feature):
        return feature
    dtype = tf.dtypes.as_dtype(feature.dtype)
    return seqio.Feature(_vocabulary(feature.vocabulary), feature.add_eos, feature.required, dtype, feature.rank)


def _vocabulary(vocabulary: Any) -> Any:
    if not isinstance(vocabulary, Vocabulary):
        return vocabulary
    try:
        return vocabulary.to_seqio()
    except NotImplementedError:
        # A user's class, which our own steps encode with. Only SeqIO's would need more, and get this error then.
        return vocabulary


def _mixture(mixture: Mixture) -> seqio.Mixture:
    rates = mixture.rate_per_task_name

    def own_rate(part: Any) -> Any:
        rate = rates[part.name]
        return (lambda _: rate(part)) if callable(rate) else rate  # a function of our task

    return seqio.Mixture(mixture.name, [(seqio_provider(part), own_rate(part)) for part in mixture.parts])


class _Copies:
    """A registry of SeqIO's, as `tasks.registry.tasks.Registry.copies` has them."""

    def __init__(self, registry: Any):
        self._registry = registry

    def add(self, provider: Any) -> None:
        self._registry.add_provider(provider.name, seqio_provider(provider))

    def remove(self, name: str) -> None:
        self._registry.remove(name)


for ours, theirs in ((TaskRegistry, seqio.TaskRegistry), (MixtureRegistry, seqio.MixtureRegistry)):
    copies = _Copies(theirs)
    for registered in ours:
        copies.add(registered)
    ours.copies.append(copies)
