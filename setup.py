"""The packages: a wheel has `limba` alone, an editable install of a clone also `tasks` and `convert` by their names."""

import sys

from setuptools import find_packages, setup

# Through the links `limba/tasks`, `limba/convert` and `limba/share`, which become folders in a wheel.
PACKAGES = find_packages(include=["limba", "limba.*"])
if "editable_wheel" in sys.argv:
    PACKAGES += find_packages(include=["tasks", "tasks.*", "convert", "convert.*"])

setup(packages=PACKAGES)
