"""A real headless ComfyUI with this checkout in its custom_nodes, and a small client for its API.

Standard library only. The server gets a base folder of its own: models, outputs, user files and custom nodes of the
person's ComfyUI are neither read nor written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .setup import ROOT, Installed, SetupError, find

WEIGHTS = ROOT / "demo" / "weights"
CLIENT = "carnator"  # as whom prompts are queued; the host answers on the websocket of that name
_NOT_THE_PACK = (".git", ".github", "__pycache__", "out", "node_modules", ".venv", "venv", ".*_cache", ".hypothesis")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# The server ends with whoever started it, however that ended: its standard input closes, and it leaves.
_LAUNCH = """
import os, runpy, sys, threading
def leave_with_parent():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=leave_with_parent, daemon=True).start()
sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class HostError(RuntimeError):
    """What the host answered instead of a result, in words a creator understands."""


def lay_out(base: Path) -> None:
    """Make `base` a base directory for ComfyUI: the pack under custom_nodes, the demo's weights among the models."""
    for folder in ("custom_nodes", "models/diffusion_models", "models/vae", "input", "output", "temp", "user"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    _link(ROOT, base / "custom_nodes" / "carnator")
    for weights in sorted(WEIGHTS.glob("*.safetensors")):
        kind = "vae" if "vae" in weights.stem.lower() else "diffusion_models"
        _link(weights, base / "models" / kind / weights.name)


def _link(source: Path, target: Path) -> None:
    """A symbolic link, or a copy where the system or the file system has none."""
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    try:
        target.symlink_to(source, target_is_directory=source.is_dir())
    except OSError:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_THE_PACK))
        else:
            shutil.copy2(source, target)


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Host:
    """A running ComfyUI, as a context manager: started on entry, stopped by its process id on exit.

    base: its base directory; None makes one that is removed on exit. port: None takes a free one. cpu: False lets the
    host use the GPU. offline: leave out the nodes that call remote services, which also starts faster. arguments and
    environment: further ones for the server's process. timeout: seconds to wait until it answers.
    Entry raises SetupError when there is no ComfyUI and HostError, with the log's end, when it does not come up.
    """

    def __init__(
        self,
        base: Path | None = None,
        *,
        installed: Installed | None = None,
        port: int | None = None,
        cpu: bool = True,
        offline: bool = True,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._installed = installed
        self._temporary = tempfile.TemporaryDirectory(prefix="carnator-host-") if base is None else None
        self.base = Path(self._temporary.name) if self._temporary else Path(base or ".").resolve()
        self._fixed_port = port
        self.port = port or 0
        self._arguments = [*(["--cpu"] if cpu else []), *(["--disable-api-nodes"] if offline else []), *arguments]
        self._environment = dict(environment or {})
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._object_info: dict[str, Any] | None = None

    def __enter__(self) -> Host:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        installed = self._installed or find()
        if installed is None:
            raise SetupError("there is no ComfyUI yet: python3 run.py demo (or test, or comfy) sets one up")
        lay_out(self.base)
        for attempt in range(3):
            self.port = self._fixed_port or free_port()
            try:
                self._launch(installed)
                self._wait_until_ready()
                return
            except BaseException as error:
                self._end_process()
                # Between finding a free port and binding it another program may take it.
                taken = isinstance(error, HostError) and "address already in use" in str(error).lower()
                if not taken or self._fixed_port or attempt == 2:
                    if self._temporary:
                        self._temporary.cleanup()
                    raise

    def _launch(self, installed: Installed) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")}
        environment |= {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"} | self._environment
        command = [str(installed.python), "-c", _LAUNCH, str(installed.comfy / "main.py")]
        command += ["--listen", "127.0.0.1", "--port", str(self.port), "--base-directory", str(self.base)]
        command += ["--database-url", "sqlite:///:memory:", "--disable-auto-launch", *self._arguments]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=installed.comfy,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + self._timeout
        while time.monotonic() < until:
            if not self.running:
                raise HostError(f"ComfyUI ended while it started; the end of its log:\n{self.log_tail()}")
            try:
                self.get("/system_stats")
                return
            except HostError:
                time.sleep(0.25)
        raise HostError(f"ComfyUI did not answer within {self._timeout:.0f} s; the end of its log:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the server and remove a temporary base directory. May be called twice."""
        self._end_process()
        if self._temporary:
            self._temporary.cleanup()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()

    def wait_for_end(self) -> int:
        """Block until the server ends by itself; its exit status."""
        return self._process.wait() if self._process else 0

    def log_tail(self, lines: int = 30) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(_COLOURS.sub("", text).splitlines()[-lines:])

    def request(self, path: str, data: Any = None, timeout: float = 60.0) -> bytes:
        """The body of an answer: GET, or POST with `data` as JSON. Raises HostError for anything but success."""
        body = None if data is None else json.dumps(data).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        query = urllib.request.Request(self.url + path, data=body, headers=headers)
        # A proxy of the environment must never see loopback traffic.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(query, timeout=timeout) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise HostError(f"{path}: {_reason(error.read()) or error.reason}") from error
        except OSError as error:
            raise HostError(f"ComfyUI at {self.url} does not answer: {error}") from error

    def get(self, path: str) -> Any:
        return json.loads(self.request(path))

    def post(self, path: str, data: Any) -> Any:
        answer = self.request(path, data)
        return json.loads(answer) if answer.strip() else None

    def object_info(self) -> dict[str, Any]:
        """Every node type the host knows, with its inputs; asked for once."""
        if self._object_info is None:
            self._object_info = self.get("/object_info")
        return self._object_info

    def submit(self, prompt: dict[str, Any], workflow: dict[str, Any] | None = None) -> str:
        """Queue an API-format prompt; its id. `workflow` is the UI's file, kept in what the host writes."""
        data: dict[str, Any] = {"prompt": prompt, "client_id": CLIENT}
        if workflow is not None:
            data["extra_data"] = {"extra_pnginfo": {"workflow": workflow}}
        return str(self.post("/prompt", data)["prompt_id"])

    def wait(self, prompt_id: str, timeout: float = 600.0) -> dict[str, Any]:
        """The history of a queued prompt once it has ended well.

        Raises HostError with the failing node's own message, or when it is interrupted, not done within `timeout`
        seconds (it is then interrupted), or the server ends.
        """
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            history = self.get(f"/history/{prompt_id}").get(prompt_id)
            if history is not None:
                _raise_failure(history)
                return dict(history)
            if not self.running:
                raise HostError(f"ComfyUI ended while it rendered; the end of its log:\n{self.log_tail()}")
            time.sleep(0.1)
        self.post("/interrupt", {"prompt_id": prompt_id})
        raise HostError(f"not done after {timeout:.0f} s")

    def run(self, prompt: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
        """submit and wait."""
        return self.wait(self.submit(prompt), timeout)

    def view(self, file: Mapping[str, str]) -> bytes:
        """The content of a result file, named as in a history's outputs: filename, subfolder, type."""
        wanted = {k: file.get(k, "") for k in ("filename", "subfolder", "type")}
        return self.request("/view?" + urllib.parse.urlencode(wanted))


def _reason(body: bytes) -> str:
    """The host's refusal of a prompt as one line, with the nodes that it concerns."""
    try:
        answer = json.loads(body)
        parts = [str(answer["error"]["message"] if isinstance(answer["error"], dict) else answer["error"])]
        if isinstance(answer["error"], dict) and answer["error"].get("details"):
            parts[0] += f" ({answer['error']['details']})"
        for number, node in answer.get("node_errors", {}).items():
            said = "; ".join(f"{e['message']}: {e['details']}" for e in node["errors"])
            parts.append(f"{node['class_type']} #{number}: {said}")
        return " | ".join(parts)
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace").strip()


def _raise_failure(history: Mapping[str, Any]) -> None:
    for kind, message in history.get("status", {}).get("messages", []):
        if kind == "execution_error":
            raise HostError(f"{message['node_type']} #{message['node_id']}: {message['exception_message'].strip()}")
        if kind == "execution_interrupted":
            raise HostError("the render was interrupted")
