"""The integer tables drive a sum over paths that never enumerates them."""

from __future__ import annotations

import random
from math import prod

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from otimes.algebra.paths import Automaton, in_order
from otimes.errors import NotationError
from tests.algebra.paths.models import NAMES, architecture, expressions


def by_tables(automaton: Automaton, values: dict[str, list[list[int]]], starts: list[int]) -> int:
    """Σ over paths of Π of the components' values, with one number for each live state."""
    tables = automaton.tables()
    depth = len(tables.member)
    streams = [[0] * states for states in tables.states]
    for source, (entry, start) in enumerate(zip(tables.entry, tables.start, strict=True)):
        if start >= 0:
            streams[entry][start] += starts[source]
    for block in range(depth):
        for state, amount in enumerate(streams[block]):
            if tables.skip[block][state] >= 0:
                streams[block + 1][tables.skip[block][state]] += amount
            for component, klass in enumerate(tables.member[block]):
                target = tables.move[block][state][klass] if klass >= 0 else -1
                if target >= 0:
                    streams[block + 1][target] += amount * values["blocks"][block][component]
    return sum(streams[depth])


@given(NAMES, st.data(), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_states_add_up_what_paths_multiply(name: str, data: st.DataObject, seed: int) -> None:
    arch, rng = architecture(name), random.Random(seed)
    try:
        automaton = arch.language.compile(data.draw(expressions(name)))
    except NotationError as error:
        assume("cannot read it" not in str(error))
        raise
    blocks = [[rng.randint(-9, 9) for _ in block.components()] for block in arch.blocks]
    starts = [rng.randint(-9, 9) for _ in arch.sources]
    locate = automaton.grid.locate
    total = 0
    for source, components in in_order(automaton):
        # a constant inside a component brings that component's factor itself
        later = components[int(arch.sources[source].component is not None) :]
        places = [locate(component) for component in later]
        total += starts[source] * prod(blocks[block][bit] for block, bit in places)

    assert by_tables(automaton, {"blocks": blocks}, starts) == total


def test_classes_are_the_coarsest() -> None:
    tables = architecture("wide").language.compile("0.0 > 1.1 | 0.2 > 1.1 | 0.1").tables()

    assert tables.member == ((0, 1, 0, -1), (-1, 0, -1))
    assert tables.states == (1, 2, 1)
    assert tables.start == (0,)
    # from the start: 0.0 and 0.2 lead where 1.1 must follow, 0.1 where nothing may
    after_0, after_1 = tables.move[0][0]
    assert tables.move[1][after_0] == (0,)
    assert tables.skip[1][after_0] == -1
    assert tables.move[1][after_1] == (-1,)
    assert tables.skip[1][after_1] == 0
