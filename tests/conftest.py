"""Two virtual CPU devices for every test, so that work shared over devices is tested everywhere; before JAX starts."""

import gc
import os
from pathlib import Path

import jax
import pytest

from coterie.experiment.device import choose_device

CPU = choose_device("cpu", cores=2)


def pytest_collection_modifyitems(config, items):
    """Leave out what only `make soak` runs."""
    if os.environ.get("COTERIE_FULL"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
    items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.fixture(scope="session")
def device():
    return CPU


@pytest.fixture(scope="session")
def partner():
    """The process where the other half of the clients lives: one for all tests, since starting it takes seconds."""
    from coterie.testing.two_processes import Partner

    partner = Partner()
    yield partner
    partner.close()


@pytest.fixture
def x64():
    """Numbers of 64 bits in this test, where an answer is compared exactly."""
    with jax.enable_x64(True):
        yield


LARGE = 3 << 30  # bytes of a test process above which compiled programs of past modules are let go


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_module():
    """Let go of compiled programs after a module, once they fill the memory: thousands of tests compile thousands."""
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text().split()[1]) * 4096 > LARGE:
        jax.clear_caches()
        gc.collect()
