"""Models no machine should try: the real worker refuses them before it allocates, and soon."""
import json
import os
import resource
import subprocess
import time
import zipfile

import pytest
import torch

from worker_cluster import WORKER

pytestmark = pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built")
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Outer(torch.nn.Module):
    """64 GiB of float32 from two vectors of half a megabyte."""

    def forward(self, x, y):
        return torch.mm(x, y).sum()


class Padded(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.pad(x, (0, 2 ** 33, 0, 0)).sum()


def check(path, *more):
    start = time.monotonic()
    done = subprocess.run([WORKER, "check", str(path), "-o", "json", *more], capture_output=True,
                          text=True, timeout=120)
    return done, time.monotonic() - start


@pytest.mark.skipif(MEMORY > 2 ** 36 - 1, reason="this machine could hold it")
def test_a_result_beyond_the_memory_is_refused_before_it_runs(tmp_path):
    n = 2 ** 17
    torch.export.save(torch.export.export(Outer(), (torch.zeros(n, 1), torch.zeros(1, n))),
                      tmp_path / "outer.pt2")
    done, seconds = check(tmp_path / "outer.pt2")
    error = json.loads(done.stdout)
    assert done.returncode == 3 and error["code"] == "too_large", done.stdout
    assert error["operator"] == "aten::mm" and "64 GiB" in error["message"], error
    assert seconds < 60


def rewritten(source, target, change):
    """The archive with its description changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("models/model.json"):
                data = change(data.decode()).encode()
            new.writestr(entry.filename, data)


@pytest.mark.skipif(MEMORY > 2 ** 35, reason="this machine could hold it")
def test_a_result_larger_than_it_declares_ends_as_an_error_of_its_operator(tmp_path):
    """The description lies: 32 GiB that declare 16 bytes. What a look at the graph does not tell, the
    limit of the process's memory ends: an error with the operator's name, no killed process."""
    honest, lying = tmp_path / "honest.pt2", tmp_path / "lying.pt2"
    torch.export.save(torch.export.export(Padded(), (torch.zeros(1, 4),)), honest)
    rewritten(honest, lying, lambda text: text.replace(str(2 ** 33 + 4), "4"))
    for path in (honest, lying):
        done, seconds = check(path)
        assert done.returncode == 3 and seconds < 60, (path, done.stdout, done.stderr)
        assert "pad" in json.loads(done.stdout)["operator"], done.stdout


@pytest.mark.parametrize("size,answer", [(100 << 20, "nested deeper"), (400 << 20, "at most"),
                                         (1100 << 20, "claims to inflate")])
def test_a_zip_bomb_costs_little(tmp_path, size, answer):
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/byteorder", "little")
        file.writestr("m/models/model.json", b"[" * size)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done, seconds = check(path)
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert done.returncode == 3 and answer in json.loads(done.stdout)["message"]
    assert seconds < 60 and max(peak_kib, before) < 4 << 20
