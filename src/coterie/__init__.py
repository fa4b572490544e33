"""Personal models for every member of a group that cannot pool its data.

    import coterie as ct

    federation = ct.load("digits", "classes", clients=20, classes=3)
    result = ct.run(federation, model="mlp", method=ct.methods.Ditto(lr=0.1), rounds=30)
    result.metrics            # a pandas DataFrame: one row per client and evaluation
    result.model("client-3")  # a personal model, callable on a batch

Every name is imported when it is first used, so that `coterie list` answers at once. Importing the package imports
nothing else, so that the command line can answer a signal from its first moment on.
"""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    return __dir__() if name == "__all__" else _exports()[0](name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_exports()[2]])


def _exports() -> tuple:
    from coterie.lazy import exports

    return exports(__name__)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("coterie")
    except metadata.PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"
