"""The errors a user may see. Each is one sentence that names the field and the fix."""

__all__ = ["CoterieError", "CoterieWarning", "Diverged", "StorageError"]


class CoterieError(Exception):
    """Input that cannot be used. The command line prints its sentence and exits with status 2."""


class Diverged(CoterieError):  # noqa: N818 - what happened, as people say it
    """Training produced a number that is not finite; the sentence names the client and the round."""


class StorageError(CoterieError):
    """The run folder could not be written (a full disk); what was saved before can be resumed."""


class CoterieWarning(UserWarning):
    """Something was changed so that a run can go on; one sentence that says what, and how to choose it oneself."""
