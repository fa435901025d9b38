"""The commands of a job, one module each. See :mod:`tidegate.domain` for the steps of a command."""

from tidegate.domain.commands.begin import begin
from tidegate.domain.commands.commit import commit
from tidegate.domain.commands.complete import complete
from tidegate.domain.commands.configure import configure, create
from tidegate.domain.commands.declare import declare
from tidegate.domain.commands.done import done
from tidegate.domain.commands.evict import evict
from tidegate.domain.commands.heartbeat import heartbeat
from tidegate.domain.commands.hold import hold
from tidegate.domain.commands.idle import idle
from tidegate.domain.commands.release import release
from tidegate.domain.commands.reopen import reopen
from tidegate.domain.commands.report import report
from tidegate.domain.commands.reset import reset
from tidegate.domain.commands.restore import restore
from tidegate.domain.commands.retire import retire
from tidegate.domain.commands.stage import stage
from tidegate.domain.commands.sweep import sweep

__all__ = [
    "begin",
    "commit",
    "complete",
    "configure",
    "create",
    "declare",
    "done",
    "evict",
    "heartbeat",
    "hold",
    "idle",
    "release",
    "reopen",
    "report",
    "reset",
    "restore",
    "retire",
    "stage",
    "sweep",
]
