"""The structure holds: layering, headers, documents. Run by ctest; no build needed."""
import os
import re
import shutil
import subprocess
import sys

import pytest

ROOT = os.environ.get("WEFT_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDERS = ["base", "opdag", "net", "job", "executor", "broker", "daemon", "simulate", "cli"]

PLANNER = "broker/planner"
COORDINATOR = "broker/coordinator"

# Which folders a folder's files may include from. net/ knows nothing of jobs; executor/ is reached by
# nobody: the daemon starts it as a program. broker/planner/ and broker/coordinator/ are folders of their
# own here: pure, and what `weft plan` and `weft simulate` run on the user's machine.
ALLOWED = {
    "base": {"base"},
    "opdag": {"base", "opdag"},
    "net": {"base", "opdag", "net"},
    "job": {"base", "opdag", "job"},
    "executor": {"base", "opdag", "net", "job", "executor"},
    "broker": {"base", "opdag", "net", "job", "broker", PLANNER, COORDINATOR},
    PLANNER: {"base", "opdag", "job", PLANNER},
    COORDINATOR: {"base", "opdag", "job", PLANNER, COORDINATOR},
    "simulate": {"base", "opdag", "job", PLANNER, COORDINATOR, "simulate"},
    "daemon": {"base", "opdag", "net", "job", "daemon"},
    "cli": {"base", "opdag", "net", "job", "cli", "simulate", PLANNER},
}


def tracked(*suffixes):
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [n for n in names.stdout.splitlines() if n.endswith(suffixes)]


def sources():
    return [n for n in tracked(".h", ".cpp") if n.split("/")[0] in FOLDERS]


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def includes(name):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', read(name), re.M)


def folder_of(name):
    for part in (PLANNER, COORDINATOR):
        if name.startswith(part + "/"):
            return part
    return name.split("/")[0]


def types_defined(name):
    """(namespace, name) of the classes, structs and enumerations a file defines outside of unnamed
    namespaces: those the linker takes for one wherever it meets them."""
    spaces, found = [], []
    for line in read(name).splitlines():
        opened = re.match(r"namespace( [\w:]+)? \{", line)
        if opened:
            spaces.append((opened[1] or " ").strip())
        elif re.match(r"\}  // namespace", line):
            spaces.pop()
        defined = re.match(r"(?:struct|class|enum class|enum) (?:alignas\(\w+\) )?(\w+)\b(?!::|<)[^;]*\{", line)
        if defined and "" not in spaces:
            found.append(("::".join(spaces), defined[1]))
    return found


def test_a_type_is_defined_once():
    # Two of one name in a namespace are one to the linker, which takes the members of either for both.
    places = {}
    for name in sources():
        for defined in types_defined(name):
            places.setdefault(defined, []).append(name)
    twice = [f"{'::'.join(what)}: {', '.join(where)}" for what, where in places.items() if len(where) > 1]
    assert len(places) > 200 and not twice, "\n".join(twice)


def test_includes_point_downwards():
    wrong = []
    for name in sources():
        folder = folder_of(name)
        for include in includes(name):
            target = folder_of(include)
            if "/" in include and target in ALLOWED and target not in ALLOWED[folder]:
                wrong.append(f"{name} includes {include}")
    assert not wrong, "\n".join(wrong)


def test_torch_only_in_executor():
    wrong = [f"{n} includes {i}" for n in sources() for i in includes(n)
             if re.match(r"(torch|ATen|c10)/", i) and not n.startswith("executor/")]
    assert not wrong, "\n".join(wrong)


def test_protobuf_never_in_the_worker():
    wrong = [f"{n} includes {i}" for n in sources() for i in includes(n)
             if (i.endswith(".pb.h") or i.startswith("google/protobuf"))
             and n.split("/")[0] not in ("net", "broker", "daemon", "cli")]
    assert not wrong, "\n".join(wrong)


def test_protobuf_parses_in_one_place():
    """There its log is bounded."""
    wrong = [n for n in sources() if n != "net/codec/parse.cpp"
             and re.search(r"\b(Merge(Partial)?|ParsePartial|Parse)From\w+\(", read(n))]
    assert not wrong, wrong


def test_headers_start_with_a_paragraph():
    wrong = [n for n in sources() if n.endswith(".h") and not read(n).startswith("//")]
    assert not wrong, wrong


def test_lines_and_files_stay_readable():
    wrong = []
    for name in sources():
        lines = read(name).splitlines()
        if len(lines) > 500:
            wrong.append(f"{name}: {len(lines)} lines")
        wrong += [f"{name}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1)
                  if len(line) > 100 and "http" not in line and "R\"(" not in line]
    assert not wrong, "\n".join(wrong)


def test_no_sleep_or_wall_clock_in_decisions():
    pure = [n for n in sources()
            if re.match(r"broker/(coordinator|planner)/|simulate/|opdag/|job/schedule", n)]
    wrong = [n for n in pure
             if re.search(r"sleep_for|system_clock|steady_clock|random_device|std::mutex", read(n))]
    assert not wrong, wrong


def test_system_calls_live_in_base_os():
    """Elsewhere only names: signal numbers (signal.h), pid_t (sys/types.h), a socket option that
    Asio sets (netinet/tcp.h)."""
    names_only = {"signal.h", "csignal", "sys/types.h", "netinet/tcp.h"}
    system = re.compile(r"(unistd|fcntl|pthread|sched|poll|dirent|dlfcn|termios|ifaddrs|netdb|signal"
                        r"|csignal|syscall|(sys|netinet|arpa|net|linux)/\w+)\.?h?")
    calls = re.compile(r"\b(kill|signal|raise|sigaction|sig\w+set|pthread_\w+|fork|exec[lv]p?e?|"
                       r"mkdtemp|mkstemp|waitpid|setsid|prctl|ioctl|flock|_exit)\(")
    wrong = []
    for name in sources():
        if name.startswith("base/os/"):
            continue
        wrong += [f"{name} includes {i}" for i in re.findall(r"#include <([^>]+)>", read(name))
                  if system.fullmatch(i) and i not in names_only]
        code = re.sub(r"//[^\n]*|\"(\\.|[^\"\\])*\"", "", read(name))
        wrong += [f"{name} calls {found.group()}" for found in calls.finditer(code)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS + ["tests", "examples", "bench"])
def test_folder_has_a_readme(folder):
    text = read(f"{folder}/README.md")
    assert 5 <= len(text.splitlines()) <= 60


@pytest.mark.parametrize("page", ["README.md"] + [n for n in tracked(".md") if n.startswith("docs/")])
def test_files_named_by_documents_exist(page):
    missing = []
    for name in re.findall(r"`((?:%s|docs|scripts|tests|examples|bench|cmake)/[\w./*-]*)`"
                           % "|".join(FOLDERS), read(page)):
        if "*" in name or name.endswith("/NAME"):
            continue
        if not os.path.exists(os.path.join(ROOT, name)):
            missing.append(name)
    assert not missing, f"{page} names {missing}"


def test_every_thread_is_documented():
    page = read("docs/threads.md")
    named = {n for name in sources()
             for n in re.findall(r'name(?:_this)?_thread\("([^"]+)"', read(name))}
    assert named, "no thread is named any more?"
    missing = [n for n in named if f"`{n}`" not in page]
    assert not missing, missing


def test_no_unfinished_marks():
    wrong = [n for n in sources() if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", read(n))]
    assert not wrong, wrong


def test_nothing_large_or_fetched_is_tracked():
    big = [n for n in tracked("") if os.path.getsize(os.path.join(ROOT, n)) > 300_000]
    bad = tracked(".pt2", ".safetensors", ".npy", ".bin", ".so", ".a")
    assert not big and not bad, big + bad


def scripts_of_bench():
    return [n for n in tracked("") if re.fullmatch(r"bench/[a-z_]+", n)]


# They run seldom and long: that they start at all is seen here.
@pytest.mark.parametrize("script", scripts_of_bench())
def test_a_bench_script_starts(script):
    told = subprocess.run([sys.executable, os.path.join(ROOT, script), "--help"], capture_output=True,
                          text=True, check=False, timeout=120)
    assert told.returncode == 0 and "usage:" in told.stdout, told.stderr


@pytest.mark.parametrize("unit", tracked(".service"))
def test_units_of_the_service_manager_hold(unit, tmp_path):
    text = read(unit)
    settings = re.findall(r"^([A-Za-z]+)=(.*)$", text, re.M)
    # Only the daemon hears a stop; it says itself when it is ready.
    assert ("KillMode", "mixed") in settings and ("Type", "notify") in settings
    assert ("NoNewPrivileges", "yes") in settings and dict(settings)["User"] != "root"
    program = os.path.basename(dict(settings)["ExecStart"].split()[0])
    declared = read({"weftd": "daemon", "weft-broker": "broker"}[program] + "/settings.cpp")
    prefix = program.upper().replace("-", "_") + "_"
    named = re.findall(r"--([a-z-]+)", dict(settings)["ExecStart"])
    named += [name.lower() for name in re.findall(prefix + r"([A-Z_]+)=", text)]
    assert named and all(f'{{"{name.replace("-", "_")}"' in declared for name in named), named
    if shutil.which("systemd-analyze"):
        copy = tmp_path / os.path.basename(unit)
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M))
        checked = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True,
                                 text=True, check=False)
        assert checked.returncode == 0 and os.path.basename(unit) not in checked.stderr, checked
