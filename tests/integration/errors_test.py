"""Each error a user can cause says what failed, why and what to do, and loses nothing."""
import os
import signal
import socket
import ssl
import subprocess

import pytest
import torch

import harness


def refused(cluster, *argv, code=1):
    result = cluster.run(*argv)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("weft: "), result.stderr
    return result.stderr


def export(folder, name, module, *inputs, **options):
    path = os.path.join(folder, name)
    torch.export.save(torch.export.export(module, inputs, **options), path)
    return path


class Quantizer(torch.nn.Module):
    """Quantization is not on the allow-list."""

    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).sum()


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).sum()


def test_refused_operator(cluster):
    model = export(cluster.folder, "quantizer.pt2", Quantizer(), torch.randn(4, 4))
    assert "aten::fake_quantize_per_tensor_affine" in cluster.run("model", "inspect", model).stdout
    text = refused(cluster, "job", "submit", harness.gpt_job(cluster.folder, model=model), code=3)
    assert "fake_quantize_per_tensor_affine" in text


class Pooled(torch.nn.Module):
    def forward(self, x):
        return x.mean(1).sum()


# The batch may be open (dimension 0 of every input); nothing else.
def test_dynamic_shape(cluster):
    model = export(cluster.folder, "dynamic.pt2", Pooled(), torch.randn(4, 6),
                   dynamic_shapes={"x": {1: torch.export.Dim("width")}})
    text = refused(cluster, "model", "inspect", model, code=3)
    assert "dynamic" in text and "torch.export" in text


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_truncated_archive(cluster, keep):
    with open(os.path.join(cluster.folder, "gpt.pt2"), "rb") as file:
        data = file.read()
    broken = os.path.join(cluster.folder, "broken.pt2")
    with open(broken, "wb") as file:
        file.write(data[:int(keep * len(data)) if isinstance(keep, float) else keep])
    refused(cluster, "model", "inspect", broken)


def test_unknown_key_names_the_nearest(cluster):
    job = harness.gpt_job(cluster.folder, train="warmup_step = 3")
    assert "warmup_steps" in refused(cluster, "job", "submit", job)


def test_batch_not_divisible(cluster):
    cluster.start_peers(2)
    job = harness.gpt_job(cluster.folder, batch=5)
    text = refused(cluster, "job", "submit", job)
    assert "5" in text and "2" in text and "batch" in text


def test_too_few_samples(cluster):
    cluster.start_peers(2)
    text = refused(cluster, "job", "submit", harness.gpt_job(cluster.folder, batch=100000))
    assert "sample" in text


def test_more_stages_than_nodes(cluster):
    cluster.start_peers(2)
    text = refused(cluster, "job", "submit", harness.gpt_job(cluster.folder, stages=100000))
    assert "100000" in text and "stages" in text


def test_no_peers(cluster):
    text = refused(cluster, "job", "submit", harness.gpt_job(cluster.folder), "--dry-run")
    assert "peer" in text and "invite" in text


def test_dead_broker(cluster):
    cluster.kill("broker")
    text = refused(cluster, "job", "list")
    assert "did not answer" in text


def test_wrong_token(cluster):
    result = cluster.run("login", f"https://127.0.0.1:{cluster.broker['http_port']}", "--ca-pin",
                         cluster.broker["ca_fingerprint"], "--token", "wrong")
    assert result.returncode == 1 and "token" in result.stderr
    cluster.weft("job", "list")  # the working login is still there


def test_wrong_pin(cluster):
    result = cluster.run("login", f"https://127.0.0.1:{cluster.broker['http_port']}", "--ca-pin",
                         "0" * 64, "--token", cluster.token)
    assert result.returncode == 1


def join(cluster, name, address):
    return subprocess.run(
        [os.path.join(harness.BIN, "weftd"), "join", address, "--no-run", "--state-dir",
         os.path.join(cluster.folder, name)], capture_output=True, text=True, check=False,
        env=cluster.environment, timeout=60)


def test_one_time_token_is_used_once(cluster):
    address = cluster.weft("peer", "invite").stdout.strip()
    assert join(cluster, "first", address).returncode == 0
    assert join(cluster, "first", address).returncode == 0, "the same key may retry"
    second = join(cluster, "second", address)
    assert second.returncode == 3 and "used" in second.stderr


def test_join_with_a_wrong_token_or_pin(cluster):
    address = cluster.weft("peer", "invite").stdout.strip()
    base, _, token = address.rpartition("/")
    assert join(cluster, "a", f"{base}/{'0' * len(token)}").returncode == 3
    pin = base.rpartition("/")[2]
    other = address.replace(pin, "f" * 64)
    result = join(cluster, "b", other)
    assert result.returncode == 3 and "not trusted" in result.stderr


def test_removed_peer_is_shut_out(cluster):
    cluster.start_peers(2)
    gone = cluster.peer_ids["peer-0"]
    cluster.weft("peer", "remove", gone)
    cluster._ended = {"peer-0"}
    assert cluster.processes["peer-0"].wait(30) == 3
    assert gone not in [p["id"] for p in cluster.peers() if p["state"] != "gone"]


def ask_as(state, port):
    """What the broker answers to a blob request made with the certificate in a daemon's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(os.path.join(state, "peer.pem"), os.path.join(state, "peer.key"))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        with context.wrap_socket(plain) as tls:
            tls.sendall(b"GET /api/v1/blobs/" + b"0" * 64 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            return tls.recv(65536).decode()


def test_peer_with_a_foreign_certificate(cluster, tmp_path_factory):
    """A peer of another cluster: right form, wrong authority."""
    port = cluster.broker["http_port"]
    assert join(cluster, "own", cluster.weft("peer", "invite").stdout.strip()).returncode == 0
    assert " 404 " in ask_as(os.path.join(cluster.folder, "own"), port)
    with harness.Cluster(str(tmp_path_factory.mktemp("other"))) as other:
        address = other.weft("peer", "invite").stdout.strip()
        assert join(other, "foreign", address).returncode == 0
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_as(os.path.join(other.folder, "foreign"), port)


def test_config_show_tells_origins(cluster):
    result = subprocess.run(
        [os.path.join(harness.BIN, "weftd"), "config", "show", "--origin", "--threads", "3"],
        capture_output=True, text=True, check=True,
        env=dict(cluster.environment, WEFTD_LOG_LEVEL="debug"))
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "flag" in lines["threads"] and "WEFTD_LOG_LEVEL" in lines["log_level"]
    assert "default" in lines["data_port"]


def test_idle_daemon_is_small(cluster):
    cluster.start_peers(1)
    with open(f"/proc/{cluster.processes['peer-0'].pid}/status", encoding="ascii") as file:
        status = dict(line.split(":", 1) for line in file)
    resident = int(status["VmRSS"].split()[0])
    print(f"idle weftd: {resident} kB resident")
    assert resident < 20 * 1024
    with open(f"/proc/{cluster.processes['peer-0'].pid}/maps", encoding="ascii") as file:
        assert "libtorch" not in file.read()


def test_first_sigterm_drains(cluster):
    cluster.start_peers(1)
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, stages=1, steps=60))
    cluster.wait_step("gpt", 2)
    cluster.kill("peer-0", signal.SIGTERM)
    assert cluster.wait_job("gpt", {"finished"})["step"] == 60
    assert cluster.processes["peer-0"].wait(30) == 0
