"""``python -m docs.tools.fault_table``: write the table of the last fault run into docs/explanation/reliability.md."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULT, GUIDE = ROOT / "out" / "faults.json", ROOT / "docs" / "explanation" / "reliability.md"
START, END = "<!-- fault table: make fault-table -->\n", "<!-- end of fault table -->"

PROMISES = {
    "store loses power": "at most the last second is lost; clients report its event times again",
    "store flushed": "W and the pinned watermarks come back from clients; row counts do not",
}
"""Promises that differ from ``ALL``, by fault."""
ALL = "every guarantee; nothing acknowledged is lost"


def main() -> int:
    """Write the table, and return the exit code."""
    if not RESULT.exists():
        print(f"{RESULT} does not exist: run make faults first.", file=sys.stderr)
        return 1
    before, _, rest = GUIDE.read_text().partition(START)
    _, _, after = rest.partition(END)
    GUIDE.write_text(before + START + "\n".join(_lines(json.loads(RESULT.read_text()))) + "\n\n" + END + after)
    return 0


def _lines(run: Mapping[str, Any]) -> Iterator[str]:
    faults = run["faults"]
    times = sum(fault["times"] for fault in faults.values())
    model = run["model"]
    yield f"A run of {run['seconds'] // 60} minutes with seed {run['seed']} and `appendfsync {run['appendfsync']}`"
    yield f"had {times} faults and {run['calls']:,} calls. The model judged {model['judged']:,} answers, and left"
    yield f"{model['undecided']:,} undecided. A recovery ends when every watermark has reached the event time that the"
    yield "clients had read at the end of the fault, minus the lag.\n"
    yield "| fault | promise | injected | longest recovery | violations |\n|---|---|---|---|---|"
    for name, fault in faults.items():
        injected = f"{fault['times']}" if fault["times"] else "not injected"
        recovery = f"{fault['longest_s']:.1f} s" if fault["times"] else ""
        yield f"| {name} | {PROMISES.get(name, ALL)} | {injected} | {recovery} | {fault['violations']} |"


if __name__ == "__main__":
    sys.exit(main())
