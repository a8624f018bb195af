"""weftd alone, where no cluster is needed."""
import fcntl
import os
import subprocess

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
