"""The terms that a verification adds up: which are there, which are wrong, and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from otimes.algebra import Logits, PathSum, PathTerm
from otimes.algebra.vocabulary import component_name
from otimes.bridge.binding import numbered
from otimes.bridge.freezing import Frozen
from otimes.bridge.run import Run
from otimes.errors import InputError
from otimes.numeric.diagnosis import wrong_components, wrong_paths
from otimes.numeric.paths import Components
from otimes.numeric.traces import PathTrace

NAMED = 3
"""So many names stand in a message."""


def few(names: Sequence[str]) -> str:
    """The first names of a list."""
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def path_terms(terms: Iterable[PathTerm] | PathSum | Logits) -> list[PathTerm]:
    """The terms of a sum; anything else is refused."""
    if isinstance(terms, Logits):
        terms = terms.expand()
    found = list[PathTerm]()
    for term in terms if isinstance(terms, Iterable) else [terms]:
        if not isinstance(term, PathTerm):
            raise InputError(
                f"terms are those of an expansion, such as paths['0.7 > 1.4'], not {term!r:.60}"
            )
        found.append(term)
    return found


def known_terms(added: Sequence[PathTerm], run: Run, reasons: list[str]) -> list[PathTerm]:
    """The terms that are paths of this model; others are named and left out."""
    whole = run.model.architecture.logits.expand()
    strange = [term.path for term in added if not whole.contains(term)]
    if strange:
        reasons.append(f"terms that this model does not have: {few(strange)}")
    return [term for term in added if whole.contains(term)]


def missing_and_doubled(added: Sequence[PathTerm], paths: PathSum) -> list[str]:
    """What is wrong with a list of terms that should be all of ``paths``, each once."""
    counted, reasons = Counter(added), list[str]()
    doubled = [term.path for term, times in counted.items() if times > 1]
    if doubled:
        reasons.append(f"terms that were added more than once: {few(doubled)}")
    missing = paths.count - len(counted)
    if missing:
        named = islice((term.path for term in paths if term not in counted), NAMED + 1)
        reasons.append(f"{missing:,} of {paths.count:,} terms are missing: {few(list(named))}")
    return reasons


def names_of_wrong(
    step: int, added: Sequence[PathTerm], run: Run, frozen: Frozen, engine: PathTrace
) -> str:
    """The terms of a step that are wrong; its heads where terms are grouped by order."""
    if added:
        named = {numbered(term): term.path for term in added}
        wrong = islice(wrong_paths(frozen.model, map(numbered, added), step), NAMED + 1)
        found = [named[path] for path in wrong]
    elif 0 < step <= frozen.model.depth:
        stream = engine.trace.streams[step - 1].high.to(frozen.model.dtype)
        wrong = wrong_components(frozen.model, step - 1, stream)
        grid = run.model.architecture.language.grid
        found = [component_name(grid.component(step - 1, index)) for index in wrong]
    else:
        found = []
    return f": {few(found)}" if found else ""


def named_numbers(run: Run, frozen: Frozen, names: Iterable[str]) -> list[tuple[int, Components]]:
    """The source and the components that printed paths name, such as ``embed > 0.7 > 1.4``."""
    architecture = run.model.architecture
    grid = architecture.language.grid
    sources = {source.name: number for number, source in enumerate(architecture.sources)}
    places = {
        component_name(grid.component(number, index)): (number, index)
        for number, block in enumerate(frozen.model.blocks)
        for index in range(block.components)
    }
    found = list[tuple[int, Components]]()
    for name in names:
        source, *components = name.split(" > ")
        found.append((sources[source], tuple(places[part] for part in components)))
    return found
