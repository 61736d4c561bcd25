"""`fdbq work` hashes each file of a tree once, although workers are killed."""

from __future__ import annotations

import encodings
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from tests.support.leases import let_versions_pass
from tests.support.shell import Shell
from tests.support.waiting import MAX_WAIT, wait_until

TREE = os.environ.get("FDBQ_WORKER_TREE", "")
"""By default a package, with a pause for each file; by hand a large tree such as /usr."""

HASHES = """
import hashlib, os, time
from fdbqueue import Subspace

found = Subspace(rawPrefix=bytes.fromhex(os.environ["FOUND"]))

def sha256(tr, item):
    time.sleep(float(os.environ["PAUSE"]))
    while item.value == os.environ["LAST"] and os.path.exists("hold"):
        time.sleep(0.01)
    with open(item.value, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    tr[found.pack(("digest", item.value))] = digest.encode()
    tr.add(found.pack(("times", item.value)), bytes([1, 0, 0, 0]))
"""


@pytest.fixture
def fdbq(db: Any, shared_url: str, name: str, tmp_path: Path, space: Subspace) -> Shell:
    shell = Shell(tmp_path, shared_url, name)
    shell.environment |= {"FOUND": space.key().hex(), "PAUSE": "0" if TREE else "0.02"}
    (tmp_path / "hashes.py").write_text(HASHES)
    return shell


def test_each_file_of_a_tree_is_hashed_once_although_workers_are_killed(
    fdbq: Shell, db: Any, name: str, space: Subspace
) -> None:
    tree = Path(TREE or encodings.__path__[0])
    walked = (Path(where, file) for where, _, files in os.walk(tree) for file in files)
    paths = [str(path) for path in walked if path.is_file() and not path.is_symlink()]
    fdbq.output("import", name, stdin="\n".join(map(json.dumps, paths)))
    digests = space["digest"].range()
    fdbq.environment["LAST"] = paths[-1]
    hold = fdbq.path / "hold"
    hold.touch()  # so that the workers are killed before they finish

    def start(*options: str) -> subprocess.Popen[bytes]:
        work = ["work", name, "hashes:sha256", "--concurrency", "2", "--lease", "2", *options]
        return subprocess.Popen(
            [sys.executable, "-m", "fdbq", *work],
            stdout=subprocess.DEVNULL,
            env=fdbq.environment,
            cwd=fdbq.path,
        )

    workers = [start() for _ in range(4)]
    half, longest = len(paths) / 2, MAX_WAIT + len(paths) / 50
    wait_until(lambda: PriorityQueue.named(db, name).size(db) <= half, longest)
    for number, worker in enumerate(workers):
        worker.kill() if number % 2 else worker.terminate()
    hold.unlink()
    codes = [worker.wait(60) for worker in workers]
    assert codes == [0, -9, 0, -9]
    done = len(list(db[digests.start : digests.stop]))
    assert 0 < done < len(paths)
    queue = PriorityQueue.named(db, name)
    let_versions_pass(db, 2.5)  # the leases of the killed workers have expired
    workers = [start("--drain") for _ in range(4)]
    assert [worker.wait(120 + len(paths) / 50) for worker in workers] == [0] * 4

    assert queue.claim(db) is None
    assert check(db, queue).ok
    found = {
        space["digest"].unpack(row.key)[0]: row.value.decode()
        for row in db[digests.start : digests.stop]
    }
    expected = subprocess.run(
        ["xargs", "-0", "sha256sum", "--zero"],
        input="\0".join(paths).encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    assert found == {line[66:]: line[:64] for line in expected.split("\0") if line}
    times = space["times"].range()
    counted = [row.value for row in db[times.start : times.stop]]
    assert counted == [bytes([1, 0, 0, 0])] * len(paths)
    print(f"{len(paths):,} files, {done:,} of them before the workers were killed")
