"""The networks of the laboratory: who is there, over which lines. A network is data, most of them the peers.toml and
links.csv that `weft plan` reads (networks/); it becomes namespaces (packet_gate.py), those two files again for the
broker, and a scenario for `weft simulate`."""
import contextlib
import csv
import json
import math
import os
import subprocess
import sys
import tomllib

from packet_gate import replace_token_bucket

HERE = os.path.dirname(os.path.abspath(__file__))
GATE = os.path.join(HERE, "packet_gate.py")
NETWORKS = os.path.join(HERE, "networks")
# Not ours to publish: beside the checkout, or where the variable says.
AWS_TABLE = os.environ.get("WEFT_AWS_REGIONS") or os.path.join(HERE, "../../../shared/data/aws_10_regions.csv")

# Of a line's rate, what one measures on it (iperf3): a segment of 1448 bytes takes 1514 on the wire.
# That is what the planner's files have, as docs/planning.md says.
PAYLOAD = 1448 / 1514


def measured(mbit_s):
    return round(mbit_s * PAYLOAD, 3)


class Missing(Exception):
    """The measurements that a network is made of are not here; says which and how to get them."""


class Network:
    """ends: {name: {"up_mbit_s", "down_mbit_s"}}; pairs: {(from, to): {"mbit_s", "delay_ms", "loss",
    "line"}}, ordered; those of one line share its rate. One more end, `broker`, reaches everybody at once."""

    def __init__(self, ends, pairs, seed=1):
        self.ends, self.pairs, self.seed = ends, pairs, seed

    def spec(self):
        return {"seed": self.seed,
                "ends": [{"name": name, **line} for name, line in [*self.ends.items(), ("broker", {})]],
                "pairs": [{"from": a, "to": b, **way} for (a, b), way in self.pairs.items()]}

    @contextlib.contextmanager
    def up(self):
        """Gives {name: (namespace, address, device)}; the network is gone afterwards."""
        with subprocess.Popen([sys.executable, GATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as gate:
            try:
                gate.stdin.write(json.dumps(self.spec()) + "\n")
                gate.stdin.flush()
                line = gate.stdout.readline()
                if not line:
                    raise RuntimeError("the packet gate did not start; it needs root and /dev/net/tun")
                yield {e["name"]: (e["namespace"], e["address"], e["device"]) for e in json.loads(line)}
            finally:
                gate.stdin.close()
                gate.wait(30)

    @staticmethod
    def set_uplink(end, mbit_s):
        """Another rate for an access line while the network is up, without what is queued; end: as up() gives it."""
        namespace, _, device = end
        replace_token_bucket(f"ip netns exec {namespace}", device, mbit_s)

    def links_csv(self):
        """Ordered pairs, as docs/planning.md has them."""
        rows = ["from,to,latency_ms,bandwidth_mbit_s"]
        for (a, b), way in self.pairs.items():
            rows.append(f"{a},{b},{way['delay_ms']},{measured(way['mbit_s'])}")
        return "\n".join(rows) + "\n"

    def peers_toml(self, gflops=None):
        """Peers with their access lines, and how fast they are: each, or by name."""
        speeds = gflops if isinstance(gflops, dict) else dict.fromkeys(self.ends, gflops)
        lines = []
        for name, access in self.ends.items():
            lines += ["[[peer]]", f'id = "{name}"', *(f"{key} = {measured(rate)}" for key, rate in access.items())]
            lines += [f"gflops = {speeds[name]}"] if speeds.get(name) else []
        return "\n".join(lines) + "\n"

    def scenario_toml(self, gflops, job_file, steps):
        """One job on this network for `weft simulate`, beside links.csv: each end is a site with one peer, of that
        speed by name. Messages with the broker take no time, as nearly here."""
        sites = [*self.ends, "broker"]
        lines = [f"seed = {self.seed}", 'links_file = "links.csv"', "[broker]", 'site = "broker"', "[[link]]"]
        for name in sites:
            lines += ["[[site]]", f'name = "{name}"']
        for name, access in self.ends.items():
            lines += ["[[peers]]", 'name = "peer"', f'site = "{name}"', f"gflops = {gflops[name]}"]
            lines += [f"{key} = {measured(rate)}" for key, rate in access.items()]
        lines += ["[[job]]", f'file = "{job_file}"', f"steps = {steps}"]
        return "\n".join(lines) + "\n"


def numbers(cells):
    try:
        return [float(cell) if cell else None for cell in cells]
    except ValueError:
        return None


def read_links(path, names=()):
    """The ways of a links.csv, in the forms of docs/planning.md; names: of the rows of a matrix. Nothing is assumed of
    what it leaves out. Files tell what a connection carries of data, the gate's lines carry headers, too."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row and not row[0].lstrip().startswith("#")]

    def way(mbit_s, delay_ms):
        return {"mbit_s": mbit_s / PAYLOAD, "delay_ms": delay_ms}
    if numbers(rows[0]):
        matrix = [numbers(row) for row in rows]
        if len(matrix) != len(names) or any(len(row) != len(names) for row in matrix):
            raise ValueError(f"{path} is no matrix of {len(names)} rows and columns, one for each peer")
        return {(a, b): way(rate, 0.0) for a, row in zip(names, matrix)
                for b, rate in zip(names, row) if a != b and rate is not None}
    pairs = {}
    for cells in rows[1:]:
        row = dict(zip(rows[0], cells, strict=True))
        a, b = (next(row[key] for key in keys if key in row) for keys in (("from", "a", "region_a"), ("to", "b", "region_b")))
        rate = 1e3 * float(row["bandwidth_gbps"]) if "bandwidth_gbps" in row else float(row["bandwidth_mbit_s"])
        pairs[a, b] = way(rate, float(row.get("latency_ms", row.get("delay_ms", 0))))
        if "from" not in row:
            pairs[b, a] = pairs[a, b]
    return pairs


def read(folder):
    """The network of a folder: peers.toml, of which ids and access lines count, and links.csv, which names peers."""
    with open(os.path.join(folder, "peers.toml"), "rb") as file:
        told = tomllib.load(file)
    if "site" in told or any("site" in peer for peer in told["peer"]):
        raise ValueError(f"{folder}/peers.toml names sites: no network is made of their lines; write links of peers")
    ends = {peer["id"]: {key: peer[key] / PAYLOAD for key in ("up_mbit_s", "down_mbit_s") if peer.get(key)}
            for peer in told["peer"]}
    return Network(ends, read_links(os.path.join(folder, "links.csv"), list(ends)))


def named(name):
    """lan, sites, homes or nanogpt."""
    return read(os.path.join(NETWORKS, name))


def full(names, way):
    return {(a, b): dict(way) for a in names for b in names if a != b}


def equal_links(count, mbit_s, delay_ms):
    names = [f"p{i}" for i in range(count)]
    return Network({name: {} for name in names}, full(names, {"mbit_s": mbit_s, "delay_ms": delay_ms}))


def two_sites(per_site=2, mbit_s=50, delay_ms=15):
    """Two local networks joined by one line, which is what each site shares: here each host's part."""
    names = [f"{site}{i}" for site in "ab" for i in range(per_site)]
    pairs = {}
    for x in names:
        for y in names:
            if x == y:
                continue
            near = x[0] == y[0]
            pairs[x, y] = ({"mbit_s": 1000, "delay_ms": 0.2} if near
                           else {"mbit_s": mbit_s, "delay_ms": delay_ms})
    return Network({name: {} for name in names}, pairs)


def joined_sites(per_site=2, mbit_s=50, delay_ms=15):
    """The same where all hosts of a site do share that line, one for each direction."""
    net = two_sites(per_site, mbit_s, delay_ms)
    for (x, y), way in net.pairs.items():
        if x[0] != y[0]:
            way["line"] = f"{x[0]}>{y[0]}"
    return net


def homes_and_hub(homes=2, up_mbit_s=20, down_mbit_s=100, delay_ms=10):
    """Homes with asymmetric lines, and a machine with a fast one that all of them reach."""
    names = [f"home{i}" for i in range(homes)]
    ends = {name: {"up_mbit_s": up_mbit_s, "down_mbit_s": down_mbit_s} for name in names}
    ends["hub"] = {"up_mbit_s": 500, "down_mbit_s": 500}
    return Network(ends, full(list(ends), {"mbit_s": 1000, "delay_ms": delay_ms}))


# Latitude and longitude, degrees, of the cities that the ten regions are named after or lie at.
REGIONS = {"Oregon": (45.8, -119.7), "Virginia": (39.0, -77.5), "Ohio": (40.0, -83.0), "Tokyo": (35.7, 139.7),
           "Seoul": (37.6, 127.0), "Singapore": (1.4, 103.8), "Sydney": (-33.9, 151.2), "London": (51.5, -0.1),
           "Frankfurt": (50.1, 8.7), "Ireland": (53.3, -6.3)}
FIBRE_KM_PER_MS, DETOUR = 200, 1.5  # light in glass; cables go around what lies between
WINDOW_MBIT, MOST_MBIT_S = 54, 1150  # of one flow: a window of TCP each round trip, and the machine's own


def regions_by_distance():
    """The same ten regions where their table is not at hand: delays and rates that follow from where they lie."""
    def kilometres(a, b):
        (x, y), (u, v) = (tuple(math.radians(angle) for angle in REGIONS[name]) for name in (a, b))
        half = math.sin((u - x) / 2) ** 2 + math.cos(x) * math.cos(u) * math.sin((v - y) / 2) ** 2
        return 6371 * 2 * math.asin(math.sqrt(half))

    def way(a, b):
        delay_ms = kilometres(a, b) / FIBRE_KM_PER_MS * DETOUR
        return {"mbit_s": min(MOST_MBIT_S, 1e3 * WINDOW_MBIT / (2 * delay_ms)) / PAYLOAD, "delay_ms": delay_ms}
    return Network({name: {} for name in sorted(REGIONS)},
                   {(a, b): way(a, b) for a in REGIONS for b in REGIONS if a != b})


def aws_regions(path=AWS_TABLE):
    """Ten AWS regions, one peer each, from a table of pairs: region_a,region_b,delay_ms,bandwidth_gbps."""
    try:
        pairs = read_links(path)
    except OSError as error:
        raise Missing(f"no table of the AWS regions: {error}; name one in WEFT_AWS_REGIONS") from error
    return Network({name: {} for name in sorted({name for pair in pairs for name in pair})}, pairs)
