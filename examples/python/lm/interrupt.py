"""Ctrl-C as a wish that the work looks at between two steps, so that nothing half done is lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user has asked to stop the part that runs now."""

    def __init__(self) -> None:
        self.asked = False
        self.ever_asked = False

    def __call__(self) -> bool:
        """True once Ctrl-C has been pressed since the last `clear`."""
        return self.asked

    def clear(self) -> None:
        """Starts the next part of the work: it can be stopped on its own."""
        self.asked = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.ever_asked = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """While active, SIGINT and SIGTERM set the flag instead of raising."""
    interrupt = Interrupt()
    previous = {number: signal.signal(number, interrupt._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
