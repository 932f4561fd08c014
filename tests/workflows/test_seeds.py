"""Seeds are derived from a place: the same in every process and version, another one everywhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflows.trajectory import seed_for

PARTS = st.lists(st.one_of(st.integers(-3, 3), st.text(max_size=3)), max_size=4)


def test_a_seed_is_what_it_was_when_older_runs_were_made() -> None:
    assert seed_for(7, 3, "t", 2, "s1", 0, "") == 6_774_244_852_825_035_015
    assert seed_for(-1, "ü") == 6_821_617_447_547_452_894


@given(st.integers(-(2**63), 2**63), PARTS, PARTS)
def test_other_parts_are_another_seed_of_63_bits(
    run_seed: int, one: list[object], other: list[object]
) -> None:
    assert 0 <= seed_for(run_seed, *one) < 2**63
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (seed_for(run_seed, *one) == seed_for(run_seed, *other)) == same


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_every_bit_of_a_run_s_seed_counts(one: int, other: int) -> None:
    assert (seed_for(one, "t") == seed_for(other, "t")) == (one % 2**64 == other % 2**64)
    assert seed_for(one, "t") != seed_for(one ^ 2**40, "t")
