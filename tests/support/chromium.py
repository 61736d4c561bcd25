"""The browser of the tests: Chromium, as the system has it."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")
