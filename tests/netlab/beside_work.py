"""A job on some peers of a laboratory, and idle ones beside them whose links the broker wants measured: probing as
busy as it ever is where work shares its lines."""
import json
import os
import re
import signal
import sqlite3
import subprocess
import time

import harness

AGO_MS = 40 * 60000  # measured so long ago that it is to be measured again, and not yet forgotten
LAN = {"mbit_s": 1000, "delay_ms": 0.1}


class BesideWork:
    """workers and idle: {peer: end of the network}; several peers may stand at one end, as in a home."""

    def __init__(self, net, lab, workers, idle):
        self.net, self.lab, self.cluster = net, lab, lab.cluster
        self.idle = list(idle)
        lab.place.update({**workers, **idle})
        for name in (*workers, *idle):
            flags = ("--worker", lab.waiting_worker()) if name in workers else ()
            self.cluster.start_peer(name, prefix=lab.prefix(name), host=lab.address(name), flags=flags)
        self.cluster.wait_idle(len(lab.place))
        self.sleep()
        self.cluster.kill("broker")
        self.grow_old()
        self.cluster.restart_broker()
        harness.wait_for("idle workers alone", lambda: self.states() == ["idle"] * len(workers), 60)

    def states(self):
        return [peer["state"] for peer in self.cluster.peers() if peer["state"] != "gone"]

    def sleep(self):
        """The idle daemons end; what is known of them stays."""
        for name in self.idle:
            self.cluster.kill(name, signal.SIGINT)
        for name in self.idle:
            self.cluster.processes[name].wait(20)

    def wake(self):
        """They come back, and want to be measured."""
        for name in self.idle:
            address = self.lab.address(name)
            self.cluster.start(name, [os.path.join(harness.BIN, "weftd"), "run", "--state-dir",
                                      os.path.join(self.cluster.folder, name), "--listen-host", address,
                                      "--advertise-host", address, "--threads", "1", "--device", "cpu"],
                               self.lab.prefix(name))
        self.cluster.wait_idle(len(self.idle))

    def way(self, a, b):
        ends = self.lab.place[a], self.lab.place[b]
        if ends[0] == ends[1]:
            return LAN
        way, (up, down) = self.net.pairs[ends], (self.net.ends[ends[0]], self.net.ends[ends[1]])
        limits = way.get("mbit_s"), up.get("up_mbit_s"), down.get("down_mbit_s")
        return {"mbit_s": min(limit for limit in limits if limit), "delay_ms": way["delay_ms"]}

    def grow_old(self):
        """Rows of the broker's store as if every way had been measured, as it is, a while ago."""
        then = int(1000 * time.time()) - AGO_MS
        with sqlite3.connect(os.path.join(self.cluster.folder, "broker", "broker.db")) as store:
            for a in self.lab.place:
                for b in self.lab.place:
                    if a == b:
                        continue
                    way = self.way(a, b)
                    record = {"trips": [[then, 2e-3 * way["delay_ms"]]],
                              "samples": [[then, 1e6, 8 / way["mbit_s"]]], "probed_ms": then, "carried": [0, 0.0]}
                    store.execute("INSERT OR REPLACE INTO links VALUES(?,?,?,?)",
                                  (self.cluster.peer_ids[a], self.cluster.peer_ids[b], then, json.dumps(record)))
        store.close()

    def probes(self):
        """So many the broker was told of, by outcome."""
        found = re.findall(r'weft_probe_results_total\{outcome="(\w+)"\} (\d+)', self.lab.metrics())
        return {outcome: int(count) for outcome, count in found}

    def bytes_of(self, end):
        """Through its device, both ways, since it exists."""
        namespace, _, device = self.lab.where[end]
        files = [f"/sys/class/net/{device}/statistics/{way}_bytes" for way in ("tx", "rx")]
        said = subprocess.run(["ip", "netns", "exec", namespace, "cat", *files], capture_output=True, text=True,
                              check=True)
        return [int(line) for line in said.stdout.split()]
