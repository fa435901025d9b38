"""Boundaries of frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.domain.config import Frame
from tidegate.domain.errors import InvalidConfig
from tidegate.domain.values import EXACT_DOUBLE

times = st.integers(EXACT_DOUBLE.lowest, EXACT_DOUBLE.highest)
frames = st.tuples(st.integers(1, 2**40), st.integers(1, 4), st.integers(0, 2**40)).map(
    lambda drawn: Frame(drawn[0] * drawn[1], drawn[0], drawn[2] % drawn[0])
)


@given(frames, times)
def test_floor_is_the_last_boundary_at_or_before(frame: Frame, time: int) -> None:
    floor = frame.floor(time)
    if floor is None:
        assert time - frame.slide < EXACT_DOUBLE.lowest
    else:
        assert (floor - frame.offset) % frame.slide == 0
        assert floor <= time < floor + frame.slide


@given(frames, times)
def test_higher_is_the_first_boundary_after(frame: Frame, time: int) -> None:
    """The end of input raises the watermark to this boundary."""
    higher = frame.higher(time)
    if higher != EXACT_DOUBLE.highest:
        assert (higher - frame.offset) % frame.slide == 0
        assert time < higher <= time + frame.slide


@pytest.mark.parametrize(
    ("size", "slide", "offset", "field"),
    [(10, 3, 0, "size"), (0, 1, 0, "size"), (10, 0, 0, "slide"), (10, 10, 10, "offset"), (10, 10, -1, "offset")],
)
def test_an_invalid_frame_names_its_field(size: int, slide: int, offset: int, field: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Frame(size, slide, offset)
    assert refused.value.details["field"] == f"throttle.{field}_ms"
