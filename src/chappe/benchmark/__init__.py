"""The cluster benchmark: recordings of endpoints played by one process for each. In Broker's formats. And load tests.

syntax.py      the text of Broker's configuration files, in and out
config.py      what the file of a benchmark says: nodes, peers, topics
generate.py    a configuration from recordings, with what each node is to receive
orders.py      a process's side of its conversation with the parent
node.py        one node, a process of its own
processes.py   the nodes as processes: orders to them, facts from them
run.py         a benchmark from start to end
report.py      what came out: as numbers and as a table's rows
plot.py        as a picture
load/          `chappe bench`: load tests of log, mesh and state, which need no recordings
"""
