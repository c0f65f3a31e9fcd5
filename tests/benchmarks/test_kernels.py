"""The benchmark of kernels: what it compares, and that the ways it times compute the same."""

import functools
import re

import jax
import numpy as np
import pytest

from benchmarks import kernels
from limba.addons.kernels import attention_cudnn, attention_gpu
from limba.network.kernels import device_check


def test_each_kind_of_input_is_compared_and_a_wrong_kernel_is_counted(monkeypatch, capsys):
    asked = []

    def compare(case, platform):
        asked.append(case)
        is_wrong = case.kernel == "attention_cudnn" and case.causal
        return device_check.Result(case.kernel, str(case), "a card", "it is off" if is_wrong else "", 1e-3, 2e-3)

    monkeypatch.setattr(device_check, "compare", compare)
    assert kernels.compare("gpu") == 1
    assert len(asked) == len(set(asked)) == 14 + 3 + 3 + 6 + 2
    rows = re.findall(r"^\| (\w+) \|.*\| 1.0e-03 \| 2.0e-03 \| 0.0 \| (.*) \|$", capsys.readouterr().out, re.M)
    assert len(rows) == len(asked)
    assert [x for x in rows if x[1] != "yes"] == [("attention_cudnn", "it is off")]


@pytest.mark.parametrize("name", ["decoder", "cross"])
def test_the_ways_that_are_timed_compute_the_same(name, monkeypatch, capsys):
    """In interpreted kernels, and XLA's implementation of cuDNN's call."""
    _, _, _, *kind = kernels.TIMED[name]
    monkeypatch.setitem(kernels.TIMED, name, (2, 64, 64, *kind))
    by_xla = functools.partial(attention_cudnn.attention, implementation="xla")
    monkeypatch.setattr(attention_cudnn, "attention", by_xla)
    found = []

    def both(function, *arrays):
        found.append(np.asarray(jax.jit(function)(*arrays), np.float32))
        return "1.0 | 2.0"

    monkeypatch.setattr(kernels, "_both", both)
    kernels.time_attention(name)
    limba, cudnn, xla = found
    assert limba.shape == (2, 64, 12, 64) and limba.std() > 0.05
    np.testing.assert_allclose(limba, xla, atol=0.02)
    np.testing.assert_allclose(cudnn, xla, atol=0.03)
    assert [x.split(" | ")[1] for x in capsys.readouterr().out.splitlines()] == ["Limba", "cuDNN", "XLA"]


def test_tilings_that_are_wrong_or_do_not_run_are_named(monkeypatch, capsys):
    right = attention_gpu.attention

    def attention(*arrays, tiling, **options):
        if tiling.num_warps == 8:
            raise NotImplementedError("no room")
        of_tiling = 1.1 if tiling.block == 128 else 1.0
        return of_tiling * right(*arrays, **options, interpret=True)

    monkeypatch.setitem(kernels.TIMED, "cross", (1, 32, 32, False, False))
    monkeypatch.setattr(attention_gpu, "attention", attention)
    monkeypatch.setattr(kernels, "_both", lambda *_: "1.0 | 2.0")
    kernels.time_tilings("cross")
    rows = [x.split(" | ", 2) for x in capsys.readouterr().out.splitlines()]
    assert len(rows) == 18 and rows[0][:2] == ["| cross, 1 x 32 x 32", "tiles of 32, 4 warps, 1 stages"]
    found = [x[2].partition(" |")[0] for x in rows]
    assert found.count("does not run: NotImplementedError") == 9
    assert found.count("wrong, off by 1.0e-01") == 3 and found.count("1.0") == 6


def test_a_machine_without_an_accelerator_is_refused(capsys):
    assert kernels.main([]) == 2
    assert "needs a GPU or a TPU; JAX has cpu" in capsys.readouterr().out
