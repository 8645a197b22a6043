"""Servers of the peers: on loopback, with data in the run's own directory, and skipped where they are absent."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.children import Child, ChildFailed, Children

START_S = 60.0
KAFKA_ID = "4L6g3nShT-eMCtK--X86sw"  # of a cluster: any 16 bytes in base64
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # Debian's command on the PATH insists on its own directories


class Absent(Exception):
    """The server is not installed; the text says how to install it."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def find(name: str, hint: str, places: tuple[str, ...] = ()) -> str:
    """The path of a program.

    Raises:
        Absent: It is nowhere.
    """
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *places]))
    if path is None:
        raise Absent(f"no {name}: {hint}")
    return path


def wait_for(server: Child, port: int) -> None:
    """Return once the port accepts connections."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if not server.alive():
            server.hear()  # raises, with what the server wrote
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise ChildFailed(f"{server.name} did not open its port within {START_S:g} s")


def redis(children: Children, directory: Path, peer_bin: str) -> tuple[Child, int]:
    """Redis with an append-only file, synced every second."""
    program = find("redis-server", "apt-get install redis-server", (peer_bin,))
    directory.mkdir(parents=True)
    port = free_port()
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
    }
    options = [text for name, value in settings.items() for text in (f"--{name}", value)]
    server = children.program("redis-server", [program, *options])
    wait_for(server, port)
    return server, port


def nats(children: Children, directory: Path, peer_bin: str) -> tuple[Child, int]:
    """NATS with JetStream on disk."""
    hint = "go install github.com/nats-io/nats-server/v2@latest, and put it on the PATH or beside the peers' python"
    program = find("nats-server", hint, (peer_bin,))
    directory.mkdir(parents=True)
    port = free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
    server = children.program("nats-server", command)
    wait_for(server, port)
    return server, port


def nats_cluster(children: Children, directory: Path, peer_bin: str, servers: int) -> list[int]:
    """Several NATS servers with JetStream on disk, which is synced every two minutes; their ports."""
    hint = "apt-get install nats-server, or put it beside the peers' python"
    program = find("nats-server", hint, (peer_bin,))
    ports = [free_port() for _ in range(servers)]
    between = [f"nats://127.0.0.1:{free_port()}" for _ in ports]
    for number, port in enumerate(ports):
        home = directory / str(number)
        home.mkdir(parents=True)
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home), "--name", f"n{number}"]
        command += ["--cluster_name", "benchmark", "--cluster", between[number], "--routes", ",".join(between)]
        wait_for(children.program(f"nats-server {number}", command), port)
    return ports


def kafka_cluster(
    children: Children, directory: Path, installation: str, servers: int
) -> tuple[list[Child], list[int]]:
    """Several Kafka servers (KRaft), whose topics have a replica on each; not synced, as they come. And their ports."""
    java = find("java", "apt-get install default-jre-headless")
    if not list(Path(installation, "libs").glob("kafka_*.jar")):
        raise Absent(f"no Kafka in {installation}: it has no libs/kafka_*.jar")
    program = [java, "-Xmx512m", "-cp", str(Path(installation, "libs", "*"))]
    ports, controllers = [[free_port() for _ in range(servers)] for _ in range(2)]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers))
    started = []
    for number, port in enumerate(ports):
        home = directory / str(number)
        home.mkdir(parents=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[number]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": home / "data",
            "min.insync.replicas": servers,
            "offsets.topic.replication.factor": servers,
            "group.initial.rebalance.delay.ms": 0,
            "message.max.bytes": 2_000_000,
        }
        (home / "properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [*program, "kafka.tools.StorageTool", "format", "-t", KAFKA_ID, "-c", str(home / "properties")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        started.append(children.program(f"kafka {number}", [*program, "kafka.Kafka", str(home / "properties")]))
    for server, port in zip(started, ports, strict=True):
        wait_for(server, port)
    return started, ports


def etcd_cluster(children: Children, directory: Path, servers: int) -> list[int]:
    """Several etcd servers, which sync before they answer; the ports of clients."""
    program = find("etcd", "apt-get install etcd-server")
    ports = [free_port() for _ in range(servers)]
    peers = [f"http://127.0.0.1:{free_port()}" for _ in ports]
    cluster = ",".join(f"n{number}={peer}" for number, peer in enumerate(peers))
    started = []
    for number, (port, peer) in enumerate(zip(ports, peers, strict=True)):
        home = directory / str(number)
        home.mkdir(parents=True)
        clients = f"http://127.0.0.1:{port}"
        command = [program, "--name", f"n{number}", "--data-dir", str(home), "--log-level", "error"]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]
        started.append(children.program(f"etcd {number}", command))
    for server, port in zip(started, ports, strict=True):
        wait_for(server, port)
    return ports


def rabbitmq(children: Children, directory: Path, peer_bin: str) -> tuple[Child, int]:
    """RabbitMQ with its stream plugin; also its own port mapper, which it would leave running."""
    program = find(RABBITMQ, "apt-get install rabbitmq-server")
    mapper = find("epmd", "apt-get install erlang-base")
    directory.mkdir(parents=True)
    port, amqp, names, distribution = free_port(), free_port(), free_port(), free_port()
    (directory / "plugins").write_text("[rabbitmq_stream].\n")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n"
        "stream.advertised_host = 127.0.0.1\n"
        f"stream.advertised_port = {port}\n"
    )
    environment = {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": "benchmark@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-environment-file"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    children.program("epmd", [mapper, "-address", "127.0.0.1", "-port", str(names)])
    server = children.program("rabbitmq-server", [program], environment)
    wait_for(server, port)
    return server, port
