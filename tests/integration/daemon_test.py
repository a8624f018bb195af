"""weftd as a program: its state folder, its signals, its sleep."""
import fcntl
import os
import signal
import subprocess
import time

import pytest

import harness

WEFTD = os.path.join(harness.BIN, "weftd")


def weftd(*arguments):
    return subprocess.run([WEFTD, *arguments], capture_output=True, text=True, timeout=60,
                          check=False)


@pytest.fixture
def held(tmp_path):
    """A state folder in which another program (this one) works."""
    state = tmp_path / "state"
    state.mkdir()
    with open(state / "lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield state


@pytest.mark.parametrize("verb", [("run",), ("join", "--no-run", "weft://127.0.0.1:1/" + "a" * 64 + "/t"),
                                  ("join", "weft://127.0.0.1:1/" + "a" * 64 + "/t")])
def test_two_daemons_on_one_folder_are_refused(held, verb):
    # As if it had joined: `run` looks for that first.
    for name, text in {"peer.pem": "p", "peer.key": "k", "ca.pem": "c", "curve.key": "a" * 40,
                       "membership.json": '{"peer":"p","broker_host":"127.0.0.1","broker_port":1,'
                                          '"control_host":"127.0.0.1","control_port":1,'
                                          '"control_key":"' + "a" * 40 + '"}'}.items():
        (held / name).write_text(text)
    before = {path.name: path.read_bytes() for path in held.iterdir()}
    ended = weftd(*verb, "--state-dir", str(held))
    assert ended.returncode == 1, ended
    assert f"process {os.getpid()}" in ended.stderr and str(held) in ended.stderr
    assert "--state-dir" in ended.stderr
    assert {path.name: path.read_bytes() for path in held.iterdir()} == before


def test_run_before_join_says_what_to_do(tmp_path):
    ended = weftd("run", "--state-dir", str(tmp_path / "none"))
    assert ended.returncode == 3 and "weftd join" in ended.stderr


def start_job(cluster, steps, flags=()):
    for name in ("peer-0", "peer-1"):
        cluster.start_peer(name, flags=flags)
    cluster.wait_idle(2)
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "gpt", stages=2, steps=steps))
    cluster.wait_step("gpt", 3)


def test_a_stop_of_the_whole_group_lets_the_job_finish(cluster):
    """What `systemctl stop` with KillMode=control-group does: daemon and worker get SIGTERM."""
    start_job(cluster, 300)
    worker = cluster.worker_of("peer-0")
    os.kill(worker, signal.SIGTERM)
    cluster.kill("peer-0", signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
    assert cluster.job("gpt")["state"] == "running"
    assert cluster.wait_job("gpt", {"finished"})["step"] == 300
    assert cluster.processes["peer-0"].wait(30) == 0
    assert not harness.alive(worker)


def test_a_daemon_that_slept_forgives_its_worker(cluster):
    start_job(cluster, 100000, flags=["--worker-silent-ms", "2000"])
    daemon = cluster.processes["peer-0"].pid
    for _ in range(2):
        before = cluster.job("gpt")["step"]
        os.kill(daemon, signal.SIGSTOP)
        time.sleep(4)  # twice what a worker may be silent, below what the broker waits
        os.kill(daemon, signal.SIGCONT)
        cluster.wait_step("gpt", before + 300)
    cluster.weft("job", "cancel", "gpt")
    cluster.wait_job("gpt", {"cancelled"})
