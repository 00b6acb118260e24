"""Campaigns over all targets, on many cores or machines: `kvproof campaign`.

A *unit* is a short survey of one target, or the shrinking of one failure. *Lanes* work on units,
each in a process of its own: on this machine (`lanes`) or in a Ray cluster (`ray_lane`). The
*ledger* keeps what each unit came to, a *tally* is what a ledger comes to, and the *coordinator*
gives out units until the time is up.
"""
