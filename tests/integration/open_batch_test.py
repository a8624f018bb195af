"""An export that leaves the batch open trains as the export of one micro-batch does, bit for bit."""
import json
import subprocess

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import harness

BATCH, MICRO_BATCH = 16, 4
JOB = f"""
name = "fixed"
model = "fixed.pt2"
[data.arrays.images]
train = "images.npy"
eval = "images.npy"
[data.arrays.labels]
train = "labels.npy"
eval = "labels.npy"
[data.bind]
x = "images"
label = "labels"
[train]
steps = 5
batch = {BATCH}
optimizer = "adamw"
lr = 1e-2
[pipeline]
stages = 2
"""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5))

    def forward(self, x, label):
        weight = torch.ones(x.shape[0]) / x.shape[0]
        losses = nn.functional.cross_entropy(self.layers(x), label, reduction="none")
        return {"loss": (losses * weight).sum()}


def export(path, samples, shapes):
    torch.manual_seed(1)
    inputs = {"x": torch.randn(samples, 12), "label": torch.randint(0, 5, (samples,))}
    torch.manual_seed(2)
    torch.export.save(torch.export.export(Net(), (), inputs, dynamic_shapes=shapes), path)


def test_trains_as_the_export_of_one_micro_batch(tmp_path):
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    export(tmp_path / "fixed.pt2", MICRO_BATCH, None)
    export(tmp_path / "open.pt2", 3, {"x": batch, "label": batch})
    rng = numpy.random.default_rng(0)
    numpy.save(tmp_path / "images.npy", rng.random((64, 12), dtype=numpy.float32))
    numpy.save(tmp_path / "labels.npy", rng.integers(0, 5, 64))
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    weights = {}
    with harness.Cluster(tmp_path) as cluster:
        cluster.start_peers(2)
        wide = cluster.run("job", "submit", f"{tmp_path}/job.toml", "--set", "model=open.pt2",
                           "--set", "train.micro_batch=128")
        assert wide.returncode != 0 and "2 to 64" in wide.stderr
        other = cluster.run("job", "submit", f"{tmp_path}/job.toml", "--set", "train.micro_batch=8")
        assert other.returncode != 0 and "fixed at 4" in other.stderr
        for name in ("fixed", "open"):
            cluster.weft("job", "submit", f"{tmp_path}/job.toml", "--set", f"name={name}",
                         "--set", f"model={name}.pt2", "--set", f"train.micro_batch={MICRO_BATCH}",
                         "--watch")
            out = f"{tmp_path}/{name}.safetensors"
            cluster.weft("checkpoint", "export", name, "--out", out)
            weights[name] = load_file(out)
    assert weights["fixed"].keys() == weights["open"].keys()
    start = dict(Net().named_parameters())
    assert weights["open"].keys() == start.keys()
    for name, tensor in weights["fixed"].items():
        assert torch.equal(tensor, weights["open"][name]), name


def test_model_verbs_take_the_micro_batch(tmp_path):
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    export(tmp_path / "open.pt2", 3, {"x": batch, "label": batch})
    inputs = {"x": torch.randn(7, 12), "label": torch.randint(0, 5, (7,))}
    save_file(inputs, tmp_path / "inputs.safetensors")

    def weft(verb, *argv):
        return subprocess.run([f"{harness.BIN}/weft", "-o", "json", "model", verb, f"{tmp_path}/open.pt2", *argv],
                              capture_output=True, text=True, check=False)

    checked = weft("check", "--inputs", f"{tmp_path}/inputs.safetensors", "--micro-batch", "7")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert json.loads(checked.stdout)["equal"]
    other = weft("check", "--inputs", f"{tmp_path}/inputs.safetensors", "--micro-batch", "8")
    assert other.returncode == 3 and "7" in other.stdout
    shapes = [json.loads(weft("inspect", "--micro-batch", str(n)).stdout) for n in (7, 8)]
    assert shapes[0] != shapes[1]
    assert weft("inspect", "--micro-batch", "65").returncode != 0
