"""The command ``tidegate-audit``: what a query loses, from its checkpoint and its source. It only reads."""

import json
import logging
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from tidegate_spark.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from tidegate_spark.auditing.audit import Audit

try:
    import typer

    from tidegate.times import parse_duration_s
except ImportError:
    sys.exit("tidegate-audit needs more packages: pip install 'tidegate-spark[audit,spark]'")

Value = TypeVar("Value")
Format: TypeAlias = tuple[str, str | None]
"""A format of files, and a schema."""


def _duration(option: str, text: str) -> timedelta:
    as_in_spark = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) (millisecond|second|minute|hour|day|week)s?", text)
    if as_in_spark is not None:
        return timedelta(**{f"{as_in_spark[2]}s": float(as_in_spark[1])})
    try:
        return timedelta(seconds=parse_duration_s(text))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} has no '=': write it as key=value", param_hint=option)
    return dict(text.split("=", 1) for text in texts)


def _one_or_each(values: list[Value]) -> Value | list[Value] | None:
    """Return the value of a repeated option for all sources, or one for each source; None if there is no value."""
    return None if not values else values[0] if len(values) == 1 else values


def run(
    event_time: Annotated[
        list[str],
        typer.Option(
            help="Event time: a column, or an expression of SQL. Repeat it for each source; - if it has no watermark."
        ),
    ],
    checkpoint: Annotated[str | None, typer.Option(help="The checkpointLocation of the query.")] = None,
    files: Annotated[str | None, typer.Option(help="Without a query: the path of files to read.")] = None,
    topic: Annotated[str | None, typer.Option(help="Without a query: a topic of Kafka.")] = None,
    arrival: Annotated[
        str | None, typer.Option(help="With --files: time of arrival, a column or an expression of SQL.")
    ] = None,
    every: Annotated[str, typer.Option(help="With --files or --topic: time from one batch to the next.")] = "1m",
    substream: Annotated[
        list[str] | None,
        typer.Option(help="What may run behind the others: a column, or an expression of SQL. Repeatable."),
    ] = None,
    window: Annotated[str | None, typer.Option(help="Size of the windows of F.window, such as 1h.")] = None,
    slide: Annotated[str | None, typer.Option(help="Distance of sliding windows.")] = None,
    window_start: Annotated[str, typer.Option(help="startTime of the windows.")] = "0s",
    delay: Annotated[
        list[str] | None, typer.Option(help="Delay of withWatermark. Default: from the checkpoint. Repeatable.")
    ] = None,
    file_format: Annotated[
        list[str] | None, typer.Option("--format", help="Format of files. Default: by their names. Repeatable.")
    ] = None,
    schema: Annotated[
        list[str] | None, typer.Option(help="Schema of files, such as 't timestamp, k string'. Repeatable.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the source, as key=value. Repeatable.")] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="SERVERS", help="Servers of Kafka, such as localhost:9092.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="For a query that reads Delta Lake: path of the table.")] = None,
    operator: Annotated[int | None, typer.Option(help="Number of the stateful operator.")] = None,
    examples: Annotated[int, typer.Option(min=0, max=100, help="Number of lost rows to show, with all columns.")] = 0,
    progress: Annotated[
        Path | None,
        typer.Option(exists=True, help="File with the query's progress as lines of JSON, to compare its counts."),
    ] = None,
    policy: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="JSON file with a job configuration to compare with. Repeatable."),
    ] = None,
    report: Annotated[
        list[Path] | None, typer.Option(help="File for the report, as .html or .json. Repeatable.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="Setting of Spark, as key=value. Repeatable.")] = None,
) -> None:
    """Count the rows that a query of Spark has lost as late, and what to change. It only reads.

    tidegate-audit --checkpoint checkpoints/hours --event-time departed_at --substream origin --window 1h

    With a query, pass its checkpoint. Before there is a query, pass --files with --arrival, or --topic.
    """
    given = [name for name, value in (("--checkpoint", checkpoint), ("--files", files), ("--topic", topic)) if value]
    if len(given) != 1:
        raise typer.BadParameter("give either --checkpoint, or --files, or --topic")
    if topic is not None and kafka is None:
        raise typer.BadParameter("--topic needs --kafka, the servers, such as localhost:9092", param_hint="--topic")
    for path in report or ():
        if path.suffix not in (".html", ".json"):
            raise typer.BadParameter(f"{path} must end with .html or .json", param_hint="--report")
        if not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.absolute().parent}", param_hint="--report")
    sizes: dict[str, Any] = {
        "policies": {str(path): _json("--policy", path.read_text(), path) for path in policy or ()},
        "window": None if window is None else _duration("--window", window),
        "slide": None if slide is None else _duration("--slide", slide),
        "window_start": _duration("--window-start", window_start),
    }
    delays = [_duration("--delay", each) for each in delay or ()]
    step, formats = _duration("--every", every), _formats(file_format or [], schema or [])
    if checkpoint is None:
        _check_input(files, arrival, event_time, delays, substream or [], formats)
    settings, options = _pairs("--conf", conf or ()), _pairs("--option", option or ())
    if kafka is not None:
        options["kafka.bootstrap.servers"] = kafka
    try:
        spark = _session(settings)
        if checkpoint is not None:
            found = _of_query(
                spark,
                checkpoint,
                event_time,
                substream or [],
                delays,
                _readers(spark, formats, options),
                options,
                sizes | {"operator": operator, "table": table, "examples": examples, "progress": _progress(progress)},
            )
        else:
            from tidegate_spark.auditing.audit import audit_input

            found = audit_input(
                _rows(spark, files, topic, formats, options),
                event_time=event_time[0],
                arrival=arrival or "timestamp",
                every=step,
                delay=delays[0],
                substream=substream[0] if substream else None,
                **sizes,
            )
        _show(found, report or [])
    except TidegateError as error:
        typer.echo(f"tidegate-audit: {error}", err=True)
        raise typer.Exit(1) from None
    except Exception as error:
        # Errors of PySpark, which is imported late: a format, an option or a package of the source that is not there.
        if type(error).__module__.partition(".")[0] != "pyspark":
            raise
        typer.echo(f"tidegate-audit: {str(error).splitlines()[0]}", err=True)
        raise typer.Exit(1) from None


def _session(settings: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    from tidegate_spark.testing import ensure_java

    ensure_java()
    typer.echo("Starting Spark ...", err=True)
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", False)
    builder = builder.config("spark.log.level", "ERROR")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # the command shows an error of Spark in one line
    logging.getLogger("SQLQueryContextLogger").disabled = True
    return spark


def _formats(formats: list[str], schemas: list[str]) -> list[Format]:
    """Return the format and the schema of each source, or of all; none if they follow from the names of the files."""
    if schemas and not formats:
        raise typer.BadParameter("--schema needs --format, such as --format json", param_hint="--schema")
    if len(schemas) > 1 and len(formats) == 1:
        formats = formats * len(schemas)
    if len(schemas) not in (0, 1, len(formats)):
        raise typer.BadParameter(
            f"there are {len(formats)} --format and {len(schemas)} --schema: give one for each source, or one for all",
            param_hint="--schema",
        )
    return [(each, schemas[place % len(schemas)] if schemas else None) for place, each in enumerate(formats)]


def _check_input(
    files: str | None,
    arrival: str | None,
    event_times: list[str],
    delays: list[timedelta],
    substreams: list[str],
    formats: list[Format],
) -> None:
    """Check the options of an input without a query.

    Raises:
        typer.BadParameter: If one is missing, or is given more often than the input has sources.
    """
    if files is not None and arrival is None:
        raise typer.BadParameter("--files needs --arrival, the time at which a row arrived", param_hint="--files")
    if not delays:
        raise typer.BadParameter("--files and --topic need --delay, that of your planned query", param_hint="--delay")
    if max(len(event_times), len(delays), len(substreams), len(formats)) > 1:
        raise typer.BadParameter(
            "--files and --topic take one --event-time and one --delay, and at most one --substream, --format and "
            "--schema"
        )


def _readers(spark: "SparkSession", formats: list[Format], options: dict[str, str]) -> "list[DataFrameReader]":
    readers = []
    for name, schema in formats:
        reader = spark.read.format(name).options(**options)
        readers.append(reader if schema is None else reader.schema(schema))
    return readers


def _rows(
    spark: "SparkSession", files: str | None, topic: str | None, formats: list[Format], options: dict[str, str]
) -> "DataFrame":
    if topic is not None:
        reader = spark.read.format("kafka").option("subscribe", topic).option("failOnDataLoss", False)
        return reader.options(**options).load()
    readers = _readers(spark, formats, options) or [spark.read.format("parquet")]
    return readers[0].load(files)


def _of_query(
    spark: "SparkSession",
    checkpoint: str,
    event_times: list[str],
    substreams: list[str],
    delays: list[timedelta],
    readers: "list[DataFrameReader]",
    options: dict[str, str],
    more: dict[str, Any],
) -> "Audit":
    from tidegate_spark.auditing.audit import audit

    typer.echo(f"Reading {checkpoint} and its source ...", err=True)
    columns: list[str | None] = [None if each == "-" else each for each in event_times]
    return audit(
        spark,
        checkpoint,
        event_time=columns if len(columns) > 1 else columns[0],
        substream=_one_or_each(substreams),
        delay=_one_or_each(delays),
        reader=_one_or_each(readers),
        options=options,
        **more,
    )


def _progress(file: Path | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    return [_json("--progress", line, file) for line in file.read_text().splitlines() if line.strip()]


def _json(option: str, text: str, file: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}", param_hint=option) from None


def _show(found: "Audit", reports: list[Path]) -> None:
    from tidegate_spark.auditing.report import text, write

    typer.echo("", err=True)  # after the progress of Spark
    typer.echo(text(found))
    for path in reports:
        write(found, path)
        typer.echo(f"Wrote {path}.", err=True)
    if found.differences:
        raise typer.Exit(3)


def main() -> None:
    """Run the command."""
    typer.run(run)
