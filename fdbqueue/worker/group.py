"""Several workers of one process, which run together."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from fdbqueue.worker.signals import stopping_on_signals
from fdbqueue.worker.worker import Worker, WorkerReport, held_jobs


def run_together(workers: Sequence[Worker], *, drain: bool = False) -> WorkerReport:
    """Run workers in threads until all of them have ended; the error of one stops the others.

    In the main thread, SIGTERM and SIGINT stop all of them.

    Args:
        workers: The workers.
        drain: Whether each of them stops once no job can be claimed from its queue.

    Returns:
        The work of all of them.
    """
    errors: list[BaseException] = []

    def stop() -> None:
        for worker in workers:
            worker.stop()

    def run(worker: Worker) -> None:
        try:
            worker.run(drain=drain)
        except BaseException as error:
            errors.append(error)
            stop()

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    with stopping_on_signals(stop, lambda: sum(map(held_jobs, workers))):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)  # a signal that comes just before a wait does not interrupt it
    if errors:
        raise errors[0]
    total = WorkerReport()
    for worker in workers:
        total.done += worker.report.done
        total.failed += worker.report.failed
        total.lost += worker.report.lost
    return total
