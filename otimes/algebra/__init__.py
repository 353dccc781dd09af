"""The algebra of transformer circuits: symbols only, no tensors."""

from otimes.algebra.architecture import Architecture, Logits, Source
from otimes.algebra.checking import Counterexample, Equivalence, check_step, equivalent
from otimes.algebra.derivations import Derivation, DerivationCheck, Step, check_derivation
from otimes.algebra.evaluation import Valuation
from otimes.algebra.expansion import PathSum, PathTerm
from otimes.algebra.expressions import (
    Expr,
    Factor,
    Id,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.kinds import (
    diagonal,
    grouped,
    head,
    inclusion,
    norm,
    offset,
    offset_form,
    operator,
    rotation,
)
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.normal import Polynomial, normal_form, polynomial
from otimes.algebra.paper import (
    derive_concatenation,
    derive_eigenvalues,
    derive_frozen_norm,
    derive_head,
    derive_logits,
    derive_rotation,
    derive_virtual_head,
)
from otimes.algebra.parsing import parse
from otimes.algebra.partial import PartialExpansion, partial_expansion
from otimes.algebra.places import apply_at, everywhere, places
from otimes.algebra.printing import latex, text
from otimes.algebra.stacked import Column, Row

__all__ = [
    "Architecture",
    "Column",
    "Counterexample",
    "Derivation",
    "DerivationCheck",
    "Eigenvalues",
    "Equivalence",
    "Expr",
    "Factor",
    "FrobeniusNorm",
    "Id",
    "Identity",
    "Logits",
    "PartialExpansion",
    "PathSum",
    "PathTerm",
    "Polynomial",
    "Product",
    "Row",
    "Scaled",
    "Source",
    "Step",
    "Sum",
    "Tensor",
    "Transpose",
    "Valuation",
    "apply_at",
    "check_derivation",
    "check_step",
    "derive_concatenation",
    "derive_eigenvalues",
    "derive_frozen_norm",
    "derive_head",
    "derive_logits",
    "derive_rotation",
    "derive_virtual_head",
    "diagonal",
    "equivalent",
    "everywhere",
    "grouped",
    "head",
    "inclusion",
    "latex",
    "norm",
    "normal_form",
    "offset",
    "offset_form",
    "operator",
    "parse",
    "partial_expansion",
    "pattern",
    "places",
    "polynomial",
    "rotation",
    "tensor",
    "text",
    "vector",
    "weight",
]
