"""A service without a model, for tests of what is around it. `python small_service.py` serves it until SIGTERM."""

import dataclasses
import re
import time
from collections.abc import Callable

from limba.addons.serve import app, listening
from limba.addons.serve.base_engine import Reply
from limba.addons.serve.request_fields import Limits, RequestError


@dataclasses.dataclass(frozen=True)
class Line:
    line: str
    ids: list
    max_tokens: int
    kind: str = "text"
    listener: Callable[[int], bool] | None = None


class UpperCase:
    """Answers in capitals after `seconds`, and has a vector of two numbers. A token is a word; it takes six."""

    has_blanks = decodes = True
    has_candidates = False

    def __init__(self, seconds: float = 0):
        self.seconds = seconds
        self.batches: list[int] = []

    def read(self, text, max_tokens=0, temperature=0.0, num_candidates=0):
        words = text.split()
        if len(words) > 6:
            raise RequestError(413, f"A text has {len(words)} tokens; at most 6 are taken.")
        return Line(text, words, max_tokens)

    def run(self, texts):
        time.sleep(self.seconds)
        self.batches.append(len(texts))
        return [self._reply(text) for text in texts]

    def partial(self, text, ids):
        return "".join(re.findall(r"\s*\S+\s*?|\s+", text.line)[: len(ids)]).upper()

    def _reply(self, text):
        if text.line == "broken":
            return ArithmeticError("the output for a text is not finite")
        if not text.max_tokens:
            import numpy as np

            return Reply(vector=np.array([len(text.line), 0.5], np.float32))
        return Reply(text.line.upper(), len(text.ids), "stop")


def service(engine=None, max_queue=64, **options):
    return app.Service(engine or UpperCase(), Limits("mine", 100, max_queue), **options)


if __name__ == "__main__":
    slow = service(UpperCase(0.2), max_batch=4)
    bound = listening.bind("127.0.0.1", 0)
    listening.make_server(app.make_app(slow), str(bound.getsockname()[1])).run(sockets=[bound])
    slow.batcher.close()
    print("ended", flush=True)
