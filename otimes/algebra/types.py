"""Spaces, and the types of expressions over them.

An expression is a linear map between tensor products of spaces, one *slot* for each factor of the
product: ``A ⊗ W`` with ``A: pos <- pos`` and ``W: vocab <- d_model`` has the type
``pos ⊗ vocab <- pos ⊗ d_model``. A vector is a map from the one-dimensional space ``1``.

An identity fits any space, so its slot is *open*; it takes the space of what it is composed with
or added to. Laws:

>>> head = Type.of(("pos", "pos"), ("d_model", "d_model"))
>>> unembed = Type.of(None, ("vocab", "d_model"))
>>> compose(unembed, head)
pos ⊗ vocab <- pos ⊗ d_model
>>> compose(head, unembed) is None
True
>>> unify(head, Type.of(None, None)) == head
True

Block matrices act on direct sums, which are spaces like any other:

>>> direct_sum("d_head", "d_head")
'd_head ⊕ d_head'
"""

from __future__ import annotations

from dataclasses import dataclass

POS = "pos"
D_MODEL = "d_model"
D_HEAD = "d_head"
D_HEADS = "d_heads"
"""The queries of all heads of a layer side by side."""
D_KV_HEADS = "d_kv_heads"
"""The keys of all key-value heads of a layer side by side."""
VOCAB = "vocab"
N_CTX = "n_ctx"
ONE = "1"

Slot = tuple[str, str] | None
"""(codomain, domain), or None for an identity whose space is open."""


@dataclass(frozen=True, slots=True, repr=False)
class Type:
    """The slots of a linear map; ``slots`` is None for an identity on any number of them."""

    slots: tuple[Slot, ...] | None

    @staticmethod
    def of(*slots: Slot) -> Type:
        """Build a type from its slots."""
        return Type(slots)

    @property
    def is_map(self) -> bool:
        """Whether it is the type of a linear map: a spectrum or a norm has no slot at all."""
        return self.slots != ()

    @property
    def transposed(self) -> Type:
        """The type with domain and codomain exchanged."""
        if self.slots is None:
            return self
        return Type(tuple(slot and (slot[1], slot[0]) for slot in self.slots))

    def __repr__(self) -> str:
        if self.slots is None:
            return "any <- the same"
        if not self.slots:
            return "a number or a spectrum, not a map"
        ends = [slot or ("any", "any") for slot in self.slots]
        return " <- ".join(" ⊗ ".join(end[side] for end in ends) for side in (0, 1))


OPEN = Type(None)
MEASURE = Type(())
"""The type of what is no map: eigenvalues and norms, which neither compose nor add."""


def direct_sum(*spaces: str) -> str:
    """The space whose vectors are stacked from those of ``spaces``."""
    return " ⊕ ".join(spaces)


def summands(space: str) -> list[str]:
    """The spaces of a direct sum; a plain space is its own only summand."""
    return space.split(" ⊕ ")


def compose(left: Type, right: Type) -> Type | None:
    """The type of ``left @ right``, or None where the domain of one is not the other's codomain."""
    if not (left.is_map and right.is_map):
        return None
    if left.slots is None:
        return right
    if right.slots is None:
        return left
    if len(left.slots) != len(right.slots):
        return None
    slots = list[Slot]()
    for a, b in zip(left.slots, right.slots, strict=True):
        if a is None or b is None:
            slots.append(a or b)
        elif a[1] != b[0]:
            return None
        else:
            slots.append((a[0], b[1]))
    return Type(tuple(slots))


def unify(left: Type, right: Type) -> Type | None:
    """The common type of two addends, or None; an open slot fits an endomorphism alone."""
    if not (left.is_map and right.is_map):
        return None
    if left.slots is None or right.slots is None:
        known = right if left.slots is None else left
        closed = all(slot is None or slot[0] == slot[1] for slot in known.slots or ())
        return known if closed else None
    if len(left.slots) != len(right.slots):
        return None
    slots = list[Slot]()
    for a, b in zip(left.slots, right.slots, strict=True):
        if a is None or b is None:
            known_slot = a or b
            if known_slot is not None and known_slot[0] != known_slot[1]:
                return None
            slots.append(known_slot)
        elif a != b:
            return None
        else:
            slots.append(a)
    return Type(tuple(slots))
