"""Writing counts of any size.

>>> large(531441)
'531,441'
>>> large(13**40)
'about 10^44 (exactly 361188648084531445929920877641340156544317601)'
>>> large(101**5000)
'about 10^10021'
"""

from __future__ import annotations

from math import floor, log10


def large(count: int) -> str:
    """A count for a message, with its power of ten where the digits are many.

    Python refuses to write integers of more than some thousand digits, so those have it alone.
    """
    if count < 10**30:
        return f"{count:,}"
    magnitude = f"about 10^{floor(log10(count))}"
    return f"{magnitude} (exactly {count})" if count < 10**1000 else magnitude
