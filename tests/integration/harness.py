"""Real processes for tests: a broker, daemons and the command line, each in a folder of the test.

Every process started here is ended here, by its pid. Waiting is on events, with a deadline.
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

ROOT = os.environ.get("WEFT_SOURCE_DIR",
                      os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
BIN = os.environ.get("WEFT_BIN_DIR", os.path.join(ROOT, "build", "bin"))


class CommandFailed(AssertionError):
    def __init__(self, command, result):
        super().__init__(f"{' '.join(command)} exited {result.returncode}\n{result.stdout}\n{result.stderr}")
        self.result = result


def wait_for(what, probe, timeout_s, every_s=0.05):
    deadline = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s} s")
        time.sleep(every_s)


def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Cluster:
    """A broker and its peers. `prefix` runs a program elsewhere (ip netns exec ...)."""

    def __init__(self, folder, host="127.0.0.1", broker_flags=(), broker_prefix=(), measure=False,
                 probe=False):
        self.folder = str(folder)
        self.host = host
        self.broker_flags = list(broker_flags)
        self.broker_prefix = list(broker_prefix)
        self.cli_prefix = []
        self.processes = {}
        self.environment = dict(os.environ,
                                XDG_CONFIG_HOME=os.path.join(self.folder, "config"),
                                XDG_STATE_HOME=os.path.join(self.folder, "state"),
                                # Daemons that measure themselves would disturb what tests time.
                                WEFTD_MEASURE="true" if measure else "false",
                                WEFT_BROKER_PROBE_LINKS="true" if probe else "false")
        self.peer_ids = {}

    def __enter__(self):
        self.start_broker()
        return self

    def __exit__(self, *_):
        self.stop_all()

    # ---- processes

    def start(self, name, argv, prefix=()):
        log = open(os.path.join(self.folder, f"{name}.log"), "ab")
        process = subprocess.Popen(list(prefix) + argv, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, env=self.environment, start_new_session=True)
        log.close()
        self.processes[name] = process
        return process

    def log_of(self, name):
        with open(os.path.join(self.folder, f"{name}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def start_broker(self, http_port=0, control_port=0):
        state = os.path.join(self.folder, "broker")
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(state, "broker.json"))
        process = self.start("broker", [
            os.path.join(BIN, "weft-broker"), "run", "--state-dir", state,
            "--http-host", self.host, "--http-port", str(http_port),
            "--control-host", self.host, "--control-port", str(control_port),
            "--advertise-host", self.host] + self.broker_flags, self.broker_prefix)

        def ready():
            assert process.poll() is None, self.log_of("broker")
            with contextlib.suppress(OSError, ValueError):
                with open(os.path.join(state, "broker.json"), encoding="utf-8") as file:
                    return json.load(file)
            return None

        self.broker = wait_for("start of the broker", ready, 30)
        with open(os.path.join(state, "admin.token"), encoding="utf-8") as file:
            self.token = file.read().strip()
        self.login()

    def restart_broker(self):
        self.start_broker(self.broker["http_port"], self.broker["control_port"])

    def login(self):
        self.weft("login", f"https://{self.host}:{self.broker['http_port']}", "--ca-pin",
                  self.broker["ca_fingerprint"], "--token", self.token)

    def start_peer(self, name, prefix=(), host=None, flags=(), invite=None, device="cpu"):
        host = host or self.host
        address = invite or self.weft("peer", "invite").stdout.strip()
        return self.start(name, [
            os.path.join(BIN, "weftd"), "join", address,
            "--state-dir", os.path.join(self.folder, name), "--name", name, "--listen-host", host,
            "--advertise-host", host, "--threads", "1", "--device", device, *flags], prefix)

    def start_peers(self, count, **options):
        for i in range(count):
            self.start_peer(f"peer-{i}", **options)
        self.wait_idle(count)

    def peers(self):
        return self.weft_json("peer", "list")["peers"]

    def wait_idle(self, count, timeout_s=60):
        def idle():
            for name, process in self.processes.items():
                assert process.poll() is None or name in self.ended, self.log_of(name)
            return sum(p["state"] == "idle" for p in self.peers()) >= count
        wait_for(f"{count} idle peers", idle, timeout_s)
        self.peer_ids = {p["name"]: p["id"] for p in self.peers()}

    @property
    def ended(self):
        return getattr(self, "_ended", set())

    def worker_of(self, name, timeout_s=60):
        """The pid of a daemon's worker. `ip netns exec` replaces itself by the daemon: same pid."""
        return wait_for(f"worker of {name}",
                        lambda: next(iter(children_of(self.processes[name].pid)), None), timeout_s)

    def kill(self, name, how=signal.SIGKILL):
        process = self.processes[name]
        self._ended = self.ended | {name}
        os.kill(process.pid, how)
        if how == signal.SIGKILL:
            process.wait(10)

    def stop_all(self):
        workers = [w for p in self.processes.values() for w in children_of(p.pid)]
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                    os.kill(process.pid, signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    # ---- the command line

    def run(self, *argv, timeout_s=600):
        return subprocess.run([*self.cli_prefix, os.path.join(BIN, "weft"), *argv], capture_output=True, text=True,
                              env=self.environment, timeout=timeout_s, check=False)

    def weft(self, *argv, timeout_s=600):
        result = self.run(*argv, timeout_s=timeout_s)
        if result.returncode != 0:
            raise CommandFailed(["weft", *argv], result)
        return result

    def weft_json(self, *argv):
        return json.loads(self.weft("-o", "json", *argv).stdout)

    def job(self, name):
        return self.weft_json("job", "get", name)

    def wait_job(self, name, states, timeout_s=120, every_s=0.05):
        def reached():
            job = self.job(name)
            if job["state"] in states:
                return job
            final = {"finished", "failed", "cancelled"}
            assert job["state"] not in final, job
            return None
        return wait_for(f"job {name} in {states}", reached, timeout_s, every_s)

    def wait_step(self, name, step, timeout_s=120):
        def reached():
            job = self.job(name)
            assert job["state"] not in ("failed", "cancelled"), job
            return job["step"] >= step
        wait_for(f"step {step} of {name}", reached, timeout_s)


def python(*argv, timeout_s=600):
    result = subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=ROOT,
                            timeout=timeout_s, check=False)
    if result.returncode != 0:
        raise CommandFailed(["python", *argv], result)
    return result.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


TINY_GPT = ["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "32", "--batch", "2"]


def tiny_gpt(folder, *extra):
    path = os.path.join(folder, "gpt.pt2")
    python("examples/export_gpt.py", "--out", path, *TINY_GPT, *extra)
    return path


def tiny_tokens(folder, count=20000):
    """Token files of a text with structure enough to be learned."""
    text = os.path.join(folder, "text.txt")
    words = ["in", "the", "beginning", "was", "a", "word", "and", "light"]
    state, out = 1, []
    while sum(map(len, out)) + len(out) < count:
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[(state >> 16) % len(words)])
    with open(text, "w", encoding="ascii") as file:
        file.write(" ".join(out))
    subprocess.run([os.path.join(BIN, "weft"), "data", "tokens", "--text", text, "--out",
                    os.path.join(folder, "tokens")], check=True, capture_output=True)
    return os.path.join(folder, "tokens")


def gpt_job(folder, name="gpt", model=None, stages=2, steps=10, schedule="1f1b", batch=4, train="", gap="auto",
            pipeline=""):
    path = os.path.join(folder, f"{name}.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'''name = "{name}"
model = "{model or os.path.join(folder, "gpt.pt2")}"

[data]
train = "{folder}/tokens.train.bin"
eval = "{folder}/tokens.eval.bin"
[data.bind]
input_ids = "tokens"
labels = "tokens"

[train]
steps = {steps}
batch = {batch}
optimizer = "adamw"
lr = 1e-3
seed = 7
{train}

[pipeline]
stages = {stages}
schedule = "{schedule}"
gap = {json.dumps(gap)}
{pipeline}
''')
    return path
