"""The watermark machine in plain typed Python: no I/O, no framework, no clock of its own.

It is the readable specification of the Lua scripts in ``store/lua``: a step has the same file name and the same
function name on both sides. The tests give both sides the same commands and compare every reply.

A command is a function over a :class:`~tidegate.domain.state.JobState`, in its own module under ``commands/``. It
checks, advances the clock, changes the state, evaluates, and returns a result. A refused command raises a
:class:`~tidegate.domain.errors.DomainError` and changes nothing.

Invariants (design, section 2):

1. *Monotone.* Neither the coalesced watermark C nor the emitted watermark W goes back.
2. *Committed.* W does not pass the pinned watermark of an open batch.
3. *Replay-exact.* A batch has one pinned watermark; the first write wins.
4. *Idempotent.* A repeated, late or fenced command changes nothing.

Times are whole numbers in the unit of the job (epoch milliseconds unless the job uses another unit). ``None`` means "no
watermark" and orders below every number.
"""
