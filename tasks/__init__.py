"""Tasks: from data to batches. Once `seqio` is imported, all of them are SeqIO's tasks as well."""

from limba.addons import table
from limba.devices import library_patches

# Among them: `datasets` does not import PyTorch.
library_patches.install()
library_patches.when_imported("seqio", lambda _: [*table.parts("seqio_registry")])

if __name__ == "tasks":  # Python found this folder of a clone by itself; the package is limba.tasks.
    from limba.files import repository

    repository.take_name(__name__)
