"""A JSON patch leads from one object to the other, whatever they are."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from lattice.admission.patches import difference
from lattice.admission.verdicts import Object
from lattice.kube import patches

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text("ab/~", max_size=3), children, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.text("ab/~", max_size=3), values, max_size=4)


@given(old=objects, new=objects)
def test_applying_the_difference_gives_the_new_object(old: Object, new: Object) -> None:
    assert patches.apply(copy.deepcopy(old), difference(old, new)) == new
    assert difference(new, new) == []
