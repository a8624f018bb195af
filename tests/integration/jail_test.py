"""The worker's jail around a real job: what it must reach still works, the rest is out of reach."""
import json
import os
import shutil
import subprocess

import pytest

from worker_cluster import WORKER, Cluster, job
from worker_test import data, folder, model  # noqa: F401

pytestmark = pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built")


def offered():
    """Landlock and seccomp as the worker finds them, from its own log line."""
    log = subprocess.run([WORKER, "check", "/nonexistent.pt2"], capture_output=True, text=True)
    return "not applied: nothing" in log.stderr


needs_all = pytest.mark.skipif(not os.path.exists(WORKER) or not offered(),
                               reason="this kernel does not offer all of the jail")


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)


@needs_all
def test_a_job_runs_jailed_and_every_thread_is_inside(folder, model, data):  # noqa: F811
    cluster = Cluster(job("jailed", 100000), 2, folder, model, data=data)
    try:
        cluster.start()
        cluster.workers[0].wait_for("step")
        pid = cluster.workers[0].process.pid
        threads = os.listdir(f"/proc/{pid}/task")
        assert len(threads) >= 4  # compute, data, stdin, alive
        for thread in threads:
            status = status_of(f"{pid}/task/{thread}")
            assert status["NoNewPrivs"].strip() == "1"
            assert status["Seccomp"].strip() == "2", status
        with open(f"/proc/{pid}/limits") as file:
            limits = file.read()
        assert limits.splitlines()[5].split()[4:6] == ["0", "0"], limits  # core files
        with open(f"/proc/{pid}/oom_score_adj") as file:
            assert int(file.read()) == 500
    finally:
        cluster.kill()


@needs_all
def test_a_file_the_assignment_does_not_name_cannot_be_opened(folder, model, data,  # noqa: F811
                                                              tmp_path):
    """After the worker has gone to jail a weight becomes a link to a file elsewhere: rights belong
    to files, not to names, so the kernel refuses it though its content is the same."""
    cluster = Cluster(job("links", 2), 1, folder, model, data=data)
    worker = cluster.workers[0]
    try:
        port = worker.wait_for("listening")["port"]
        weight = cluster.prepared / "data" / "weights" / "weight_0"
        assert weight.exists()
        shutil.copy(weight, tmp_path / "secret")
        os.remove(weight)
        os.symlink(tmp_path / "secret", weight)
        worker.say({"type": "connect", "stages": [
            {"stage": 0, "peer": "peer-0", "host": "127.0.0.1", "port": port}]})
        with pytest.raises(AssertionError, match="failed"):
            worker.wait_for("ready", seconds=60)
        assert "Permission denied" in worker.seen[-1]["message"], worker.seen[-1]
    finally:
        cluster.kill()


@needs_all
def test_nothing_is_written_outside_the_work_folder(folder, model, data, tmp_path):  # noqa: F811
    """The real worker is led elsewhere with its shard; the shard never appears."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cluster = Cluster(job("escape", 2), 1, folder, model, data=data)
    worker = cluster.workers[0]
    try:
        work = cluster.folder / "work-0"
        port = worker.wait_for("listening")["port"]
        # The work folder's name now leads elsewhere: rights belong to folders, not to names.
        os.rename(work, str(work) + ".real")
        os.symlink(elsewhere, work)
        worker.say({"type": "connect", "stages": [
            {"stage": 0, "peer": "peer-0", "host": "127.0.0.1", "port": port}]})
        worker.wait_for("ready")
        worker.say({"type": "start"})
        with pytest.raises(AssertionError, match="failed"):
            worker.wait_for("finished", seconds=60)
        assert "Permission denied" in worker.seen[-1]["message"], worker.seen[-1]
        assert list(elsewhere.iterdir()) == []
    finally:
        cluster.kill()


@needs_all
def test_required_is_satisfied_here_and_off_does_nothing(model):  # noqa: F811
    required = subprocess.run([WORKER, "check", str(model), "--jail", "required"],
                              capture_output=True, text=True)
    assert required.returncode == 0, required.stderr
    off = subprocess.run([WORKER, "check", str(model), "--jail", "off"], capture_output=True,
                         text=True)
    assert off.returncode == 0 and "jail: off" in off.stderr
    wrong = subprocess.run([WORKER, "check", str(model), "--jail", "on"], capture_output=True,
                           text=True)
    assert wrong.returncode == 2 and "auto, required or off" in wrong.stderr


def test_without_seccomp_auto_says_so_and_required_refuses(model, tmp_path):  # noqa: F811
    """A kernel (or a container) that refuses the calls, played by a filter put on before."""
    source, program = tmp_path / "deny.c", tmp_path / "deny"
    source.write_text(DENY)
    built = subprocess.run(["gcc", "-o", str(program), str(source)], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"no C compiler: {built.stderr}")
    auto = subprocess.run([str(program), WORKER, "check", str(model)], capture_output=True,
                          text=True)
    assert auto.returncode == 0, auto.stderr
    assert "the kernel has no Landlock" in auto.stderr and "seccomp: " in auto.stderr
    required = subprocess.run([str(program), WORKER, "check", str(model), "-o", "json", "--jail",
                               "required"], capture_output=True, text=True)
    assert required.returncode == 3, required.stderr
    error = json.loads(required.stdout)
    assert error["code"] == "denied" and "no Landlock" in error["message"], error


DENY = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 444, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_seccomp, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {5, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (argc < 2 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 99;
  execv(argv[1], argv + 1);
  return 98;
}
"""
