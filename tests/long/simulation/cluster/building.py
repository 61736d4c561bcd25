"""What the simulation needs, and the shim, which is built on demand."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

_SHIM = Path(__file__).with_name("shim.cpp")
_HEADER = Path("bindings/c/foundationdb/ClientWorkload.h")
_READ_ON = "docs/design/simulation.md says what the simulation needs"


class Missing(Exception):
    """Something that the simulation needs and that is not there."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {_READ_ON}")


@dataclass(frozen=True)
class Tools:
    """What a simulation is run with.

    Attributes:
        server: The server.
        shim: The library that runs Python in it.
    """

    server: Path
    shim: Path


def find_tools() -> Tools:
    """Return the tools, after building the shim if it is new.

    Raises:
        Missing: Something is not there.
    """
    server = _path("FDB_SIMULATION_SERVER", "a server with the simulator's workloads")
    if not os.access(server, os.X_OK):
        raise Missing(f"FDB_SIMULATION_SERVER: {server} is not a program")
    source = _path("FDB_SOURCE", "a checkout of FoundationDB 7.3")
    if not (source / _HEADER).is_file():
        raise Missing(f"FDB_SOURCE: {source} has no {_HEADER}")
    try:
        import greenlet  # noqa: F401
    except ImportError:
        raise Missing("greenlet is not installed") from None
    return Tools(server, _build(source))


def _path(variable: str, what: str) -> Path:
    given = os.environ.get(variable)
    if not given:
        raise Missing(f"{variable} is not set to {what}")
    return Path(given).absolute()


def _build(source: Path) -> Path:
    library = str(sysconfig.get_config_var("LDLIBRARY"))
    if ".so" not in library:
        raise Missing(f"{sys.executable} has no shared library (its {library} is a static one)")
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("clang++", "g++")), None)
    if compiler is None:
        raise Missing("there is no C++ compiler; set CXX to that of the server")
    folder = str(sysconfig.get_config_var("LIBDIR"))
    headers = [str(source / _HEADER.parent.parent), sysconfig.get_path("include")]
    command = [
        *(compiler, "-std=c++20", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra"),
        *(f"-I{header}" for header in headers),
        *(str(_SHIM), f"-L{folder}", f"-lpython{sysconfig.get_config_var('LDVERSION')}"),
        *(f"-Wl,-rpath,{folder}", "-Wl,-z,nodelete"),  # Python cannot be unloaded
    ]
    parts = [_SHIM.read_bytes(), (source / _HEADER).read_bytes(), repr(command).encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    shim = user_cache_path("fdbqueue-simulation") / digest / "libshim.so"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        new = shim.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, "-o", str(new)], capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"{compiler} does not compile the shim: {done.stderr.strip()}")
        new.replace(shim)
    return shim
