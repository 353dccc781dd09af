"""The path language: choosing and grouping paths of an architecture.

A path is a source and the components (heads, and neurons where MLPs are frozen) that it goes
through. An expression matches whole paths:

============================ =====================================================================
``0.7 > 1.4``                head 0.7, read directly by head 1.4 (``L0H7 > L1H4`` is accepted)
``0.*``  ``*.3``  ``*``      any head of layer 0, head 3 of any layer, any one component
``..``                       any sub-path, also empty: ``0.7 > .. > 5.1``
``{0.7,1.4}``  ``{^0.7}``    one of these components, any component but these
``x?``  ``x{2}``  ``x{1,3}`` repetition
``embed > 0.7``              from a source, by its name or kind: ``embed``, ``pos``, ``type``,
                             ``bias``, ``bias[0.attn]``, ``mlp2``; without one, from every source
``mlp3``  ``mlp3.n17``       where MLPs are frozen: any one neuron of a layer, or this one
``direct``                   a source that reaches the output through no component
``order=2``                  exactly two heads; neurons do not count
``a | b``  ``a & b``  ``!a`` union, intersection, complement within all paths of the model
============================ =====================================================================

Repetition binds tightest, then ``>``, ``!``, ``&``, ``|``.

>>> from otimes.algebra import Architecture
>>> language = Architecture(layers=3, heads=2).language
>>> some = language.compile("0.1 > .. > 2.* | order=1")
>>> some.count, some.order_counts
(12, (0, 6, 2, 4))
>>> for source, components in in_order(language.compile("0.1 > .. > 2.*")):
...     print(source, components)
0 ((0, 1), (2, 0))
0 ((0, 1), (2, 1))
0 ((0, 1), (1, 0), (2, 0))
0 ((0, 1), (1, 0), (2, 1))
0 ((0, 1), (1, 1), (2, 0))
0 ((0, 1), (1, 1), (2, 1))

The modules, in the order in which an expression passes them: ``grammar`` and ``reader`` (text),
``syntax`` (trees), ``meaning`` (checks against an architecture), ``derivatives`` (regular
expressions), ``automaton``, ``operations``, ``listing`` and ``depth_first``.
"""

from otimes.algebra.paths.automaton import Automaton, State, Tables
from otimes.algebra.paths.depth_first import depth_first
from otimes.algebra.paths.grammar import PathExpression, parse_path
from otimes.algebra.paths.head_words import head_word_counts
from otimes.algebra.paths.language import PathLanguage
from otimes.algebra.paths.listing import boxes, example, in_order
from otimes.algebra.paths.operations import (
    difference,
    intersection,
    is_contained,
    overlap,
    union,
)

__all__ = [
    "Automaton",
    "PathExpression",
    "PathLanguage",
    "State",
    "Tables",
    "boxes",
    "depth_first",
    "difference",
    "example",
    "head_word_counts",
    "in_order",
    "intersection",
    "is_contained",
    "overlap",
    "parse_path",
    "union",
]
