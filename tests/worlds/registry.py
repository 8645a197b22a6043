"""All scenarios by name."""

from __future__ import annotations

from typing import Final

from tests.worlds.asking import Asking
from tests.worlds.chain.fixed import FixedChains
from tests.worlds.chain.scenario import Chains
from tests.worlds.channel import Channel
from tests.worlds.gateways import Gateways
from tests.worlds.kv.chain_scenario import KvChain
from tests.worlds.kv.lossy import KvLossy
from tests.worlds.kv.scenario import Kv
from tests.worlds.log.rules import ForwardRules, Rules
from tests.worlds.log.scenario import Forward, Log, Sink
from tests.worlds.maps.scenario import Maps
from tests.worlds.mesh.rules import RuledMesh
from tests.worlds.mesh.scenario import Mesh
from tests.worlds.mix import Mix
from tests.worlds.ordered.homes import Homes
from tests.worlds.ordered.scenario import Ordered
from tests.worlds.real_gateways import RealGateways
from tests.worlds.sealed.mesh import SealedMesh
from tests.worlds.sealed.scenario import Sealed

from chappe.sim.world import SimWorld

SCENARIOS: Final[dict[str, type[SimWorld]]] = {
    "log": Log,
    "sink": Sink,
    "forward": Forward,
    "rules": Rules,
    "forward-rules": ForwardRules,
    "sealed": Sealed,
    "sealed-mesh": SealedMesh,
    "mesh": Mesh,
    "mesh-rules": RuledMesh,
    "kv": Kv,
    "kv-lossy": KvLossy,
    "kv-chain": KvChain,
    "maps": Maps,
    "asking": Asking,
    "channel": Channel,
    "mix": Mix,
    "gateway": Gateways,
    "gateway-real": RealGateways,
    "chain": Chains,
    "chain-fixed": FixedChains,
    "ordered": Ordered,
    "homes": Homes,
}
