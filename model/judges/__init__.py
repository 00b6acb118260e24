"""What the monitor asks of a log: one module for each thing that is judged.

`allocation`, `partition`: what the pools have lent, by single facts and by snapshots (PARTITION).
`swa`: the SWA half of a snapshot, by `swa_map` (MAP), `locks` (LOCK) and `cursors` (CURSOR).
`windows`: keys in the SWA pool (WINDOW). `in_flight`: two streams (IN-FLIGHT). `current`:
translations (CURRENT). `admission`: what a request reuses (USEFUL, REFINES) and the slot that it
gets. `published`: who published what the tree holds. `progress`: refusals (PROGRESS). `rows`:
ring rows one by one (PADDING, REFINES, FRESH-*), `lanes` whole lanes of them, `stale` the evidence.
`drafts`: witnesses of speculation. `exactness`: layers (EXACT, PURE, NON-INTERFERENCE).
"""
