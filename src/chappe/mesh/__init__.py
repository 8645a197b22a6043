"""The mesh: live publish and subscribe among peers, in the protocol of Zeek Broker. Cores without I/O.

messages    every frame after the handshake, and its bytes
greetings   every frame of the handshake, and its bytes
handshake   one connection, from hello to established
peers       one connection per pair of endpoints, whoever dials
filters     sets of topic prefixes
policy      boxes with a bound, and what a full one does
outbox      what waits for one connection
inbox       what waits for one subscriber
link        one connection, and how an application sees it
dialling    whom to dial, and when again
heartbeats  links stay alive
peerings    connections become links, and end
duplicates  which publications came before
echoes      loops that are closed by originals
link_states  what endpoints tell of themselves, and which of it is believed
topology    the network as one endpoint knows it
network     the same as a value, for programs and people
subscriptions  who wants what here
congestion  whom to read less from, because others are full
losses      what was dropped, reported here and told to others
routing     where messages go
endpoint    the core that a driver runs, of all these
actions     what it asks of the driver
events      what it tells the application
"""
