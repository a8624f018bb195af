"""Death, silence and black holes during a job: bounded detection, a clear end, no orphans.

Bounds are those of docs/ARCHITECTURE.md plus scheduling noise of a loaded two-core machine.
"""
import os
import signal
import subprocess
import time

import pytest

import harness

NOISE_S = 20
STEPS = 100000  # far more than a test waits for


@pytest.fixture
def running(cluster):
    """Three peers, two of them busy with a job that would run for hours."""
    cluster.start_peers(3)
    cluster.weft("job", "submit", harness.gpt_job(
        cluster.folder, "gpt", stages=2, steps=STEPS, train="[train.checkpoint]\nevery = 5"))
    cluster.wait_step("gpt", 6)
    harness.wait_for("a checkpoint", lambda: cluster.job("gpt")["last_checkpoint_step"], 60)
    ids = {v: k for k, v in cluster.peer_ids.items()}
    cluster.busy = [ids[p] for p in cluster.job("gpt")["peers"]]
    cluster.workers = [cluster.worker_of(name) for name in cluster.busy]
    return cluster


def failed_within(cluster, seconds):
    start = time.monotonic()
    job = cluster.wait_job("gpt", {"failed"}, seconds + NOISE_S)
    assert job["reason"] and job["resumable"] and job["last_checkpoint_step"] >= 5, job
    print(f"detected after {time.monotonic() - start:.1f} s: {job['reason']}")
    return job


def no_orphans(cluster, timeout_s=30):
    harness.wait_for("end of every worker",
                     lambda: not any(harness.alive(w) for w in cluster.workers), timeout_s)


def test_worker_killed(running):
    os.kill(running.workers[1], signal.SIGKILL)
    job = failed_within(running, 5)
    assert "stage 1" in job["reason"] and "signal 9" in job["reason"]
    no_orphans(running)
    running.wait_idle(3)
    running.weft("job", "resume", "gpt", "--steps", str(job["last_checkpoint_step"] + 3), "--watch")


def test_worker_stopped(running):
    os.kill(running.workers[0], signal.SIGSTOP)
    job = failed_within(running, 15)
    assert "stage" in job["reason"]
    no_orphans(running)
    running.wait_idle(3)


def test_peer_killed(running):
    running.kill(running.busy[0])
    job = failed_within(running, 20)
    assert running.peer_ids[running.busy[0]] in job["reason"] or "stage 0" in job["reason"]
    no_orphans(running)
    running.wait_idle(2)


def test_peer_stopped(running):
    running.kill(running.busy[1], signal.SIGSTOP)
    failed_within(running, 20)
    running.kill(running.busy[1], signal.SIGKILL)
    no_orphans(running)
    running.wait_idle(2)


def test_broker_killed_and_restarted(running):
    running.kill("broker")
    running._ended.discard("broker")
    time.sleep(1)
    running.restart_broker()
    job = running.wait_job("gpt", {"failed"}, 60)
    assert "restart" in job["reason"] and job["resumable"]
    no_orphans(running, 60)
    running.wait_idle(3)
    running.weft("job", "resume", "gpt", "--steps", str(job["last_checkpoint_step"] + 2), "--watch")


def test_broker_gone_stops_the_workers(folder):
    with harness.Cluster(folder, broker_flags=["--broker-timeout-ms", "5000"]) as cluster:
        cluster.start_peers(2)
        cluster.weft("job", "submit", harness.gpt_job(folder, "gpt", steps=STEPS))
        cluster.wait_step("gpt", 2)
        cluster.workers = [cluster.worker_of(f"peer-{i}") for i in range(2)]
        cluster.kill("broker", signal.SIGSTOP)
        no_orphans(cluster, 5 + NOISE_S)
        cluster.kill("broker", signal.SIGCONT)


def test_cancel_and_drain(running):
    running.weft("job", "cancel", "gpt", "--reason", "enough")
    job = running.wait_job("gpt", {"cancelled"}, 30)
    assert "enough" in job["reason"]
    no_orphans(running)
    running.wait_idle(3)
    running.weft("peer", "drain", running.peer_ids["peer-2"])
    running._ended = running.ended | {"peer-2"}
    assert running.processes["peer-2"].wait(30) == 0


class Namespaces:
    """One bridge in a namespace of its own; the broker and each peer in further ones."""

    def __init__(self, names):
        self.tag = f"w{os.getpid() % 10000}"
        self.names = names

    def sh(self, command):
        subprocess.run(command, shell=True, check=True, capture_output=True)

    def ns(self, name):
        return f"{self.tag}{name}"

    def prefix(self, name):
        return ["ip", "netns", "exec", self.ns(name)]

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def __enter__(self):
        self.sh(f"ip netns add {self.ns('sw')}")
        self.sh(f"ip netns exec {self.ns('sw')} ip link add br0 type bridge")
        self.sh(f"ip netns exec {self.ns('sw')} ip link set br0 up")
        for name in self.names:
            ns = self.ns(name)
            self.sh(f"ip netns add {ns}")
            self.sh(f"ip link add {ns}a netns {ns} type veth peer name {ns}b netns {self.ns('sw')}")
            self.sh(f"ip netns exec {self.ns('sw')} ip link set {ns}b master br0 up")
            self.sh(f"ip netns exec {ns} ip addr add {self.address(name)}/24 dev {ns}a")
            self.sh(f"ip netns exec {ns} ip link set {ns}a up")
            self.sh(f"ip netns exec {ns} ip link set lo up")
        return self

    def cut(self, name, other):
        """Packets from one to the other vanish without a word."""
        self.sh(f"ip netns exec {self.ns(name)} ip route add blackhole {self.address(other)}/32")

    def __exit__(self, *_):
        for name in ["sw", *self.names]:
            subprocess.run(["ip", "netns", "del", self.ns(name)], capture_output=True, check=False)


def namespaces_work():
    if os.geteuid() != 0:
        return False
    try:
        with Namespaces(["x", "y"]):
            return True
    except subprocess.CalledProcessError:
        return False
    finally:
        Namespaces(["x", "y"]).__exit__()


@pytest.fixture
def wide_running(folder):
    if not namespaces_work():
        pytest.skip("network namespaces need root and veth")
    with Namespaces(["b", "p0", "p1"]) as net:
        cluster = harness.Cluster(folder, host=net.address("b"), broker_prefix=net.prefix("b"))
        cluster.cli_prefix = net.prefix("b")
        with cluster:
            for name in ("p0", "p1"):
                cluster.start_peer(name, prefix=net.prefix(name), host=net.address(name))
            cluster.wait_idle(2)
            cluster.weft("job", "submit", harness.gpt_job(
                folder, "gpt", steps=STEPS, train="[train.checkpoint]\nevery = 5"))
            harness.wait_for("a checkpoint", lambda: cluster.job("gpt")["last_checkpoint_step"], 60)
            cluster.workers = [cluster.worker_of(name) for name in ("p0", "p1")]
            yield net, cluster


def test_black_hole_between_two_peers(wide_running):
    net, cluster = wide_running
    net.cut("p0", "p1")
    job = failed_within(cluster, 20)
    assert "stage" in job["reason"]
    no_orphans(cluster)
    cluster.wait_idle(2)


def test_black_hole_between_peer_and_broker(wide_running):
    net, cluster = wide_running
    net.cut("p1", "b")
    failed_within(cluster, 20)
    no_orphans(cluster, 30 + NOISE_S)
