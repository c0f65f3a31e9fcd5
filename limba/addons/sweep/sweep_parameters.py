"""The values of one parameter of a sweep: what the file says of them, in W&B's words, and which of them is drawn."""

import dataclasses
import json
import math
import operator
import re
from typing import Any

from limba.files import json_text, number_ranges
from limba.files.untrusted_files import shown

# Distribution: the keys that it needs.
_NEEDS = {
    "constant": ("value",),
    "categorical": ("values",),
    **dict.fromkeys(("int_uniform", "uniform", "q_uniform"), ("min", "max")),
    **dict.fromkeys(("log_uniform", "log_uniform_values", "q_log_uniform", "q_log_uniform_values"), ("min", "max")),
}
# Names in other searches' files.
_OTHER_NAMES = {
    **dict.fromkeys(("int", "randint", "integer"), "int_uniform"),
    **dict.fromkeys(("float", "double"), "uniform"),
    **dict.fromkeys(("loguniform", "reciprocal"), "log_uniform_values"),
    "choice": "categorical",
    "quniform": "q_uniform",
    "qloguniform": "q_log_uniform_values",
}
# exp of a higher number overflows.
_HIGHEST_LOGARITHM = 700.0
_OF_LOGARITHMS = ("log_uniform", "q_log_uniform")
# Of a bound divided by q.
_ROUNDING = 1e-9
KEYS = ("distribution", "value", "values", "min", "max", "q")
# Keys and distributions of W&B's that are not here, and what to write.
_NOT_HERE = {
    "probabilities": "leave it out, or write a likelier value more than once: all values are drawn alike",
    **dict.fromkeys(("mu", "sigma"), "write min and max, such as mu - 2 sigma and mu + 2 sigma, in place of a normal"),
    **dict.fromkeys(("a", "b"), "write min: 0 and max: 1 in place of a beta distribution"),
    **dict.fromkeys(("normal", "q_normal"), "write uniform with min and max, such as mu - 2 sigma and mu + 2 sigma"),
    **dict.fromkeys(("log_normal", "q_log_normal"), "write log_uniform_values with min and max"),
    **dict.fromkeys(("inv_log_uniform", "inv_log_uniform_values"), "write log_uniform_values with min and max"),
    **dict.fromkeys(("beta", "q_beta"), "write uniform with min: 0 and max: 1"),
    "categorical_w_probabilities": "write values alone, which are drawn alike",
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The values that a sweep tries for one gin binding or flag of the program.

    Attributes:
      distribution: one of W&B's.
      values: the choices of "constant" and "categorical".
      low, high: bounds of the other distributions; for "log_uniform" their natural logarithms.
      q: values are multiples of it, between the bounds; None for any value.

    Raises:
      ValueError: for bounds that contradict the distribution.
    """

    name: str
    distribution: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    q: float | None = None

    def __post_init__(self) -> None:
        if self.distribution in ("constant", "categorical"):
            if not self.values:
                raise ValueError(f"parameters.{self.name} has no values.")
            return
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"parameters.{self.name}: min {self.low} is not below max {self.high}.")
        if "log_uniform_values" in self.distribution and self.low <= 0:
            raise ValueError(f"parameters.{self.name}: min is {self.low}; a logarithm needs it above 0.")
        if self.distribution in _OF_LOGARITHMS and self.high > _HIGHEST_LOGARITHM:
            raise ValueError(
                f"parameters.{self.name}: max is {self.high}, and the bounds of log_uniform are natural logarithms; "
                "log_uniform_values takes the values themselves."
            )
        whole = [self.low, self.high, *([] if self.q is None else [self.q])]
        if self.distribution == "int_uniform" and not all(float(number).is_integer() for number in whole):
            raise ValueError(f"parameters.{self.name}: {', '.join(map(str, whole))} must be whole for int_uniform.")
        is_rounded = self.distribution.startswith("q_") or self.q is not None
        if is_rounded and (not 0 < (self.q or 0) < math.inf or math.isinf(max(map(abs, self.bounds)) / (self.q or 1))):
            raise ValueError(f"parameters.{self.name}: q is {self.q}; {self.distribution} needs q above 0.")
        if self.q is not None and operator.gt(*self.multiples(self.q)):
            raise ValueError(
                f"parameters.{self.name}: no multiple of q {self.q} lies between "
                f"{' and '.join(map(str, self.bounds))}; give a smaller q, or other bounds."
            )

    @property
    def is_log(self) -> bool:
        return "log_uniform" in self.distribution

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        if self.distribution in _OF_LOGARITHMS:
            return math.exp(self.low), math.exp(self.high)
        return self.low, self.high

    def at(self, quantile: float) -> Any:
        """The value at a quantile of the distribution, in [0, 1)."""
        if self.values:
            return self.values[int(quantile * len(self.values))]
        low, high = self.bounds
        if self.distribution == "int_uniform":
            q = int(self.q or 1)
            first, last = self.multiples(q)
            return (first + int(quantile * (last - first + 1))) * q
        if self.is_log:
            return self.rounded(math.exp(math.log(low) + quantile * math.log(high / low)))
        return self.rounded(low + quantile * (high - low))

    def can_be(self, value: Any) -> bool:
        """Whether the sweep tries a value, as JSON has it."""
        if self.values:
            return value in json.loads(json_text.dumps(self.values))
        low, high = self.bounds
        return number_ranges.is_number(value) and (
            low <= value <= high or any(math.isclose(value, bound) for bound in (low, high))
        )

    def rounded(self, value: float) -> float:
        """The nearest multiple of `q` between the bounds, if there is a `q`."""
        if self.q is None:
            return value
        first, last = self.multiples(self.q)
        return min(max(round(value / self.q), first), last) * self.q

    def multiples(self, q: float) -> tuple[int, int]:
        """The first and the last multiple of `q` between the bounds, divided by it."""
        low, high = self.bounds
        # 0.3 / 0.1 is less than 3.
        return math.ceil(low / q - _ROUNDING), math.floor(high / q + _ROUNDING)


def plain_value(value: Any) -> Any:
    """A value of the file, with `1e-5` as a number: PyYAML reads it as a text because it has no point."""
    if isinstance(value, list):
        return [plain_value(x) for x in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def parse(name: Any, description: Any) -> Parameter:
    if not isinstance(name, str):
        raise ValueError(f"parameters has {name!r}; a parameter is the name of a gin binding or of a flag.")
    if not isinstance(description, dict):
        description = {"value": description}
    asked = description.get("distribution")
    for key in [asked, *description]:
        if isinstance(key, str) and key in _NOT_HERE:
            raise ValueError(f"parameters.{name} has {key}, which is not here: {_NOT_HERE[key]}.")
    for key in description:
        if key not in KEYS:
            raise ValueError(f"parameters.{name} has the key {shown(key)}; the keys are {', '.join(KEYS)}.")
    numbers = {key: plain_value(description.get(key)) for key in ("min", "max", "q")}
    if "value" in description:
        default = "constant"
    elif "values" in description:
        default = "categorical"
    else:
        is_whole = all(isinstance(numbers[key], int) for key in ("min", "max", "q") if key in description)
        default = "int_uniform" if is_whole else "uniform"
    distribution = default if asked is None else asked
    distribution = _OTHER_NAMES.get(distribution, distribution) if isinstance(distribution, str) else distribution
    if not isinstance(distribution, str) or distribution not in _NEEDS:
        raise ValueError(f"parameters.{name}.distribution is {shown(distribution)}; use one of {', '.join(_NEEDS)}.")
    for key in _NEEDS[distribution]:
        if key not in description:
            raise ValueError(f"parameters.{name} is {distribution}, which needs {key}.")
    for key in description:
        if key not in ("distribution", "q", *_NEEDS[distribution]) or (key == "q" and "min" not in description):
            raise ValueError(
                f"parameters.{name} is {distribution} and has {key}, which it would not read: give one of value, "
                "values, or min and max."
            )
    if not isinstance(description.get("values", []), list):
        raise ValueError(f"parameters.{name}.values is {shown(description['values'])}; it is a list.")
    for value in [description.get("value"), *(description.get("values") or ())]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:  # Python writes numbers of 4300 digits at most.
            raise ValueError(f"parameters.{name} has {shown(value)}, which JSON cannot hold; quote it.") from error
    if distribution == "constant":
        return Parameter(name, distribution, (plain_value(description["value"]),))
    if distribution == "categorical":
        return Parameter(name, distribution, tuple(map(plain_value, description["values"])))
    for key, number in numbers.items():
        is_needed = key in _NEEDS[distribution]
        if (number is not None or is_needed) and not number_ranges.is_number(number):
            raise ValueError(f"parameters.{name}.{key} is {shown(number)}; it is a number.")
        if isinstance(number, int) and abs(number) > 2**1000:  # float() ends at 2**1024
            raise ValueError(f"parameters.{name}.{key} is {shown(number)}; numbers end at about 1e300.")
    return Parameter(name, distribution, (), float(numbers["min"]), float(numbers["max"]), numbers["q"])
