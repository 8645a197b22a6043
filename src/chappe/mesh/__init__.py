"""The mesh: live publish and subscribe among peers, in the protocol of Zeek Broker. Cores without I/O.

messages    every frame after the handshake, and its bytes
greetings   every frame of the handshake, and its bytes
handshake   one connection, from hello to established
peers       one connection per pair of endpoints, whoever dials
filters     sets of topic prefixes
policy      what a full box does
outbox      what waits for one connection
inbox       what waits for one subscriber
"""
