"""The operator table against the installed torch, imported graphs against their modules, and
`weft-worker check` as a user meets it: exit codes, files, refusals."""
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

SOURCE = os.environ.get("WEFT_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
BIN = os.environ.get("WEFT_BIN_DIR", os.path.join(SOURCE, "build", "bin"))
WORKER = os.path.join(BIN, "weft-worker")
MODELS = os.path.join(SOURCE, "tests", "models")
pytestmark = pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built")


def script(name, *arguments):
    done = subprocess.run([sys.executable, os.path.join(MODELS, name), *map(str, arguments)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(*arguments):
    done = subprocess.run([WORKER, "check", *map(str, arguments), "-o", "json"],
                          capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def export(path, model, **inputs):
    torch.export.save(torch.export.export(model, (), inputs, strict=False), path)
    return path


def test_operator_table_matches_torch():
    assert " 0 faults" in script("check_op_table.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    script("export_models.py", "--out", folder, "gpt2", "llama", "resnet18", "skips")
    return folder


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet18", "skips"])
def test_imported_graph_equals_its_module(folder, name):
    prepared = folder / f"{name}.prepared"
    subprocess.run([WORKER, "prepare", folder / f"{name}.pt2", "--out", prepared], check=True)
    for mode, text in (("train", "graph.txt"), ("eval", "eval.txt")):
        assert "equal" in script("check_import.py", name, folder / f"{name}.pt2", prepared / text,
                                 mode)


class Net(nn.Module):
    """An auxiliary head that the loss does not use, and batch norm with its counters."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.head, self.aux = nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x, y):
        h = torch.tanh(self.norm(self.body(x)))
        return {"loss": F.cross_entropy(self.head(h), y), "aux": self.aux(h)}


@pytest.fixture(scope="module")
def net(folder):
    torch.manual_seed(1)
    model, inputs = Net().train(), {"x": torch.randn(6, 8), "y": torch.randint(0, 4, (6,))}
    save_file(inputs, str(folder / "net.inputs.safetensors"))
    return model, inputs, export(folder / "net.pt2", model, **inputs)


def test_check_is_equal_and_writes_the_gradients_of_autograd(folder, net):
    model, inputs, path = net
    grads = folder / "net.grads.safetensors"
    code, report = check(path, "--inputs", folder / "net.inputs.safetensors", "--stages", 3,
                         "--precision", "f64", "--grads", grads)
    assert code == 0 and report["equal"], report
    found = load_file(grads)
    model = model.double()
    loss = model(inputs["x"].double(), inputs["y"])["loss"]
    loss.backward()
    assert torch.allclose(found["loss"], loss, rtol=1e-10)
    wanted = {f"grad.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert set(found) == {"loss", *wanted}
    for name, gradient in wanted.items():
        # A bias before batch norm has a gradient of rounding errors only.
        assert torch.allclose(found[name], gradient, rtol=1e-10, atol=1e-14), name
    model.float()


class Outputs(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1, x.sum(1)


def test_a_graph_without_a_loss_runs_forward_only(folder):
    x = torch.randn(4, 8)
    path = export(folder / "outputs.pt2", Outputs(), x=x)
    save_file({"x": x}, str(folder / "outputs.inputs.safetensors"))
    out = folder / "outputs.safetensors"
    code, report = check(path, "--inputs", folder / "outputs.inputs.safetensors", "--grads", out)
    assert code == 0 and report["forward_only"], report
    found = load_file(out)
    assert set(found) == {"out.0", "out.1"}
    for name, wanted in zip(("out.0", "out.1"), Outputs()(x)):
        assert torch.equal(found[name], wanted)


class Refused(nn.Module):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).sum()


def test_a_refused_operator_is_named(folder):
    path = export(folder / "refused.pt2", Refused(), x=torch.randn(4, 4))
    code, error = check(path)
    assert code == 3 and error["code"] == "refused", error
    assert "fake_quantize" in error["operator"] and error["node"] and error["next"], error


@pytest.mark.parametrize("inputs,word", [
    ({"y": torch.zeros(6, dtype=torch.int64)}, "x"),
    ({"x": torch.zeros(5, 8), "y": torch.zeros(6, dtype=torch.int64)}, "shape"),
])
def test_wrong_inputs_are_named(folder, net, inputs, word):
    path = folder / "wrong.safetensors"
    save_file(inputs, str(path))
    code, error = check(net[2], "--inputs", path)
    assert code == 3 and word in error["message"], error


def test_damaged_inputs_and_models(folder, net):
    bad = folder / "bad.safetensors"
    bad.write_bytes(b"\xff" * 40)
    assert check(net[2], "--inputs", bad)[0] == 3
    cut = folder / "cut.pt2"
    cut.write_bytes(net[2].read_bytes()[:2000])
    assert check(cut)[0] == 3
    assert check(net[2], "--stages", 1000)[0] == 3
    assert check(net[2], "--stages", 0)[0] == 2


def test_pruned_graph_keeps_what_a_strict_load_asks_for(folder, net):
    model, _, path = net
    prepared = folder / "net.prepared"
    subprocess.run([WORKER, "prepare", path, "--out", prepared], check=True)
    text = (prepared / "graph.txt").read_text()
    for name in model.state_dict():
        assert f'"{name}"' in text, name
