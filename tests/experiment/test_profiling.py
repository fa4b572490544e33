"""`coterie run --profile`: every second belongs to one part, and operations of a program to the verb that made them."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.experiment import profiling
from coterie.experiment.profiling import Profile
from coterie.experiment.trace import Operation, operations, part_of, parts_of, scopes
from coterie.storage.toml import dump_toml

PROGRAM = """HloModule jit_program

%fused.1 (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %a.1 = f32[4]{0} add(%p, %p), metadata={op_name="jit(program)/exchange/add" stack_frame_id=1}
  ROOT %m.1 = f32[4]{0} multiply(%a.1, %a.1), metadata={op_name="jit(program)/mul"}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %step = f32[4]{0} sine(%x), metadata={op_name="jit(program)/local_steps/vmap(sin)"}
  %step.2 = f32[4]{0} cosine(%step), metadata={op_name="jit(program)/exchange/local_steps/cos"}
  %step.3 = f32[4]{0} sine(%step), metadata={op_name="jit(program)/local_steps/sin"}
  %dot.7 = f32[4]{0} dot(%step, %step.3)
  %fusion.1 = f32[4]{0} fusion(%dot.7), kind=kLoop, calls=%fused.1, metadata={op_name="jit(program)/mul"}
  %counted = f32[4]{0} negate(%fusion.1), metadata={op_name="jit(program)/neg"}
  ROOT %copy.1 = f32[4]{0} copy(%counted)
}
"""


def test_operations_belong_to_the_outermost_scope_around_them():
    """`dot.7` has no name: it is for the fusion, whose group is exchange. `copy.1` is for nothing: most beside it are
    local steps. `counted` has a name outside of both scopes, so it is in neither.
    """
    found = parts_of(PROGRAM, ["local_steps", "exchange"])
    assert {name: found[name] for name in ("step", "step.3", "copy.1")} == dict.fromkeys(
        ("step", "step.3", "copy.1"), "local_steps"
    )
    assert (found["step.2"], found["dot.7"], found["fusion.1"]) == ("exchange",) * 3
    assert "counted" not in found
    kernels = [Operation("jit_program", "command_buffer", kernel, 1, 1.0) for kernel in ("step_2", "main", "unknown")]
    assert [part_of(kernel, found) for kernel in kernels] == ["exchange", "local_steps", ""]
    assert scopes(PROGRAM)["step"] == "jit(program)/local_steps/vmap(sin)"


def test_parts_inside_parts_count_apart(tmp_path, monkeypatch):
    """Seconds 0 to 1 outside, 1 to 3 written, 3 to 6 compiled inside of that, 6 to 7 written, 7 to 8 outside."""
    ticks = iter([0, 1, 3, 6, 7, 8, 8, 8, 8])
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: next(ticks))
    profile = Profile(tmp_path)
    with profile.part("input and output"), profile.part("compile"):
        pass
    record = profile.finish()
    assert record["parts"] == {"compile": 3, "input and output": 3, "remainder": 2}
    assert record["seconds"] == 8
    assert "no trace" in record["note"]
    assert json.loads((tmp_path / "profile.json").read_text()) == record


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The folder of a run with a profile, and what it printed."""
    place = tmp_path_factory.mktemp("profile")
    experiment = {"data": {"name": "digits"}, "partition": {"clients": 4, "samples": 40}, "model": {"name": "linear"}}
    (place / "e.toml").write_text(dump_toml({"format": 1, **experiment, "run": {"rounds": 4, "evaluate_every": 2}}))
    words = ["run", str(place / "e.toml"), "--profile", "--precision", "bfloat16", "--out", str(place / "run")]
    return place, CliRunner().invoke(app, [*words, "--device", "cpu"])


def test_a_run_says_where_its_time_went(profiled):
    place, answer = profiled
    assert answer.exit_code == 0, answer.output
    assert "where the time went" in answer.output
    record = json.loads((place / "run" / "profile.json").read_text())
    parts = record["parts"]
    assert sum(parts.values()) == pytest.approx(record["seconds"], abs=0.002)
    assert {"compile", "local steps", "exchange", "evaluation", "input and output", "remainder"} <= set(parts)
    assert "rounds" not in parts
    assert parts["compile"] < record["seconds"]
    assert operations(place / "run" / "profile")
    assert list((place / "run" / "profile").rglob("*.trace.json.gz"))  # what Perfetto opens
    page = (place / "run" / "report.html").read_text()
    assert "Where the time of fedavg went" in page
    assert record["note"] in page


def test_a_complete_run_has_nothing_to_time(profiled):
    place, _ = profiled
    config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert config["run"]["precision"] == "bfloat16"
    assert "profile" not in config["run"]
    words = ["run", str(place / "e.toml"), "--precision", "bfloat16", "--out", str(place / "run"), "--device", "cpu"]
    assert CliRunner().invoke(app, words).exit_code == 0
    again = CliRunner().invoke(app, [*words, "--profile"])
    assert again.exit_code == 2
    assert "is complete already, there is nothing to time; choose another --out" in " ".join(again.output.split())


def test_a_trace_that_cannot_be_read_costs_only_the_division(tmp_path, monkeypatch):
    profile = Profile(tmp_path)
    profile._traced = [None]
    with profile.part("rounds"):
        pass
    monkeypatch.setattr(profiling, "operations", lambda folder: 1 / 0)
    record = profile.finish()
    assert "rounds" in record["parts"]
    assert record["note"].startswith("the trace could not be read (division by zero)")
