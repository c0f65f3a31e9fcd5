"""JSON that every reader understands: it has no NaN and no Infinity."""

import json
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """`json.dumps`, with null for a number that is NaN or infinite, also for one that `default` or `cls` makes.

    Raises:
      TypeError, ValueError: for what JSON cannot hold.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        plain = json.loads(json.dumps(value, **options), parse_constant=lambda _: None)
        return json.dumps(plain, allow_nan=False, **options)
