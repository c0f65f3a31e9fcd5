"""`python -m limba` is `limba`."""

from limba.cli import main

main()
