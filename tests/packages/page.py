"""A page of documentation whose program and commands run with an installed coordinator and client."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import run

ADDRESS = "http://127.0.0.1:8000"
"""Address of the coordinator on all pages. A run replaces it by the address of its own coordinator."""
PROGRAM_S = 300
_BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (tidegate (?!serve).*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_NOT_INHERITED = ("TIDEGATE_", "SPARK_", "PYSPARK_", "PYTHON", "JAVA_HOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Page:
    """The code blocks of a page.

    Attributes:
        program: All ``python`` blocks. They are one program.
        output: All ``text`` blocks: lines that the program prints.
        commands: The ``tidegate`` commands in ``console`` blocks, without ``serve``, each with its output. There,
            ``...`` stands for any text.
    """

    program: str
    output: str
    commands: list[tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Read the blocks of a Markdown file."""
        blocks = _BLOCK.findall(path.read_text())
        python, text, console = (
            "".join(block for language, block in blocks if language == wanted)
            for wanted in ("python", "text", "console")
        )
        return cls(python, text, _COMMAND.findall(console))


@dataclass(frozen=True)
class Installation:
    """A virtual environment and an empty folder, in which a user runs the commands of a page.

    Attributes:
        environment: Directory of the virtual environment.
        folder: Working directory of all commands.
    """

    environment: Path
    folder: Path

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of a shell in which only the virtual environment is active."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        path = f"{self.environment}/bin{os.pathsep}{os.environ['PATH']}"
        return inherited | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"} | more

    @contextmanager
    def coordinator(self) -> Iterator[tuple[str, str]]:
        """Run ``tidegate serve`` on a free port; yield its address and the line that it prints."""
        with open(self.folder.with_suffix(".log"), "w") as log:
            process = subprocess.Popen(
                [f"{self.environment}/bin/tidegate", "serve"],
                cwd=self.folder,
                env=self.variables(TIDEGATE_PORT="0"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline().rstrip("\n")
                serving = re.search(r"http://\S+:\d+", line)
                assert serving, Path(log.name).read_text()
                yield serving[0], line
            finally:
                process.terminate()

    def run_page(self, page: Page, address: str) -> None:
        """Run the program and then the commands of a page; fail if the output differs from the page."""
        program = self.folder / "program.py"
        program.write_text(page.program.replace(ADDRESS, address))
        variables = self.variables(TIDEGATE_URL=address)
        python = f"{self.environment}/bin/python"
        printed = run(python, program.name, cwd=self.folder, env=variables, timeout_s=PROGRAM_S)
        assert printed == page.output
        for command, output in page.commands:
            shown = run("sh", "-c", command, cwd=self.folder, env=variables)
            assert re.search(re.escape(output.strip()).replace(r"\.\.\.", ".*"), shown), shown
