"""Two virtual CPU devices for every test, so that work shared over devices is tested everywhere; before JAX starts."""

import jax
import pytest

from coterie.runtime import choose_device

CPU = choose_device("cpu", cores=2)


@pytest.fixture(scope="session")
def device():
    return CPU


@pytest.fixture
def x64():
    """Numbers of 64 bits in this test, where an answer is compared exactly."""
    with jax.enable_x64(True):
        yield
