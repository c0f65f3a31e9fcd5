"""Reads TensorBoard's event files without TensorFlow."""

import struct
from pathlib import Path

from tensorboardX.proto import event_pb2


def read_tags(folder: Path) -> dict[str, dict[int, float]]:
    """Of all event files in a folder: by tag, the values by step (0.0 for a text)."""
    tags: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack("<Q", content[place : place + 8])
            event = event_pb2.Event.FromString(content[place + 12 : place + 12 + length])
            place += 12 + length + 4
            for value in event.summary.value:
                tags.setdefault(value.tag, {})[event.step] = value.simple_value
    return tags
