"""The errors a user may see. Each is one sentence that names the field and the fix."""

__all__ = ["CoterieError", "CoterieWarning", "Diverged", "StorageError"]


class CoterieError(Exception):
    """Input that cannot be used. The command line prints the message and exits with status 2."""


class Diverged(CoterieError):  # noqa: N818 - reads better than DivergedError
    """Training produced a number that is not finite; the message names the client and the round."""


class StorageError(CoterieError):
    """The run folder could not be written (the disk is full, say); the run can be resumed from its last checkpoint."""


class CoterieWarning(UserWarning):
    """Something was changed so that the run can go on; the message says what, and how to set it yourself."""
