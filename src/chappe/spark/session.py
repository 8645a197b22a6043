"""A Spark session that starts automatically, quickly and quietly: locally, on a cluster, or through Spark Connect.

Every setting can be overridden with ``conf``. What they are for, and what they gain, was measured on two cores with
PySpark 4.3.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from chappe.errors import SparkUnavailable, UsageError
from chappe.spark.class_archive import archive_options
from chappe.spark.java import cache_dir, ensure_java, short_hash, write_script
from chappe.spark.sentences import forward, sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PORT: Final = 15002  # of a Spark Connect server, by default
INSTALL_CONNECT: Final = "run: pip install 'chappe[spark,connect]'"

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit tells so where its Java listens
_TAIL_LINES: Final = 5  # of Java's last words, in the error when it does not start
ANSWER_S: Final = 5.0  # a server on the network that has not answered by then is not there
# Java's Arrow looks at every access to a buffer: whether it lies within, and whether the buffer was freed. Columns come
# from pyarrow in our own workers, which has checked them.
_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_THREADS: Final = r"(?:[1-9][0-9]{0,4}|\*)"
_MASTERS: Final = re.compile(
    rf"local(\[{_THREADS}(, *[1-9][0-9]{{0,4}})?\])?|local-cluster\[.+\]|(spark|k8s|sc)://.+|yarn"
)
_PLACE: Final = r"[^/?#,]+:[0-9]{1,5}"
_SPARK: Final = re.compile(f"spark://{_PLACE}(,{_PLACE})*")
_SCRIPT: Final = """#!/bin/sh
kept=
old=$IFS; IFS=:
for each in $PYTHONPATH; do
  case $each in */pyspark.zip|*/py4j-*.zip) ;; *) kept=${{kept:+$kept:}}$each ;; esac
done
IFS=$old
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def spark_session(
    app_name: str = "chappe",
    *,
    conf: Mapping[str, str] | None = None,
    master: str = "local[*]",
    apart: bool = False,
) -> SparkSession:
    """Start a Spark session, or return the one that this process has.

    It is the active session of all threads: only with one does Spark find Python data sources to write to.

    Under ``spark-submit`` its master and its settings are used, and ours where it has none.

    Args:
        app_name: What Spark calls the program.
        conf: Spark settings; they win over ours.
        master: Where Spark runs: ``local[*]``, ``spark://host:port`` or another cluster, ``sc://host:port`` for a
            Spark Connect server. Checkpoints of a local one are expected on a local disk: they are written without
            the slow detour that a shared file system needs. For others set
            ``spark.sql.streaming.checkpointFileManagerClass`` back.
        apart: Start Java in a process group of its own, so that Ctrl-C in a terminal reaches this process alone and
            the batch under way can be finished.

    Raises:
        UsageError: ``master`` is nowhere that Spark could run.
        SparkUnavailable: PySpark or a usable Java is missing, Java or Spark does not start, or no Spark Connect server
            and no master answers. Definite.
    """
    if master.startswith("sc://"):
        return _connect(app_name, master, conf or {})
    if session_runs():
        from pyspark.sql import SparkSession

        return _everywhere(SparkSession.builder.appName(app_name).config(map=dict(conf or {})).getOrCreate())
    if _SUBMITTED in os.environ:
        return _submitted(app_name, conf or {})
    master = check_master((conf or {}).get("spark.master", master))
    if master.startswith("spark://"):
        await_master(master)
    java = ensure_java()
    from pyspark import SparkConf

    # Python workers must be this Python, and not the first python3 on the PATH
    os.environ.setdefault("PYSPARK_PYTHON", worker_python(master))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    settings = _defaults(master) | dict(conf or {})
    options = "spark.driver.extraJavaOptions"
    log = f'"-Dlog4j2.configurationFile={resources.files("chappe.spark") / "log4j2.properties"}"'
    settings[options] = " ".join(filter(None, [log, archive_options(java), settings.get(options)]))
    settings |= {"spark.master": master, "spark.app.name": app_name}
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    _launch(spark_conf, apart)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    try:
        return _everywhere(SparkSession.builder.config(conf=spark_conf).getOrCreate())
    except Py4JError as error:
        raise SparkUnavailable(f"Spark did not start at {master}: {sentence(error)}") from error


def _submitted(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session in the Java that spark-submit has started for this process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    given = SparkConf(loadDefaults=True)  # what spark-submit was told
    ours = _defaults(given.get("spark.master", "local[*]") or "")
    settings: dict[str, bool | float | int | str | None] = {**conf}
    settings |= {name: value for name, value in ours.items() if name not in conf and not given.contains(name)}
    settings.pop("spark.master", None)
    if not given.contains("spark.app.name"):
        settings["spark.app.name"] = app_name
    return _everywhere(SparkSession.builder.config(map=settings).getOrCreate())


def _everywhere(session: SparkSession) -> SparkSession:
    """Make a session the active one of this thread, and of every other thread at its first call to Java.

    Each Python thread has its own thread in Java, and Spark's active session is per thread.
    """
    java: Any = session
    client = java._sc._gateway._gateway_client
    active = java._jvm.SparkSession
    active.setActiveSession(java._jsparkSession)
    connect_thread = getattr(type(client), "_create_new_connection", None)
    if connect_thread is None:  # without PYSPARK_PIN_THREAD any thread may have any of Java's
        return session

    def connected() -> Any:
        connection = connect_thread(client)
        if java._sc._jsc is None:  # stopped
            return connection
        active.setActiveSession(java._jsparkSession)
        client.deque.remove(connection)  # the pending call returns the connection later
        return connection

    client._create_new_connection = connected
    return session


def _connect(app_name: str, url: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session at a Spark Connect server, which must have chappe installed."""
    for package in ("pyspark", "grpc", "google.rpc"):
        if not _installed(package):
            raise SparkUnavailable(f"Spark Connect needs packages that are not installed; {INSTALL_CONNECT}")
    host, port = _server(url)
    problem = connect(host, port)  # grpc would go on trying for minutes
    if problem:
        raise SparkUnavailable(f"no Spark Connect server answers at {url}: {problem}")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.appName(app_name).config(map=dict(conf)).remote(url).getOrCreate()
    except (PySparkException, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SparkUnavailable(f"no Spark session at {url}: {first}") from error


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # what it lies in is missing
        return False


def _server(url: str) -> tuple[str, int]:
    found = re.fullmatch(r"sc://(\[[^\]]+\]|[^:/;]+)(?::(\d+))?(?:/.*)?", url)
    if found is None:
        raise SparkUnavailable(f"{url!r} is not an address of a Spark Connect server: sc://HOST:PORT")
    return found[1].strip("[]"), int(found[2] or CONNECT_PORT)


def session_runs() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _defaults(master: str) -> dict[str, str]:
    found = {
        # Arrow batches to and from Python workers: 10 to 15 % faster, and 45 ms less for each micro-batch
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # a sixth less of Java's time for each row of a topic; these stand before whatever extraJavaOptions say
        "spark.driver.defaultJavaOptions": _UNCHECKED,
        "spark.executor.defaultJavaOptions": _UNCHECKED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        found |= {
            # 200 is for clusters: a stateful micro-batch takes 16 s with it here
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # the default starts a chmod for every file; this saves 50 ms for each micro-batch
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
        }
    return found


def _cores(master: str) -> int:
    number = master.partition("[")[2].partition("]")[0].partition(",")[0]
    return int(number) if number.isdecimal() and int(number) else os.cpu_count() or 1


def _launch(conf: object, apart: bool) -> None:
    """Start the JVM ourselves, since only so its first words can be kept from the terminal."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    read, write = os.pipe()
    said: deque[bytes] = deque(maxlen=_TAIL_LINES)
    speaker = threading.Thread(target=forward, args=(os.fdopen(read, "rb"), said), daemon=True, name="spark-stderr")
    speaker.start()
    try:
        gateway = launch_gateway(conf, {"stderr": write} | ({"process_group": 0} if apart else {}))  # type: ignore[no-untyped-call]
    except (OSError, subprocess.SubprocessError, PySparkRuntimeError) as error:
        os.close(write)
        speaker.join(timeout=1)
        words = b" ".join(said).decode("utf-8", "replace").strip() or str(error)
        raise SparkUnavailable(f"Java did not start Spark: {sentence(words)}; see `chappe doctor`") from error
    os.close(write)
    SparkContext._ensure_initialized(gateway=gateway)


def check_master(text: str) -> str:
    """Return the same text if it can be where Spark runs; raises UsageError."""
    if not _MASTERS.fullmatch(text):
        raise UsageError(
            f"{text[:200]!r} is not where Spark runs: local[*] (here), spark://HOST:PORT, yarn, k8s://HOST, "
            "or sc://HOST:PORT for Spark Connect"
        )
    return text


def await_master(master: str) -> None:
    """Check that something listens at ``spark://host:port,host:port``; Spark would go on trying for a minute. Raises
    UsageError: it is not such an address; SparkUnavailable: nobody answers.
    """
    if not _SPARK.fullmatch(master):
        raise UsageError(f"{master[:200]!r} is not an address of Spark's masters: spark://HOST:PORT[,HOST:PORT]")
    problem = ""
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        problem = connect(host.strip("[]"), int(port))
        if not problem:
            return
    raise SparkUnavailable(f"no Spark master answers at {master}: {problem}")


def connect(host: str, port: int) -> str:
    """Return the reason why nothing can be reached there; empty if something can."""
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(error)
    return ""


def worker_python(master: str) -> str:
    """Return this Python, or for a session on this machine a script that takes PySpark's zips out of the path first.

    Spark puts its own sources before the installed ones, packed in a zip, and Python compiles what comes from a zip
    anew in each process: 0.7 s of processor time whenever a query starts, or the first worker of a kind.
    """
    if os.name != "posix" or not (master == "local" or master.startswith("local[")):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache_dir() / "python" / short_hash(text) / "python"
    try:
        write_script(path, text)
    except OSError:  # no place to keep it
        return sys.executable
    return str(path)
