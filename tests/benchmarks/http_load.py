"""Keep an HTTP server under load: is every request answered, and does its memory stay constant?

    python -m tests.benchmarks.http_load [DATABASE] [--connections 200] [--seconds 60]

Half of the connections push, the other half pop. A connection sends its next request when the last
one is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.http import REQUESTS, queues, requests
from tests.benchmarks.report import console, print_machine


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def load(port: int, connections: int, seconds: float, pid: int) -> dict[str, Any]:
    """Return the latencies of pushes and pops, and the memory at each tenth of the time."""
    memory: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(seconds / 10)
            memory.append(resident(pid))

    watching = asyncio.create_task(watch())
    pushed, popped = await asyncio.gather(
        *(
            requests(port, REQUESTS[name], connections // 2, seconds)
            for name in ("HTTP push", "HTTP pop")
        )
    )
    watching.cancel()
    return {"pushed": pushed, "popped": popped, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "database", nargs="?", help="directory or cluster file; default: a new directory"
    )
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fdbqueue-http-load-") as directory:
        ours, theirs = context.Pipe()
        arguments = [given.database or directory, "full", theirs]
        server = context.Process(target=queues, args=arguments, daemon=True)
        server.start()
        port = ours.recv()
        assert server.pid is not None
        asyncio.run(requests(port, REQUESTS["HTTP push"], 1, 0.5))
        print_machine(Path(directory))
        console.print(f"memory before: {resident(server.pid):.0f} MB")
        done = asyncio.run(load(port, given.connections, given.seconds, server.pid))
        for name in ("pushed", "popped"):
            cuts = statistics.quantiles(done[name], n=100)
            console.print(
                f"{name}: {len(done[name]):,} requests, none failed; "
                f"median {cuts[49] * 1e3:.0f} ms, 99 % {cuts[98] * 1e3:.0f} ms, "
                f"max {max(done[name]) * 1e3:.0f} ms"
            )
        console.print("memory: " + " ".join(f"{each:.0f}" for each in done["memory"]) + " MB")


if __name__ == "__main__":
    main()
