"""All scenarios by name."""

from __future__ import annotations

from typing import Final

from chappe.sim.scenarios.chain.scenario import Chains
from chappe.sim.scenarios.channel import Channel
from chappe.sim.scenarios.gateways import Gateways
from chappe.sim.scenarios.kv.chain_scenario import KvChain
from chappe.sim.scenarios.kv.scenario import Kv, KvLossy
from chappe.sim.scenarios.log.forwarding import Forward
from chappe.sim.scenarios.log.rules import ForwardRules, Rules
from chappe.sim.scenarios.log.scenario import Log, Sink
from chappe.sim.scenarios.maps.scenario import Maps
from chappe.sim.scenarios.mesh.scenario import Mesh
from chappe.sim.scenarios.mix import Mix
from chappe.sim.scenarios.ordered.homes import Homes
from chappe.sim.scenarios.ordered.scenario import Ordered
from chappe.sim.scenarios.sealed.mesh import SealedMesh
from chappe.sim.scenarios.sealed.scenario import Sealed
from chappe.sim.world import World

SCENARIOS: Final[dict[str, type[World]]] = {
    "log": Log,
    "sink": Sink,
    "forward": Forward,
    "rules": Rules,
    "forward-rules": ForwardRules,
    "sealed": Sealed,
    "sealed-mesh": SealedMesh,
    "mesh": Mesh,
    "kv": Kv,
    "kv-lossy": KvLossy,
    "kv-chain": KvChain,
    "maps": Maps,
    "channel": Channel,
    "mix": Mix,
    "gateway": Gateways,
    "chain": Chains,
    "ordered": Ordered,
    "homes": Homes,
}
