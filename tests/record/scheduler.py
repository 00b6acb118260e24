"""The release's own scheduler loop over real caches, with nothing behind it: no model, no clients.

`Scheduler.get_next_batch_to_run` and the release's result processor run as they are. What they ask
of the rest of a server (metrics, streaming, grammars, ...) is answered by `Nothing`. Run as a
script, in an engine's environment: ``scheduler.py DAYS FOLDER``, where DAYS is a list of `Day` as
JSON. Each day's log lies in a folder of its own, named by the day's number. The script prints the
launches that each saw, by the tensors that the batches carry, as JSON.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from kvproof.fuzz.drivers.wire import Options, Play
from kvproof.fuzz.drivers.worker import Build, load
from kvproof.kernels.engines import shims
from kvproof.model.scenario import Geometry, Scenario
from kvproof.record.hooks import Instrumentation

CHUNK = 16
STEPS = 80


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """A request: the loop's step at which it comes, its prompt, and how many tokens it wants."""

    step: int
    tokens: tuple[int, ...]
    answer: int


class Day(msgspec.Struct, frozen=True):
    """What the loop is given to do."""

    geometry: Geometry
    arrivals: tuple[Arrival, ...]


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """One batch: its mode, and slot, first position and end of each of its requests."""

    mode: str
    lanes: tuple[tuple[int, int, int], ...]


class Nothing:
    """Whatever a scheduler asks of it, the answer is no, or none."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __setitem__(self, *_: Any) -> None:
        pass

    def _no(self, _: Any) -> bool:
        return False

    def _same(self, _: Any) -> Any:
        return self

    __lt__ = __le__ = __gt__ = __ge__ = _no
    __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __mod__ = _same


NOTHING = Nothing()


def without_the_rest(cls: type, known: dict[str, Any]) -> Any:
    """An object of a class that was never made, which knows this and nothing else."""

    def ask(_: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING

    bare = type(cls.__name__, (cls,), {"__init__": lambda _: None, "__getattr__": ask})
    thing = bare()
    for name, value in known.items():
        object.__setattr__(thing, name, value)
    return thing


class Output:
    """Of a model: what is not said of it is None."""

    def __init__(self, **said: Any) -> None:
        vars(self).update(said)

    def __getattr__(self, _: str) -> None:
        return None


class Result(Output):
    """What a model worker gives back for a batch: a token each, or what a verify keeps of each."""

    def __init__(self, tokens: Any, **verify: Any) -> None:
        super().__init__(next_token_ids=tokens, logits_output=Output(), **verify)

    def get_num_generated_tokens(self, count: int) -> int:
        return count


def loop_of(engine: Any) -> tuple[Any, Any]:
    """The scheduler and its result processor, on a driver's pools and tree."""
    from sglang.srt.managers import scheduler
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from kvproof.fuzz.drivers.memory import UNLIMITED

    # An attribute that is None in a server of this kind must not be NOTHING.
    model = without_the_rest(object, vars(engine.model_config) | {"think_end_id": None})
    unchanged = lambda batch, **_: batch  # noqa: E731
    both = {
        "tree_cache": engine.tree,
        "token_to_kv_pool_allocator": engine.allocator,
        "req_to_token_pool": engine.requests,
        "model_config": model,
        "server_args": engine.server_args,
        "spec_algorithm": engine.algorithm,
        # As the driver does: up to 0.5.14 drafts are reserved on the path of overlapped batches.
        "enable_overlap": engine.speculates and hasattr(ScheduleBatch, "is_spec_v2"),
        "is_generation": True,
        "hisparse_coordinator": None,
    }
    loop = without_the_rest(
        scheduler.Scheduler,
        both
        | {
            "running_batch": ScheduleBatch(reqs=[]),
            "waiting_queue": [],
            "page_size": engine.geometry.page_size,
            "max_prefill_tokens": UNLIMITED,
            "chunked_prefill_size": CHUNK,
            "max_prefill_bs": 0,
            "max_running_requests": engine.geometry.slots,
            "is_hybrid_swa": True,
            "priority_scheduling_preemption_threshold": 0,
            "disaggregation_mode": scheduler.DisaggregationMode.NULL,
            "new_token_ratio_tracker": SimpleNamespace(current=0.0, decay_step=lambda: None),
            "policy": SimpleNamespace(
                calc_priority=lambda *_, **__: None,
                shortest_prefill_chunk_limit=lambda *_: None,
            ),
            "dp_attn_adapter": SimpleNamespace(
                maybe_prepare_mlp_sync_batch=unchanged, maybe_convert_decode_to_extend=unchanged
            ),
            "ngram_embedding_manager": SimpleNamespace(prepare_for_forward=unchanged),
            "_maybe_prepare_ngram_embedding": lambda batch: batch,
            "get_num_allocatable_reqs": lambda *_, **__: engine.requests.available_size(),
            # What 0.5.12 keeps in the scheduler itself.
            "stream_output": lambda *_, **__: None,
            **dict.fromkeys(
                ("new_token_ratio", "new_token_ratio_decay", "min_new_token_ratio"), 0.0
            ),
            "_add_request_to_queue": lambda req, **_: loop.waiting_queue.append(req),
            **dict.fromkeys(
                (
                    "dllm_config", "chunked_req", "last_batch", "min_free_slots_delayer",
                    "truncation_align_size", "prefill_delayer", "dynamic_chunk_sizer",
                    "_pending_chunked_abort_req", "lora_drainer",
                )
            ),
            **dict.fromkeys(("is_mixed_chunk", "enable_hisparse"), False),
            **dict.fromkeys(("tp_size", "pp_size"), 1),
            **dict.fromkeys(
                ("forward_ct", "prefill_decode_interval", "_prefill_decode_interval_remaining"), 0
            ),
        },
    )  # fmt: skip
    if hasattr(scheduler.Scheduler, "process_batch_result_prefill"):
        return loop, loop  # 0.5.12 has no processor apart
    from sglang.srt.managers.scheduler_components import batch_result_processor

    [processor] = [
        cls
        for _, cls in inspect.getmembers(batch_result_processor, inspect.isclass)
        if "process_batch_result_prefill" in vars(cls)
    ]
    return loop, without_the_rest(processor, both)


def next_batch(loop: Any) -> Any:
    """The next batch, as the event loop of the release asks for it."""
    ask = loop.get_next_batch_to_run
    if "running_batch" not in inspect.signature(inspect.unwrap(ask)).parameters:
        return ask()
    plan = ask(running_batch=loop.running_batch, last_batch=loop.last_batch)
    loop.running_batch = plan.running_batch
    return plan.batch_to_run


def launch_of(batch: Any, draft_tokens: int) -> Launch:
    """What a batch's tensors say of it."""
    slots, ends = batch.req_pool_indices.tolist(), batch.seq_lens.tolist()
    if batch.forward_mode.is_decode() and draft_tokens > 1:
        lanes = zip(slots, ends, strict=True)
        return Launch("verify", tuple((slot, end, end + draft_tokens) for slot, end in lanes))
    if batch.forward_mode.is_decode():
        lanes = zip(slots, ends, strict=True)
        return Launch("decode", tuple((slot, end - 1, end) for slot, end in lanes))
    return Launch("prefill", tuple(zip(slots, batch.prefix_lens, ends, strict=True)))


def verified(batch: Any, tokens: Any, draft_tokens: int) -> Result:
    """A verify's result; the requests of the batch keep one token, two, ... in turn."""
    import torch

    from kvproof.fuzz.drivers import speculation

    count = len(batch.reqs)
    kept = torch.arange(count) % draft_tokens + 1
    # Scheduler.run_batch keeps the new lengths before the result is processed.
    batch.seq_lens = batch.seq_lens + kept
    batch.seq_lens_cpu = batch.seq_lens.to("cpu")
    batch.spec_info = speculation.draft_input(count)
    drafted = (tokens[:, None] + 1000 * torch.arange(draft_tokens)).flatten()
    return Result(drafted, accept_lens=kept, speculative_num_draft_tokens=draft_tokens,
                  num_non_draft_tokens_per_req=1)  # fmt: skip


def run(build: Build, day: Day, folder: Path) -> list[Launch]:
    """Run the loop until all requests have their answers."""
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kvproof.fuzz.drivers import speculation
    from kvproof.fuzz.drivers.memory import UNLIMITED

    drafts = day.geometry.draft_tokens
    recorder = Instrumentation(shims.engine_family(), folder=folder)
    recorder.install()
    scenario = Scenario(geometry=day.geometry, operations=())
    engine = build(Play(scenario=scenario, backend="none")).engine
    loop, processor = loop_of(engine)
    launches = []
    for step in range(STEPS):
        for number, arrival in enumerate(day.arrivals):
            if arrival.step == step:
                params = SamplingParams(max_new_tokens=arrival.answer, ignore_eos=True)
                params.normalize(None)
                loop.waiting_queue.append(
                    Req(
                        rid=f"client {number}",
                        origin_input_text="",
                        origin_input_ids=engine._token_ids(arrival.tokens),
                        sampling_params=params,
                        vocab_size=UNLIMITED,
                    )
                )
        batch = next_batch(loop)
        if batch:
            launches.append(launch_of(batch, drafts))
            tokens = torch.arange(len(batch.reqs)) + 10_000 + 100 * step
            batch.input_ids = batch.output_ids = tokens  # 0.5.12 asks for the latter
            if batch.forward_mode.is_decode():
                result = verified(batch, tokens, drafts) if drafts > 1 else Result(tokens)
                processor.process_batch_result_decode(batch, result)
            else:
                if drafts > 1:
                    batch.spec_info = speculation.draft_input(len(batch.reqs))
                processor.process_batch_result_prefill(batch, Result(tokens))
        loop.last_batch = batch
    recorder.close()
    recorder.remove()
    return launches


def main(days: Sequence[Day], folder: Path) -> None:
    """An engine is loaded once for all days."""
    _, build = load(Options())
    seen = [run(build, day, folder / str(number)) for number, day in enumerate(days)]
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(seen))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=list[Day]), Path(sys.argv[2]))
