"""The protocol between a query and the coordinator: a state machine that performs no I/O.

A query's registration, batches, progress and backlog are *procedures* (:mod:`~tidegate_spark.protocol.effects`), which
decide what to send, store and raise. A *runner* performs the effects: :class:`~.session.DriverSession` in a driver,
:class:`~.reporter.Reporter` in an executor's task, or a test. The code between two effects is atomic, also if several
threads run procedures.

States of a query::

                  announce                    begin acknowledged
    UNANNOUNCED ───────────► ANNOUNCED ◄──────────────────────────┐
         ▲                   │   ▲                                │
         │ the job is lost,  │   │ commit acknowledged            │
         │ or reset          │   │                                │
         └───────────────────┤   │                                │
                             ▼   │            the batch is lost   │
                          BATCH OPEN ─────────────────────────────┘
                             │               (begin and report again)
                             │ no answer, and on_outage="continue"
                             ▼
                          BACKLOG ──────────────────────► ANNOUNCED
                                   flushed, by batch

In the state BACKLOG, each batch takes the pinned watermark of the previous batch. The next begin, the flusher or the
next run reports the backlog, whichever reaches the coordinator first.

Invariants:

1. The pinned watermark of a batch is stored beside the checkpoint before it is used.
2. When a commit returns, the coordinator or the backlog has all reports of the batch and its row counts.
3. No batch begins at the coordinator before the backlog is empty, and the backlog is reported in batch order.
4. The progress is stored after the coordinator has acknowledged the commit. Only then does a batch leave the backlog.
5. The client reports the time that the query waits for the coordinator or cannot reach it. This time does not count
   towards ``idle_timeout``.
6. A driver may die between any two effects. The next run restores everything from the files beside the checkpoint.
"""
