"""Runs exported tests in one process of a release, without kvproof; as they are and with mutants.

``python import_stubs.py exported_runner.py MODULE[+MUTANT]...`` prints how many tests each module
has and what failed, as JSON on its last line. A mutant replaces a function in memory.
"""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

Wrapper = Callable[..., Any]


def _wrap(owner: Any, name: str, wrapper: Callable[[Wrapper], Wrapper]) -> Any:
    return mock.patch.object(owner, name, wrapper(getattr(owner, name)))


def _slot_zero_is_lent() -> Any:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    def wrapper(init: Wrapper) -> Wrapper:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.free_slots = [0, *self.free_slots]

        return made

    return _wrap(ReqToTokenPool, "__init__", wrapper)


def _entry_is_kept() -> Any:
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    def wrapper(free: Wrapper) -> Wrapper:
        def freed(self: Any, locs: Any) -> None:
            entries = self.full_to_swa_index_mapping[locs].clone()
            free(self, locs)
            self.full_to_swa_index_mapping[locs] = entries

        return freed

    return _wrap(SWATokenToKVPoolAllocator, "free_swa", wrapper)


def _page_is_lost() -> Any:
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    return mock.patch.object(SWATokenToKVPoolAllocator, "free", return_value=None)


def _lock_is_taken_twice() -> Any:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    def wrapper(lock: Wrapper) -> Wrapper:
        def locked(self: Any, node: Any) -> Any:
            lock(self, node)
            return lock(self, node)

        return locked

    return _wrap(UnifiedRadixCache, "inc_lock_ref", wrapper)


def _decode(after: Callable[[Any], None]) -> Any:
    """``after`` sees the running batch after each decode was prepared."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    def wrapper(prepare: Wrapper) -> Wrapper:
        def prepared(self: Any) -> None:
            prepare(self)
            after(self)

        return prepared

    return _wrap(ScheduleBatch, "prepare_for_decode", wrapper)


def _cursor_runs_ahead() -> Any:
    def after(batch: Any) -> None:
        for req in batch.reqs:
            req.kv.swa_evicted_seqlen += 1

    return _decode(after)


def _window_is_given_back() -> Any:
    def after(batch: Any) -> None:
        pool = batch.token_to_kv_pool_allocator
        for req, length in zip(batch.reqs, batch.seq_lens.tolist(), strict=True):
            row = batch.req_to_token_pool.req_to_token[req.req_pool_idx]
            pool.full_to_swa_index_mapping[row[length - 2].long()] = 0

    return _decode(after)


def _nothing_fits() -> Any:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    return mock.patch.object(ScheduleBatch, "check_decode_mem", return_value=False)


def _match(change: Callable[[Any], None]) -> Any:
    """``change`` sees a request after its prefix was matched."""
    from sglang.srt.managers.schedule_batch import Req

    def wrapper(match: Wrapper) -> Wrapper:
        def matched(self: Any, *args: Any, **kwargs: Any) -> None:
            match(self, *args, **kwargs)
            change(self)

        return matched

    return _wrap(Req, "init_next_round_input", wrapper)


def _match_of_another() -> Any:
    def change(req: Any) -> None:
        req.prefix_indices = req.prefix_indices.flip(0)

    return _match(change)


def _cap_holds_all_back() -> Any:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    return mock.patch.object(UnifiedRadixCache, "swa_reprefill_tail_tokens", return_value=1000)


MUTANTS: dict[str, Callable[[], Any]] = {
    "slot-zero": _slot_zero_is_lent,
    "entry-kept": _entry_is_kept,
    "page-lost": _page_is_lost,
    "locked-twice": _lock_is_taken_twice,
    "cursor-ahead": _cursor_runs_ahead,
    "window-unmapped": _window_is_given_back,
    "nothing-fits": _nothing_fits,
    "other-match": _match_of_another,
    "no-match": _cap_holds_all_back,
}


def _run(module: str) -> tuple[int, list[str]]:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module)).run(result)
    return result.testsRun, [text for _, text in (*result.failures, *result.errors)]


def main() -> None:
    """Run what is named."""
    sys.path.insert(0, ".")
    found = {}
    for name in sys.argv[1:]:
        module, _, mutant = name.partition("+")
        if mutant:
            importlib.import_module(module)  # the environment is set before the engine is imported
            with MUTANTS[mutant]():
                found[name] = _run(module)
        else:
            found[name] = _run(module)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
