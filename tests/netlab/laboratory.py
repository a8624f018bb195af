"""A broker and real daemons, each in a namespace of a network of the laboratory."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

import harness  # noqa: E402


class Laboratory:
    def __init__(self, folder, cluster, where):
        self.folder, self.cluster, self.where = folder, cluster, where
        self.place = {}  # ends by the names of peers that are not called like theirs

    def prefix(self, name):
        return ["ip", "netns", "exec", self.where[self.place.get(name, name)][0]]

    def address(self, name):
        return self.where[self.place.get(name, name)][1]

    def join(self, *names, waits=False):
        """waits: workers compute one micro-batch some times and then wait as long instead of computing."""
        flags = ("--worker", self.waiting_worker()) if waits else ()
        for name in names:
            self.cluster.start_peer(name, prefix=self.prefix(name), host=self.address(name), flags=flags)
        self.cluster.wait_idle(len(names))

    def waiting_worker(self):
        """A program, since a daemon gives its worker no such argument."""
        path = os.path.join(self.folder, "waiting-worker")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{harness.BIN}/weft-worker" "$@" --wait\n')
        os.chmod(path, 0o755)
        return path

    def train(self, name, **options):
        """Runs a job to its end; its record and the seconds of its steps, the first left out."""
        self.submit(name, **options)
        return self.finished(name)

    def submit(self, name, **options):
        self.cluster.weft("job", "submit", harness.gpt_job(self.folder, name, **options))

    def finished(self, name):
        job = self.cluster.wait_job(name, {"finished"}, timeout_s=300)
        steps = self.cluster.weft_json("job", "metrics", name)["steps"]
        return job, [step["seconds"] for step in steps[1:]]


@contextlib.contextmanager
def laboratory(network, folder, known=True, gflops=None, probe=False):
    """known: the broker plans with the lines as they are, and with peers of that speed; "peers": with their speed
    alone. probe: it has the lines measured."""
    flags = []
    if known:
        files = {"peers": network.peers_toml(gflops), "links": network.links_csv()}
        for name, text in files.items() if known is True else [(known, files[known])]:
            path = os.path.join(folder, f"{name}.known")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            flags += [f"--{name}-file", path]
    with network.up() as where:
        namespace, address, _ = where["broker"]
        prefix = ["ip", "netns", "exec", namespace]
        cluster = harness.Cluster(folder, host=address, broker_flags=flags, broker_prefix=prefix,
                                  probe=probe)
        cluster.cli_prefix = prefix
        with cluster:
            yield Laboratory(folder, cluster, where)


def unusable():
    """Why there can be no laboratory here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    return None
