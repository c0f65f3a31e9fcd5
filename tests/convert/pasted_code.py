"""Runs codes as if each was alone, but for its imports: these take most of the time.

    python pasted_code.py REQUEST

REQUEST is a JSON file with a list of [code, folder to be in]; `printed.json` beside it gets what each printed.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path


def main(request: str) -> None:
    printed = []
    for code, folder in json.loads(Path(request).read_text("utf-8")):
        os.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "<card>", "exec"), {"__name__": "__main__"})
        printed.append(out.getvalue())
    Path(request).with_name("printed.json").write_text(json.dumps(printed), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
