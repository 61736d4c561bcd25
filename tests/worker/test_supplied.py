"""A worker supplies a context or a transaction by the class of an annotation, not by its name."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import fdb
import pytest

import fdbqueue
import fdbqueue as q
from fdbqueue import jobs, types
from fdbqueue.embedded.transaction.transaction import Transaction as EmbeddedTransaction
from fdbqueue.jobs import App, Context
from fdbqueue.types import Item
from fdbqueue.types import Transaction as Tx
from fdbqueue.worker.handler import FunctionHandler, supplied

if TYPE_CHECKING:
    from contextvars import Context as TheirContext

    import fdbqueue.jobs as j
    from fdbqueue.jobs import Context as Attempt
    from fdbqueue.types import Transaction as OnlyTyped


@dataclass
class Transaction:
    """A class of the program's own."""

    amount: int


Ours = Context


def context(context: Context) -> None: ...
def module(context: jobs.Context) -> None: ...
def alias(context: Ours) -> None: ...
def optional(context: Optional[Context]) -> None: ...  # noqa: UP045
def union(context: Context | None) -> None: ...
def quoted(context: Context) -> None: ...
def annotated(context: Annotated[Context, "of the attempt"]) -> None: ...
def only_typed_context(context: Attempt) -> None: ...
def only_typed_module(context: j.Context) -> None: ...
def tx(tr: Tx) -> None: ...
def tx_of_package(tr: fdbqueue.Transaction) -> None: ...
def tx_of_alias(tr: q.Transaction) -> None: ...
def tx_of_types(tr: types.Transaction) -> None: ...
def tx_of_binding(tr: fdb.Transaction) -> None: ...
def tx_of_engine(tr: EmbeddedTransaction) -> None: ...
def tx_optional(tr: q.Transaction | None) -> None: ...
def only_typed_tx(tr: OnlyTyped | None) -> None: ...
def own(transaction: Transaction) -> None: ...
def own_optional(transaction: Transaction | None = None) -> None: ...
def others(context: contextvars.Context) -> None: ...
def only_typed_other(context: TheirContext) -> None: ...
def inside(context: dict[str, Context]) -> None: ...
def untyped(context, tr) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def item(item: Item[int]) -> None: ...
def unknown(tr: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Handlers:
    """An object that is called, and one whose method is."""

    def method(self, context: Context) -> None:
        """Take the context."""

    def __call__(self, context: Attempt) -> None:
        """Take the context."""


CONTEXTS = [context, module, alias, optional, union, quoted, annotated, only_typed_context]
MORE_CONTEXTS = [only_typed_module, Handlers().method, Handlers(), partial(context)]
TRANSACTIONS = [tx, tx_of_package, tx_of_alias, tx_of_types, tx_of_binding, tx_of_engine]
MORE_TRANSACTIONS = [tx_optional, only_typed_tx]
OTHERS = [own, own_optional, others, only_typed_other, inside, untyped, item, unknown, print, dict]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([*CONTEXTS, *MORE_CONTEXTS], "Context"),
        ([*TRANSACTIONS, *MORE_TRANSACTIONS], "Transaction"),
        (OTHERS, ""),
    ],
)
def test_the_class_of_the_annotation_decides(
    functions: list[Callable[..., Any]], expected: str
) -> None:
    assert [supplied(function) for function in functions] == [expected] * len(functions)


@pytest.fixture
def plain_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that imports a module with some source."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def imported(source: str) -> Any:
        made.append(f"plain_module_{len(made)}")
        (tmp_path / f"{made[-1]}.py").write_text(source)
        return __import__(made[-1])

    yield imported
    for each in made:
        del sys.modules[each]


def test_annotations_that_are_no_text_are_known_as_well(plain_module: Any) -> None:
    found = plain_module(
        """
from __future__ import generator_stop
from typing import Annotated, Optional, TYPE_CHECKING
import fdbqueue as q
from fdbqueue.jobs import Context
if TYPE_CHECKING:
    from fdbqueue import Transaction as T
    from fdbqueue.jobs import Context as C
    import shop.types
    from .shop import Transaction as Theirs

def context(context: Context): ...
def optional(context: Optional["Context"]): ...
def annotated(context: Annotated["C", 1]): ...
def typed_only(context: "C"): ...
def tx(tr: q.Transaction): ...
def typed_only_tx(tr: "T | None"): ...
def theirs(tr: "Theirs"): ...
def of_shop(tr: "shop.types.Transaction"): ...

def local():
    class Transaction: ...
    def own(tr: Transaction): ...
    def own_as_text(tr: "Transaction"): ...
    return own, own_as_text
"""
    )
    assert [supplied(getattr(found, name)) for name in ("context", "optional")] == ["Context"] * 2
    assert [supplied(getattr(found, name)) for name in ("annotated", "typed_only")] == [
        "Context"
    ] * 2
    assert [supplied(getattr(found, name)) for name in ("tx", "typed_only_tx")] == [
        "Transaction"
    ] * 2
    assert [supplied(each) for each in (found.theirs, found.of_shop, *found.local())] == [""] * 4


def test_a_function_without_source_is_known_by_the_name() -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    code = "def one(c: 'Context'): ...\ndef two(tr: 'q.Transaction'): ...\ndef no(tr: 'Tr'): ..."
    exec(code, names)
    assert [supplied(names[name]) for name in ("one", "two", "no")] == [
        "Context",
        "Transaction",
        "",
    ]


def test_a_class_of_ones_own_is_an_argument(db: Any, name: str) -> None:
    app = App(db)

    @app.job(queue=name)
    def pay(transaction: Transaction) -> int:
        return transaction.amount

    handle = pay.push(Transaction(7))
    app.work(name, drain=True)
    assert handle.result() == 7


def test_a_handler_may_take_an_item_of_a_class_named_context() -> None:
    with pytest.raises(TypeError, match="called as"):
        FunctionHandler(lambda: None)

    def work(item: contextvars.Context) -> None: ...

    assert not FunctionHandler(work)._takes_context
    assert FunctionHandler(context)._takes_context
