"""Texts to learn from where no corpus is: the docstrings of installed libraries, with the library as the class.

    python -m bench.library_texts FILE.csv

From each of four libraries come 750 different docstrings of 8 words or more, the first in the order of their digests,
cut after 60 words and without the names that tell the library. They depend on the libraries' versions alone.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("matplotlib", "scipy", "sklearn", "torch")
EACH, SHORTEST, LONGEST = 750, 8, 60
NAMES = re.compile(r"\b(matplotlib|mpl|plt|pyplot|scipy|sklearn|scikit[- ]learn|scikit|torch\w*|pytorch)\b", re.I)


def docstrings(library: str) -> list[str]:
    """The different docstrings of a library, in the order of their digests, as single lines without its name.

    >>> docstrings("matplotlib") == docstrings("matplotlib")
    True
    """
    spec = find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    found: dict[str, str] = {}
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "test" in path.stem or "tests" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                words = NAMES.sub(" ", text).split()[:LONGEST]
                if len(words) >= SHORTEST:
                    line = " ".join(words)
                    found[hashlib.sha256(line.encode()).hexdigest()] = line
    return [found[digest] for digest in sorted(found)]


def main() -> None:
    """Write the file, with columns ``text`` and ``label``."""
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["text", "label"])
        for library in LIBRARIES:
            lines.writerows([text, library] for text in docstrings(library)[:EACH])


if __name__ == "__main__":
    main()
