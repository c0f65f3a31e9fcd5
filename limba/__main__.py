"""`python -m limba` is `limba`."""

from limba.files import python_path, repository

# In a folder that holds a clone of this name, `import limba` has found that folder and not run what the package begins
# with.
python_path.install()
repository.claim()

from limba.cli import main  # noqa: E402

main()
