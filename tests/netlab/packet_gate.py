#!/usr/bin/env python3
"""Network namespaces joined by a gate that behaves like a bad network: for each ordered pair of ends a
rate, a delay and a share of packets lost (by seed), and for each end the rate of its access line, which
all its flows share. TCP keeps its round trip: packets pass, nothing is answered on the way.

The uplink of an end is a token bucket (tc tbf) on its device. Everything else is a delay line in this
process between the tun devices of the ends: packets of a pair leave at the pair's rate, arrive after
its delay, in order, and pass the downlink of the other end. A queue holds what its line carries in 0.1 s and two
delays, and 256 KiB; what comes then is dropped, as a router does.

A program of its own, so that nothing else of the caller delays packets: reads a network as JSON from
standard input, makes it, prints the names and addresses of the namespaces as one line of JSON, and takes
it away when standard input ends. Needs root.
{"seed": 1, "ends": [{"name": "a", "up_mbit_s": 20, "down_mbit_s": 200}, {"name": "b"}],
 "pairs": [{"from": "a", "to": "b", "mbit_s": 50, "delay_ms": 10, "loss": 0.001}]}
A pair or rate that is not given has no limit.
"""
import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
VNET_HEADER = 10
# Ethernet and, of a packet that stands for several segments, the headers of each further one.
ETHERNET, SEGMENT, SEGMENT_HEADERS = 14, 1448, 66
MAX_QUEUE_S, MAX_QUEUE_BYTES = 0.1, 256 * 1024


def sh(command):
    subprocess.run(command, shell=True, check=True, capture_output=True)


def seconds_per_byte(mbit_s):
    return 8 / (mbit_s * 1e6) if mbit_s else 0.0


class End:
    """A namespace with one tun device."""

    def __init__(self, index, spec, prefix, whole):
        self.name, self.index = spec["name"], index
        self.namespace = f"{prefix}{index}"
        self.address = f"10.79.{index // 250}.{index % 250 + 1}"
        self.down = seconds_per_byte(spec.get("down_mbit_s"))
        self.down_free = 0.0
        sh(f"ip netns add {self.namespace}")
        self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = IFF_TUN | IFF_NO_PI | (IFF_VNET_HDR if whole else 0)
        fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", self.namespace.encode(), flags))
        if whole:
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, 1 | 2)
        inside = f"ip netns exec {self.namespace}"
        sh(f"ip link set {self.namespace} netns {self.namespace}")
        sh(f"{inside} ip link set lo up")
        # 1 Gbit/s over 100 ms is 12.5 MB in flight.
        sh(f"{inside} sysctl -q -w net.ipv4.tcp_wmem='4096 65536 33554432' "
           "net.ipv4.tcp_rmem='4096 131072 33554432'")
        sh(f"{inside} ip addr add {self.address}/16 dev {self.namespace}")
        sh(f"{inside} ip link set {self.namespace} txqueuelen 2000 up")
        up = spec.get("up_mbit_s")
        if up:
            burst = 4096 if up < 20 else max(32 * 1024, int(up * 1e6 / 8 * 0.008))
            sh(f"{inside} tc qdisc add dev {self.namespace} root tbf rate {up}mbit burst {burst} "
               f"latency {int(1000 * MAX_QUEUE_S)}ms")


class Way:
    """One ordered pair."""

    def __init__(self, pair):
        self.byte = seconds_per_byte(pair.get("mbit_s"))
        self.delay = pair.get("delay_ms", 0) / 1e3
        self.loss = pair.get("loss", 0)
        self.free = 0.0  # when the line has sent what it holds


class Gate:
    def __init__(self, spec, prefix):
        self.whole = not any(pair.get("loss") for pair in spec.get("pairs", []))
        self.random = random.Random(spec.get("seed", 1))
        self.ends, self.prefix = [], prefix
        self.ways = {(p["from"], p["to"]): Way(p) for p in spec.get("pairs", [])}
        self.queue, self.order = [], 0  # (time, number, end or None, end, packet)
        self.by_address = {}
        self.spec = spec

    def open(self):
        for index, end in enumerate(self.spec["ends"]):
            # Packets of 64 KiB pass whole, unless some are lost: one would be 45 at once.
            self.ends.append(End(index, end, self.prefix, self.whole))
        self.by_address = {bytes(map(int, end.address.split("."))): end for end in self.ends}
        names = {end.name for end in self.ends}
        for pair in self.ways:
            if not names.issuperset(pair):
                raise SystemExit(f"packet_gate: a pair names {pair}, the ends are {sorted(names)}")

    def close(self):
        for index in range(len(self.spec["ends"])):
            subprocess.run(["ip", "netns", "del", f"{self.prefix}{index}"], capture_output=True, check=False)

    def wire_bytes(self, packet):
        size = len(packet) - (VNET_HEADER if self.whole else 0)
        return size + ETHERNET + max(0, -(-(size - 52) // SEGMENT) - 1) * SEGMENT_HEADERS

    def push(self, when, source, target, packet):
        self.order += 1
        heapq.heappush(self.queue, (when, self.order, source, target, packet))

    def take(self, source, now):
        for _ in range(64):
            try:
                packet = os.read(source.fd, 70000)
            except BlockingIOError:
                return
            start = VNET_HEADER if self.whole else 0
            if packet[start] >> 4 != 4:
                continue  # neighbour discovery of IPv6
            target = self.by_address.get(packet[start + 16:start + 20])
            if target is None:
                continue
            way = self.ways.get((source.name, target.name))
            if way is None:
                self.push(now, source, target, packet)
                continue
            gone = max(now, way.free) + self.wire_bytes(packet) * way.byte
            lost = way.loss and len(packet) > 200 and self.random.random() < way.loss
            if lost or gone - now > MAX_QUEUE_S + 2 * way.delay + MAX_QUEUE_BYTES * way.byte:
                continue
            way.free = gone
            self.push(gone + way.delay, source, target, packet)

    def arrive(self, now):
        while self.queue and self.queue[0][0] <= now:
            when, _, source, target, packet = heapq.heappop(self.queue)
            if source is not None and target.down:  # not yet through the access line
                gone = max(when, target.down_free) + self.wire_bytes(packet) * target.down
                if gone - when > MAX_QUEUE_S + MAX_QUEUE_BYTES * target.down:
                    continue
                target.down_free = gone
                self.push(gone, None, target, packet)
                continue
            with contextlib.suppress(OSError):
                os.write(target.fd, packet)

    def run(self):
        by_fd = {end.fd: end for end in self.ends}
        waiting = [*by_fd, sys.stdin.fileno()]
        while True:
            timeout = max(0.0, self.queue[0][0] - time.monotonic()) if self.queue else 1.0
            ready, _, _ = select.select(waiting, [], [], timeout)
            now = time.monotonic()
            for fd in ready:
                if fd not in by_fd:
                    return  # the caller has gone or is done
                self.take(by_fd[fd], now)
            self.arrive(time.monotonic())


def main():
    spec = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C: the caller decides
    gate = Gate(spec, f"wg{os.getpid()}-")
    try:
        gate.open()
        print(json.dumps([{"name": e.name, "namespace": e.namespace, "address": e.address}
                          for e in gate.ends]), flush=True)
        gate.run()
    finally:
        gate.close()


if __name__ == "__main__":
    main()
