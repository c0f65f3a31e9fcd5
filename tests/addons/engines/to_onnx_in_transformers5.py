"""Runs where transformers is 5: `limba convert to-onnx`.

python to_onnx_in_transformers5.py REPOSITORY SITE_PACKAGES RUN OUT

SITE_PACKAGES has JAX and ONNX Runtime, which that environment lacks.
"""

import sys


def main(repository: str, site_packages: str, run: str, out: str) -> None:
    sys.path.insert(0, repository)
    sys.path.append(site_packages)
    import transformers

    from limba.addons.engines.to_onnx import to_onnx

    assert transformers.__version__.startswith("5."), transformers.__version__
    to_onnx(run, out)


main(*sys.argv[1:])
