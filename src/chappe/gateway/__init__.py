"""Gateways: what joins two domains, each a mesh of its own, and passes chosen topics between them. No I/O.

    announcement    what gateways tell each other, which of them pass, and the prefixes that they ask for
    marks           what goes along with a message from gateway to gateway, so that it never passes one twice
    core            ``GatewayCore``: stands between two endpoints
    events          what an application hears

A gateway is an endpoint in each of its domains. It subscribes in one to what the other wants, and publishes there what
comes. Nothing else of a domain is told in the other.
"""
