"""What the scripts beside this file share: what a number was measured on, and a Python that has torch."""
import importlib.util
import os
import platform
import sys

VENV = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".venv")


def processors():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} x {names[0] if names else platform.machine()}"


def need_torch():
    """Goes on with the Python of .venv where this one has no torch."""
    if importlib.util.find_spec("torch"):
        return
    python = os.path.join(VENV, "bin", "python")
    name = os.path.basename(sys.argv[0])
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV) or not os.path.exists(python):
        sys.exit(f"bench/{name}: this Python ({sys.executable}) has no torch: run scripts/deps first, or start the "
                 "script with one that has it")
    os.execv(python, [python, *sys.argv])
