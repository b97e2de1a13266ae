"""Escape text for LaTeX, and set a table with its notes; it needs only the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template

GREEK = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta"},
    **{"ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma"},
    **{"τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta"},
    **{"Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega"},
}
MATHS = GREEK | {
    **{"±": "pm", "×": "times", "·": "cdot", "≤": "leq", "≥": "geq", "≠": "neq", "≈": "approx", "∈": "in"},
    **{"→": "rightarrow", "∞": "infty", "∅": "emptyset"},
    **{digit: f"^{number}" for number, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{digit: f"_{number}" for number, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}
SYMBOLS = {
    "\\": r"\textbackslash{}",
    "`": r"\`{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # otherwise read as an option of the preceding row's end; so is a star
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "…": r"\ldots{}",
    "’": "'",
    "“": "``",
    "”": "''",
    "\n": " ",
}
ESCAPES = str.maketrans(
    {letter: rf"\{letter}" for letter in "&%$#_{}"}
    | {sign: f"${word}$" if word[0] in "^_" else rf"$\{word}$" for sign, word in MATHS.items()}
    | SYMBOLS
)


def escaped(text: str) -> str:
    """Escape ``text`` so that LaTeX prints it literally; Greek letters and signs need no packages."""
    return "-{}".join(part.translate(ESCAPES) for part in re.split("-(?=-)", text))  # hyphens are joined to a dash


def table(caption: str, label: str, kinds: str, head: Sequence[str], rows: Sequence[str], below: Sequence[str]) -> str:
    r"""A floating ``table`` for ``\input``: caption, booktabs' rules, and the notes below. All texts are LaTeX.

    Args:
        caption: its caption.
        label: what ``\ref`` calls it, behind ``tab:``; other characters than letters and digits become hyphens.
        kinds: the columns, as ``tabular`` takes them.
        head: the lines above the rule in the middle.
        rows: the lines below it.
        below: the notes, a paragraph each.
    """
    return frame().render(caption=caption, label=label, kinds=kinds, head=head, rows=rows, below=below)


@cache
def frame() -> Template:
    """The template of ``table``, which others may extend."""
    from flnl.console.templates import template

    return template(Path(__file__).with_name("table.tex.j2"), {"hyphened": partial(re.sub, "[^A-Za-z0-9]", "-")})


def row(cells: Sequence[str]) -> str:
    """A line of cells that are LaTeX."""
    return " & ".join(cells) + r" \\"
