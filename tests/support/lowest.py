"""Prints the lowest versions that pyproject.toml allows, as constraints for pip; `make test-lowest` installs them.

Dependencies and the extras that add something to the product are at their lowest; the tools of the tests are not.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("report", "parquet", "numba", "network")


def constraints(pyproject: Path) -> list[str]:
    """Return `name==version` for every requirement; one without a lowest version is an error."""
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    return [lowest(Requirement(line)) for line in lines]


def lowest(requirement: Requirement) -> str:
    """Return the requirement at its lowest version."""
    versions = [part.version for part in requirement.specifier if part.operator == ">="]
    if len(versions) != 1:
        raise SystemExit(f"pyproject.toml: {requirement} does not say from which version on, such as >=1.0")
    return f"{requirement.name}=={versions[0]}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(Path(__file__).parents[2] / "pyproject.toml")) + "\n")
