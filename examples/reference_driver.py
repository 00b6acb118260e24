"""A driver of one's own, in its shortest form: the reference engine, with or without a fault.

    kvproof fuzz --engine "driver:python examples/reference_driver.py"
    kvproof fuzz --engine "driver:python examples/reference_driver.py no-cap"

The first must find nothing, the second a stale read. Put your engine in the place of
`reference_player`: `kvproof.model.player.Player` over an object with the methods of
`kvproof.model.player.Engine`, and one with those of `Forward`.
"""

from __future__ import annotations

import sys

from kvproof.fuzz.drivers.own import serve_driver
from kvproof.model.policy import Policy
from kvproof.model.reference import reference_player

POLICIES = {"": Policy(), "no-cap": Policy(reprefill_tail=0)}

if __name__ == "__main__":
    policy = POLICIES["".join(sys.argv[1:])]
    serve_driver(lambda geometry: reference_player(geometry, policy), version="1")
