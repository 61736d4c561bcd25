"""Several workers of one process, which run together."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from fdbqueue.worker.health import serving_health
from fdbqueue.worker.signals import stopping_on_signals
from fdbqueue.worker.slots import Slots
from fdbqueue.worker.worker import Worker, WorkerReport, held_jobs, share_slots, trouble_of


def run_together(
    workers: Sequence[Worker],
    *,
    concurrency: int,
    weights: Sequence[float] | None = None,
    drain: bool = False,
    health: int | str | None = None,
) -> WorkerReport:
    """Run workers in threads until all of them have ended; the error of one stops the others.

    In the main thread, SIGTERM and SIGINT stop all of them.

    Args:
        workers: The workers. A free slot goes to the first of them whose queue has jobs.
        concurrency: The number of jobs of all of them that run at a time.
        weights: The weight of each of them, by which they get slots instead of in their order.
        drain: Whether they stop once no job can be claimed and none is running.
        health: Where to answer health checks, as for `Worker.run`.

    Returns:
        The work of all of them.
    """
    errors: list[BaseException] = []
    if len(workers) > 1:  # a single one claims ahead
        slots = Slots(concurrency, by_weight=weights is not None, drain=drain)
        for worker, weight in zip(workers, weights or [1.0] * len(workers)):
            share_slots(worker, slots, weight)

    def stop() -> None:
        for worker in workers:
            worker.stop()

    def run(worker: Worker) -> None:
        try:
            worker.run(drain=drain)
        except BaseException as error:
            errors.append(error)
            stop()

    def trouble() -> str | None:
        return next(filter(None, map(trouble_of, workers)), None)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    with (
        serving_health(health, trouble),
        stopping_on_signals(stop, lambda: sum(map(held_jobs, workers))),
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    total = WorkerReport()
    for worker in workers:
        total.done += worker.report.done
        total.failed += worker.report.failed
        total.lost += worker.report.lost
    return total
