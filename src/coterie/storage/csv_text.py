"""Tables with other people's words as CSV: what is read back is what was written."""

import csv
from typing import Any

__all__ = ["csv_bytes"]


def csv_bytes(frame: Any) -> bytes:
    """Return a data frame as a CSV file in UTF-8, without its index."""
    text = frame.to_csv(index=False)
    if "\r" in text:  # pandas puts no quotes around a word with one, and readers then end the row there
        text = frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)
    return text.encode()
