"""Tasks: from data to batches. Once `seqio` is imported, all of them are SeqIO's tasks as well."""

import importlib

from limba.devices import library_patches

# Among them: `datasets` does not import PyTorch.
library_patches.install()
# Everything in there needs TensorFlow, which comes with SeqIO.
library_patches.when_imported("seqio", lambda _: importlib.import_module("limba.tasks.pipeline.seqio.registry_copies"))

if __name__ == "tasks":  # Python found this folder of a clone by itself; the package is limba.tasks.
    from limba.files import repository

    repository.take_name(__name__)
