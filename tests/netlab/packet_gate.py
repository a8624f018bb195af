#!/usr/bin/env python3
"""Network namespaces joined by a gate that behaves like a bad network: for each end the rates of its access line
up and down, which all its flows share, and for each ordered pair of ends a rate, a delay and a share of packets
lost (by seed). TCP keeps its round trip: packets pass, nothing is answered on the way.

An end is a veth pair: one device in the end's namespace, the other in the gate's. Their token buckets (tc tbf) are
the access line: that of the end's device its uplink, that of the gate's device its downlink. What lies between is a
delay line in this process, which reads and writes the gate's devices as packet sockets: packets of a pair leave at
the pair's rate and arrive after its delay, in order; they came when the kernel says so, not when this process, which
may wake late, looks. Its queue holds what the pair carries in 0.1 s and two delays,
and 256 KiB; what comes then is dropped, as a router does, and so do the token buckets. Pairs that name the same line
share its rate and its queue.

A program of its own, so that nothing else of the caller delays packets: reads a network as JSON from
standard input, makes it, prints the names, addresses and devices of the namespaces as one line of JSON, and takes
it away when standard input ends. Needs root.
{"seed": 1, "ends": [{"name": "a", "up_mbit_s": 20, "down_mbit_s": 200}, {"name": "b"}],
 "pairs": [{"from": "a", "to": "b", "mbit_s": 50, "delay_ms": 10, "loss": 0.001, "line": "atlantic"}]}
A pair or rate that is not given has no limit.
"""
import contextlib
import ctypes
import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time

ETH_P_IP = 0x0800
SOL_PACKET, PACKET_IGNORE_OUTGOING, PACKET_VNET_HDR = 263, 23, 15
SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 32, 33, 35
SOCKET_BUFFER = 64 << 20
# Before the packet: virtio_net_hdr, which tells how a packet of several segments is to be cut.
VNET_HEADER = 10
# Ethernet and, of a packet that stands for several segments, the headers of each further one.
ETHERNET, SEGMENT, SEGMENT_HEADERS = 14, 1448, 66
MAX_QUEUE_S, MAX_QUEUE_BYTES = 0.1, 256 * 1024


def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"packet_gate: {command}: {done.stderr.strip()}")


def enter_namespace(name):
    with open(f"/run/netns/{name}", encoding="utf-8") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"entering the namespace {name}")


def seconds_per_byte(mbit_s):
    return 8 / (mbit_s * 1e6) if mbit_s else 0.0


def token_bucket(inside, device, mbit_s, handle=1):
    """Takes the place of a bucket with another handle, without what waits there."""
    if not mbit_s:
        return
    rate = mbit_s * 1e6 / 8
    # 8 ms of the rate, less below 20 Mbit/s: there whole packets are cut into segments.
    burst = 4096 if mbit_s < 20 else max(32 * 1024, int(rate * 0.008))
    sh(f"{inside} tc qdisc replace dev {device} root handle {handle:x}: tbf rate {mbit_s}mbit "
       f"burst {burst} limit {int(rate * MAX_QUEUE_S) + MAX_QUEUE_BYTES}")


handles = itertools.count(2)


def replace_token_bucket(inside, device, mbit_s):
    # Not `tc qdisc change`: a packet that waits and is larger than the new burst would wait for ever, all others
    # behind it. Not del and add: between the two nothing limits the line, and megabytes pass.
    token_bucket(inside, device, mbit_s, next(handles))


class End:
    """A namespace with one device, and the socket of its other side."""

    def __init__(self, index, spec, prefix, whole):
        self.name, self.namespace = spec["name"], f"{prefix}{index}"
        number = bytes([79, index // 250, index % 250 + 1])
        self.address = "10." + ".".join(map(str, number))
        self.hardware = bytes([2, 0, 0]) + number
        inside, outside = f"ip netns exec {self.namespace}", f"ip netns exec {prefix}gate"
        self.device, far = self.namespace, f"{prefix}{index}g"
        sh(f"ip netns add {self.namespace}")
        sh(f"ip link add {self.device} address {self.hardware.hex(':')} netns {self.namespace} type veth "
           f"peer name {far} netns {prefix}gate")
        sh(f"{inside} ip link set lo up")
        # 1 Gbit/s over 100 ms is 12.5 MB in flight.
        sh(f"{inside} sysctl -q -w net.ipv4.tcp_wmem='4096 65536 33554432' "
           "net.ipv4.tcp_rmem='4096 131072 33554432' net.ipv6.conf.all.disable_ipv6=1")
        sh(f"{outside} sysctl -q -w net.ipv6.conf.{far}.disable_ipv6=1")
        sh(f"{inside} ip addr add {self.address}/16 dev {self.device}")
        # No ARP: whatever leaves goes to the gate, which writes the hardware address of the end it is for.
        for where, device in ((inside, self.device), (outside, far)):
            segments = "" if whole else "gso_max_segs 1"
            sh(f"{where} ip link set {device} arp off txqueuelen 2000 {segments} up")
        token_bucket(inside, self.device, spec.get("up_mbit_s"))
        token_bucket(outside, far, spec.get("down_mbit_s"))
        self.far = far

    def open(self):
        """In the gate's namespace."""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            self.socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        self.socket.bind((self.far, ETH_P_IP))
        self.fd = self.socket.fileno()


class Line:
    """What packets of one pair, or of several, wait for."""

    def __init__(self):
        self.free = 0.0  # when it has sent what it holds


class Way:
    """One ordered pair."""

    def __init__(self, pair, line):
        self.byte = seconds_per_byte(pair.get("mbit_s"))
        self.delay = pair.get("delay_ms", 0) / 1e3
        self.loss = pair.get("loss", 0)
        self.line = line


class Gate:
    def __init__(self, spec, prefix):
        self.whole = not any(pair.get("loss") for pair in spec.get("pairs", []))
        self.random = random.Random(spec.get("seed", 1))
        self.ends, self.prefix = [], prefix
        lines = {}
        self.ways = {(p["from"], p["to"]): Way(p, lines.setdefault(p.get("line", (p["from"], p["to"])), Line()))
                     for p in spec.get("pairs", [])}
        self.queue, self.order = [], 0  # (time, number, end, packet)
        self.by_address = {}
        self.spec = spec

    def open(self):
        names = {end["name"] for end in self.spec["ends"]}
        for pair in self.ways:
            if not names.issuperset(pair):
                raise SystemExit(f"packet_gate: a pair names {pair}, the ends are {sorted(names)}")
        sh(f"ip netns add {self.prefix}gate")
        for index, end in enumerate(self.spec["ends"]):
            # Packets of 64 KiB pass whole, unless some are lost: one would be 45 at once.
            self.ends.append(End(index, end, self.prefix, self.whole))
        enter_namespace(f"{self.prefix}gate")
        for end in self.ends:
            end.open()
        self.by_address = {socket.inet_aton(end.address): end for end in self.ends}

    def close(self):
        for name in ("gate", *range(len(self.spec["ends"]))):
            subprocess.run(["ip", "netns", "del", f"{self.prefix}{name}"], capture_output=True, check=False)

    @staticmethod
    def wire_bytes(packet):
        size = len(packet) - VNET_HEADER
        return size + max(0, -(-(size - ETHERNET - 52) // SEGMENT) - 1) * SEGMENT_HEADERS

    def push(self, when, target, packet):
        self.order += 1
        heapq.heappush(self.queue, (when, self.order, target, packet))

    def take(self, source, now):
        since_1970 = time.time() - now  # of the clock the rest runs by
        for _ in range(64):
            try:
                packet, said, _, _ = source.socket.recvmsg(70000, 64)
            except BlockingIOError:
                return
            came = now
            for level, kind, stamp in said:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("qq", stamp)
                    came = min(now, seconds - since_1970 + nanoseconds * 1e-9)
            start = VNET_HEADER + ETHERNET
            target = self.by_address.get(packet[start + 16:start + 20])
            if target is None or target is source:
                continue
            packet = packet[:VNET_HEADER] + target.hardware + source.hardware + packet[start - 2:]
            way = self.ways.get((source.name, target.name))
            if way is None:
                self.push(came, target, packet)
                continue
            gone = max(came, way.line.free) + self.wire_bytes(packet) * way.byte
            lost = way.loss and len(packet) > 200 and self.random.random() < way.loss
            if lost or gone - came > MAX_QUEUE_S + 2 * way.delay + MAX_QUEUE_BYTES * way.byte:
                continue
            way.line.free = gone
            self.push(gone + way.delay, target, packet)

    def arrive(self, now):
        while self.queue and self.queue[0][0] <= now:
            _, _, target, packet = heapq.heappop(self.queue)
            with contextlib.suppress(OSError):  # its downlink's queue is full
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
        print(json.dumps([{"name": e.name, "namespace": e.namespace, "address": e.address, "device": e.device}
                          for e in gate.ends]), flush=True)
        gate.run()
    finally:
        gate.close()


if __name__ == "__main__":
    main()
