"""How the tests' small networks are compiled.

What XLA optimizes is XLA's business, and costs more than half of what compiling these networks does. Tests that start a
process as a user does leave it on, and those that compare two programs bit by bit.
"""

FAST = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",  # every part is compiled with XLA's own functions
    ]
)
# For `jax.jit(compiler_options=…)` in a process that has FAST.
AS_USERS = {"xla_cpu_use_fusion_emitters": True, "xla_llvm_disable_expensive_passes": False}
