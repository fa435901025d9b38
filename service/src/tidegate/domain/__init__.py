"""The state and the commands of a job in plain typed Python, without I/O, framework or clock.

This package is the readable specification of the Lua functions in ``store/lua``. A step has the same file name and the
same function name in Python and in Lua. The tests run the same commands in both and compare every reply.

A command is a function over a :class:`~tidegate.domain.state.JobState`, in its own module under ``commands/``. It
checks its arguments, advances the clock of the job, changes the state, and returns a result. Most commands also
evaluate the job. A refused command raises a :class:`~tidegate.domain.errors.DomainError` and changes nothing.

Invariants:

1. *Monotone.* Neither the coalesced watermark C nor the emitted watermark W goes back.
2. *Committed.* W does not pass the pinned watermark of an open batch, unless ``max_batch_hold_ms`` releases the batch.
3. *Replay-exact.* A batch has one pinned watermark; the first write wins.
4. *Idempotent.* A repeated, late or fenced command changes nothing.

Times are whole numbers in the unit of the job (epoch milliseconds unless the job uses another unit). ``None`` means "no
watermark" and sorts below every number.
"""
