import importlib

import gin
import pytest

from limba import gin_utils, import_errors

# Text of a module, and what is said of it: the line in it that led to the exception.
BROKEN = {
    "def f():\n    return {}['x']\n\n\nf()\n": "line 2: KeyError: 'x'",
    "import json\n\njson.loads('[')\n": "line 3: JSONDecodeError: Expecting value",
    "import no_such_module_of_mine\n": "line 1: ModuleNotFoundError: No module named 'no_such_module_of_mine'",
    "X = 1\nX = = 2\n": "line 2: invalid syntax",
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_module_that_fails_is_named_with_its_line(tmp_path, monkeypatch, number):
    text, words = list(BROKEN.items())[number]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"broken_{number}.py").write_text(text)
    (tmp_path / "run.gin").write_text(f"X = 1\nimport broken_{number}\n")
    said = f"the Python module {tmp_path}/broken_{number}.py, {words}"
    with pytest.raises((KeyError, ValueError, ImportError, SyntaxError)) as directly:
        importlib.import_module(f"broken_{number}")
    assert import_errors.describe(directly.value).startswith(said)
    with pytest.raises(gin_utils.GinError) as raised:
        gin_utils.parse_gin_flags([str(tmp_path / "run.gin")], [])
    gin.clear_config()
    assert raised.value.what.startswith(said)
    place = f"broken_{number}.py" if "invalid syntax" in words else "run.gin"
    assert raised.value.places == ((str(tmp_path / place), 2),)


def test_an_error_of_no_module():
    try:
        raise KeyError("x")
    except KeyError as error:
        assert import_errors.describe(error) is None
