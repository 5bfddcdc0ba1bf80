"""SIGTERM and SIGINT become exceptions in the main thread, but never in the middle of writing a file."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(SystemExit):
    """SIGTERM arrived; left uncaught it ends the process with the shell's code for it, 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "SIGTERM"


class Signals:
    """Guards a recording: the first signal raises, later ones wait until the recording is written.

    A program's own handler stays in charge: it is called, and whether it raises is its decision. A signal that the
    program ignores stays ignored.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._pid = os.getpid()
        self._old: dict[int, Any] = {}
        self._held_back = False
        self._raised = False
        self._pending: int | None = None

    def install(self) -> None:
        """Installs handlers of both signals; does nothing outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            old = signal.getsignal(number)
            # None: a handler that was not set from Python and could not be given back.
            if old is not None and old is not signal.SIG_IGN:
                self._old[number] = old
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restores the old handlers, unless the program has set others meanwhile, and delivers a pending signal."""
        for number, old in self._old.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, old)
        self._old.clear()
        # A signal after the first belongs to the same shutdown; one that arrived while files were written is a new one.
        if self._pending is not None and not self._raised:
            signal.raise_signal(self._pending)

    def rearm(self) -> None:
        """The program caught the exception and went on, so that the next signal has to raise again."""
        self._raised = False

    @contextmanager
    def held_back(self, *, deliver: bool = True) -> Generator[None, None, None]:
        """A signal inside the block is acted on at its end, or with `deliver` off when the handlers are given back."""
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = not deliver
        if deliver and self._pending is not None:
            number, self._pending = self._pending, None
            self._act(number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked data loader inherits the handler but records nothing: the signal acts as it would without us.
            signal.signal(number, self._old.get(number, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        self.received = signal.Signals(number).name
        if self._held_back:
            self._pending = number
        else:
            self._act(number, frame)

    def _act(self, number: int, frame: FrameType | None) -> None:
        old: Callable[[int, FrameType | None], Any] | Any = self._old.get(number, signal.SIG_DFL)
        if callable(old) and old is not signal.default_int_handler:
            old(number, frame)
            return
        if self._raised:
            # The first signal is on its way to the end of the `with` block; a second must not cut the writing short.
            return
        self._raised = True
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated
