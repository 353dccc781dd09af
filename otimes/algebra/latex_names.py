r"""Names and labels in LaTeX's mathematics, such that every one compiles.

>>> print(latex_name("W_OV", "1.4"), latex_name("Γ", "3.ln1"), latex_name("A2", ""))
W_{OV}^{1.4} \Gamma^{3.\mathrm{ln1}} A_{2}
>>> print(latex_name("w_out", "3.n17"), latex_name("Γ", "3.q_norm"), latex_name("_", ""))
w_{\mathrm{out}}^{3.\mathrm{n17}} \Gamma^{3.\mathrm{q\,norm}} \_
"""

from __future__ import annotations

import unicodedata
from typing import Final

# the other capitals look like Latin letters and have no command
_CAPITALS: Final = frozenset({
    "GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA",
})  # fmt: skip
_ACCENTS: Final = {
    "\u0300": "grave", "\u0301": "acute", "\u0302": "hat", "\u0303": "tilde", "\u0304": "bar",
    "\u0306": "breve", "\u0307": "dot", "\u0308": "ddot", "\u030c": "check",
}  # fmt: skip


def latex_name(name: str, label: str) -> str:
    """The name of a factor: an underscore or a final number begins a subscript."""
    base, _, subscript = name.partition("_")
    if not base or not subscript:
        base, subscript = name, ""
        digits = base[len(base.rstrip("0123456789")) :]
        if digits and digits != base and "_" not in base:  # A2 is A with an index
            base, subscript = base[: -len(digits)], digits
    lower = f"_{{{_word(subscript, upright=subscript.islower())}}}" if subscript else ""
    upper = f"^{{{latex_label(label)}}}" if label else ""
    return f"{_word(base, upright=True)}{lower}{upper}"


def latex_label(label: str) -> str:
    """The label of a factor: numbers as they are, words upright, ``q_norm`` as two words."""
    return ".".join(
        part if part.isdecimal() and part.isascii() else _words(part) for part in label.split(".")
    )


def _words(part: str) -> str:
    """A part of a label; an underscore between words is a space, one elsewhere is itself."""
    words = part.split("_")
    if len(words) == 1 or not all(words):
        return _word(part, upright=True)
    shown = r"\,".join(_word(word, upright=False) for word in words)
    return rf"\mathrm{{{shown}}}"


def _word(word: str, *, upright: bool) -> str:
    if len(word) == 1:
        return _character(word)
    # a group ends a command such as \\lambda, whatever letter follows
    shown = "".join(f"{{{c}}}" if c[:-1] and c[-1].isalpha() else c for c in map(_character, word))
    return rf"\mathrm{{{shown}}}" if upright else shown


def _character(character: str) -> str:
    if character == "_":
        return r"\_"
    if character.isascii():
        return character
    name = unicodedata.name(character, "")
    match name.split():
        case ["GREEK", "SMALL", "LETTER", letter] if letter != "OMICRON":
            # Unicode spells lambda so
            return "\\" + {"LAMDA": "lambda", "FINAL": "varsigma"}.get(letter, letter.lower())
        case ["GREEK", "CAPITAL", "LETTER", letter] if letter in _CAPITALS:
            return "\\" + letter.replace("LAMDA", "LAMBDA").capitalize()
        case ["GREEK", "CAPITAL", "LETTER", letter]:
            return letter[0]
        case _:
            pass
    base, *marks = unicodedata.normalize("NFKD", character)
    if base.isascii() and len(marks) == 1 and marks[0] in _ACCENTS:
        return rf"\{_ACCENTS[marks[0]]}{{{base}}}"
    # no font of plain LaTeX has it: its number is better than nothing
    return rf"\mathtt{{U{ord(character):X}}}"
