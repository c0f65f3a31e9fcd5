"""A flag with several values that comes again adds to them, in every command: argparse would keep the last ones."""

import ast

from tests import house


def test_every_flag_of_several_values_keeps_all_of_them():
    found, wrong = [], []
    for package in house.PACKAGES:
        for path in sorted((house.ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
                    continue
                options = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
                names = [ast.unparse(name).removeprefix("f").strip("'") for name in node.args]
                if options.get("nargs") in ("+", "*") and names[0].startswith("-"):
                    found.append(names[0])
                    wrong += [] if options.get("action") == "extend" else [(str(path), names[0])]
    assert {"--set", "--wandb_trial", "--data_files", "--user_symbols", "--mlp_activations"} <= {*found}
    assert not wrong
