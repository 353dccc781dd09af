"""The algebra of transformer circuits: symbols only, no tensors."""

from otimes.algebra.architecture import Architecture, Logits, Source
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
from otimes.algebra.parsing import parse
from otimes.algebra.printing import latex, text

__all__ = [
    "Architecture",
    "Expr",
    "Factor",
    "Id",
    "Identity",
    "Logits",
    "PathSum",
    "PathTerm",
    "Product",
    "Scaled",
    "Source",
    "Sum",
    "Tensor",
    "Transpose",
    "latex",
    "parse",
    "pattern",
    "tensor",
    "text",
    "vector",
    "weight",
]
