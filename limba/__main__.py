"""`python -m limba` is `limba`."""

# First of all: it takes the working directory off Python's path.
from limba.files import python_path

# isort: split
from limba.addons import table
from limba.files import repository

# In a folder that holds a clone of this name, `import limba` has found that folder and not run what the package begins
# with.
python_path.install()
repository.claim(table.other_names())

from limba.cli import main  # noqa: E402

main()
