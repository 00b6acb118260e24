"""Listens to the real functions of an engine, in its scheduler process.

Where a release keeps them is in `kernels.catalogue`; what each of them means for the log is here, a
listener each. A listener is called before the engine's function and, if it is a generator, resumed
with the function's result. It reads what the host knows and changes nothing.

Everything of the recorder runs inside `Instrumentation._guard`: whatever goes wrong there is
counted, said once in the server's log, marked in the recording as a gap, and never reaches the
engine.
"""

from __future__ import annotations

import functools
import logging
import os
import pkgutil
import secrets
import sys
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from kvproof.kernels.family import Family
from kvproof.model.facts import RECORDED, Pool, Started, decode_fact, encode_fact
from kvproof.model.scenario import TEXT_TOKENS, BadFileError, Geometry
from kvproof.record.locs import Level, parallel_spans, readable, spans_of, spans_of_pages
from kvproof.record.names import KEY_BYTES, TOKENS
from kvproof.record.recorder import CannotFollowError, Draft, Ending, Extend, Recorder, Tracked
from kvproof.record.writer import LogWriter

MAX_ERRORS = 3
"""Errors of its own after which the recorder switches itself off."""

_VERSIONED: tuple[str, ...] = ("sglang", "torch", "triton")

_MARK = "_kvproof_listener"

_log = logging.getLogger("kvproof.record")

T = TypeVar("T")
Listener: TypeAlias = Callable[..., Generator[None, Any, None] | None]


@dataclass(slots=True, eq=False)
class _OpenLog:
    """A log that is being written: of one pool of request slots, hence of one scheduler."""

    recorder: Recorder
    writer: LogWriter
    tracked: WeakKeyDictionary[Any, Tracked] = field(default_factory=WeakKeyDictionary)
    # A launch is being prepared: what the tree is asked to evict is part of it.
    preparing: bool = False


class Instrumentation:
    """Records every scheduler of this process into a folder, one file each."""

    def __init__(
        self,
        family: Family,
        *,
        folder: Path,
        level: Level = "host",
        key: bytes | None = None,
    ) -> None:
        """Prepare; nothing is touched before `install`.

        Args:
            family: where this process's engine keeps things.
            folder: where logs go; made with the first of them.
            level: how much is recorded of locations.
            key: secret of the names, drawn by default; given, two logs can be compared.
        """
        self._family = family
        self._folder = folder
        self._level = level
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._slot = _getter(family.fields["slot"])
        self._matched = _getter(family.fields["matched"])
        self._extend_end = _getter(family.fields["extend end"])
        self._committed = _getter(family.fields["committed"])
        self._originals: list[tuple[type, str, Any]] = []
        self._live = False
        self._errors = 0
        self._writers: list[LogWriter] = []
        # The logs that are being written, and how to find one by the engine's objects.
        self._open: list[_OpenLog] = []
        self._logs: WeakKeyDictionary[Any, _OpenLog] = WeakKeyDictionary()
        self._pools: WeakKeyDictionary[Any, tuple[_OpenLog, Pool]] = WeakKeyDictionary()
        self._listeners: dict[str, Listener] = {
            "prefill": self._on_prefill,
            "decode": self._on_decode,
            "verified": self._on_verified,
            "release": self._on_release,
            "slot freed": self._on_slot_freed,
            "evict": self._on_evict,
            "flush": self._on_flush,
            "allocate": self._on_allocate,
            "free": self._on_free,
            "free pages": self._on_free_pages,
            "translate": self._on_translate,
        }

    @property
    def errors(self) -> int:
        """Errors of the recorder's own so far."""
        return self._errors

    def install(self) -> None:
        """Wrap the engine's methods.

        Raises:
            ImportError, AttributeError: the engine has not what the catalogue says.
        """
        found = [
            (pkgutil.resolve_name(place.rpartition(".")[0]), place.rpartition(".")[2], role)
            for role, places in self._family.methods.items()
            for place in places
        ]
        # All are there, or none is wrapped.
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in found]
        for (owner, name, original), (_, _, role) in zip(originals, found, strict=True):
            setattr(owner, name, self._wrapped(original, role, self._listeners[role]))
        self._originals = originals
        self._live = True

    def remove(self) -> None:
        """Put the engine's methods back."""
        self._live = False
        for owner, name, original in self._originals:
            setattr(owner, name, original)
        self._originals = []

    def close(self) -> None:
        """End all logs, and return when they are on disk."""
        self._end()
        for writer in self._writers:
            writer.wait()

    # --- the boundary ---------------------------------------------------------------------

    def _wrapped(self, original: Any, role: str, listener: Listener) -> Any:
        guard = self._guard

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._live:
                return original(*args, **kwargs)
            listening = guard(role, listener, *args, **kwargs)
            if listening is None:
                return original(*args, **kwargs)
            guard(role, next, listening, None)
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                guard(role, self._engine_failed, error)
                raise
            guard(role, _resume, listening, result)
            return result

        setattr(call, _MARK, True)
        return call

    def _guard(self, role: str, act: Callable[..., T], /, *args: Any, **kwargs: Any) -> T | None:
        """Do something of the recorder's own; its errors end here."""
        try:
            return act(*args, **kwargs)
        except CannotFollowError as reason:
            self._give_up(f"{reason}. The recorder is off; the server is not affected")
        except Exception as error:
            self._errors += 1
            sentence = f"{type(error).__name__} in the listener for {role!r}"
            for log in self._open:
                log.recorder.gap(sentence)
            if self._errors == 1:
                _log.warning("kvproof: the recorder failed, the server is not affected: %s",
                             sentence, exc_info=error)  # fmt: skip
            if self._errors >= MAX_ERRORS:
                self._give_up(f"the recorder failed {self._errors} times and is off")
        return None

    def _give_up(self, reason: str) -> None:
        for log in self._open:
            log.recorder.gap(reason)
        self._live = False
        self._end()
        _log.warning("kvproof: %s", reason)

    def _engine_failed(self, error: Exception) -> None:
        """The engine raised: that is the last thing its logs say."""
        for log in self._open:
            log.writer.finish(log.recorder.engine_failed(error))
        self._forget()

    def _end(self) -> None:
        for log in self._open:
            log.writer.finish(log.recorder.ended())
        self._forget()

    def _forget(self) -> None:
        self._open = []
        self._logs = WeakKeyDictionary()
        self._pools = WeakKeyDictionary()

    # --- opening a log --------------------------------------------------------------------

    def _log_of(self, batch: Any) -> _OpenLog:
        log = self._logs.get(batch.req_to_token_pool)
        if log is None:
            log = self._begin(batch)
            self._logs[batch.req_to_token_pool] = log
            self._open.append(log)
        return log

    def _begin(self, batch: Any) -> _OpenLog:
        started = self._describe(batch)
        self._folder.mkdir(parents=True, exist_ok=True)
        nth = f"-{len(self._writers) + 1}" if self._writers else ""
        writer = LogWriter(
            self._folder / f"scheduler-{os.getpid()}{nth}.jsonl",
            complain=lambda sentence: _log.warning("kvproof: %s", sentence),
        )
        self._writers.append(writer)
        log = _OpenLog(Recorder(writer.put, started, self._key), writer)
        allocator = batch.token_to_kv_pool_allocator
        pools: dict[Pool, Any] = {
            "full": getattr(allocator, "full_attn_allocator", allocator),
            "swa": getattr(allocator, "swa_attn_allocator", None),
        }
        for pool, lender in pools.items():
            if lender is not None:
                self._pools[lender] = log, pool
        # Translations are asked of the pool itself; they are told for the pool that they read.
        self._pools[allocator.get_kvcache()] = log, "full"
        _log.info("kvproof: recording to %s", writer.path)
        return log

    def _describe(self, batch: Any) -> Started:
        tree, allocator = batch.tree_cache, batch.token_to_kv_pool_allocator
        for role, thing in (("release", tree), ("slot freed", batch.req_to_token_pool)):
            if not self._listens_to(role, thing):
                raise CannotFollowError(f"{_class_name(thing)} is not followed")
        kv_pool, size = allocator.get_kvcache(), allocator.page_size
        window = getattr(kv_pool, "unified_swa_window", None) or tree.sliding_window_size
        reprefill_tail = getattr(tree, "swa_reprefill_tail_tokens", None)
        classes = {"tree": tree, "allocator": allocator, "request pool": batch.req_to_token_pool,
                   "kv pool": kv_pool}  # fmt: skip
        versions: dict[str, str] = {
            name: str(sys.modules[name].__version__) for name in _VERSIONED if name in sys.modules
        }
        started = Started(
            target=f"sglang-{versions['sglang']}:{RECORDED}",
            backend="rules",
            geometry=Geometry(
                window=window,
                page_size=size,
                slots=batch.req_to_token_pool.size,
                pool_tokens=allocator.size_full // size * size,
                draft_tokens=self._draft_tokens(batch),
            ),
            ring_stride=getattr(kv_pool, "unified_swa_ring_size", None),
            reprefill_tail=int(reprefill_tail()) if reprefill_tail else 0,
            # Where a slot owns a ring, the tree's SWA pages say nothing about it.
            tombstones_gate=not getattr(allocator, "swa_req_ring", False),
            # Said by whoever keeps the nodes: the tree, or its core.
            bigram_keys=bool(getattr(getattr(tree, "tree_core", tree), "is_eagle", False)),
            verify_order=self._family.verify_order,
            # Of the pool itself: what the allocator calls its SWA size may count rings.
            swa_tokens=getattr(getattr(allocator, "swa_attn_allocator", None), "size", 0),
            classes={role: _class_name(thing) for role, thing in classes.items()},
            versions=versions,
        )
        try:
            decode_fact(encode_fact(started))
        except BadFileError as error:
            raise CannotFollowError(f"a log cannot say this server's sizes: {error}") from error
        return started

    def _draft_tokens(self, batch: Any) -> int:
        """Tokens that a verify of this server writes; 1 without speculation."""
        if batch.spec_algorithm.is_none():
            return 1
        if not batch.spec_algorithm.is_eagle():
            raise CannotFollowError("speculative decoding other than EAGLE's is not recorded")
        # In 0.5.12 a server without overlap speculates another way: its worker allocates.
        if not getattr(batch, "is_spec_v2", True):
            raise CannotFollowError(
                "speculative decoding without overlap scheduling is not recorded on this release"
            )
        speculation = self._family.part("speculation")()
        if (speculation.speculative_eagle_topk or 1) > 1:
            raise CannotFollowError("drafts that branch (topk above 1) are not recorded")
        return int(speculation.speculative_num_draft_tokens)

    def _listens_to(self, role: str, thing: Any) -> bool:
        """Whether this object's own method is one of those that are wrapped."""
        name = self._family.methods[role][0].rpartition(".")[2]
        return hasattr(getattr(type(thing), name, None), _MARK)

    # --- listeners ------------------------------------------------------------------------

    def _on_prefill(self, batch: Any) -> Generator[None, Any, None] | None:
        if not batch.reqs:
            return None
        log = self._log_of(batch)
        launch = [self._extend(log, req) for req in batch.reqs]
        return self._preparing_prefill(log, batch, launch)

    def _preparing_prefill(
        self, log: _OpenLog, batch: Any, launch: list[Extend]
    ) -> Generator[None, Any, None]:
        log.recorder.begin_prefill(launch)
        log.preparing = True
        yield
        log.preparing = False
        log.recorder.end_prefill(launch, [self._slot(req) for req in batch.reqs])

    def _extend(self, log: _OpenLog, req: Any) -> Extend:
        request = log.tracked.get(req)
        if request is None:
            request = log.recorder.submit(_tokens(req), realm=_realm(req))
            log.tracked[req] = request
        if not request.holds_slot and self._slot(req) is not None:
            raise CannotFollowError(
                "a request holds a slot that it was not seen to get (a streaming session, or a "
                "prefill on another server)"
            )
        try:
            matched, end = self._matched(req), self._extend_end(req)
        except AttributeError as missing:
            raise CannotFollowError(f"this release is not followed: {missing}") from missing
        return Extend(
            request=request,
            start=_length(matched),
            end=_length(end),
            total=len(req.origin_input_ids) + len(req.output_ids),
        )

    def _on_decode(self, batch: Any) -> Generator[None, Any, None] | None:
        if not batch.reqs:
            return None
        log = self._log_of(batch)
        requests = [log.tracked.get(req) for req in batch.reqs]
        if not all(request is not None and request.holds_slot for request in requests):
            raise CannotFollowError("a request decodes that was not seen to be prefilled")
        launch = [one for one in requests if one is not None]
        if log.recorder.started.geometry.draft_tokens > 1:
            return self._preparing_verify(log, batch, launch)
        return self._preparing_decode(log, batch, launch)

    def _preparing_verify(
        self, log: _OpenLog, batch: Any, requests: list[Tracked]
    ) -> Generator[None, Any, None]:
        log.recorder.begin_verify()
        log.preparing = True
        committed = [self._committed(req) for req in batch.reqs]
        yield
        log.preparing = False
        log.recorder.end_verify(
            [
                Draft(request, self._slot(req), ahead=self._committed(req) - before)
                for request, req, before in zip(requests, batch.reqs, committed, strict=True)
            ]
        )

    def _on_verified(self, _: Any, result: Any, batch: Any) -> None:
        log = self._logs.get(batch.req_to_token_pool)
        if log and batch.reqs:
            log.recorder.verified(
                [log.tracked.get(req) for req in batch.reqs],
                # Of one that has ended while its verify ran, the engine keeps no count.
                [
                    None if req.finished() or req.is_retracted else self._committed(req)
                    for req in batch.reqs
                ],
                result.accept_lens.tolist(),  # on the host, as the engine's own next line asks
                result.speculative_num_draft_tokens,
            )

    def _preparing_decode(
        self, log: _OpenLog, batch: Any, requests: list[Tracked]
    ) -> Generator[None, Any, None]:
        log.recorder.begin_decode()
        log.preparing = True
        yield
        log.preparing = False
        lengths = batch.seq_lens_cpu.tolist()
        log.recorder.end_decode(
            [
                (request, self._slot(req), length - 1)
                for request, req, length in zip(requests, batch.reqs, lengths, strict=True)
            ]
        )

    def _on_release(self, tree: Any, req: Any, *_: Any, **__: Any) -> None:
        log = self._logs.get(tree.req_to_token_pool)
        request = log and log.tracked.get(req)
        if log and request and request.holds_slot:
            log.recorder.begin_release(request, _ending(req), _tokens(req))

    def _on_slot_freed(self, pool: Any, req: Any) -> Generator[None, Any, None] | None:
        log = self._logs.get(pool)
        request = log and log.tracked.get(req)
        if not (log and request and request.holds_slot):
            return None
        if not request.leaving:
            log.recorder.begin_release(request, _ending(req), _tokens(req))
        return self._giving_back(log, request, self._slot(req))

    def _giving_back(
        self, log: _OpenLog, request: Tracked, slot: int
    ) -> Generator[None, Any, None]:
        yield
        log.recorder.released(request, slot)

    def _on_evict(self, tree: Any, params: Any, *_: Any, **__: Any) -> None:
        log = self._logs.get(tree.req_to_token_pool)
        # What a launch makes the tree evict is not an operation of its own.
        tokens, swa_tokens = params.num_tokens, params.swa_num_tokens
        if log and not log.preparing and (tokens > 0 or swa_tokens > 0):
            log.recorder.evict(max(tokens, 0), max(swa_tokens, 0))

    def _on_flush(self, tree: Any) -> None:
        # A tree resets itself while it is made, before it has anything.
        pool = getattr(tree, "req_to_token_pool", None)
        log = self._logs.get(pool) if pool is not None else None
        if log:
            log.recorder.flush()

    def _on_allocate(self, lender: Any, *_: Any, **__: Any) -> Generator[None, Any, None] | None:
        found = self._pools.get(lender) if self._level != "requests" else None
        return self._allocating(*found) if found else None

    def _allocating(self, log: _OpenLog, pool: Pool) -> Generator[None, Any, None]:
        locs = yield
        if locs is not None and len(locs) and readable(locs, self._level):
            log.recorder.allocated(pool, spans_of(locs))

    def _on_free(self, lender: Any, locs: Any) -> None:
        found = self._pools.get(lender)
        if found and len(locs) and readable(locs, self._level) and not _collects(lender):
            log, pool = found
            size = lender.page_size
            pages = sorted(set((locs // size).tolist()))
            log.recorder.freed(pool, spans_of_pages(pages, size))

    def _on_free_pages(self, lender: Any, *page_ids: Any) -> None:
        found = self._pools.get(lender)
        for pages in page_ids:
            if found and len(pages) and readable(pages, self._level):
                log, pool = found
                log.recorder.freed(pool, spans_of_pages(pages.tolist(), lender.page_size))

    def _on_translate(self, kv_pool: Any, locs: Any) -> Generator[None, Any, None] | None:
        found = self._pools.get(kv_pool)
        if not found or not readable(locs, self._level):
            return None
        return self._translating(found[0], locs.flatten().tolist())

    def _translating(self, log: _OpenLog, full: list[int]) -> Generator[None, Any, None]:
        swa = yield
        spans = parallel_spans(full, swa.flatten().tolist())
        if spans[0]:
            log.recorder.translated(*spans)


def _resume(listening: Generator[None, Any, None], result: Any) -> None:
    try:
        listening.send(result)
    except StopIteration:
        return
    raise RuntimeError("a listener does not end")


def _getter(paths: Sequence[str]) -> Callable[[Any], Any]:
    """Reads the first of these attribute paths that an object has; else AttributeError."""
    first, *others = map(attrgetter, paths)
    if not others:
        return first

    def read(thing: Any) -> Any:
        try:
            return first(thing)
        except AttributeError:
            return rest(thing)

    rest = _getter(paths[1:])
    return read


def _length(given: Any) -> int:
    return given if isinstance(given, int) else len(given)


def _tokens(req: Any) -> array[int]:
    """Prompt and answer so far."""
    tokens = array(TOKENS, req.origin_input_ids)
    tokens.extend(req.output_ids)
    if len(tokens) > TEXT_TOKENS:
        raise CannotFollowError(
            f"a request has {len(tokens):,} tokens, and a log can say {TEXT_TOKENS:,}"
        )
    return tokens


def _realm(req: Any) -> bytes:
    """What the tree keeps a request's prefixes apart by, besides the tokens."""
    keys = (getattr(req, name, None) for name in ("extra_key", "cache_salt", "lora_id"))
    return repr([key for key in keys if key is not None]).encode()


def _ending(req: Any) -> Ending:
    reason = req.finished_reason or req.to_finish
    if reason is None:
        return "retract"
    return "abort" if type(reason).__name__ == "FINISH_ABORT" else "finish"


def _collects(lender: Any) -> bool:
    """Whether an allocator is collecting locations, to free them in one go later."""
    direct = getattr(lender, "is_not_in_free_group", None)
    return lender.free_group is not None if direct is None else not direct


def _class_name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
