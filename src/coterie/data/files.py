"""The user's own arrays in an .npz file (tables are in `data.tables`).

Class labels may be any numbers or words; they are numbered in sorted order. Targets that are not whole numbers, or are
many different ones, make a regression, unless `kind` says otherwise (`labels.py`).
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.data.clients import Kind
from coterie.data.formats import read_npz
from coterie.data.labels import characters, inputs, joined, judged_kind, names_of, targets, text_of
from coterie.data.samples import Samples, encode
from coterie.data.unpack import existing
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Npz", "groups_of", "marks_of"]

WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}


@spec
class Npz:
    """Arrays from an .npz file (or .npz.xz).

    Either `x`, `y` and optionally `client`, `split` and `group` of every sample; or `x_train`, `y_train`,
    `x_test`, `y_test` and optionally `client_train` and `client_test`. Images are bytes `[N, C, H, W]`; grey ones may
    be `[N, H, W]`.
    """

    path: str = param(help="the file")
    kind: Literal["auto", "classification", "regression", "next-character"] = param("auto", "what is predicted")
    channels: Literal["first", "last"] = param("first", "where the channels of images are in the file")

    def load(self) -> Samples:
        """Read the arrays."""
        path = existing(self.path)
        arrays = dict(read_npz(path))
        layout = ("x_train", "y_train", "x_test", "y_test") if "x_train" in arrays else ("x", "y")
        for name in layout:
            if name not in arrays:
                raise CoterieError(
                    f"{path} holds no array {name!r} (it has {', '.join(arrays) or 'none'}); it needs x and y, "
                    "or x_train, y_train, x_test and y_test"
                )
        x, y = ([arrays[name] for name in layout[start::2]] for start in (0, 1))
        if any(array.ndim == 0 for array in x + y):
            raise CoterieError(f"{path}: x and y must have one entry per sample, not be a single value")
        kind, note = self._kind(x[0], y[0])
        names: tuple[str, ...] = ()
        if kind == "next-character":
            x, y = ([characters(arrays[n], f"{n} in {path}") for n in layout[start::2]] for start in (0, 1))
            classes = 1 + max(int(a.max(initial=0)) for a in x + y)
        else:
            encoded, classes, names = targets(joined(y, f"the targets in {path}"), kind, f"y in {path}")
            x = [self._inputs(arrays[name], f"{name} in {path}") for name in layout[::2]]
            y = np.split(encoded, [len(y[0])])
        about = "; ".join(part for part in (path.name, note) if part)
        fields = self._roles(arrays, path, len(x) == 2)
        test = (x[1], y[1]) if len(x) == 2 else None
        return Samples(x[0], y[0], kind, classes, test, about=about, class_names=names, **fields)

    def _kind(self, x: np.ndarray, y: np.ndarray) -> tuple[Kind, str]:
        """Return what is predicted: the user's setting, or what the targets look like."""
        if self.kind != "auto":
            return self.kind, ""
        if y.ndim == 2 and x.shape == y.shape and x.dtype.kind in "iu" and y.dtype.kind in "iu":
            return "next-character", ""
        return judged_kind(y, x.ndim > 2)

    def _roles(self, arrays: dict[str, np.ndarray], path: Path, official: bool) -> dict[str, Any]:
        """Return whose sample each is, its part and its client's group, as far as the file says."""
        split, group = arrays.get("split"), arrays.get("group")
        if official and (split is not None or group is not None):
            raise CoterieError(f"{path}: split and group belong to the layout x, y; leave them out beside x_train")
        name, test = ("client_train", "client_test") if official else ("client", "")
        client = None if name not in arrays else names_of(arrays[name], f"{name} in {path}")
        return {
            "owner": client,
            "test_owner": None if test not in arrays else names_of(arrays[test], f"{test} in {path}"),
            "ready": None if split is None else marks_of(split, f"split in {path}"),
            "group": groups_of(client, group, f"group in {path}"),
        }

    def _inputs(self, x: np.ndarray, what: str) -> np.ndarray:
        if x.ndim == 4 and self.channels == "last":
            x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        return inputs(x, what)


def marks_of(values: np.ndarray, what: str) -> np.ndarray:
    """Read the words for train, validation and test."""
    if np.ndim(values) != 1:
        raise CoterieError(f"{what} must have one entry per sample, not shape {np.shape(values)}")
    values = text_of(values, what)
    words = {word: mark for mark, several in WORDS.items() for word in several}
    marks = np.array([words.get(str(value).strip().lower(), "") for value in values])
    if np.any(marks == ""):
        row = int(np.flatnonzero(marks == "")[0])
        raise CoterieError(f"{what} says {str(values[row])!r} in row {row + 1}; it must be train, validation or test")
    return marks


def groups_of(owner: np.ndarray | None, group: np.ndarray | None, what: str) -> dict[str, int] | None:
    """Number the groups in sorted order and return each client's; a client must be in one group only."""
    if group is None:
        return None
    if owner is None:
        raise CoterieError(f"{what} needs to know whose sample it is: name the client column as well")
    group = names_of(group, what)
    if len(group) != len(owner):
        raise CoterieError(f"{what} has {len(group)} entries for {len(owner)} samples; they must match")
    codes, words = encode(group)
    of_client: dict[str, int] = {}
    for name, code in zip(owner.astype(str).tolist(), codes.tolist(), strict=True):
        if of_client.setdefault(name, code) != code:
            raise CoterieError(
                f"{what}: client {name!r} is in groups {words[of_client[name]]} and {words[code]}; it must be in one"
            )
    return of_client
