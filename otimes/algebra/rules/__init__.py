"""The rules of the algebra, one in each file."""

from otimes.algebra.rules.base import Preserves, Refusal, Rule
from otimes.algebra.rules.collapse import Collapse
from otimes.algebra.rules.collect_order import CollectOrder
from otimes.algebra.rules.collect_pattern import CollectPattern
from otimes.algebra.rules.collect_weight import CollectWeight
from otimes.algebra.rules.concatenate import Concatenate
from otimes.algebra.rules.cycle import Cycle
from otimes.algebra.rules.distribute import Distribute
from otimes.algebra.rules.flatten import Flatten
from otimes.algebra.rules.gauge import Rotate
from otimes.algebra.rules.head import ExpandHead, FoldHead
from otimes.algebra.rules.identity import DropIdentity
from otimes.algebra.rules.like_terms import LikeTerms
from otimes.algebra.rules.merge import Merge
from otimes.algebra.rules.mixed_product import MixedProduct
from otimes.algebra.rules.norm import ExpandNorm, FoldNorm
from otimes.algebra.rules.ov import ExpandOV, FoldOV
from otimes.algebra.rules.qk import ExpandQK, FoldQK
from otimes.algebra.rules.rotation import CancelRotation
from otimes.algebra.rules.scalar import PullScalar
from otimes.algebra.rules.split import Split
from otimes.algebra.rules.substitute import Substitute
from otimes.algebra.rules.transpose_linear import TransposeLinear
from otimes.algebra.rules.transpose_product import TransposeProduct
from otimes.algebra.rules.transpose_tensor import TransposeTensor
from otimes.algebra.rules.virtual_weights import VirtualWeights

__all__ = [
    "CancelRotation",
    "Collapse",
    "CollectOrder",
    "CollectPattern",
    "CollectWeight",
    "Concatenate",
    "Cycle",
    "Distribute",
    "DropIdentity",
    "ExpandHead",
    "ExpandNorm",
    "ExpandOV",
    "ExpandQK",
    "Flatten",
    "FoldHead",
    "FoldNorm",
    "FoldOV",
    "FoldQK",
    "LikeTerms",
    "Merge",
    "MixedProduct",
    "Preserves",
    "PullScalar",
    "Refusal",
    "Rotate",
    "Rule",
    "Split",
    "Substitute",
    "TransposeLinear",
    "TransposeProduct",
    "TransposeTensor",
    "VirtualWeights",
]
