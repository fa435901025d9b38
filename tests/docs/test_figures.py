"""The figures of the docs are up to date with the code."""

from pathlib import Path

import pytest

from docs.tools.drawing import clicks, limits, spark
from docs.tools.drawing.merges import least_lags
from docs.tools.drawing.paint import digest_of, drawn_from
from docs.tools.drawing.scenes import SCENES, THROTTLED

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", SCENES)
def test_the_figure_of_a_scene_is_current(name: str) -> None:
    """`make figures` draws the figures. Check them by eye afterwards."""
    run = repr([scene.play().digest() for scene in THROTTLED]) if name == "throttles" else SCENES[name].play().digest()
    assert drawn_from(DOCS / "figures" / f"{name}.svg") == digest_of(run)


def test_the_figure_of_the_merges_is_current() -> None:
    assert drawn_from(DOCS / "figures" / "merges.svg") == digest_of(repr(least_lags()))


def test_the_animated_figure_is_static_if_the_reader_prefers_reduced_motion() -> None:
    figure = (DOCS / "figures" / "moving.svg").read_text()
    outside, _, inside = figure.partition("@media (prefers-reduced-motion: no-preference){")
    assert "animation" not in outside
    assert "animation" not in inside.partition("</style>")[2]
    assert "<script" not in figure


def test_the_figures_of_the_curves_are_current() -> None:
    assert drawn_from(DOCS / "figures" / "completeness.svg") == digest_of(repr((clicks.measured(), clicks.told())))
    assert drawn_from(DOCS / "figures" / "learning.svg") == digest_of(repr(clicks.learnt()))
    assert drawn_from(DOCS / "figures" / "spark_maximum.svg") == digest_of(repr(spark.maximum()))


def test_the_figure_of_the_limits_is_current() -> None:
    assert drawn_from(DOCS / "figures" / "limits_on_flights.svg") == digest_of(repr(limits.measured()))


def test_every_figure_is_shown() -> None:
    page = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    for figure in (DOCS / "figures").glob("*.svg"):
        assert f"figures/{figure.name}" in page
