"""The rules of the watermark of a job: a model in plain typed Python, without I/O, framework or clock.

The functions in ``store/lua`` implement the same rules. They keep indexes and work incrementally; the model evaluates
all substreams each time. The tests run the same commands in both and compare every reply and the whole state.

Read the modules in this order:

1. ``values``, ``errors``: names, numbers and declared parameters; the errors of refused commands.
2. ``completeness``: rows, late rows and delays.
3. ``policies``, ``config``: how event times become the watermark of a substream; the configuration of a job.
4. ``results``, ``history``, ``job``: what commands return, what a job records, and its whole state.
5. ``evaluate``: everything between a change and an emitted watermark.
6. ``observe``, ``batches``, ``commands``: what reports do to substreams; the commands.
7. ``views``, ``simulate``: reads of a job, explanations of its watermark, and simulations of a stream.

A command is a function over a :class:`~tidegate.domain.job.JobState`. It checks its arguments, advances the clock of
the job, changes the state, and returns a result. Most commands also evaluate the job. A refused command raises a
:class:`~tidegate.domain.errors.DomainError` and changes nothing.

Invariants:

1. *Monotone.* Neither the coalesced watermark C nor the emitted watermark W goes back.
2. *Committed.* W does not pass the pinned watermark of an open batch, unless ``max_batch_hold_ms`` releases the batch.
3. *Replay-exact.* A batch has one pinned watermark; the first write wins.
4. *Idempotent.* A repeated, late or fenced command changes nothing.

Times are whole numbers in the unit of the job (epoch milliseconds unless the job uses another unit). ``None`` means "no
watermark" and sorts below every number.
"""
