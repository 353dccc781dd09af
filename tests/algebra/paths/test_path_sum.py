"""``PathSum``: the paths of an architecture as sets, in the path language."""

from __future__ import annotations

import pickle

import pytest

from otimes.algebra import Architecture, PathTerm
from otimes.errors import LimitError, NotationError, TypeMismatchError, UnknownComponentError

ARCH = Architecture(3, 2, positions="learned", biases={"b_V[1]", "b_O[0]"})
PATHS = ARCH.logits.expand()


def written(paths) -> list[str]:
    return [term.path for term in paths]


def test_where_narrows_and_keeps_the_sequence() -> None:
    some = PATHS.where("0.1 > .. > 2.0")

    assert written(some) == [
        "embed > 0.1 > 2.0", "pos > 0.1 > 2.0",
        "embed > 0.1 > 1.0 > 2.0", "embed > 0.1 > 1.1 > 2.0",
        "pos > 0.1 > 1.0 > 2.0", "pos > 0.1 > 1.1 > 2.0",
    ]  # fmt: skip
    assert written(some.where("pos > ..")) == [path for path in written(some) if path[0] == "p"]
    assert written(some.order(2)) == written(some)[:2]
    assert written(some.order(2).where("embed > ..")) == written(some)[:1]
    assert some.order(2).order(3).is_empty
    assert some.count == len(some) == 6
    assert some.order_counts == (0, 0, 2, 4)
    assert some.head_words == 3
    assert some.order(3).head_words == 2


def test_every_term_is_found_by_its_path_and_by_nothing_else() -> None:
    for term in PATHS:
        assert PATHS[term.path] == term
        assert written(PATHS.where(term.path)) == [term.path]
        assert term in PATHS
        assert term in PATHS.where(f"order={term.order}")
        assert term not in ~PATHS.where(term.path)


def test_literal_paths() -> None:
    assert written(PATHS.where("0.1 > 1.0")) == ["embed > 0.1 > 1.0", "pos > 0.1 > 1.0"]
    # bias[1.0] is added inside head 1.0, whose path it begins
    assert written(PATHS.where("1.0")) == [
        "embed > 1.0", "pos > 1.0", "bias[0.attn] > 1.0", "bias[1.0] > 1.0",
    ]  # fmt: skip
    assert written(PATHS.where("direct")) == ["embed", "pos", "bias[0.attn]"]
    assert written(PATHS.where("bias[1.0] > 1.0")) == ["bias[1.0] > 1.0"]
    assert PATHS.where("bias[1.0]").is_empty
    assert PATHS.where("bias[1.0] > 0.1").is_empty
    assert PATHS.where("..") == PATHS
    assert PATHS.where("..").count == PATHS.count


def test_one_path_or_an_error() -> None:
    assert PATHS["pos > L0H1 > L1H0"].path == "pos > 0.1 > 1.0"
    assert PATHS["pos > .. & order=3 & 0.1 > 1.0 > 2.0"].path == "pos > 0.1 > 1.0 > 2.0"
    with pytest.raises(
        UnknownComponentError,
        match=r"'0\.1' matches 2 paths, not one \(embed > 0\.1, pos > 0\.1\); name its source",
    ):
        PATHS["0.1"]
    with pytest.raises(
        UnknownComponentError, match=r"'order=1' matches 18 paths, not one \(e.*…\)"
    ):
        PATHS["order=1"]
    with pytest.raises(UnknownComponentError, match=r"matches 0 paths, not one$"):
        PATHS.order(2)["embed > 0.1"]
    with pytest.raises(NotationError, match=r"no head 3\.0"):
        PATHS["3.0"]


def test_sums_are_sets() -> None:
    late, pos = PATHS.where(".. > 2.*"), PATHS.where("pos > ..")
    one, two, every = set(late), set(pos), set(PATHS)

    assert set(late | pos) == one | two
    assert set(late & pos) == one & two
    assert set(late - pos) == one - two
    assert set(~late) == every - one
    assert ~(late | pos) == ~late & ~pos
    assert hash(~(late | pos)) == hash(~late & ~pos)
    assert (late & pos) <= late
    assert not late <= pos
    assert late.overlaps(pos)
    assert not late.overlaps("direct")
    assert late.contains("embed > .. > 2.1")
    assert not late.contains("..")
    assert late.order(1) | late.order(2) == late.where("order=1 | order=2")
    assert late.order(2) == late.where("order=2")
    assert late.order(2) != late


def test_sums_of_two_models_do_not_combine() -> None:
    other = Architecture(3, 3).logits.expand()

    with pytest.raises(TypeMismatchError, match="sets of paths of two models"):
        PATHS | other
    assert not PATHS.contains(other)
    assert other != PATHS
    assert next(iter(other)) not in PATHS


def test_terms_that_are_no_paths_are_not_contained() -> None:
    embed, inside = ARCH.sources[0], next(s for s in ARCH.sources if s.name == "bias[1.0]")

    for source, components in [
        (embed, ((0, 2),)), (embed, ((1, 0), (0, 1))), (embed, ((0, 1), (0, 0))),
        (embed, ((-1, 0),)), (embed, ((3, 0),)), (inside, ()), (inside, ((1, 1),)),
        (inside, ((0, 0), (1, 0))),
    ]:  # fmt: skip
        assert PathTerm(ARCH, source, components) not in PATHS
    assert PathTerm(ARCH, inside, ((1, 0), (2, 1))) in PATHS


def test_an_example_is_the_first_path() -> None:
    assert PATHS.where("0.1 > .. > 2.0").example == next(iter(PATHS.where("0.1 > 2.0")))
    assert PATHS.where("1.1 > .. > 0.1").example is None


def test_what_is_printed() -> None:
    deep = Architecture(100, 100).logits.expand()

    assert repr(PATHS.where("0.1")) == "<PathSum of 2 paths>"
    assert repr(deep).startswith("<PathSum of about 10^200 (exactly 27")
    with pytest.raises(LimitError, match=r"are more than len\(\) can say; use \.count"):
        len(deep)
    with pytest.raises(LimitError, match=r"this sum has 10,000 terms, more than the limit of 100"):
        deep.where("*").terms(100)


def test_sums_survive_pickling() -> None:
    some = PATHS.where("0.1 > .. | pos")
    again = pickle.loads(pickle.dumps(some))

    assert again == some
    assert written(again) == written(some)
    assert again.where("order=2") == some.where("order=2")


def test_nothing_heavy_is_loaded_for_a_path() -> None:
    """Without a path expression not even the parsing library is loaded."""
    import subprocess
    import sys

    program = (
        "import sys; from otimes.algebra import Architecture\n"
        "Architecture(2, 2, biases=True).logits.expand().count\n"
        "print('lark' in sys.modules)\n"
        "Architecture(2, 2, biases=True).logits.expand().where('0.1').count\n"
        "print('lark' in sys.modules, 'sympy' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert done.stdout.split() == ["False", "True", "False", "False"]
