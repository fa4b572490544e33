"""The user's own arrays in an .npz file (tables are in `data.tables`).

Class labels may be any numbers or words; they are numbered in sorted order. Targets that are not whole numbers make a
regression, unless `kind` says otherwise.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from coterie.data.clients import Kind
from coterie.data.formats import read_npz
from coterie.data.samples import Samples, encode, inputs, numbers
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Npz", "existing", "groups_of", "marks_of"]

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
        y = arrays[layout[1]]
        kind = _kind(self.kind, y, arrays[layout[0]])
        if kind == "next-character":
            return self._text(arrays, layout, path)
        targets = [arrays[name] for name in layout[1::2]]
        if any(len(t.shape) == 0 for t in targets):
            raise CoterieError(f"{path}: y must have one entry per sample, not be a single value")
        encoded, names, classes = _targets(np.concatenate(targets), kind, f"y in {path}")
        x = [self._inputs(arrays[name], f"{name} in {path}") for name in layout[::2]]
        return self._samples(arrays, x, np.split(encoded, [len(targets[0])]), kind, classes, path, names)

    def _text(self, arrays: dict[str, np.ndarray], layout: tuple[str, ...], path: Path) -> Samples:
        for name in layout:
            if arrays[name].dtype.kind not in "iu" or arrays[name].ndim != 2:
                raise CoterieError(
                    f"{name} in {path} must be integers [N, T] for next-character, not {arrays[name].dtype}"
                )
        x, y = ([arrays[n].astype(np.int32) for n in layout[start::2]] for start in (0, 1))
        classes = 1 + max(int(a.max(initial=0)) for a in x + y)
        return self._samples(arrays, x, y, "next-character", classes, path)

    def _samples(
        self,
        arrays: dict[str, np.ndarray],
        x: list,
        y: list,
        kind: Kind,
        classes: int,
        path: Path,
        names: tuple[str, ...] = (),
    ) -> Samples:
        official = len(x) == 2
        client = arrays.get("client_train" if official else "client")
        split, group = arrays.get("split"), arrays.get("group")
        if official and (split is not None or group is not None):
            raise CoterieError(f"{path}: split and group belong to the layout x, y; leave them out beside x_train")
        return Samples(
            x=x[0],
            y=y[0],
            kind=kind,
            classes=classes,
            test=(x[1], y[1]) if official else None,
            owner=client,
            test_owner=arrays.get("client_test") if official else None,
            ready=None if split is None else marks_of(split, f"split in {path}"),
            group=groups_of(client, group, f"group in {path}"),
            about=path.name,
            class_names=names,
        )

    def _inputs(self, x: np.ndarray, what: str) -> np.ndarray:
        if x.ndim == 4 and self.channels == "last":
            x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        return inputs(x, what)


def existing(name: str, field: str = "path") -> Path:
    """Return the path of an existing file, or raise an error that names the field."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CoterieError(f"{field}: {path} is not a file" if path.exists() else f"{field}: there is no file {path}")
    return path


def _kind(setting: Literal["auto"] | Kind, y: np.ndarray, x: np.ndarray | None) -> Kind:
    """Return what is predicted: the user's setting, or what the targets look like."""
    if setting != "auto":
        return setting
    if y.dtype.kind == "f":
        return "regression"
    if x is not None and y.ndim == 2 and x.shape == y.shape and x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return "next-character"
    return "classification"


def _targets(y: np.ndarray, kind: Kind, what: str) -> tuple[np.ndarray, tuple[str, ...], int]:
    """Return targets as the program reads them, the names of classes, and the number of classes or outputs."""
    if kind == "classification":
        if y.ndim != 1:
            raise CoterieError(f"{what} must have one label per sample, not shape {y.shape[1:]}")
        if y.dtype.kind == "O":
            y = y.astype(str)
        codes, labels = encode(y)
        return codes, tuple(map(str, labels)), len(labels)
    values = numbers(y, what).astype(np.float32)
    return values, (), int(np.prod(values.shape[1:], dtype=np.int64))


def marks_of(values: np.ndarray, what: str) -> np.ndarray:
    """Read the words for train, validation and test."""
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
    if len(group) != len(owner):
        raise CoterieError(f"{what} has {len(group)} entries for {len(owner)} samples; they must match")
    codes, words = encode(group.astype(str) if group.dtype.kind == "O" else group)
    of_client: dict[str, int] = {}
    for name, code in zip(owner.astype(str).tolist(), codes.tolist(), strict=True):
        if of_client.setdefault(name, code) != code:
            raise CoterieError(
                f"{what}: client {name!r} is in groups {words[of_client[name]]} and {words[code]}; it must be in one"
            )
    return of_client
