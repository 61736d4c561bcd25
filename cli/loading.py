"""Imports of MODULE:FUNCTION and MODULE:APP."""

from __future__ import annotations

import importlib
import math
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from fdbqueue.jobs import App
from fdbqueue.jobs.job import Job

from .opening import chosen_database, open_database

_IMPORTLIB = os.path.dirname(importlib.__file__)


def loaded_app(path: str) -> App:
    """Import MODULE:APP."""
    app = _loaded(path, "app")
    if not isinstance(app, App):
        raise click.UsageError(f"{path!r} is not an app, which is what fdbqueue.App(...) returns")
    return app


def bound_app(path: str, url: str | None, timeout: float, *, create: bool = True) -> App:
    """Import MODULE:APP, and open the database of `--db` or its own."""
    app = loaded_app(path)
    url = chosen_database(click.get_current_context(), url)
    if url is not None or not app.is_bound:
        app.bind(open_database(url, create=create))
    app.db.options.set_transaction_timeout(math.ceil(timeout * 1000))
    return app


def loaded_function(path: str) -> Callable[..., Any]:
    """Import MODULE:FUNCTION."""
    function = _loaded(path, "function")
    if isinstance(function, Job):
        raise click.UsageError(f"{path!r} is a job; run the jobs of its app: --app MODULE:APP")
    if not callable(function):
        raise click.UsageError(f"{path!r} is not a function")
    return function  # type: ignore[no-any-return]


def _loaded(path: str, noun: str) -> Any:
    """Import MODULE:NAME, with the current directory first in the search path."""
    module, _, name = path.partition(":")
    if not module or not name:
        example = f"{module or 'MODULE'}:{name or noun.upper()}"
        missing = "a module" if not module else "an app" if noun == "app" else f"a {noun}"
        raise click.UsageError(f"{path!r} does not name {missing}; write {example}")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except BaseException as error:  # the module may raise anything, also by `sys.exit`
        text = _origin(error)
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            text += f"; it is neither in {os.getcwd()} nor on the Python path"
        raise click.UsageError(
            f"{path!r} cannot be loaded as MODULE:{noun.upper()}: {text}"
        ) from error


def _origin(error: BaseException) -> str:
    text = ": ".join(filter(None, [type(error).__name__, str(error)]))
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without this module's
    lines = [frame for frame in frames if not frame.filename.startswith(("<", _IMPORTLIB))]
    if isinstance(error, SyntaxError) or not lines:
        return text  # a SyntaxError names its line
    return f"{text} ({lines[-1].filename}, line {lines[-1].lineno})"
