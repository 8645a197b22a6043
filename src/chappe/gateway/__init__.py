"""Gateways: what joins two domains, each a mesh of its own, and passes chosen topics between them. No I/O.

    summary         what one domain wants, as far as it may pass: prefixes, bounded
    announcement    what gateways tell each other, as a prefix in their filters: link states carry it
    election        which gateways pass, so that domains and gateways make a tree
    marks           what goes along with a message from gateway to gateway, so that it never passes one twice
    core            ``GatewayCore``: stands between two endpoints
    events          what an application hears

A gateway is an endpoint in each of its domains. It subscribes in one to what the other wants, and publishes there what
comes. Nothing else of a domain is told in the other.
"""
