"""A failing scenario as a test of one release: its unit-test idiom, its objects, no kvproof.

One template serves all releases. What differs between them comes from two places: how a release
spells what is done with a request is in `Dialect`, like in the drivers, whose methods the test
repeats; what its classes are called with is read from its source.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias

from kvproof.fuzz.constructions import (
    CONSTRUCTIONS,
    PAGED_PYTHON,
    PAGED_SWA,
    PYTHON_CORE,
    REGISTRY,
    Construction,
)
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.family import Family
from kvproof.kernels.signatures import parameters_of
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.facts import Fact, Skipped, Step
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Prefill,
    Retract,
    Submit,
    number_texts,
)
from kvproof.model.text import spell_operation, spell_prompt
from kvproof.model.verdict import NEEDS_SWA, Cause, Invariant, Violation
from kvproof.triage.export import Case, Run, template

TESTS: dict[Invariant, str] = {
    "FRESH-DECODE": "decode_reads_only_rows_that_its_request_wrote",
    "FRESH-PREFILL": "prefill_reads_only_rows_that_its_request_wrote",
    "WINDOW": "the_window_of_a_query_is_in_the_swa_pool",
    "PARTITION": "every_page_has_one_owner_and_the_sizes_add_up",
    "MAP": "the_map_leads_to_what_is_held_and_to_nothing_else",
    "LOCK": "a_node_has_the_locks_that_its_requests_hold",
    "CURSOR": "the_swa_eviction_cursor_stays_behind_the_window",
    "PADDING": "no_request_is_lent_the_slot_of_the_padding",
    "PROGRESS": "nothing_is_refused_for_memory_that_there_is",
    "USEFUL": "what_is_cached_is_reused",
    "REFINES": "what_is_reused_was_computed",
}
"""Invariants that an exported test can assert, with the name of the test."""

_IN_KERNELS = "the release's kernels name it, and the test runs none"
ELSEWHERE: dict[tuple[Invariant, Cause], str] = {
    ("PADDING", "padding-escapes"): _IN_KERNELS,
    ("REFINES", "row"): _IN_KERNELS,
    ("REFINES", "window"): _IN_KERNELS,
    ("REFINES", "payload"): _IN_KERNELS,
    ("REFINES", "assumption"): _IN_KERNELS,
}
"""Why a cause does not show in the objects that the test looks at."""

Tree: TypeAlias = Literal["none", "nodes", "components", "core", "rust"]
"""Where nodes are: nowhere, in `SWARadixCache`, `UnifiedRadixCache`, its Python or Rust core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How a release family spells what the exported test does with a request ``req``.

    Attributes:
        tokens: of a prompt.
        middle_chunks: counter of a request's chunks in flight.
        finish_state: method that notes that a request has ended.
        publish_chunk: the tree takes a chunk's keys.
        publish: the tree takes a prompt's keys.
        release: a request that ended gives its memory back, and publishes.
        drop: the same without publishing.
        retract: memory of running request ``index`` is taken away.
        slot: that a request holds.
        protected: tokens whose locations are the tree's.
        allocated: tokens that have locations.
        evicted: tokens whose SWA locations were given back.
        locked: node up to which a request locks the tree.
        window_locked: whether its lock on the window is held.
        boundary: mark of the node where that ends.
        cached_gates: functions of the gate's module that remember their answer.
        sampled_with_batch: the sampled tokens are left with the batch.
        counts_rings: the allocator takes SWA locations that rings never give back.
        publishes_arguments: the arguments are published to the process with its ranks.
    """

    tokens: str
    middle_chunks: str
    finish_state: str
    publish_chunk: str
    publish: str
    release: str
    drop: str
    retract: str
    slot: str
    protected: str
    allocated: str
    evicted: str
    locked: str
    window_locked: str
    boundary: str
    cached_gates: tuple[str, ...] = ("is_unified_kv_triton",)
    sampled_with_batch: bool = False
    counts_rings: bool = False
    publishes_arguments: bool = False


_0_5_13 = Dialect(
    tokens='array("q", tokens)',
    middle_chunks="inflight_middle_chunks",
    finish_state="update_finish_state",
    publish_chunk="maybe_cache_unfinished_req(req, self.tree, chunked=True)",
    publish="maybe_cache_unfinished_req(req, self.tree)",
    release="release_kv_cache(req, self.tree, is_insert=True)",
    drop="release_kv_cache(req, self.tree, is_insert=False)",
    retract="self.running.release_req(index, len(reqs) - 1, self.server_args)",
    slot="req.req_pool_idx",
    protected="req.cache_protected_len",
    allocated="req.kv_allocated_len",
    evicted="req.swa_evicted_seqlen",
    locked="req.last_node",
    window_locked="not req.swa_prefix_lock_released",
    boundary="req.swa_uuid_for_lock",
)

_0_5_12 = dataclasses.replace(
    _0_5_13,
    tokens="tokens",
    middle_chunks="is_chunked",
    finish_state="check_finished",
    sampled_with_batch=True,
)

_0_5_16 = dataclasses.replace(
    _0_5_13, allocated="req.kv.kv_allocated_len", evicted="req.kv.swa_evicted_seqlen"
)

_0_5_19 = dataclasses.replace(
    _0_5_16,
    slot="req.kv.req_pool_idx",
    protected="req.kv.cache_protected_len",
    retract="self.running.release_req(index, len(reqs) - 1)",
)

_0_5_20 = dataclasses.replace(
    _0_5_19,
    boundary="req.lock_receipt.swa_uuid_for_lock",
    cached_gates=("is_unified_kv_triton", "is_unified_kv_fp8"),
    counts_rings=True,
)

_0_5_21 = dataclasses.replace(
    _0_5_20,
    evicted="req.kv.get_evicted_seqlen(ComponentType.SWA)",
    boundary="req.lock_receipt.component_lock_uuids.get(ComponentType.SWA)",
    publishes_arguments=True,
)

_0_5_22 = dataclasses.replace(
    _0_5_21,
    publish_chunk="checkpoint_kv_cache(req, self.tree)",
    publish="checkpoint_kv_cache(req, self.tree)",
    release="release_kv_cache(req, self.tree, checkpoint=True)",
    drop="release_kv_cache(req, self.tree, checkpoint=False)",
    locked="req.lock.node if req.lock else None",
    window_locked="not req.lock.swa_released",
    boundary="req.lock.receipt.component_lock_uuids.get(ComponentType.SWA)",
)

DIALECTS = {
    "0.5.12": _0_5_12,
    "0.5.13": _0_5_13,
    "0.5.14": _0_5_13,
    "0.5.16": _0_5_16,
    "0.5.17": _0_5_16,
    "0.5.18": _0_5_16,
    "0.5.19": _0_5_19,
    "0.5.20": _0_5_20,
    "0.5.21": _0_5_21,
    "0.5.22": _0_5_22,
    "0.5.23": _0_5_22,
}
"""By release family."""


def sglang_test(case: Case, run: Run) -> str:
    """A test of one release in SGLang's own idiom, which runs without kvproof.

    Args:
        case: what it asserts the absence of.
        run: the case on the release that the test is for; what was skipped is left out of it.

    Raises:
        EngineError: there is no such test for the invariant, its cause or the release.
    """
    target, geometry, invariant = run.target, case.scenario.geometry, case.violation.invariant
    _refuse_what_does_not_show(case.violation, geometry)
    family = family_of(target.engine.root)
    construction = CONSTRUCTIONS[target.construction]
    if isinstance(run.log[-1], EngineFault) and run.shows(invariant) is None:
        raise EngineError(
            f"{target.name} fails when it plays the case: {run.log[-1].message}",
            fix="give --engine with another release, or a scenario that it plays",
        )
    rings, tree = run.started.swa_tokens == 0, _tree_of(run)
    _refuse_what_is_not_there(invariant, run, rings=rings, tree=tree)
    operations = _played(run.log, case)
    uses = {type(operation).__name__ for operation in operations}
    dialect = DIALECTS[family.name]
    fill = partial(
        template("sglang_test.py.j2").render,
        name=sglang_test_name(case),
        title=f"{invariant}: {TESTS[invariant].replace('_', ' ')}.",
        story=case.story,
        version=target.engine.version,
        construction=target.construction,
        environment=_environment(construction, rings=rings),
        gate=family.parts["gate"].partition(":")[0] if rings else "",
        server_arguments=_server_arguments(construction),
        plugged=construction.tree if "SWA tree" in family.parts else "",
        tree_class=run.started.classes["tree"].rpartition(".")[2],
        tree=tree,
        tombstones_gate=run.started.tombstones_gate,
        pool_class="SWAKVPool" if construction.paged else "DeepSeekV4TokenToKVPool",
        calls_of=_calls_of(target.engine.root, family, dialect, construction, rings=rings),
        architecture="GptOssForCausalLM" if construction.paged else "DeepseekV4ForCausalLM",
        has_builder="tree builder" in family.parts,
        dialect=dialect,
        geometry=geometry,
        rings=rings,
        invariant=invariant,
        # Those that ask after each operation what the objects hold.
        looks=invariant in {"PARTITION", "MAP", "LOCK", "CURSOR", "REFINES"},
        swa_tokens=_swa_tokens(geometry, dialect, rings=rings),
        uses=uses,
        class_name="Test" + invariant.title().replace("-", ""),
        test_name=TESTS[invariant],
        calls=_calls(operations),
    )
    return fill(imports=_imports(family, fill(imports=[])))


def _refuse_what_does_not_show(violation: Violation, geometry: Geometry) -> None:
    """Raise EngineError with the next best export."""
    invariant, cause = violation.invariant, violation.cause
    if invariant not in TESTS:
        raise EngineError(
            f"there is no SGLang test for {invariant}: it is about steps in flight, and the test "
            "takes each result before the next step",
            fix="give --as pytest, or --invariant with one of " + ", ".join(TESTS),
        )
    if (invariant, cause) in ELSEWHERE:
        raise EngineError(
            f"there is no SGLang test for {violation.name}: {ELSEWHERE[invariant, cause]}",
            fix="give --as pytest, or ask the kernel itself with `kvproof kernels compare`",
        )
    if geometry.overlap:
        raise EngineError(
            "there is no SGLang test with overlap scheduling",
            fix="give --as pytest, or a scenario without `overlap 1` that breaks the same",
        )
    if geometry.draft_tokens > 1:
        raise EngineError(
            "there is no SGLang test with speculative decoding",
            fix="give --as pytest, or a scenario without `draft_tokens` that breaks the same",
        )


def _refuse_what_is_not_there(invariant: Invariant, run: Run, *, rings: bool, tree: Tree) -> None:
    """Raise EngineError where the engine as it is put together has nothing to ask."""
    name, engine = run.target.name, run.target.engine.name
    construction = CONSTRUCTIONS[run.target.construction]
    if construction.has_host_pool or not construction.slides:
        raise EngineError(
            f"there is no SGLang test on {name}: the test builds neither its tree nor its pools",
            fix=f"give --as pytest, or --engine {engine}:{PAGED_SWA}",
        )
    if rings and invariant in NEEDS_SWA - {"LOCK"}:
        raise EngineError(
            f"there is no SGLang test for {invariant} on {name}: its window lives in rings",
            fix=f"give --engine {engine}:{PAGED_SWA}",
        )
    if not rings and invariant.startswith("FRESH"):
        raise EngineError(
            f"there is no SGLang test for {invariant} on {name}: it has no rings",
            fix=f"give --engine {engine}:{REGISTRY}, or --engine with a release from 0.5.14 on",
        )
    if invariant in {"LOCK", "USEFUL"} and tree == "none":
        raise EngineError(
            f"there is no SGLang test for {invariant} on {name}: it keeps no prefixes",
            fix=f"give --engine {engine}:{REGISTRY}",
        )
    if invariant == "LOCK" and tree == "rust":
        python = PYTHON_CORE if rings else PAGED_PYTHON
        raise EngineError(
            f"there is no SGLang test for LOCK on {name}: its Rust core does not tell how often a "
            "node is locked",
            fix=f"give --engine {engine}:{python}, or --as pytest",
        )


def sglang_test_name(case: Case) -> str:
    """File name of a case's SGLang test."""
    return f"test_{case.name}.py"


def import_stubs() -> str:
    """What runs an SGLang test where SGLang's serving libraries are not installed."""
    return resources.files("kvproof.kernels.engines").joinpath("import_stubs.py").read_text()


# What the release is built from

_CACHE = "sglang.srt.mem_cache"
_PLACES = (
    "sglang.srt.managers.schedule_batch:FINISH_ABORT",
    f"{_CACHE}.base_prefix_cache:EvictParams",
    f"{_CACHE}.cache_init_params:CacheInitParams",
    f"{_CACHE}.chunk_cache:SWAChunkCache",
    f"{_CACHE}.common:checkpoint_kv_cache",
    f"{_CACHE}.common:maybe_cache_unfinished_req",
    f"{_CACHE}.swa_memory_pool:SWAKVPool",
    f"{_CACHE}:registry",
    "sglang.srt.runtime_context:SpawnRanks",
    "sglang.srt.runtime_context:get_parallel",
    "sglang.srt.runtime_context:publish",
    "sglang.srt.sampling.sampling_params:SamplingParams",
    "sglang.srt.server_args:ServerArgs",
    "sglang.srt.server_args:set_global_server_args_for_scheduler",
    "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
    "sglang.test.ci.ci_register:register_cpu_ci",
    "sglang.test.test_utils:CustomTestCase",
)
"""What a test may name beside the parts that the catalogue lists; the same in every release."""


_TREES: dict[str, Tree] = {
    "SWARadixCache": "nodes", "UnifiedRadixCache": "components",
    "SWAChunkCache": "none", "ChunkCache": "none",
}  # fmt: skip


def _tree_of(run: Run) -> Tree:
    """How the nodes of the tree are read that the release built."""
    classes = {role: name.rpartition(".")[2] for role, name in run.started.classes.items()}
    core = classes.get("tree core")
    if core is not None:
        return "core" if core == "UnifiedTreeCore" else "rust"
    tree = classes.get("tree", "tree of no known class")
    if tree not in _TREES:
        raise EngineError(
            f"{run.target.name} builds a {tree}, which no SGLang test can read",
            fix="give --as pytest",
        )
    return _TREES[tree]


def _environment(construction: Construction, *, rings: bool) -> dict[str, str]:
    ring = {"SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton"} if rings else {}
    return {"TRITON_INTERPRET": "1"} | ring | dict(construction.environment)


def _server_arguments(construction: Construction) -> dict[str, object]:
    plugged = {"radix_cache_backend": construction.tree} if construction.tree else {}
    return dict(construction.arguments) | plugged


def _swa_tokens(geometry: Geometry, dialect: Dialect, *, rings: bool) -> str:
    if not rings:
        return str(geometry.swa_pool_tokens)
    if dialect.counts_rings and geometry.page_size == 1:
        return "max(POOL_TOKENS, 4096)  # pages of one token: a ring never gives them back"
    return "POOL_TOKENS"


def _imports(family: Family, body: str) -> list[str]:
    """``from module import names`` of what the body of a test names, in the order of modules."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    names: dict[str, list[str]] = {}
    for place in sorted({*_PLACES, *family.parts.values()}):
        module, _, name = place.partition(":")
        if name in used:
            names.setdefault(module, []).append(name)
    return [f"from {module} import {', '.join(each)}" for module, each in names.items()]


def _calls_of(
    root: Path, family: Family, dialect: Dialect, construction: Construction, *, rings: bool
) -> dict[str, list[str]]:
    """The arguments that the release's own signatures name, by what is called."""
    alone = "SimpleNamespace(cpu_group=None)"
    dims = (8, 8) if rings else (448, 64)  # the pool without a ring has a fixed layout
    page = "4 * PAGE_SIZE" if dialect.counts_rings else "PAGE_SIZE"
    ring_pool = {
        "max_num_reqs": "SLOTS", "swa_size": "SWA_TOKENS", "c4_size": "0", "c128_size": "1",
        "c4_state_pool_size": "0", "c128_state_pool_size": "0",
        "page_size": page, "swa_page_size": "PAGE_SIZE",
        "dtype": "torch.bfloat16" if rings else "torch.float8_e4m3fn",
        "state_dtype": "torch.float32",
        "c4_state_dtype": "torch.float32", "c128_state_dtype": "torch.float32",
        "qk_nope_head_dim": str(dims[0]), "qk_rope_head_dim": str(dims[1]),
        "indexer_head_dim": str(sum(dims)), "layer_num": "1",
        "device": '"cpu"', "enable_memory_saver": "False",
        "compression_ratios": "[0]", "sliding_window": "WINDOW",
    }  # fmt: skip
    paged_pool = {
        "size": "POOL_TOKENS", "size_swa": "SWA_TOKENS", "page_size": "PAGE_SIZE",
        "dtype": "torch.bfloat16", "head_num": "1", "head_dim": "4",
        "swa_attention_layer_ids": "[0]", "full_attention_layer_ids": "[1]",
        "enable_kvcache_transpose": "False", "device": '"cpu"',
    }  # fmt: skip
    allocator = {
        "size": "POOL_TOKENS", "size_swa": "SWA_TOKENS", "page_size": "PAGE_SIZE",
        "dtype": "torch.bfloat16", "device": '"cpu"', "kvcache": "self.kv_pool",
        "need_sort": "False", "req_to_token_pool": "self.req_to_token_pool",
    }  # fmt: skip
    builder = {
        "server_args": "self.server_args", "model_config": "MODEL_CONFIG", "tp_worker": "worker",
        "page_size": "PAGE_SIZE", "spec_algorithm": "SpeculativeAlgorithm.NONE",
        "enable_metrics": "False", "enable_kv_cache_events": "False",
        "enable_hierarchical_cache": "False",
        "attn_tp_cpu_group": "None", "tp_cpu_group": "None", "attn_cp_cpu_group": "None",
        "ps": "ranks",
        "tp_group": alone, "pp_group": alone,
    }  # fmt: skip
    pool = f"{_CACHE}.swa_memory_pool:SWAKVPool"
    places = {
        "kv_pool": (
            (pool, paged_pool) if construction.paged else (family.parts["KV pool"], ring_pool)
        ),
        "allocator": (family.parts["allocator"], allocator),
        "builder": (family.parts.get("tree builder", ""), builder),
    }
    return {
        name: _known(root, place, arguments) for name, (place, arguments) in places.items() if place
    }


def _known(root: Path, place: str, arguments: Mapping[str, str]) -> list[str]:
    named = parameters_of(root, place)
    if named is None:
        raise EngineError(
            f"{place} is not where releases of its kind have it, so no test can call it",
            fix="correct its place in kernels/catalogue.py for this release",
        )
    return [f"{name}={value}" for name, value in arguments.items() if name in named]


# What the test does


def _played(log: Sequence[Fact], case: Case) -> list[Operation]:
    """The case's operations that were not skipped. A refused last one is what PROGRESS is about."""
    last = len(case.scenario.operations) - 1
    operations: list[Operation] = []
    index = 0
    for fact in log:
        if isinstance(fact, Step):
            index = fact.index
            if index > last:
                break
            operations.append(fact.operation)
        elif isinstance(fact, Skipped) and not (
            index == last and case.violation.invariant == "PROGRESS"
        ):
            operations.pop()
    return operations


def _calls(operations: Sequence[Operation]) -> list[str]:
    texts: dict[str, int] = {}
    lines: list[str] = []
    for operation in operations:
        match operation:
            case Submit(request=request, prompt=prompt):
                number_texts(texts, prompt)
                pieces = ", ".join(f"({texts[piece.text]}, {piece.until})" for piece in prompt)
                lines += [
                    f"# {request} asks {spell_prompt(prompt)}",
                    f'self.submit("{request}", [{pieces}])',
                ]
            case Prefill(request=request, tokens=tokens):
                chunk = "" if tokens is None else f", chunk={tokens}"
                lines.append(f'self.prefill("{request}"{chunk})')
            case Decode():
                lines.append("self.decode()")
            case Evict(tokens=tokens, swa_tokens=swa_tokens):
                share = f", swa_tokens={swa_tokens}" if swa_tokens else ""
                lines.append(f"self.evict({tokens}{share})")
            case Flush():
                lines.append("self.flush()")
            case Finish() | Abort() | Retract():
                word = type(operation).__name__.lower()
                lines.append(f'self.{word}("{operation.request}")')
            case _:  # overlap and drafts are refused, and the drivers skip forwards
                raise AssertionError(f"{spell_operation(operation)} was played")
    return lines
