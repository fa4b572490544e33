"""The whole contract on one method, as a table for people: what passed, what failed, what was skipped, and why."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from coterie.errors import CoterieError
from coterie.methods.base import Method, Solved
from coterie.testing.contract import CHECKS, SOLVED, Case

__all__ = ["Checked", "Result", "check_method", "why_skipped"]


class Result(NamedTuple):
    """One check of a method: passed, failed or skipped, and why."""

    check: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Checked:
    """The contract of one method: one result per check."""

    method: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(result.outcome != "failed" for result in self.results)

    def __str__(self) -> str:
        width = max(len(result.check) for result in self.results)
        said: set[str] = set()
        rows = []
        for check, outcome, reason in self.results:
            text = "the same" if outcome == "failed" and reason in said else reason
            said.add(reason)
            rows.append(f"  {check:{width}}  {outcome:7}  {text}".rstrip())
        failed = sum(result.outcome == "failed" for result in self.results)
        verdict = f"breaks the contract in {failed} of {len(rows)} checks" if failed else "keeps the contract"
        return "\n".join([f"{self.method} {verdict}:", *rows])


def why_skipped(name: str, method: Any) -> str:
    """Say why a check does not hold for a method; empty where it has to pass it."""
    if isinstance(method, Solved) and name not in SOLVED:
        return "it is solved at once, without rounds and messages"
    declared = {"alone_without_others": "alone_is_sgd", "links_come_and_go": "random_links"}.get(name)
    if declared is not None and not getattr(method, declared):
        return f"it declares {declared} = False"
    if name == "sends_what_it_mixes" and method.topology != "none":
        return f"it declares topology = {method.topology!r}; lives_anywhere checks that it sends what it mixes"
    return ""


def check_method(method: type[Method] | str, *, raises: bool = True, **settings: Any) -> "Checked":
    """Run the whole contract on a method, a class or a name.

    Args:
        method: the class, or its name.
        raises: whether to raise `AssertionError` with the table if a check failed; otherwise it is returned.
        **settings: of the method.

    Returns:
        What passed, what failed and what was skipped, with the reasons; print it.
    """
    case = Case(method, **settings)
    results = []
    try:
        for name, check in CHECKS.items():
            if reason := why_skipped(name, case.method):
                results.append(Result(name, "skipped", reason))
                continue
            results.append(_outcome(name, check, case))
    finally:
        case.close()
    checked = Checked(type(case.method).__name__, tuple(results))
    if raises and not checked.ok:
        raise AssertionError(str(checked))
    return checked


def _outcome(name: str, check: Callable[[Case], None], case: Case) -> "Result":
    try:
        check(case)
    except (AssertionError, CoterieError) as error:
        return Result(name, "failed", str(error))
    except Exception as error:  # what a method does wrong may surface anywhere
        first = next(iter(str(error).strip().splitlines()), "")
        return Result(name, "failed", f"{type(error).__name__}: {first}")
    return Result(name, "passed")
