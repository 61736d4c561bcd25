"""What is held by owners that are gone is released, by any thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from fdbqueue.embedded.storage.owners import Owners, Reference


class Owner:
    """Something that holds something."""


class Held:
    """What an owner holds."""

    def __init__(self) -> None:
        self.reference: Reference | None = None
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


@pytest.mark.parametrize("line", range(12))
def test_another_thread_releases_everything_between_two_lines(line: int) -> None:
    owners, held = Owners(), [Held(), Held()]
    alive = Owner(), Owner()
    for owner, each in zip(alive, held):
        owners.add(owner, each)
    del alive, owner
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code is not Owners.release.__code__:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                thread = threading.Thread(target=owners.release)
                thread.start()
                thread.join()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        owners.release()
    finally:
        sys.settrace(before)
    assert left < 0, "the method has fewer lines"
    assert all(each.is_dropped for each in held)
