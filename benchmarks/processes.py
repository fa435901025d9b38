"""Processor time of processes, in seconds."""

import psutil


def processor_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def family_s(process: psutil.Process) -> float:
    """Return the processor time that a process and its running children have used."""
    return sum(processor_s(one) for one in (process, *process.children()))
