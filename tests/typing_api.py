"""The public types, as mypy and pyright see them. Nothing here runs.

Each `ignore` marks a line that must be an error: both checkers report an ignore that they do not
need.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import fdbqueue
from fdbqueue import (
    Claim,
    Database,
    Item,
    PriorityQueue,
    Queue,
    Subspace,
    Task,
    TaskPriority,
    TaskQueue,
    Transaction,
    Worker,
    WorkerReport,
    aio,
    embedded,
    jobs,
    testing,
    transactional,
)
from fdbqueue.queue.deployment import Difference
from fdbqueue.queue.steps import Signal
from fdbqueue.types import DeadJob, ItemInfo, Options, TaskStats, Transactor


def opening() -> None:
    db = fdbqueue.open("embedded:jobs")
    assert_type(db, Database)
    assert_type(fdbqueue.open(), Database)
    assert_type(fdbqueue.open("memory:"), embedded.Database)
    assert_type(db.create_transaction(), Transaction)
    assert_type(db[b"k"], bytes | None)
    takes: Transactor = embedded.Database(None)
    assert_type(PriorityQueue.named(takes, "jobs"), PriorityQueue)


def registry(db: Database) -> None:
    assert_type(fdbqueue.admin.queue_names(db), list[str])
    assert_type(fdbqueue.existing_queue(db, "jobs"), PriorityQueue | Queue | TaskQueue)
    assert_type(fdbqueue.admin.overview(db), dict[str, fdbqueue.types.QueueStats])
    report = fdbqueue.admin.check(db, PriorityQueue.named(db, "jobs"))
    assert_type(report, fdbqueue.admin.CheckReport)
    assert_type(fdbqueue.__version__, str)
    fdbqueue.admin.overview("db")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def priority_queue(db: Database, tr: Transaction) -> None:
    q = PriorityQueue.named(db, "jobs", priorities=(int, float), codec="json")
    assert_type(q, PriorityQueue)
    assert_type(PriorityQueue.existing(db, "jobs"), PriorityQueue)
    assert_type(q.push(db, {"any": "value"}, (1, 2.5)), Item)
    assert_type(q.push(tr, 1, unique="k", unique_until="claimed"), Item)
    assert_type(q.push_many(tr, [1, 2], priorities=[1, 2], unique=["k", None]), list[Item])
    assert_type(q.pop(db), Item | None)
    assert_type(q.pop_max(tr, wait=1), Item | None)
    assert_type(q.pop_many(tr, 2), list[Item])
    assert_type(q.peek(tr), Item | None)
    assert_type(q.items(tr, after="id"), Iterator[Item])
    assert_type(q.claim(tr, n=2), Claim[Item] | None)
    assert_type(q.options(tr), Options)
    assert_type(q.items(tr, state="dead"), Iterator[ItemInfo])
    assert_type(q.size(tr), int)
    assert_type(q.peek(tr.snapshot), Item | None)
    q.push("not a db", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    q.push(db, 1, prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    q.pop(3.14)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    q.pop(tr.snapshot)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    q.push(db, 1, ttl=b"1m")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    q.configure(db, maxsize=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    q.search(db, state="dead", errors="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    q.schedules.add(db, "s", 1, cronn="")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PriorityQueue.named(db, "jobs", keeps=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PriorityQueue.named("db", "jobs")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Page:
    """A value."""


class Pages:
    """A codec of pages."""

    def encode(self, value: Page, /) -> bytes:
        return b""

    def decode(self, payload: bytes, /) -> Page:
        return Page()


def typed_values(db: Database, tr: Transaction) -> None:
    q = PriorityQueue.named(db, "pages", codec=Pages())
    assert_type(q, PriorityQueue[Page])
    assert_type(Queue.named(db, Subspace(("pages",)), codec=Pages()), Queue[Page])
    declared: PriorityQueue[Page] = PriorityQueue.named(db, "pages")
    assert_type(declared.push(db, Page()), Item[Page])
    assert_type(q.push(tr, Page(), group="ada"), Item[Page])
    assert_type(q.pop(tr), Item[Page] | None)
    assert_type(q.items(tr), Iterator[Item[Page]])
    assert_type(q.claim(tr), Claim[Item[Page]] | None)
    if claim := q.claim(tr):
        assert_type(claim.item.value, Page)
        assert_type([each.item.value for each in claim], list[Page])
    q.push(db, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks: TaskQueue[Page] = TaskQueue.named(db, "tasks")
    assert_type(tasks.pop(tr), Task[Page] | None)
    assert_type(tasks.claim(tr), Claim[Task[Page]] | None)
    tasks.push(db, payload=Page())
    tasks.push(db, payload=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def typed_handlers(
    db: Database,
    q: PriorityQueue[Page],
    one: Callable[[Item[Page]], int],
    two: Callable[[Transaction, Item[Page]], None],
    of_attempt: Callable[[jobs.Context], None],
    other: Callable[[Item[int]], None],
    free: Callable[[int, str], None],
) -> None:
    Worker(db, q, of_attempt, timeout="1m", grace=5)
    Worker(db, q, one)
    Worker(db, q, two)
    Worker(db, q, other)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Worker(db, q, free)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def fifo(db: Database) -> None:
    q = Queue.named(db, "mail")
    assert_type(q, Queue)
    assert_type(q.enqueue(db, 1), Item)
    assert_type(q.dequeue(db), Item | None)
    q.enqueue(db, 1, priority=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    q.pop_max(db)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert_type(q.update(db, "id", value=3, delay="5m"), Item)
    Queue.named(db, "mail", priorities=int)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def task_queue(db: Database, tr: Transaction) -> None:
    q = TaskQueue.named(db, "tasks")
    assert_type(q, TaskQueue)
    assert_type(q.push(db, priority=TaskPriority.HIGH, payload=[1]), str | None)
    assert_type(q.pop(tr), Task | None)
    assert_type(q.pop_many(tr, 2), list[Task])
    assert_type(q.get_all_tasks(tr), Iterator[Task])
    assert_type(q.counts(tr), dict[TaskPriority, int])
    assert_type(q.get_stats(tr), TaskStats)
    q.push(db, prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(q.update(db, "id", priority=3, payload=1, group=None), Task)
    q.update(db, "id", prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def asynchronous(db: Database) -> None:
    q = await aio.PriorityQueue.named(db, "jobs")
    assert_type(q, aio.PriorityQueue)
    assert_type(await q.push(db, 1), Item)
    assert_type(await q.pop(db), Item | None)
    assert_type(await q.pop_many(db, 2, wait=1), list[Item])
    assert_type(await q.claim(db), Claim[Item] | None)
    assert_type(await q.items(db), list[Item])
    assert_type([item async for item in q.items(db, limit=2)], list[Item])
    assert_type(await q.items(db, state="dead", job="send"), list[ItemInfo])
    assert_type(await q.options(db), Options)
    await q.push(db, 1, prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await q.search(db, state="dead", errors="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mail = await aio.Queue.existing(db, "mail")
    assert_type(mail, aio.Queue)
    assert_type(await mail.enqueue(db, 1), Item)
    tasks = await aio.TaskQueue.named(db, Subspace(("tasks",)))
    assert_type(tasks, aio.TaskQueue)
    assert_type(await tasks.push(db, payload=1), str | None)
    await tasks.push(db, prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(await aio.existing_queue(db, "jobs"), aio.PriorityQueue | aio.Queue | aio.TaskQueue)
    assert_type(await aio.run(fdbqueue.admin.queue_names, db), list[str])
    assert_type(await aio.Worker(db, q, print).run(drain=True), WorkerReport)
    aio.Worker(db, PriorityQueue.named(db, "jobs"), print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pages: aio.PriorityQueue[Page] = await aio.PriorityQueue.named(db, "pages", codec=Pages())
    assert_type(await pages.push(db, Page()), Item[Page])
    assert_type(await pages.items(db), list[Item[Page]])
    await pages.push(db, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@transactional
def work(tr: Transaction, key: bytes, *, again: bool = False) -> int:
    tr.add(key, b"\1")
    return len(tr[key])


@transactional(receipts=Subspace(("receipts",)))
def work_once(tr: Transaction, key: bytes) -> int:
    return work(tr, key)


@transactional(receipts=Subspace(("receipts",)))
def end_once(tr: Transaction, claim: Claim) -> int:
    return len(claim)


class Service:
    @transactional
    def work(self, tr: Transaction, key: bytes) -> int:
        return work(tr, key)

    @transactional(receipts=Subspace(("receipts",)))
    def work_once(self, tr: Transaction, key: bytes) -> int:
        return work(tr, key)


def transactions(db: Database, tr: Transaction, service: Service) -> None:
    assert_type(work(db, b"k"), int)
    assert_type(work(tr, b"k", again=True), int)
    assert_type(work_once(db, b"k"), int)
    work_once(db, "k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    end_once(db, "claim")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(service.work(db, b"k"), int)
    assert_type(service.work_once(tr, b"k"), int)
    service.work("nonsense", b"k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    work(db, "text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    work(db, b"k", repeat=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def worker(db: Database, queue: TaskQueue, handler: Callable[[Task], Any]) -> None:
    assert_type(Worker(db, queue, handler).run(drain=True), WorkerReport)
    Worker("db", queue, handler)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Worker(db, "tasks", handler)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Worker(db, queue, handler, leese=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


app = jobs.App("embedded:shop")
jobs.App("https://queues.example:8080", token="secret", repeat_for="5s")


@app.job(queue="mail", retry=jobs.Retry(attempts=8, first="2s", longest="1h", on=(OSError,)))
def send(to: str, *, subject: str, delay: int = 0) -> int:
    return len(to + subject) + delay


@app.job()
async def fetch(address: str) -> bytes:
    return address.encode()


@app.job()
def store(tr: Transaction, page: bytes) -> list[int]:
    tr[b"page"] = page
    return [len(page)]


@app.job()
def build(context: jobs.Context, target: str) -> str:
    context.at_end(store.function, target.encode())
    return f"{target} {context.attempt}"


def note(tr: Transaction, target: str, *, n: int) -> int:
    return n


async def fetch_text(url: str) -> str:
    return url


def steps_of_a_job(context: jobs.Context) -> None:
    assert_type(context.step("count", len, "abc"), int)
    assert_type(context.commit("note", note, "target", n=3), int)
    careful = context.using(retry=jobs.Retry(attempts=3))
    assert_type(careful.commit("note again", note, "target", n=3), int)
    context.step("no argument", note)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    context.commit("note", note, 3, n=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(context.wait("shipped", timeout="3d"), Signal)
    assert_type(context.run("send", send, "ada@example.com", subject="hi"), int)
    assert_type(context.gather("send", [send.bind("a", subject="b")]), list[int])
    some = context.gather("fetch", [fetch.bind("https://example.com")], return_errors=True)
    assert_type(some, list[bytes | jobs.ChildFailed])
    context.run("send", send, subject=7)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


async def steps_of_a_coroutine(context: jobs.Context) -> None:
    assert_type(await context.aio.step("fetch", fetch_text, "https://example.com"), str)
    assert_type(await context.aio.commit("note", note, "target", n=3), int)
    assert_type(await context.aio.run("fetch", fetch, "https://example.com"), bytes)
    assert_type(await context.aio.gather("send", [send.bind("a", subject="b")]), list[int])


@app.middleware
def around(context: jobs.Context) -> Iterator[None]:
    assert_type(context.job, str)
    yield


def no_middleware(context: jobs.Context) -> None: ...


@app.lifespan
async def resources() -> AsyncIterator[dict[str, str]]:
    yield {}


@app.job()
def look_up(context: jobs.Context[dict[str, str]], word: str) -> str:
    return assert_type(context.state[word], str)


def no_lifespan() -> None: ...


@app.job()
def alert(context: jobs.Context, dead: DeadJob) -> None: ...


@app.job(aliases=["send"], on_dead=alert.using(queue="alerts"))
def told(number: int) -> int:
    return number


def declared_jobs(tr: Transaction) -> None:
    assert_type(told.push(1).result(), int)
    app.job(on_dead=note)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.middleware(no_middleware)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    app.lifespan(no_lifespan)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    assert_type(look_up.push("word"), jobs.Handle[str])
    assert_type(send("ada@example.com", subject="hi"), int)
    assert_type(send.push("ada@example.com", subject="hi", delay=3), jobs.Handle[int])
    with app.batch(then=fetch, args=["https://example.com"], on_dead="cancel") as batch:
        batch.push(send, "ada@example.com", subject="hi")
        batch.push(send.using(priority=1), "ada@example.com", subject="hi", delay=3)
        batch.push_many(send, [send.bind("a", subject="b")])
        batch.push(send, subject=7)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    assert_type(batch.handle.result(), bytes)
    assert_type(batch.progress().done, int)
    assert_type(send.using(tr, delay="5m", priority=1).push("a", subject="b"), jobs.Handle[int])
    assert_type(send.push_many([send.bind("a", subject="b")]), list[jobs.Handle[int]])
    after = [fetch.push("https://example.com")]
    assert_type(send.using(after=after).push("a", subject="b"), jobs.Handle[int])
    assert_type(fetch.push("https://example.com").result(wait=10), bytes)
    assert_type(store.push(b"page").result(), list[int])
    assert_type(build.push("all").state(), fdbqueue.types.State | None)
    assert_type(app.work("mail", drain=True), WorkerReport)
    app.work("mail", "jobs", at_most={"jobs": 2}, weights={"mail": 3, "jobs": 0.5}, health=9200)
    assert_type(app.queue("mail"), PriorityQueue)
    app.queue("mail", rate=(100, "1m"), groups={"concurrency": 1})
    assert_type(app.deploy("mail", check=True), list[Difference])
    app.queue("mail", paused=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    send.push(1, subject="hi")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send.push("ada@example.com")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.push("a", subject="hi", priority=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.using(tr, delay="5m").push("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.using(unique="k", unique_until="done")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send.using(urgent=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.push(b"https://example.com")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.job(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.push(tr, b"page")  # type: ignore[call-arg,arg-type]  # pyright: ignore[reportCallIssue]
    build.push()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    page = fetch.bind("https://example.com")
    send.push_many([page])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def helpers_for_tests(db: Database) -> None:
    with testing.bound_app(app, db) as bound, testing.Clock() as clock:
        assert_type(bound, jobs.App)
        clock.advance("1h")
        assert_type(testing.drain(app, "mail", advance=clock, limit=3), testing.Drained)
        assert_type(testing.drain(app).of(send)[0].error, BaseException | None)
        assert_type(testing.assert_pushed(build, target="all"), testing.Pushed)
        assert_type(testing.pushed(fetch), list[testing.Pushed])
        testing.refute_pushed(store)
        testing.drain(app).outcomes(send.push("a", subject="b"))
        testing.drain(app, clock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        testing.assert_pushed(send.function)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
