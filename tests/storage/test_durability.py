"""Nothing is lost on a full disk or by SIGKILL at any moment of saving, in real processes."""

import os
import random
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from coterie.errors import CoterieError, StorageError
from coterie.storage.checkpoint import load, save
from coterie.storage.durable import durable_write, storage_errors


def names(folder):
    return sorted(file.name for file in (folder / "checkpoints").iterdir())


def child(script, *arguments):
    """Start a Python process with a script that has `save`, `load`, `np`, `os`, `Path` and its arguments as `args`."""
    head = "import os, resource, signal, sys\nimport numpy as np\nfrom pathlib import Path\n"
    head += "import coterie.storage.checkpoint as checkpoint\nfrom coterie.storage.checkpoint import load, save\n"
    head += "args = sys.argv[1:]\n"
    command = [sys.executable, "-W", "error", "-c", head + textwrap.dedent(script), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_import_needs_no_jax():
    process = child("print('jax' in sys.modules)")
    assert process.communicate() == ("False\n", "")


def test_a_full_disk_stops_cleanly_and_loses_nothing(tmp_path):
    script = """
        from coterie.errors import StorageError
        folder = Path(args[0])
        save(folder, 1, {"x": np.ones(100)}, {})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save(folder, 2, {"x": np.ones(100_000)}, {})
        except StorageError as error:
            print(error)
    """
    process = child(script, tmp_path)
    out, errors = process.communicate()
    path = tmp_path / "checkpoints" / "step-00000002.safetensors"
    assert errors == ""
    assert out.startswith(f"a file is too large while writing {path}; ")
    assert f"`coterie resume {tmp_path}` continues" in out
    assert names(tmp_path) == ["step-00000001.safetensors"]  # no .tmp is left to fill the disk
    step, arrays, _, notes = load(tmp_path)
    assert (step, arrays["x"].tolist(), notes) == (1, [1.0] * 100, [])


def test_a_device_without_space_gives_one_sentence(tmp_path):
    with (
        pytest.raises(StorageError, match=f"the disk is full while writing {tmp_path}; .*coterie resume {tmp_path}"),
        storage_errors(tmp_path),
        open("/dev/full", "wb", buffering=0) as stream,
    ):
        stream.write(b"x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CoterieError, match=r"cannot be written .Not a directory"):
        durable_write(tmp_path / "file" / "inside", b"")


# Where a process may die while it saves: the call, and how many times it was reached before.
MOMENTS = [
    ("open", 0),
    ("write", 0),
    ("fsync", 0),
    ("replace", 0),
    ("fsync", 1),
    ("unlink", 0),
    ("unlink", 1),
    ("end", 0),
]


@pytest.mark.parametrize(("call", "count"), MOMENTS)
def test_killed_at_each_step_of_saving(tmp_path, call, count):
    for step in (1, 2, 3):
        save(tmp_path, step, {"x": np.full(1000, step)}, {})
    (tmp_path / "checkpoints" / "step-00000000.safetensors.tmp").write_bytes(b"left by an earlier kill")
    script = """
        import builtins, pathlib
        folder, call, count = Path(args[0]), args[1], int(args[2])

        def dies(real):
            left = [count]
            def wrapped(*given, **named):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*given, **named)
            return wrapped

        class Torn:
            def __init__(self, stream):
                self.stream = stream
            def __enter__(self):
                return self
            def __exit__(self, *error):
                self.stream.close()
            def write(self, data):
                self.stream.write(bytes(data)[: len(data) // 2])
                self.stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)

        if call == "open":
            builtins.open = dies(open)
        elif call == "write":
            real_open = open
            builtins.open = lambda *given: Torn(real_open(*given))
        elif call == "unlink":
            pathlib.Path.unlink = dies(pathlib.Path.unlink)
        elif call != "end":
            setattr(os, call, dies(getattr(os, call)))
        save(folder, 4, {"x": np.full(1000, 4)}, {})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = child(script, tmp_path, call, count)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (-signal.SIGKILL, "")
    step, arrays, _, notes = load(tmp_path)
    renamed, removing = MOMENTS.index((call, count)) > 3, MOMENTS.index((call, count)) > 4
    assert removing or "step-00000002.safetensors" in names(tmp_path)  # nothing goes before the new one is safe
    assert step == (4 if renamed else 3)
    assert (arrays["x"] == step).all()
    assert notes == []
    save(tmp_path, 5, {"x": np.array(5)}, {})
    assert names(tmp_path) == [f"step-{step:08d}.safetensors", "step-00000005.safetensors"]


def test_killed_at_random_moments(tmp_path):
    script = """
        folder = Path(args[0])
        found = load(folder)
        step = found[0] if found else 0
        while True:
            step += 1
            save(folder, step, {"x": np.full(50_000, step)}, {"step": str(step)})
            print(step, flush=True)
    """
    moments, saved = random.Random(0), 0
    for _ in range(8):
        process = child(script, tmp_path)
        assert int(process.stdout.readline()) == saved + 1
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, 0.05))
        process.kill()
        out, errors = process.communicate()
        assert errors == ""
        printed = [saved + 1, *map(int, out.split())][-1]
        saved, arrays, meta, notes = load(tmp_path)
        assert saved in (printed, printed + 1)
        assert (arrays["x"] == saved).all()
        assert (meta, notes) == ({"step": str(saved)}, [])
