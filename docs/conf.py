"""The site that ``make docs`` builds from the same files that are read in the repository."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

project = "flnl"
author = "flnl contributors"
project_copyright = "flnl contributors"

# The repository is the source folder, so that links between its files hold on the site.
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**",
    "examples/*/README.md",
    "results/*.md",
    "results/*/*.md",
]
exclude_patterns = ["docs/_build", "**/.*"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
myst_enable_extensions = ["html_image"]
suppress_warnings = ["myst.header"]  # pages of results begin at the level that suits them
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
nitpicky = False

html_theme = "furo"
html_title = "flnl"
html_baseurl = ""
html_copy_source = False

CONTENTS = """

```{toctree}
:hidden:
:caption: Using it
docs/running
docs/noise
docs/own_data
docs/audit
docs/sweeps
docs/comparing
docs/tables
docs/executors
docs/trust
docs/glossary
```

```{toctree}
:hidden:
:glob:
:caption: What was measured
docs/evidence
docs/experiments
docs/comparison
docs/readings
docs/benchmarks
results/README
results/by_*
results/*/README
```

```{toctree}
:hidden:
:caption: Methods
:glob:
docs/methods/*
```

```{toctree}
:hidden:
:caption: Extending it
docs/extending
examples/plugin/README
docs/api
docs/design
CONTRIBUTING
CHANGELOG
docs/adr
```
"""


TABLES = """

```{toctree}
:hidden:
:glob:
*
```
"""


def contents(_app: Sphinx, name: str, source: list[str]) -> None:
    """Add the contents of the site to its first page, and those of a folder of results to its index.

    The site does not have the records of runs, which the tables link to as a folder.
    """
    if name == root_doc:
        source[0] += CONTENTS
    elif name.startswith("results/"):
        source[0] = source[0].replace("[runs](runs)", "`runs`")
        if name.count("/") == 2 and name.endswith("/README"):
            source[0] += TABLES


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", contents)
