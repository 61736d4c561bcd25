"""How Sphinx builds this documentation: `python -m sphinx -W docs build/docs`."""

import gc
import importlib.metadata

# Sphinx makes millions of objects and keeps most of them. Looking for garbage less often makes a
# build faster by a quarter.
gc.set_threshold(100_000, 20, 100)

project = "fdbqueue"
author = "the authors of fdbqueue"
version = release = importlib.metadata.version("fdbqueue")

extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"),
    "sphinx_llms_txt",  # which writes llms.txt, with links to the copied sources
]
html_theme = "furo"
html_title = f"fdbqueue {release}"
smartquotes = False  # the examples of the command line can be copied

# Single backticks in docstrings are code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_use_ivar = True  # a field of a class that is documented by itself too is described once

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
