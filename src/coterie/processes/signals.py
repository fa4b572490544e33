"""The signals that ask a process to end, as far as this system has them."""

import signal

__all__ = ["ENDING"]

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
