"""``python -m tidegate_spark.audit``: the same command as ``tidegate-audit``.

Nothing imports this module: ``tidegate_spark.audit`` is the function.
"""

from tidegate_spark.auditing.command import main

if __name__ == "__main__":
    main()
