"""A client's own folder: coterie, NumPy and ONNX give the same numbers, and nothing of other clients is in it."""

import json
import subprocess
import sys

import equinox as eqx
import numpy as np
import onnx
import onnxruntime
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.serving import numpy_model
from support.serving_cases import classes_federation, image_federation, numbers_federation, saved_run


def by_onnx(folder, x):
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


CASES = {
    "mlp": (classes_federation, "mlp", {}),
    "linear": (numbers_federation, "linear", {}),
    "affine": (numbers_federation, ct.models.Mlp(hidden=(4,), activation="tanh"), {"input_affine": True}),
    "cnn": (image_federation, "cnn", {}),
    "ensemble": (classes_federation, "linear", {"members": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_three_ways_to_the_same_numbers(case, tmp_path):
    make, model, options = CASES[case]
    federation = make()
    saved_run(tmp_path / "run", federation, model, "fedavg", **options)
    folder, reason = ct.export(tmp_path / "run", "client-1", tmp_path / "site")
    assert reason == ""
    x = np.ascontiguousarray(federation.test.x[1])
    table = ct.open(folder).model("client-1").predict(x)
    columns = ["prediction"] if federation.kind == "regression" else [c for c in table if c.startswith("probability")]
    expected = table[columns].to_numpy(float)
    np.testing.assert_allclose(numpy_model.predict(x, folder), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_onnx(folder, x), expected, rtol=1e-4, atol=1e-5)


def test_the_folder_has_nothing_of_other_clients(tmp_path):
    saved_run(tmp_path / "run", numbers_federation(), "linear", "fedavg")
    folder, _ = ct.export(tmp_path / "run", "client-2")
    assert folder == tmp_path / "run" / "exports" / "client-2"
    for file in folder.iterdir():
        content = file.read_bytes()
        assert all(f"client-{k}".encode() not in content for k in (0, 1, 3)), file.name
    assert json.loads((folder / "intervals.json").read_text())["clients"].keys() == {"client-2"}
    assert ct.open(folder).clients == ("client-2",)


def test_the_file_runs_without_coterie(tmp_path):
    federation = classes_federation()
    saved_run(tmp_path / "run", federation, "linear", "fedavg")
    folder, _ = ct.export(tmp_path / "run", "client-1", tmp_path / "site")
    np.save(tmp_path / "x.npy", federation.test.x[1])
    script = "import numpy as np, predict; np.save('out.npy', predict.predict(np.load('../x.npy')))"
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, env={"PATH": "", "PYTHONPATH": ""})
    expected = ct.open(folder).model("client-1").predict(federation.test.x[1]).filter(like="probability")
    np.testing.assert_allclose(np.load(folder / "out.npy"), expected.to_numpy(), rtol=1e-5, atol=1e-6)


def test_other_models_keep_their_safetensors(tmp_path):
    class Mine(eqx.Module):
        line: eqx.nn.Linear

        def __call__(self, x):
            return self.line(x)

    def mine(key):
        return Mine(eqx.nn.Linear(6, 3, key=key))

    saved_run(tmp_path / "run", classes_federation(), mine, "fedavg")
    folder, reason = ct.export(ct.open(tmp_path / "run", model=mine), "client-0", tmp_path / "site")
    assert "written for linear, mlp and cnn, not for mine; model.safetensors" in reason
    assert not (folder / "model.onnx").exists()
    assert ct.open(folder).clients == ("client-0",)


def test_images_of_bytes_stay_bytes(tmp_path):
    saved_run(tmp_path / "run", image_federation(), "linear", "fedavg")
    with pytest.raises(CoterieError, match="images of bytes"):
        ct.open(tmp_path / "run").model("client-0").predict(np.zeros((2, 1, 8, 8), np.float32))


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    saved_run(tmp_path / "run", classes_federation(), "linear", "fedavg")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(CoterieError, match="choose another --out"):
        ct.export(tmp_path / "run", "client-0", tmp_path / "mine")
