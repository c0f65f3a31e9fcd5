"""What the server counts, for `/metrics`: requests, tokens, batches, seconds."""

from collections.abc import Callable

import prometheus_client

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


class ServerMetrics:
    """Counters of one server.

    Args:
      queue_length: how many texts wait now.
    """

    def __init__(self, queue_length: Callable[[], int]):
        self._registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "limba_requests", "Requests", ["path", "status"], registry=self._registry
        )
        self._seconds = prometheus_client.Histogram(
            "limba_request_seconds", "Seconds of a request", ["path"], buckets=_SECONDS, registry=self._registry
        )
        self._tokens = prometheus_client.Counter(
            "limba_tokens", "Tokens of texts and of answers", ["kind"], registry=self._registry
        )
        self._rows = prometheus_client.Histogram(
            "limba_batch_rows", "Texts of a batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self._registry
        )
        waiting = prometheus_client.Gauge("limba_queue_length", "Texts that wait", registry=self._registry)
        waiting.set_function(queue_length)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def add_tokens(self, of_texts: int, of_answers: int) -> None:
        self._tokens.labels("prompt").inc(of_texts)
        self._tokens.labels("completion").inc(of_answers)

    def add_batch(self, rows: int) -> None:
        self._rows.observe(rows)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)
