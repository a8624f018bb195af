"""A broker and real daemons, each in a namespace of a network of the laboratory."""
import contextlib
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

import harness  # noqa: E402


METRICS = """
import ssl, sys, urllib.request
url, token = sys.argv[1:]
tls = ssl._create_unverified_context()
asked = urllib.request.Request(url, headers={"authorization": "Bearer " + token})
print(urllib.request.urlopen(asked, context=tls, timeout=20).read().decode())
"""


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
            file.write(f'#!/bin/sh\n[ "$1" = measure ] || wait=--wait\nexec "{harness.BIN}/weft-worker" "$@" $wait\n')
        os.chmod(path, 0o755)
        return path

    def known(self, job=None):
        """Waits until every peer has a profile, every way is known, those that the job's plan uses by themselves, and
        nothing more is learned for a while: lines that ways share come last, and are tried again and again where
        the way is too long to tell."""
        timeout_s = max(400, 120 * len(self.cluster.peer_ids))

        def profiles():
            return all(self.cluster.weft_json("peer", "get", peer)["profile"] for peer in self.cluster.peer_ids.values())

        def links():
            told = {(link["from"], link["to"]): link for link in self.cluster.weft_json("link", "list")["links"]}
            order = self.cluster.job(job)["peers"] if job else []
            used = [way for a, b in zip(order, order[1:]) for way in ((a, b), (b, a))]
            pairs = len(self.cluster.peer_ids) * (len(self.cluster.peer_ids) - 1)
            return (len(told) == pairs and all(link["bandwidth_mbit_s"] for link in told.values()) and
                    all(told[way]["measured"] for way in used))

        def quiet():
            told = self.cluster.weft_json("link", "list")
            known = (sorted((link["from"], link["to"]) for link in told["links"] if link["measured"]),
                     sorted((line["peers"], line["up_assumed"], line["down_assumed"]) for line in told["lines"]))
            if known != last["known"]:
                last.update(known=known, looks=0, idle=0)
            last["looks"] += 1
            last["idle"] = 0 if self.probing() else last["idle"] + 1
            return last["looks"] >= 20 or last["idle"] >= 5
        last = {"known": None}
        harness.wait_for("measuring of devices", profiles, timeout_s, every_s=2)
        harness.wait_for("measuring of links", links, timeout_s, every_s=2)
        harness.wait_for("an end of measuring", quiet, timeout_s, every_s=3)

    def probing(self):
        """Whether a probe is under way."""
        sent, *results = map(int, re.findall(r"weft_probe(?:s_sent|_results)_total\S* (\d+)", self.metrics()))
        return sent != sum(results)

    def metrics(self):
        """Of the broker, in Prometheus' form."""
        said = subprocess.run([*self.cluster.cli_prefix, sys.executable, "-c", METRICS,
                               f"https://{self.cluster.host}:{self.cluster.broker['http_port']}/metrics",
                               self.cluster.token], capture_output=True, text=True, timeout=60, check=True)
        return said.stdout

    def train(self, name, **options):
        """Runs a job to its end; its record and the seconds of its steps, the first left out."""
        self.submit(name, **options)
        return self.finished(name)

    def submit(self, name, **options):
        self.cluster.weft("job", "submit", harness.gpt_job(self.folder, name, **options))

    def finished(self, name):
        # Asked seldom: each time starts a program, on the cores that are timed.
        job = self.cluster.wait_job(name, {"finished"}, timeout_s=300, every_s=2)
        steps = self.cluster.weft_json("job", "metrics", name)["steps"]
        return job, [step["seconds"] for step in steps[1:]]

    def waited(self, name, stages):
        """The times, in seconds, that the workers of a job wait instead of computing, by stage."""
        times = [None] * stages
        for line in self.cluster.weft_json("job", "logs", name)["lines"]:
            found = re.search(r"waits ([\d.]+) ms a forward, ([\d.]+) a backward, ([\d.]+) and ([\d.]+) for its parts",
                              line["text"])
            if not found:
                continue
            measured = dict(zip(("forward", "backward", "first", "rest"), (float(ms) / 1e3 for ms in found.groups())))
            # A stage waits in evaluations, too: those have no backward.
            if times[line["stage"]] is None or measured["backward"] > 0:
                times[line["stage"]] = measured
        return times


@contextlib.contextmanager
def laboratory(network, folder, known=True, gflops=None, probe=False, profiles=None, congestion=None):
    """known: the broker plans with the lines as they are, and with peers of that speed; "peers": with their speed
    alone. probe: it has the lines measured. profiles: a folder of profiles; daemons measure themselves where theirs is
    not in it. congestion: the control that all machines have, else this one's."""
    flags = []
    if known:
        files = {"peers": network.peers_toml(gflops), "links": network.links_csv()}
        for name, text in files.items() if known is True else [(known, files[known])]:
            path = os.path.join(folder, f"{name}.known")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            flags += [f"--{name}-file", path]
    with network.up() as where:
        for name, _, _ in where.values():
            if congestion:
                subprocess.run(["ip", "netns", "exec", name, "sysctl", "-q", "-w",
                                f"net.ipv4.tcp_congestion_control={congestion}"], check=True)
        namespace, address, _ = where["broker"]
        prefix = ["ip", "netns", "exec", namespace]
        cluster = harness.Cluster(folder, host=address, broker_flags=flags, broker_prefix=prefix,
                                  measure=profiles is not None, probe=probe)
        if profiles:
            cluster.environment["WEFTD_PROFILE_DIR"] = profiles
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
