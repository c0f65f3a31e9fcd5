"""How the tests' small networks are compiled.

What XLA optimizes is XLA's business, and costs more than half of what compiling these networks does. Tests that start a
process as a user does leave it on, and those that compare two programs bit by bit.
"""

import contextlib
import threading
from collections.abc import Iterator
from unittest import mock

FAST = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",  # every part is compiled with XLA's own functions
    ]
)
# For `jax.jit(compiler_options=…)` in a process that has FAST.
AS_USERS = {
    "xla_backend_optimization_level": 3,
    "xla_cpu_use_fusion_emitters": True,
    "xla_llvm_disable_expensive_passes": False,
}

# A context keeps what programs have named and every constant in them.
_MOST_PROGRAMS_OF_A_CONTEXT = 100


class _Contexts(threading.local):
    programs = 0
    shared = None


@contextlib.contextmanager
def as_users() -> Iterator[None]:
    """Whatever is compiled meanwhile is optimized, as it is for users."""
    from jax._src import compiler

    options = compiler.get_compile_options

    def optimized(*args, env_options_overrides=None, **others):
        return options(*args, env_options_overrides=AS_USERS | (env_options_overrides or {}), **others)

    with mock.patch.object(compiler, "get_compile_options", optimized):
        yield


def share_contexts() -> None:
    """Programs share MLIR's contexts: one for each is a quarter of what compiling a single operation costs."""
    from jax._src.interpreters import mlir

    make, contexts = mlir.make_ir_context, _Contexts()

    def made_for_many():
        if contexts.programs % _MOST_PROGRAMS_OF_A_CONTEXT == 0:
            contexts.shared = make()
        contexts.programs += 1
        return contexts.shared

    mlir.make_ir_context = made_for_many
