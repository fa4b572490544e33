"""The methods, one file each; each is imported when it is first used."""

from coterie.lazy import exports
from coterie.names import METHODS

__getattr__, __dir__, __all__ = exports(__name__, METHODS)
