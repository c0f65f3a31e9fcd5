"""`python -m limba` is `limba`."""

from limba.cli import main
from limba.files import repository

# In a folder that holds a clone of this name, `import limba` has found that folder and not run what the package begins
# with.
repository.claim()
main()
