"""A native checkpoint as a plain torch module: the outside judge of everything otimes computes.

Written by the definition, as in "A Mathematical Framework for Transformer Circuits" (Elhage et al.
2021), and importing nothing else of otimes: the logits, patterns and scores that a run is judged
against come from here, and this module also trained the checkpoints that ship.

For a stream ``x [batch, pos, d_model]`` and head ``h`` that reads the KV head ``g(h)``::

    y = x, or ln1(x) where the norm stands before the branch
    q = (y + p) W_Q[h] + b_Q[h]        p: the positions, for shortformer positions only, else 0
    k = (y + p) W_K[g] + b_K[g]        q and k through their norms, then turned, where they are
    v = y W_V[g] + b_V[g]
    scores[dest, src] = attention_scale * q[dest] . k[src]  (- slope[h] |dest - src| with ALiBi)
    capped = c tanh(scores / c)        with a cap, else the scores
    pattern = softmax of the capped scores over the allowed src    (a row with none allowed is 0)
    x <- x + sum_h pattern[h] v W_O[h] + b_O

What the last line adds goes through ``ln1_post`` where the norm stands behind the branch, and is
multiplied by the residual multiplier; a ``post`` norm takes the whole sum. An MLP adds, from
``y = x`` or ``ln2(x)``, in the same way::

    act(y W_in + b_in) W_out + b_out,  gated:  (act(y W_gate + b_gate) * (y W_in + b_in)) W_out + …

A parallel MLP reads the stream that the attention reads, and both are added at once. The logits are
``logits_multiplier * (ln_final(x) W_U) + b_U``, through their cap.
"""

from otimes.models.reference.memory import Sizes
from otimes.models.reference.module import Block, Reference, build, load
from otimes.models.reference.recording import Recomputed, Recording, is_kept

__all__ = [
    "Block",
    "Recomputed",
    "Recording",
    "Reference",
    "Sizes",
    "build",
    "is_kept",
    "load",
]
