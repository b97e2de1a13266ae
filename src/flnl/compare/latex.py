"""Escape text for LaTeX."""

from __future__ import annotations

import re

GREEK = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta"},
    **{"ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma"},
    **{"τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta"},
    **{"Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega"},
}
MATHS = GREEK | {
    "±": "pm",
    "×": "times",
    "·": "cdot",
    "≤": "leq",
    "≥": "geq",
    "≠": "neq",
    "≈": "approx",
    "∈": "in",
    "→": "rightarrow",
    "∞": "infty",
    "∅": "emptyset",
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
