"""The faults of a network as settings of a run: what gets lost, who is away, who sends nonsense.

    seed = 0

    [drop]                             # messages that get lost
    rate = 0.2

    [delay]                            # messages that come too late to be used
    rate = 0.1
    late = 3

    [[partition]]                      # members of different groups do not reach each other
    groups = [["north", "east"], ["south"]]
    rounds = [4, 6]

    [[freeze]]                         # members that do nothing for some rounds
    members = ["east"]
    rounds = [8, 9]

    [[poison]]                         # members that send what they should not
    members = ["south"]
    kind = "scale"
    factor = -10.0

Every section is one rule `[drop]` or several `[[drop]]`. What befalls a message is drawn from the seed, the kind of
fault, sender, receiver, round and exchange: the same in a simulation and on a network. What must arrive (it is repeated
until it does) is never touched. The hub of a method is called "hub".
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from coterie.errors import CoterieError
from coterie.spec import LARGEST_SEED, build, nearest, param, spec, to_dict
from coterie.storage.toml import read_toml

__all__ = ["KINDS", "Delay", "Faults", "Freeze", "Partition", "Poison", "Rule"]


@spec
class Rule:
    """Which messages a fault befalls."""

    rate: float = param(1.0, "the chance of each message", at_least=0, at_most=1)
    members: tuple[str, ...] = param((), "those whose messages it befalls; default: everybody's, the hub's too")
    rounds: tuple[int, ...] = param((), "the first and the last round; default: all from 1 on", at_least=0)

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)


@spec
class Delay(Rule):
    """Messages that come in a later round, when nobody uses them any more."""

    late: int = param(1, "by up to so many rounds", at_least=1, at_most=1000)


@spec
class Freeze(Rule):
    """Members that hear nothing, send nothing and learn nothing; `rate` is the chance of each round.

    Without names it is about all members; the hub rests only where it is named.
    """


@spec
class Partition:
    """Members of different groups do not reach each other; those that no group names reach everybody."""

    groups: tuple[tuple[str, ...], ...] = param(help="lists of members")
    rounds: tuple[int, ...] = param((), "the first and the last round; default: all from 1 on", at_least=0)

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)
        if len(self.groups) < 2:
            raise CoterieError("groups must be two lists of members or more")
        named = [name for group in self.groups for name in group]
        if len(set(named)) != len(named):
            raise CoterieError(f"groups must not name {_twice(named)!r} twice")

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody that a group names."""
        return tuple(name for group in self.groups for name in group)


@spec
class Poison:
    """Members whose messages are not what they should be; what they keep for themselves is."""

    members: tuple[str, ...] = param(help="the members that send it")
    kind: Literal["nan", "infinity", "huge", "scale", "weight", "shape"] = param(
        help="every number becomes nan, infinity or huge (1e30); scale: times `factor`; weight: lone numbers negative; "
        "shape: a message of another shape"
    )
    factor: float = param(10.0, "of the kind scale", at_least=-1e9, at_most=1e9)
    rounds: tuple[int, ...] = param((), "the first and the last round; default: all from 1 on", at_least=0)

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)
        if not self.members:
            raise CoterieError("members must name somebody")


KINDS: dict[str, type] = {
    "drop": Rule,
    "delay": Delay,
    "duplicate": Rule,
    "reorder": Rule,
    "corrupt": Rule,
    "partition": Partition,
    "freeze": Freeze,
    "poison": Poison,
}


def _check_rounds(rounds: tuple[int, ...]) -> None:
    if rounds and (len(rounds) != 2 or rounds[0] > rounds[1]):
        raise CoterieError(f"rounds must be the first and the last one, such as [3, 5], not {list(rounds)}")


def _twice(names: Sequence[str]) -> str:
    return next(name for place, name in enumerate(names) if name in names[:place])


@dataclasses.dataclass(frozen=True)
class Faults:
    """All faults of a run, by kind."""

    NONE: ClassVar["Faults"]

    seed: int = 0
    rules: tuple[tuple[str, Any], ...] = ()  # kind and rule, in the order of the file

    @classmethod
    def read(cls, path: str | Path) -> "Faults":
        """Read faults.toml."""
        try:
            return cls.from_dict(read_toml(path))
        except CoterieError as error:
            raise CoterieError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "Faults":
        """Check the sections of faults.toml, or the section `[faults]` of an experiment."""
        rules: list[tuple[str, Any]] = []
        for kind, table in tables.items():
            if kind == "seed":
                continue
            if kind not in KINDS:
                raise CoterieError(f"unknown fault {kind!r}{nearest(kind, KINDS) or '; known: ' + ', '.join(KINDS)}")
            listed = table if isinstance(table, list) else [table]
            for place, rule in enumerate(listed, 1):
                if not isinstance(rule, Mapping):
                    raise CoterieError(f"{kind} must be a section: write [{kind}] and its keys below it")
                rules.append((kind, build(KINDS[kind], rule, kind if len(listed) == 1 else f"{kind}.{place}")))
        return cls(build(_Seed, {"seed": tables.get("seed", 0)}, "faults").seed, tuple(rules))

    @classmethod
    def given(cls, faults: "Faults | Mapping[str, Any] | str | Path | None") -> "Faults":
        """Return the faults that somebody gives: none, a file, its tables, or what they are already."""
        if faults is None:
            return cls.NONE
        if isinstance(faults, Faults):
            return faults
        return cls.read(faults) if isinstance(faults, str | Path) else cls.from_dict(faults)

    def to_dict(self) -> dict[str, Any]:
        """Return the tables that `from_dict` reads; none for no faults."""
        kinds = {kind: [_table(rule) for k, rule in self.rules if k == kind] for kind in dict(self.rules)}
        return {"seed": self.seed, **kinds} if self.rules else {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def renamed(self, names: Mapping[str, str]) -> "Faults":
        """Return the same faults of members with other names."""
        return dataclasses.replace(self, rules=tuple((kind, _renamed(rule, names)) for kind, rule in self.rules))

    def of(self, *kinds: str) -> list[Any]:
        """Return the rules of some kinds."""
        return [rule for kind, rule in self.rules if kind in kinds]


@spec
class _Seed:
    seed: int = param(0, "everything is drawn from it", at_least=0, at_most=LARGEST_SEED)


def _renamed(rule: Any, names: Mapping[str, str]) -> Any:
    def other(members: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in members)

    if isinstance(rule, Partition):
        return dataclasses.replace(rule, groups=tuple(other(group) for group in rule.groups))
    return dataclasses.replace(rule, members=other(rule.members))


def _table(rule: Any) -> dict[str, Any]:
    return {name: [list(v) if isinstance(v, tuple) else v for v in value] if isinstance(value, list) else value
            for name, value in to_dict(rule).items()}  # fmt: skip


Faults.NONE = Faults()
