"""The browser of the tests: Chromium, as the system has it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)  # milliseconds; the machine may be busy
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; the pages are trusted.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
