"""What XLA is told about a program, and versions of it that do not know an option."""

import jax
import jax.numpy as jnp
import pytest

from coterie.experiment.compiler import compiled, options_for


def doubled(x):
    return 2 * x


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 11, 2), (0, 12, 0)])
def test_barriers_hold_on_a_cpu_with_every_version(monkeypatch, version):
    monkeypatch.setattr(jax, "__version_info__", version)
    assert options_for("cpu", False) == {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}
    assert options_for("cpu", False, ("cse",))["xla_disable_hlo_passes"].endswith(",cse")
    light = options_for("cpu", True)
    assert light["xla_backend_optimization_level"] == 0
    assert ("xla_cpu_use_fusion_emitters" in light) == (version < (0, 11))


def test_only_light_programs_of_a_gpu_do_without_kernels_of_their_own():
    assert "xla_gpu_enable_triton_gemm" not in options_for("gpu", False)
    assert options_for("gpu", True)["xla_gpu_enable_triton_gemm"] is False
    assert options_for("tpu", True) == {}


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_this_version_of_xla_knows_all_options(platform, light):
    """Also those of the platform that is not here: they are read before the program is compiled."""
    jax.jit(doubled).lower(jnp.ones(3)).compile(options_for(platform, light) or None)


def test_an_option_that_xla_does_not_know_is_left_out():
    lowered = jax.jit(doubled).lower(jnp.ones(3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile({"xla_of_the_future": 1})
    found = compiled(lowered, {"xla_of_the_future": 1, "xla_backend_optimization_level": 0, "xla_of_the_past": True})
    assert found(jnp.ones(3)).tolist() == [2, 2, 2]


def test_a_pass_that_xla_does_not_have_is_ignored():
    lowered = jax.jit(doubled).lower(jnp.ones(3))
    assert compiled(lowered, options_for("cpu", False, ("pass-of-the-future",)))(jnp.ones(3)).tolist() == [2, 2, 2]


def test_other_errors_of_the_compiler_are_not_hidden():
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_backend_optimization_level"):
        compiled(jax.jit(doubled).lower(jnp.ones(3)), {"xla_backend_optimization_level": "much"})
