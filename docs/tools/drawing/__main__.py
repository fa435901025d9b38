"""Draw the figures of the docs that change with the machine: ``python -m docs.tools.drawing``.

``moving.svg`` is an animation of one run, which is not drawn again.
"""

from pathlib import Path

from docs.tools.drawing import clicks, limits, paint, spark
from docs.tools.drawing.merges import least_lags
from docs.tools.drawing.scenes import SCENES, THROTTLED

FIGURES = Path(__file__).parents[2] / "figures"


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for name, scene in SCENES.items():
        path = FIGURES / f"{name}.svg"
        if name == "throttles":
            paint.side_by_side([one.play() for one in THROTTLED], path)
        else:
            paint.timeline(scene.play(), path)
        print(path.name)
    spark.draw(FIGURES / "spark_maximum.svg")
    print("spark_maximum.svg")
    limits.draw(FIGURES / "limits_on_flights.svg")
    print("limits_on_flights.svg")
    paint.bounds(least_lags(), FIGURES / "merges.svg")
    print("merges.svg")
    paint.completeness(clicks.measured(), clicks.told(), clicks.LAGS, FIGURES / "completeness.svg")
    print("completeness.svg")
    paint.learning(clicks.learnt(), FIGURES / "learning.svg")
    print("learning.svg")


if __name__ == "__main__":
    main()
