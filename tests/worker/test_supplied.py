"""A worker supplies a context or a transaction by the class of an annotation, not by its name."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import fdb
import pytest

import fdbqueue
import fdbqueue as q
from fdbqueue import jobs
from fdbqueue.embedded.transaction.transaction import Transaction as EmbeddedTransaction
from fdbqueue.jobs import App, Context
from fdbqueue.types import Item
from fdbqueue.types import Transaction as Tx
from fdbqueue.worker.invocation import FunctionHandler, supplied

if TYPE_CHECKING:
    from contextvars import Context as TheirContext

    import fdbqueue.jobs as j
    from fdbqueue.jobs import Context as Attempt


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
def only_typed_alias(context: Attempt) -> None: ...
def only_typed_module(context: j.Context) -> None: ...
def only_typed_optional(context: j.Context | None) -> None: ...
def tx(tr: Tx) -> None: ...
def tx_of_package(tr: fdbqueue.Transaction) -> None: ...
def tx_of_binding(tr: fdb.Transaction) -> None: ...
def tx_of_engine(tr: EmbeddedTransaction) -> None: ...
def tx_optional(tr: q.Transaction | None) -> None: ...
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

    def __call__(self, context: j.Context) -> None:
        """Take the context."""


CONTEXTS = [context, module, alias, optional, union, quoted, annotated, only_typed_module]
MORE_CONTEXTS = [only_typed_optional, Handlers().method, Handlers(), partial(context)]
TRANSACTIONS = [tx, tx_of_package, tx_of_binding, tx_of_engine]
OTHERS = [own, own_optional, others, only_typed_other, inside, untyped, item, unknown, print, dict]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([*CONTEXTS, *MORE_CONTEXTS], "Context"),
        ([*TRANSACTIONS, tx_optional], "Transaction"),
        ([*OTHERS, only_typed_alias], ""),
    ],
)
def test_the_class_of_the_annotation_decides(
    functions: list[Callable[..., Any]], expected: str
) -> None:
    assert [supplied(function) for function in functions] == [expected] * len(functions)


MODULE = """
from typing import Optional, TYPE_CHECKING
import fdbqueue as q
from fdbqueue.jobs import Context as C
if TYPE_CHECKING:
    from fdbqueue import Transaction
    from fdbqueue.jobs import Context

def context(context: C): ...
def optional(context: Optional["C"]): ...
def typed_only(context: "Context"): ...
def tx(tr: q.Transaction): ...
def typed_only_tx(tr: "Transaction | None"): ...

def local():
    class Transaction: ...
    def own(tr: Transaction): ...
    return own
"""


def test_annotations_that_are_no_text_are_known_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    found = __import__("plain_module")
    monkeypatch.delitem(sys.modules, "plain_module")
    expected = dict.fromkeys(("context", "optional", "typed_only"), "Context")
    expected |= dict.fromkeys(("tx", "typed_only_tx"), "Transaction")
    assert {each: supplied(getattr(found, each)) for each in expected} == expected
    assert supplied(found.local()) == ""


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
