"""The site that ``make docs`` builds from the same files that are read in the repository."""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import sys
import tokenize
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
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
    "results/benchmark/*/README*.md",
    "results/benchmark/*/*/about.md",
]
exclude_patterns = ["docs/_build", "**/.*"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
myst_enable_extensions = ["html_image"]
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"  # a browser shows it without a script
suppress_warnings = ["myst.header"]  # pages of results begin at the level that suits them
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "special-members": "__call__", "show-inheritance": True}
add_module_names = False  # the page names each section's module
nitpicky = False

html_theme = "furo"
html_title = "flnl"
html_baseurl = ""
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "scorer.js")

CONTENTS = """

```{toctree}
:hidden:
:caption: Using it
docs/running
docs/noise
docs/hospitals
docs/three_hospitals
docs/own_data
docs/audit
docs/sweeps
docs/comparing
docs/tables
docs/executors
docs/trust
docs/faq
docs/glossary
```

```{toctree}
:hidden:
:glob:
:caption: What was measured
docs/evidence
docs/experiments
docs/own_data_measured
docs/audit_measured
docs/comparison
docs/comparison_newer
docs/benchmark
docs/costs
docs/readings
docs/benchmarks
results/README
results/by_*
results/*/README
results/benchmark/*/README*
results/benchmark/*/*/about
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
    """Add the contents of the site to its first page, and those of a folder of results to its index."""
    if name == root_doc:
        source[0] += CONTENTS
    elif name.startswith("results/") and name.count("/") == 2 and name.endswith("/README"):
        source[0] += TABLES


SOUGHT = {
    "README#start": ("install", "installation", "windows", "requirements"),
    "docs/running#results-of-a-run": ("plot accuracy curves", "tensorboard", "output files", "best or last accuracy"),
    "docs/running#configuration": ("number of local epochs", "batch size", "number of clients", "config file"),
    "docs/own_data": ("own data", "local data", "own images", "custom dataset"),
    "docs/own_data#your-own-images": ("labels in a csv file", "csv", "image folder", "folders per site"),
    "docs/own_data#data-sets": ("tabular data", "feature vectors", "text data", "download"),
    "docs/own_data#using-the-model": ("predict new images", "save model", "export model", "inference"),
    "docs/own_data#which-method-suits-which-noise": ("which method to choose", "best method for my data"),
    "docs/comparing": ("significance", "seeds", "many seeds", "standard deviation", "error bars", "latex"),
    "docs/comparing#choosing-hyperparameters": ("learning rate", "hyperparameter search", "grid search", "optuna"),
    "docs/comparing#a-paper-s-table-with-tests": ("significance test", "p-value", "significant", "latex table"),
    "docs/comparison": ("which method is best",),
    "docs/benchmark": ("benchmark of methods", "leaderboard", "submit a method"),
    "docs/comparison#the-choice-of-learning-rates": ("how hyperparameters were chosen",),
    "docs/noise": ("noise rate", "label noise", "noise types", "kinds of noise"),
    "docs/noise#noise": (
        "human annotators",
        "cifar-10n",
        "instance-dependent noise",
        "class-dependent noise",
        "transition matrix",
        "upper bound: clean training",
    ),
    "docs/noise#partitions": (
        "non-iid",
        "dirichlet",
        "heterogeneous",
        "label skew",
        "skewed",
        "class imbalance",
        "imbalanced",
    ),
    "docs/running#what-a-run-costs": ("communication cost", "bytes sent", "bandwidth", "traffic", "compute cost"),
    "docs/running#what-methods-are-given": ("clean data", "clean validation set", "known noise rate"),
    "docs/running#stopping-and-resuming": ("checkpoint", "early stopping"),
    "docs/running#repeating-a-run": ("reproducibility", "deterministic", "same result"),
    "docs/sweeps": ("resume", "resumable", "sweep", "several gpus", "multiple gpus", "parallel gpus"),
    "docs/sweeps#slurm": ("slurm", "slurm cluster", "job array", "time limit"),
    "docs/faq": ("questions", "order of clients", "stateful clients", "clients with state", "500 clients"),
    "docs/faq#how-do-i-say-which-client-holds-which-sample": ("already split", "file per site", "per-client files"),
    "docs/faq#can-each-client-have-a-noise-rate-of-its-own": ("different noise rate per client", "clean clients"),
    "docs/faq#how-much-does-each-method-communicate-and-compute": ("cost of each method", "bytes per method"),
    "docs/faq#how-far-can-i-trust-the-list-of-wrong-labels": ("trust wrong labels",),
    "docs/faq#is-there-differential-privacy": ("differential privacy", "dp-sgd", "privacy budget", "epsilon"),
    "docs/faq#can-i-resume-a-sweep-that-was-killed": ("restart after a crash", "continue a killed sweep"),
    "docs/faq#is-a-difference-significant": ("bootstrap", "confidence interval"),
    "docs/faq#does-it-send-my-data-anywhere": ("offline", "uploaded", "wandb", "server", "data leaves"),
    "docs/faq#will-i-get-the-same-numbers-on-another-computer": ("another computer", "different cpu", "reproducible"),
    "docs/faq#how-do-the-settings-of-two-papers-differ": ("differences between papers", "paper settings"),
    "docs/faq#how-do-i-cite-it-and-under-which-licence-is-it": ("cite", "citation", "bibtex", "license"),
    "docs/audit": (
        "label audit",
        "wrong labels",
        "wrongly labelled",
        "mislabelled",
        "mislabeled samples",
        "label errors",
        "label quality",
        "noisy labels",
    ),
    "docs/audit#how-many-labels-are-wrong": ("which clients are noisy", "noisy clients", "noise level of a client"),
    "docs/audit#what-to-expect": ("trust the audit", "false positives", "accuracy of the audit", "audit precision"),
    "docs/audit#what-stays-private-and-what-does-not": ("label privacy", "privacy of patients"),
    "docs/executors": ("gpu", "parallel", "ray", "too slow"),
    "docs/executors#a-gpu": ("gpu memory", "out of memory", "reduce memory", "vram", "cuda error"),
    "docs/extending": ("own method", "custom method", "own loss", "custom model"),
    "docs/extending#a-network-of-torchvision": ("pretrained model", "pretrained weights"),
    "docs/hospitals": ("sites", "hospitals", "annotation mistakes", "photos from several hospitals", "medical images"),
    "docs/methods/parts": ("robust aggregation", "byzantine"),
}
"""What people look for, by the page or section about it: search shows it first, and finds its page by each word."""


def sought(app: Sphinx, tree: nodes.document) -> None:
    """Make the words of ``SOUGHT`` entries of the index, which search ranks above text, and keywords of their page."""
    for place, words in SOUGHT.items():
        page, _, anchor = place.partition("#")
        if page == app.env.docname:
            section = next(one for one in tree.findall(nodes.section) if not anchor or anchor in one["ids"])
            entries = [("single", word, section["ids"][0], "main", None) for word in words]
            section.insert(1, addnodes.index(entries=entries))
            tree.append(nodes.meta(name="keywords", content=",".join(" ".join(words).split())))


def describe_fields(
    _app: Sphinx, what: str, _name: str, documented: object, _options: object, docstring: list[str]
) -> None:
    """Describe the fields of a dataclass by the comments on their lines.

    Napoleon takes what a value's first line says before its first colon for the type, here nothing.
    """
    if what in {"attribute", "data", "property"} and docstring:
        docstring[0] = f":{docstring[0]}"
    if not (isinstance(documented, type) and dataclasses.is_dataclass(documented)):
        return
    comments: dict[str, str] = {}
    for one in reversed(documented.__mro__):
        comments |= comments_of_fields(one)
    names = [field.name for field in dataclasses.fields(documented)]
    docstring += ["", *(f":param {name}: {comments.get(name, '')}".rstrip() for name in names), ""]


def comments_of_fields(cls: type) -> dict[str, str]:
    """The comments that end the lines of a dataclass's own fields, by the field's name."""
    if not dataclasses.is_dataclass(cls):
        return {}
    comments: dict[str, str] = {}
    line: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(cls)).readline):
        if token.type == tokenize.COMMENT and len(line) > 1 and line[1] == ":":
            comments[line[0]] = token.string.lstrip("#: ")
        if token.type in (tokenize.NEWLINE, tokenize.NL):
            line = []
        elif token.type in (tokenize.NAME, tokenize.OP):
            line.append(token.string)
    return {name: comment for name, comment in comments.items() if name in cls.__annotations__}


def hide_private_arguments(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Leave out the fields that are a class's own business where it is constructed."""
    return signature and re.sub(r", _\w+", "", signature), returns


def hide_private_fields(_app: Sphinx, _domain: str, _kind: str, content: nodes.Element) -> None:
    """Leave them out where fields are described."""
    for field in list(content.findall(nodes.field)):
        if field.children[0].astext().split()[-1].startswith("_"):
            field.parent.remove(field)


MATHML = "http://www.w3.org/1998/Math/MathML"
ElementTree.register_namespace("", MATHML)
ACCENTS = ("ˆ", "~", "ˉ", "ˇ")


def formula(self: Any, node: nodes.Element) -> None:
    """Write a formula as MathML."""
    block = isinstance(node, nodes.math_block)
    text = tex2mathml(node.astext(), as_block=block)
    math = ElementTree.fromstring(re.sub("&(?!lt;|gt;|amp;)\\w+;", lambda entity: unescape(entity[0]), text))
    for symbol in math.iter(f"{{{MATHML}}}munderover"):
        base, index, over = symbol
        if over.text in ACCENTS:  # an index beside the symbol with its accent, not below it
            symbol.tag = f"{{{MATHML}}}msub"
            accented = ElementTree.Element(f"{{{MATHML}}}mover", accent="true")
            accented.extend([base, over])
            symbol[:] = [accented, index]
    written = ElementTree.tostring(math, encoding="unicode")
    self.body.append(f'<div class="formula">{written}</div>' if block else written)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("doctree-read", sought)
    app.connect(
        "env-get-outdated", lambda *_: {place.partition("#")[0] for place in SOUGHT}
    )  # Sphinx forgets the entries of pages that it does not read
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", contents)
    app.connect("autodoc-process-docstring", describe_fields, priority=400)  # before Napoleon
    app.connect("autodoc-process-signature", hide_private_arguments)
    app.connect("object-description-transform", hide_private_fields, priority=900)  # after the types are added
