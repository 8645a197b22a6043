"""The benchmark suite: ``python -m benchmarks`` measures every path of chappe beside its peers and raw limits.

__main__        the command
settings        how much is measured
children, link  processes of a benchmark and how they talk: orders and facts, one JSON object a line
members         chappe's own processes; raw: ZeroMQ and plain files; peers/: other systems' clients
brokers         servers of the peers
rounds          a throughput pair, measured
records, stored, durable, catch_up, latency, readiness, partitions, memory    the paths
outcome, report, curve    what was measured, as a table and as a drawing
"""
