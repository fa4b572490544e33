"""Codecs encode vectors in few bytes. Any method runs with any of them; each is imported when it is first used."""

from coterie.lazy import exports
from coterie.names import CODECS

__getattr__, __dir__, __all__ = exports(__name__, CODECS)
