"""Reports in the terminal. Token texts come from files: they are shown as text, never as markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from otimes.results import BlockCheck, Certificate, Check, LogitShares, ScoreAttribution

_FEW = 16


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without lines; the columns named in ``right`` hold numbers."""
    body = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        body.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right,
            overflow="fold",
        )
    return body


def indented(body: Table | Text | Group) -> Padding:
    """Two columns in, with an empty line behind."""
    return Padding(body, (0, 0, 1, 2))


def heading(text: str) -> Text:
    """The title of a part of a report."""
    return Text(text, style="bold cyan")


def show_verification(
    console: Console, certificate: Certificate, shares: LogitShares, pieces: Sequence[str]
) -> None:
    """Print the report of ``otimes verify``.

    Args:
        console: where to.
        certificate: the outcome.
        shares: the terms of the predicted logit.
        pieces: the text of each token of the input.
    """
    console.print(heading("Input"))
    shown = Text()
    for number, piece in enumerate(pieces):
        shown.append(piece, style="reverse" if number % 2 else "")
    console.print(indented(shown))

    console.print(heading(f"Terms of the logit of {shares.text!r}"))
    console.print(
        Text(
            f"  the model's prediction after the last token, with probability "
            f"{shares.probability:.3f}\n"
            "  above mean: less the term's mean over the vocabulary, which changes no probability",
            style="dim",
        )
    )
    numbers = ("logit", "share", "above mean")
    terms = table("path", "term", *numbers, right=numbers)
    for row in (*shares.shown, shares.rest, shares.total):
        share = f"{row.value / shares.total.value:.1%}" if shares.total.value else "-"
        last = row is shares.total
        terms.add_row(
            Text(row.path, style="bold" if last else ""),
            Text(row.term),
            f"{row.value:+.4f}",
            share,
            f"{row.above_mean:+.4f}",
            end_section=row is shares.rest,
        )
    console.print(indented(terms))

    console.print(heading("Certificate"))
    checks = table("check", "largest error", "bound", right=("largest error", "bound"))
    rows: list[tuple[str, Check]] = [
        *_steps("model", certificate.blocks),
        *_steps("terms", certificate.terms),
        *_steps("original", certificate.source_blocks),
        ("attention scores", certificate.scores),
        ("patterns: softmax of scores", certificate.patterns),
        ("logits: sum of terms − model", certificate.logits),
    ]
    if certificate.measured is not None:
        rows.append(("the same, by measured deviations", certificate.measured))
    for name, check in rows:
        style = "" if check.holds else "bold red"
        checks.add_row(
            Text(name, style=style),
            Text(f"{check.max_abs_error:.2e}", style=style),
            Text(f"{check.bound:.2e}", style=style),
        )
    console.print(indented(checks))
    _show_facts(console, certificate)
    console.print(_verdict(certificate))


def _steps(side: str, checks: Sequence[BlockCheck]) -> Sequence[tuple[str, Check]]:
    """A row for each step; of many, the one that is nearest to its bound, and those that fail."""
    if len(checks) <= _FEW:
        return [(f"{side}, {check.block}", check) for check in checks]
    nearest = max(checks, key=lambda check: check.max_abs_error / max(check.bound, 1e-300))
    if all(check.holds for check in checks):
        return [(f"{side}, {len(checks)} steps, worst {nearest.block}", nearest)]
    return [(f"{side}, {check.block}", check) for check in checks if not check.holds]


def _show_facts(console: Console, certificate: Certificate) -> None:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("paths", f"{certificate.paths:,}, {certificate.method}, in {certificate.dtype}")
    for line in certificate.checked:
        name, _, what = line.partition(": ")
        facts.add_row(name, what)
    for line in certificate.frozen:
        facts.add_row("frozen", line)
    if certificate.frozen:
        facts.add_row("", "values of paths hold at these patterns; they are no causal effects")
    if certificate.unused_parameters:
        facts.add_row("unused", Text(", ".join(certificate.unused_parameters)))
    facts.add_row("bound", f"on logits by {certificate.analysis}")
    identity = certificate.identity
    if identity is not None:
        facts.add_row(
            "identity",
            f"both sides modulo {', '.join(map(str, identity.primes))}: "
            f"{'equal' if identity.holds else 'NOT equal'}; polynomials that differ there pass "
            f"with a probability of at most {identity.false_pass:.0e}",
        )
    for error in certificate.source_errors:
        facts.add_row(
            "original",
            Text(
                f"logits of {certificate.source} itself, in {error.dtype}: "
                f"{error.max_abs_error:.1e} away, tolerance {error.tolerance:.1e}",
                style="" if error.holds else "red",
            ),
        )
    if certificate.exact is not None:
        facts.add_row(
            "exact",
            f"rational arithmetic over {certificate.exact.tokens} tokens: difference "
            f"{certificate.exact.difference}",
        )
    console.print(indented(facts))


def _verdict(certificate: Certificate) -> Text:
    if not certificate.holds:
        text = Text("DOES NOT HOLD", style="bold red")
        for reason in certificate.reasons:
            text.append(f"\n  {reason}", style="red not bold")
        return text
    what = (
        f"the {certificate.paths:,} terms add up to the model's logits"
        if certificate.paths > 1
        else "the one term is the model's logits"
    )
    return Text.assemble(
        ("HOLDS", "bold green"),
        f"  {what}:\n       largest error {certificate.max_abs_error:.1e}, "
        f"bound {certificate.bound:.1e}, largest logit {certificate.largest_logit:.3g}",
    )


def show_scores(console: Console, found: ScoreAttribution) -> None:
    """Print the report of ``otimes scores``."""
    console.print(heading(found.title[0].upper() + found.title[1:]))
    console.print(indented(Text(f"{found.meaning}\n{found.note}")))
    kinds = table("kind", "sum", right=("sum",))
    for kind, value in found.by_kind.items():
        kinds.add_row(kind, f"{value:+.4f}")
    console.print(indented(kinds))
    terms = table("query path", "key path", "kind", "value", right=("value",))
    for term in found.terms:
        terms.add_row(Text(term.query_path), Text(term.key_path), term.kind, f"{term.value:+.4f}")
    terms.add_row("other terms", "", "", f"{found.remainder:+.4f}", end_section=True)
    terms.add_row(Text("total", style="bold"), "", "", f"{found.score:+.4f}")
    console.print(indented(terms))
    for line in found.frozen:
        console.print(Text(f"frozen: {line}", style="dim"))


def show_models(console: Console, cards: Sequence[dict[str, Any]]) -> None:
    """Print the report of ``otimes models``."""
    numbers = ("validation loss", "second copy")
    rows = table("name", "what it is", *numbers, right=numbers)
    for card in cards:
        rows.add_row(
            Text(card["name"], style="bold"),
            Text(card["summary"]),
            f"{card['validation_loss']:.3f}",
            f"{card['second_copy_loss']:.3f}",
        )
    console.print(rows)
    console.print(
        Text(
            "Losses in nats per token: on held-out English, and on the second copy of repeated "
            "random tokens. Each folder has a README.md: data, licence, recipe, seeds, heads.",
            style="dim",
        )
    )
