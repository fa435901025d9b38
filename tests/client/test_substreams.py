"""Names of substreams: every value of a column has a valid and distinct name."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.http.schemas import Report
from tidegate_spark.substreams import LONGEST_BYTES, name_of

values = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=250)
keys = st.lists(values, min_size=1, max_size=3).map(tuple)


@given(keys)
def test_every_value_has_a_valid_name(key: tuple[str | None, ...]) -> None:
    """The coordinator accepts the name of every value, so no row can block a query."""
    name = name_of(key)
    assert len(name.encode()) <= LONGEST_BYTES
    assert Report.model_validate({"substreams": [name], "max_event_times": [0]}).substreams == [name]


@given(st.lists(st.tuples(values, values), max_size=20), st.lists(st.tuples(values), max_size=20))
def test_different_values_have_different_names(
    pairs: list[tuple[str | None, ...]], ones: list[tuple[str | None]]
) -> None:
    """Two substreams under one name would share the watermark of the faster one."""
    for distinct in (set(pairs), set(ones)):
        assert len({name_of(key) for key in distinct}) == len(distinct)


@given(keys)
def test_the_name_of_a_name_is_the_name(key: tuple[str | None, ...]) -> None:
    """A name in the table of substreams is valid for ``done`` and ``declare``."""
    assert name_of(name_of(key)) == name_of(key)


def test_names_are_readable() -> None:
    assert name_of(("HNL",)) == name_of("HNL") == "HNL"
    assert name_of(("flights", "3")) == name_of(("flights", 3)) == "flights/3"
    assert name_of(("a/b%", None)) == "a%2Fb%25/(null)"
    assert name_of((None,)) == name_of(None) == name_of("(null)") == "(null)"
    assert name_of(("",)) == "(empty)"
    assert name_of(("(null)",)).startswith("(null)~")
    assert name_of(("a\tb",)).startswith("a\\u0009b~")
