"""The available engines, and a database on each of them for every test that needs one.

Each test gets its own subspace and queue name, which are emptied after it, because the cluster may
hold other data.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fdb
import pytest
from fdb.subspace_impl import Subspace
from hypothesis import settings

import fdbqueue
from fdbqueue.errors import SyncFailed
from fdbqueue.testing import Clock
from tests.support.asleep import asleep  # noqa: F401
from tests.support.cleaning import left_behind, problems_of, remove
from tests.support.cluster import Cluster, NoCluster, start_or_find_cluster
from tests.support.failing_disk import disk  # noqa: F401

ENGINES = ("memory", "cluster")
"""The engines of most tests. `memory:` is the embedded engine on a file system in memory; the tests
in `embedded/` run on both."""
SHARED_ENGINES = ("embedded", "cluster")
"""The engines that other processes can share."""

# Compiled code is kept, whatever the environment says: else each of the hundreds of programs that
# the tests start compiles the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

_numbers = itertools.count()
_cluster_line = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def cluster_or_reason(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | str]:
    """Return the cluster of this run, or the reason for having none."""
    try:
        with start_or_find_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            _note(request.config, f"cluster ({cluster.source})")
            yield cluster
            if cluster.is_own:
                left = left_behind(fdbqueue.open(cluster.file))
                assert not left, f"the tests left keys behind: {left[:5]}"
    except NoCluster as error:
        _note(request.config, f"no cluster: {error}")
        yield str(error)


@pytest.fixture
def cluster(cluster_or_reason: Cluster | str) -> Cluster:
    """Return the cluster, or skip the test; with FDBQ_REQUIRE_CLUSTER=1 fail it."""
    if isinstance(cluster_or_reason, Cluster):
        return cluster_or_reason
    if os.environ.get("FDBQ_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"FDBQ_REQUIRE_CLUSTER=1, and {cluster_or_reason}")
    pytest.skip(f"no cluster: {cluster_or_reason}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test with a database on the embedded engine and on a cluster."""
    if "engine" not in metafunc.fixturenames:
        return
    if "cluster" in metafunc.fixturenames:
        metafunc.parametrize("engine", ["cluster"])
    elif "browser" in metafunc.fixturenames:
        # A page sees only HTTP, whose tests run on every engine.
        metafunc.parametrize("engine", ["embedded"])
    elif "shared_url" in metafunc.fixturenames:
        metafunc.parametrize("engine", SHARED_ENGINES)
    elif metafunc.config.getoption("--every-engine"):
        metafunc.parametrize("engine", [*ENGINES, "embedded"])
    else:
        metafunc.parametrize("engine", ENGINES)


@pytest.fixture
def engine() -> str:
    """Return the engine of this run of the test, set by `pytest_generate_tests`."""
    raise NotImplementedError


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """Return the URL of the database of this test."""
    if engine == "cluster":
        return str(request.getfixturevalue("cluster").file)
    return "memory:" if engine == "memory" else f"embedded:{tmp_path / 'db'}"


@pytest.fixture
def shared_url(url: str) -> str:
    """Return the URL of the database of this test, if other processes can open it too."""
    return url


@pytest.fixture
def db(request: pytest.FixtureRequest, url: str, space: Subspace, name: str) -> Iterator[Any]:
    """Return a database of the engine with an empty subspace for the test.

    Each test leaves its queues as `check` wants them, except a test that is marked as `damaged`.
    """
    database = fdbqueue.open(url)
    if not hasattr(database, "close"):
        # The binding shares one object per cluster file, so its options would persist.
        database = fdb.impl.create_database(url)
    yield database
    problems: list[str] = []
    with suppress(SyncFailed):  # of a test in which the disk fails
        if request.node.get_closest_marker("damaged") is None:
            problems = problems_of(database, space, name)
        remove(database, space, name)
    if hasattr(database, "close"):
        database.close()
    assert not problems


@pytest.fixture
def space() -> Subspace:
    """Return a subspace that only this test uses."""
    return Subspace(("test", os.getpid(), next(_numbers)))


@pytest.fixture
def name() -> str:
    """Return a queue name of this test; it also owns all names with this prefix."""
    return f"test-{os.getpid()}-{next(_numbers)}-"


@pytest.fixture
def queue(space: Subspace) -> fdbqueue.PriorityQueue:
    """Return an empty priority queue."""
    return fdbqueue.PriorityQueue(space["queue"])


@pytest.fixture
def jobs(db: Any, name: str) -> Any:
    """Return a priority queue with the name of the test."""
    return fdbqueue.PriorityQueue.named(db, name)


@pytest.fixture(params=["queue", "group", "all groups"])
def limit(db: Any, jobs: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Set an option that holds for the group `ada`: of the queue, of the group or of all groups."""
    if request.param == "queue":
        return lambda **option: jobs.configure(db, **option)
    group = "ada" if request.param == "group" else None
    return lambda **option: jobs.set_group(db, group, **option)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Return the clock of the queues of this process, which the test moves."""
    with Clock() as clock:
        yield clock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="repeat the tests that are random with this seed")
    parser.addoption(
        "--every-engine",
        action="store_true",
        help="run the tests in memory also on the embedded engine with files",
    )


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator whose seed is printed; `--seed` repeats it."""
    given = request.config.getoption("--seed")
    seed = random.randrange(2**32) if given is None else given
    print(f"--seed={seed}")
    return random.Random(seed)


@pytest.fixture
def fdb_error() -> Callable[[int], Any]:
    """Assert that a block raises an error with a code: `with fdb_error(1020): ...`."""

    @contextmanager
    def expected(code: int) -> Iterator[None]:
        with pytest.raises(fdbqueue.error_classes()) as error:
            yield
        assert error.value.code == code

    return expected


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let signals end the programs of the tests, although `nohup` or a shell's `&` runs the tests.

    A program inherits that a signal is ignored, but not that it is handled.
    """
    for number, handler in (
        (signal.SIGHUP, lambda *_: None),
        (signal.SIGQUIT, lambda *_: None),
        (signal.SIGINT, signal.default_int_handler),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Run more tests than there are cores, because many wait for a server, process or lease."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads the variable
    return 1 + 2 * (os.cpu_count() or 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process of xdist begin with some of the long tests.

    With `--dist=worksteal`, a process gets a part of the list of tests, of about the same length as
    the others, and runs it from the beginning.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if not processes:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    sizes = [(len(items) + number) // processes for number in range(processes)]
    items.clear()
    for number, size in enumerate(sizes):
        items += long[number::processes]
        missing = max(0, size - len(long[number::processes]))
        items += others[:missing]
        del others[:missing]
    items += others


# One line at the end of a run names its engines.


def _note(config: pytest.Config, line: str) -> None:
    config.stash[_cluster_line] = line
    if hasattr(config, "workeroutput"):
        config.workeroutput["cluster"] = line


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    line = getattr(node, "workeroutput", {}).get("cluster")
    if line is not None:
        node.config.stash[_cluster_line] = line


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    line = config.stash.get(_cluster_line, None)
    if line is not None:
        terminalreporter.write_line(f"engines: embedded, {line}")
