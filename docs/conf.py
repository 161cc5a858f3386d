"""Sphinx configuration. `make docs` builds with -W: a warning is an error. Nothing is fetched while building."""

import logging
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))

project = "Farfield"
author = "The Farfield developers"
copyright = author
release = pyproject["project"]["version"]
version = release

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# The tables of contents are globs, and a folder may have no page yet. Sphinx gives that warning a subtype but no type,
# so `suppress_warnings` cannot name it.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: getattr(record, "subtype", None) != "empty_glob"
)

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Farfield"
