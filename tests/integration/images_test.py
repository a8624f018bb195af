"""Image models train too: torchvision's ResNet-18 on Fashion-MNIST over three peers."""
import os
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

import harness

sys.path.insert(0, os.path.join(harness.ROOT, "examples"))

STEPS, EVAL_BATCHES = 40, 20


def test_resnet_learns_as_in_plain_pytorch(tmp_path):
    folder = str(tmp_path)
    harness.python("examples/export_resnet.py", "--out", f"{folder}/resnet.pt2")
    harness.python("examples/fashion_to_npy.py", "--out", folder)
    shutil.copy(os.path.join(harness.ROOT, "examples", "resnet.toml"), folder)
    with harness.Cluster(folder) as cluster:
        cluster.start_peers(3)
        cluster.weft("job", "submit", f"{folder}/resnet.toml", "--set", f"train.steps={STEPS}",
                     "--set", "train.batch=64", "--set", f"train.eval_batches={EVAL_BATCHES}",
                     "--watch")
        job = cluster.job("resnet")
        cluster.weft("checkpoint", "export", "resnet", "--out", f"{folder}/resnet.safetensors")
    text = harness.python("examples/train_resnet.py", "--data", folder, "--steps", str(STEPS),
                          "--step-batch", "64", "--eval-batches", str(EVAL_BATCHES))
    plain = float(re.search(r"eval accuracy ([0-9.]+)", text).group(1))
    print(f"accuracy: {job['eval_accuracy']:.4f} over 3 peers, {plain:.4f} in plain PyTorch")
    assert job["eval_accuracy"] > 0.5
    assert job["eval_accuracy"] > plain - 0.12  # another sample order, few steps
    assert exported_accuracy(folder) == pytest.approx(job["eval_accuracy"], abs=0.002)


def exported_accuracy(folder):
    import numpy
    from export_resnet import make_resnet
    from train_resnet import accuracy
    model = make_resnet(0)
    model.load_state_dict(load_file(f"{folder}/resnet.safetensors"), strict=True)
    count = EVAL_BATCHES * 32
    images, labels = (torch.from_numpy(numpy.load(f"{folder}/eval_{name}.npy")[:count])
                      for name in ("images", "labels"))
    return accuracy(model, images, labels, 32)
