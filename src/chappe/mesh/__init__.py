"""The mesh: live publish and subscribe among peers, in the protocol of Zeek Broker. Cores without I/O.

messages       every frame after the handshake, and its bytes
flows          those of version 2 that carry publications, and its trees
filters        sets of topic prefixes
rules          decisions of the permissions
link_states    what endpoints tell of themselves, and which of it is believed
topology       the network as one endpoint knows it
ways           one way or two from there to every other endpoint, as trees
network        the same as a value, for programs and people
links          one connection per pair of endpoints, from the handshake to its end
forwarding     where messages go: along trees to endpoints of chappe, and to originals
endpoint       the core that a driver runs, of all these
events         what it tells the application
"""
