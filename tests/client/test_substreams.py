"""Names of substreams: whatever is in a column, none stops a query, and none is taken for another."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.schemas.batches import Report
from tidegate_spark.substreams import LONGEST_BYTES, name_of

values = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=250)
keys = st.lists(values, min_size=1, max_size=3).map(tuple)


@given(keys)
def test_every_value_has_a_name_that_the_coordinator_takes(key: tuple[str | None, ...]) -> None:
    """One row with a broken key must not stop a query for ever."""
    name = name_of(key)
    assert len(name.encode()) <= LONGEST_BYTES
    assert Report.model_validate({"substreams": [name], "max_event_times": [0]}).substreams == [name]


@given(st.lists(st.tuples(values, values), max_size=20), st.lists(st.tuples(values), max_size=20))
def test_different_values_have_different_names(
    pairs: list[tuple[str | None, ...]], ones: list[tuple[str | None]]
) -> None:
    """Two substreams under one name would be judged by the faster of the two."""
    for distinct in (set(pairs), set(ones)):
        assert len({name_of(key) for key in distinct}) == len(distinct)


@given(keys)
def test_a_name_stands_for_itself(key: tuple[str | None, ...]) -> None:
    """What the table of substreams shows can be given to ``done`` and ``declare``."""
    assert name_of(name_of(key)) == name_of(key)


def test_names_are_what_people_expect() -> None:
    """They are read in logs and tables."""
    assert name_of(("HNL",)) == name_of("HNL") == "HNL"
    assert name_of(("flights", "3")) == name_of(("flights", 3)) == "flights/3"
    assert name_of(("a/b%", None)) == "a%2Fb%25/(null)"
    assert name_of((None,)) == name_of(None) == name_of("(null)") == "(null)"
    assert name_of(("",)) == "(empty)"
    assert name_of(("(null)",)).startswith("(null)~")
    assert name_of(("a\tb",)).startswith("a\\u0009b~")
