"""The figures of the docs show what the machine does, not what it did once."""

from pathlib import Path

import pytest

from docs.drawing import clicks
from docs.drawing.merges import least_lags
from docs.drawing.paint import digest_of, drawn_from
from docs.drawing.scenes import SCENES, THROTTLED

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", SCENES)
def test_a_figure_is_of_the_machine_as_it_is(name: str) -> None:
    """`make figures` draws them again; then look at them."""
    run = repr([scene.play().digest() for scene in THROTTLED]) if name == "throttles" else SCENES[name].play().digest()
    assert drawn_from(DOCS / "figures" / f"{name}.svg") == digest_of(run)


def test_the_bounds_are_those_that_the_exercise_gives() -> None:
    """The analysis stands beside them."""
    assert drawn_from(DOCS / "figures" / "merges.svg") == digest_of(repr(least_lags()))


def test_the_curves_are_those_of_the_machine() -> None:
    assert drawn_from(DOCS / "figures" / "completeness.svg") == digest_of(repr((clicks.measured(), clicks.told())))
    assert drawn_from(DOCS / "figures" / "learning.svg") == digest_of(repr(clicks.learnt()))


def test_every_figure_is_shown() -> None:
    """A picture that no page shows is one that nobody keeps."""
    page = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for figure in (DOCS / "figures").glob("*.svg"):
        assert f"figures/{figure.name}" in page
