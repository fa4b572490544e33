"""Models as Equinox modules, chosen by name, and tools for modules of your own; each is imported when first used."""

from coterie.lazy import exports
from coterie.names import MODELS

__getattr__, __dir__, __all__ = exports(__name__, MODELS)
