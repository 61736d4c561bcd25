"""Cluster-specific behaviour: the client library, API versions and unresponsive clusters."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import python
from tests.support.shell import Shell, error_of

EVERYTHING = """
import sys, fdb
if version := int(sys.argv[3]):
    fdb.api_version(version)
    db = fdb.open(sys.argv[1])
import fdbqueue
from fdbqueue.testing import FaultyDatabase
from recipes.priority_queue import PriorityQueue as Recipe
if not version:
    db = fdbqueue.open(sys.argv[1])
space = fdbqueue.Subspace(rawPrefix=bytes.fromhex(sys.argv[2]))
queue = fdbqueue.PriorityQueue(space["queue"])
for value, priority in [("c", 3), ("a", 1), ("b", 1)]:
    queue.push(db, value, priority)
first = queue.pop_min(db)
queue.put_back(db, [first])
queue.update(db, queue.peek_max(db), priority=0)
assert [item.value for item in queue.items(db)] == ["c", "a", "b"]
assert queue.counts(db) == {0: 1, 1: 2} and queue.size(db) == 3
queue.push(FaultyDatabase(db, after=1.0), "x" * 200_000, 9)
assert len(queue.pop_max(db, wait=5).value) == 200_000
assert fdbqueue.admin.check(db, queue, repair=True).ok
Recipe(space["recipe"]).push(db, b"value", 1)
assert Recipe(space["recipe"]).pop_min(db) == b"value"
queue.clear(db)
print(fdb.get_api_version())
"""


@pytest.mark.parametrize("version", [0, 610, 710, 730])
def test_open_accepts_another_selected_api_version(
    db: Any, cluster: Cluster, space: Any, version: int
) -> None:
    done = python(EVERYTHING, cluster.file, space.key().hex(), version)
    assert (done.stdout, done.stderr) == (f"{version or 730}\n", "")


TWO_LIBRARIES = """
import os, shutil, sys, fdb
fdb.api_version(730)
directory, variable = sys.argv[4:]
(library,) = {line.split()[-1] for line in open("/proc/self/maps") if "libfdb_c" in line}
shutil.copy(library, os.path.join(directory, "libfdb_c_second.so"))
if variable:
    os.environ[variable] = directory
else:
    fdb.options.set_external_client_directory(directory)
"""


DIRECTORY = "FDB_NETWORK_OPTION_EXTERNAL_CLIENT_DIRECTORY"


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="only Linux has /proc/self/maps")
@pytest.mark.skipif(DIRECTORY in os.environ, reason="all tests have a second client library")
@pytest.mark.parametrize("variable", ["", DIRECTORY])
def test_a_second_client_library_may_be_loaded(
    db: Any, cluster: Cluster, space: Any, tmp_path: Path, variable: str
) -> None:
    key = space.key().hex()
    done = python(TWO_LIBRARIES + EVERYTHING, cluster.file, key, 0, tmp_path, variable)
    assert (done.stdout, done.stderr) == ("730\n", "")


LS = """
from fdbq.main import main
sys.argv[1:] = ["ls", "--db", sys.argv[1]]
main()
"""

MISSING = """
import ctypes
def missing(name, *arguments, **options):
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")
ctypes.CDLL = ctypes.cdll.LoadLibrary = missing
"""

OLDER = """
import types
class Library:
    def __getattr__(self, name):
        return lambda *arguments: {"fdb_select_api_version_impl": 2203}.get(name, 710)
module = types.ModuleType("fdb.impl")
module._capi = Library()
sys.modules["fdb.impl"] = module
import fdb
fdb.impl = module
"""

NEWER_BINDING = """
import fdb
fdb.LATEST_API_VERSION = 9990  # which a client library refuses that does not know it
"""

REMOVED_FUNCTION = """
import fdb, fdb.impl
def init_c_api():
    fdb.impl._capi.fdb_function_of_another_release
fdb.LATEST_API_VERSION = 740
fdb.impl._capi.fdb_select_api_version_impl = lambda *versions: 0
fdb.impl.init_c_api = init_c_api
"""

INSTALL = "install the package foundationdb-clients"
DOES_NOT_WORK = "does not work with the client library"
PIP = "pip install 'foundationdb==7.3.*'"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (MISSING, ["the FoundationDB client library 7.3 (libfdb_c) cannot be used", INSTALL]),
        (OLDER, ["supports a maximum version of 710", INSTALL]),
        (NEWER_BINDING, ["the binding foundationdb 99.9", DOES_NOT_WORK, PIP]),
        (REMOVED_FUNCTION, ["the binding foundationdb 7.4", DOES_NOT_WORK, PIP]),
    ],
    ids=["missing", "older", "newer binding", "removed function"],
)
def test_a_client_library_that_cannot_be_used_is_reported_in_one_sentence_with_the_remedy(
    cluster: Cluster, program: str, words: list[str]
) -> None:
    sentence = error_of(python(f"import sys\n{program}{LS}", cluster.file))
    assert [each for each in words if each not in sentence] == []


def test_an_unresponsive_cluster_times_out(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "nobody.cluster"
    file.write_text("test:test@127.0.0.1:1\n")
    fdbq = Shell(tmp_path, str(file))
    began = time.monotonic()
    for arguments in (["push", "jobs", "1"], ["pop", "jobs", "--wait", "60"], ["info"]):
        message = error_of(fdbq(*arguments, "--timeout", "0.5"))
        assert "did not answer within 0.5 seconds (--timeout)" in message
        assert f"`fdbcli -C {file} --exec status`" in message
    assert time.monotonic() - began < 60
    del fdbq.environment["FDBQ_DB"]
    fdbq.environment["FDB_CLUSTER_FILE"] = str(file)
    assert "(--timeout)" in error_of(fdbq("ls", "--timeout", "0.5"))
    assert os.listdir(tmp_path) == ["nobody.cluster"]


@pytest.mark.parametrize("command", ["work", "deploy"])
def test_an_unresponsive_cluster_times_out_for_an_app(tmp_path: Path, command: str) -> None:
    file = tmp_path / "nobody.cluster"
    file.write_text("test:test@127.0.0.1:1\n")
    (tmp_path / "shop.py").write_text(
        f"import fdbqueue\napp = fdbqueue.App({str(file)!r})\napp.queue('mail', max_size=9)\n"
        "@app.job(queue='mail')\ndef send(): ...\n"
    )
    fdbq = Shell(tmp_path, str(file))
    del fdbq.environment["FDBQ_DB"]
    (*_, message) = fdbq(command, "--app", "shop:app", "--timeout", "0.5").stderr.splitlines()
    assert "did not answer within 0.5 seconds (--timeout)" in message
    assert f"`fdbcli -C {file} --exec status`" in message


FORKS = """
import os, sys, fdbqueue
from fdbqueue.errors import ClusterUnavailable
db = fdbqueue.open(sys.argv[1])
queue = fdbqueue.PriorityQueue.named(db, sys.argv[2])
queue.push(db, 1)
child = os.fork()
if child == 0:
    actions = [lambda: queue.pop(db), lambda: queue.size(db), lambda: fdbqueue.open(sys.argv[1])]
    for action in actions:
        try:
            action()
        except ClusterUnavailable as error:
            print(error)
    with fdbqueue.open("memory:") as own:
        queue.push(own, 1)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(queue.pop(db).value)
"""


def test_using_a_cluster_in_a_forked_child_raises(db: Any, cluster: Cluster, name: str) -> None:
    done = python(FORKS, cluster.file, name)
    assert done.stderr == ""
    *message, popped = done.stdout.splitlines()
    assert len(message) == 3
    assert all("open clusters after the fork" in line for line in message)
    assert popped == "1"


def test_a_malformed_cluster_file_is_reported_in_the_words_of_the_binding(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text("docker:docker@127.0.0.1\n")
    message = error_of(Shell(tmp_path, str(file))("ls", "--timeout", "1"))
    assert "onnection string" in message
