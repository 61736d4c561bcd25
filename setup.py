"""Sets the description on PyPI, where the links of the README into the repository lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)]+\)")

setup(
    long_description=_LINK.sub(r"\1", Path(__file__).with_name("README.md").read_text()),
    long_description_content_type="text/markdown",
)
