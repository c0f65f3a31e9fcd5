"""What Adafactor does to a dim of a parameter, by the names that gin files write."""

import enum


class FactorDim(enum.Enum):
    """What factoring does to a dim: reduced into `v_row`/`v_col`, kept apart (BATCH), or unfactored (NONE)."""

    BATCH = "batch"
    ROW = "row"
    COLUMN = "column"
    NONE = "none"


def factor_name_to_factordim(name: str | FactorDim) -> FactorDim:
    """`'row'`, `'col'`, `'column'`, `'batch'`, `'none'`, `'unfactorized'` in any case, as gin files write them.

    Raises:
      ValueError: for another name.
    """
    if isinstance(name, FactorDim):
        return name
    canonical = {"col": "column", "unfactorized": "none"}.get(name.lower(), name.lower())
    try:
        return FactorDim(canonical)
    except ValueError:
        raise ValueError(f"{name!r} is not a way to factor a dim; choose 'row', 'column', 'batch' or 'none'.") from None


def dims_of(rule: tuple[FactorDim, ...], kind: FactorDim) -> tuple[int, ...]:
    return tuple(i for i, factor_dim in enumerate(rule) if factor_dim is kind)
