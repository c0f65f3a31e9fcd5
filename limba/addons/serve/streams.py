"""Answers on their way: the engine gives tokens as it decodes them, the client gets the text that is certain."""

import asyncio
import dataclasses
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any


class Streams:
    """The answers to the texts of one request. Made in the server's loop; tokens come from the model's thread.

    Args:
      partial: `(text, its tokens so far) -> the answer so far`.
      texts: of the engine.
      timeout_s: seconds from now to the last answer.
    """

    def __init__(self, partial: Callable[[Any, list[int]], str], texts: Sequence[Any], timeout_s: float):
        self._partial, self._loop = partial, asyncio.get_running_loop()
        self._ends_at = self._loop.time() + timeout_s
        # The number of a text and its next token; None behind the last.
        self._tokens: asyncio.Queue[tuple[int, int | None]] = asyncio.Queue()
        self._is_left = False
        self.texts = [dataclasses.replace(text, listener=self._listener(number)) for number, text in enumerate(texts)]
        self._results: list[Future] = []

    def _listener(self, number: int) -> Callable[[int], bool]:
        return lambda token: self._put(number, token)

    def _put(self, number: int, token: int | None) -> bool:
        """Whether the client has left. It never fails: engines call it from their inner loops."""
        if not self._is_left:
            try:
                self._loop.call_soon_threadsafe(self._tokens.put_nowait, (number, token))
            except RuntimeError:  # The loop is closed.
                self._is_left = True
        return self._is_left

    def expect(self, results: Sequence[Future]) -> None:
        """Takes the futures of the replies."""
        self._results = list(results)
        for number, result in enumerate(results):
            result.add_done_callback(functools.partial(self._end, number))

    def _end(self, number: int, result: Future) -> None:
        self._put(number, None)

    async def pieces(self) -> AsyncIterator[tuple[int, str, Any]]:
        """The number of a text, the next piece of its answer, and with the last piece the reply.

        Raises:
          TimeoutError: if it takes too long.
        """
        ids: list[list[int]] = [[] for _ in self.texts]
        sent, before = [""] * len(ids), [""] * len(ids)
        for _ in ids:
            token: int | None = 0
            while token is not None:
                left = self._ends_at - self._loop.time()
                number, token = await asyncio.wait_for(self._tokens.get(), left)
                if token is None:
                    reply = self._results[number].result()
                    text = "" if isinstance(reply, Exception) else reply.text
                    yield number, text[len(sent[number]) :], reply
                    continue
                ids[number].append(token)
                so_far = self._partial(self.texts[number], ids[number])
                # What the next token has not changed; a character may have several tokens.
                certain = os.path.commonprefix([before[number], so_far]).rstrip("\ufffd")  # noqa: RUF071  no paths
                before[number] = so_far
                if len(certain) > len(sent[number]):
                    yield number, certain[len(sent[number]) :], None
                    sent[number] = certain

    def leave(self) -> None:
        """Ends the work on what nobody waits for."""
        self._is_left = True
        for result in self._results:
            result.cancel()
