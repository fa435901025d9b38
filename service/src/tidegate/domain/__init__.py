"""The watermark machine in plain typed Python: no I/O, no framework, no reading of clocks.

It is the readable specification of what the scripts in ``store/lua`` do; the tests drive both with the same
commands and compare every reply. Times are whole numbers in the job's unit (milliseconds of the epoch unless a
job says otherwise); ``None`` is "no watermark" and orders below every number.
"""
