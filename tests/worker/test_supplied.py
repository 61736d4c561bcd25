"""A worker supplies a context or a transaction by the class of an annotation, not by its name."""

from __future__ import annotations

import contextvars
import typing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import fdb  # noqa: F401
import pytest

import fdbqueue as q
from fdbqueue.embedded.transaction.transaction import Transaction as EmbeddedTransaction
from fdbqueue.jobs import Context
from fdbqueue.types import Item
from fdbqueue.worker.invocation import FunctionHandler, supplied

if typing.TYPE_CHECKING:
    import fdbqueue.jobs as j


@dataclass
class Transaction:
    """A class of the program's own."""

    amount: int


Ours = Context


class Handlers:
    """An object that is called, and one whose method is."""

    def method(self, context: Context) -> None: ...

    def __call__(self, context: j.Context) -> None: ...


def taking(annotation: Any) -> Any:
    """Return a function whose only parameter has this annotation."""

    def function(first) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    function.__annotations__["first"] = annotation
    return function


CONTEXTS = [Context, "Context", "q.jobs.Context", "Ours", "typing.Optional[Context]"]
CONTEXTS += [Context | None, "Context | None", "j.Context", "j.Context | None"]
CONTEXTS += [Annotated[Context, "of the attempt"]]
TRANSACTIONS = [q.Transaction, "q.Transaction | None", "q.types.Transaction"]
TRANSACTIONS += ["fdb.Transaction", EmbeddedTransaction, "typed_only.Transaction"]
OTHERS = ["Transaction", "Transaction | None", contextvars.Context, "dict[str, Context]"]
OTHERS += [Item[int], "Unknown", "Attempt", "1 / 0"]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([*map(taking, CONTEXTS), Handlers().method, partial(taking(Context))], "Context"),
        ([Handlers()], "Context"),
        ([*map(taking, TRANSACTIONS)], "Transaction"),
        ([*map(taking, OTHERS), lambda context: None, print, dict], ""),
    ],
)
def test_the_class_of_the_annotation_decides(functions: list[Any], expected: str) -> None:
    assert [supplied(function) for function in functions] == [expected] * len(functions)


def test_a_handler_may_take_an_item_of_a_class_named_context() -> None:
    assert not FunctionHandler(taking(contextvars.Context))._takes_context
    assert FunctionHandler(taking(Context))._takes_context


def test_a_handler_may_be_a_function_without_a_signature(db: Any, queue: q.PriorityQueue) -> None:
    queue.push(db, "job")
    assert q.Worker(db, queue, dir).run(drain=True) == q.WorkerReport(done=1)
