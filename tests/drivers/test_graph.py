"""The stand-in for a CUDA graph does what a real one does; that one too, where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvproof.fuzz.drivers.graph import CaptureError, CpuGraph, CudaGraph, Graph, capture, make_graph

SIZE = 8


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.is_available() is false")
    return str(request.param)


@pytest.fixture
def graph(device: str) -> Graph:
    made = make_graph(device)
    assert isinstance(made, CudaGraph if device == "cuda" else CpuGraph)
    return made


def numbers(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def captured(graph: Graph, code: Callable[[], None]) -> None:
    capture(graph, code)


def test_a_replay_sees_what_was_copied_in_place(graph: Graph, device: str) -> None:
    table, index = numbers(device, 0, 10, 20, 30), numbers(device, 1, 2)
    out = torch.zeros(2, dtype=torch.int32, device=device)
    captured(graph, lambda: out.copy_(table[index].to(torch.int32)))  # type: ignore[arg-type,return-value]
    index.copy_(numbers(device, 3, 1))
    table[3] = 31
    graph.replay()
    assert out.tolist() == [31, 10]


def test_a_replay_does_not_see_what_a_name_is_bound_to(graph: Graph, device: str) -> None:
    class Batch:
        locs = numbers(device, 1, 2)

    out = numbers(device, 0, 0)
    captured(graph, lambda: out.copy_(Batch.locs))  # type: ignore[arg-type,return-value]
    Batch.locs = numbers(device, 7, 7)
    out.zero_()
    graph.replay()
    assert out.tolist() == [1, 2]


def test_a_capture_launches_nothing(graph: Graph, device: str) -> None:
    out = numbers(device, 0, 0)

    def code() -> None:
        out.add_(1)
        out[1:].add_(out[:1])

    with graph.capture():
        code()
    assert out.tolist() == [0, 0]
    graph.replay()
    assert out.tolist() == [1, 2]


def test_python_runs_at_capture_alone(graph: Graph, device: str) -> None:
    runs, out = [], numbers(device, 0)

    def code() -> None:
        runs.append(1)
        out.add_(1)

    captured(graph, code)
    before = len(runs)
    assert before == 2  # once to warm up, once captured
    value = int(out)
    graph.replay()
    graph.replay()
    assert len(runs) == before
    assert int(out) == value + 2


def test_a_captured_result_is_storage_that_replays_write(graph: Graph, device: str) -> None:
    source, kept = numbers(device, 1, 2), []

    def code() -> None:
        kept[:] = [source + 1, source.clone()]

    captured(graph, code)
    source.copy_(numbers(device, 5, 6))
    graph.replay()
    assert [tensor.tolist() for tensor in kept] == [[6, 7], [5, 6]]


def test_views_and_indexed_stores_hit_the_captured_storage(graph: Graph, device: str) -> None:
    buffer, locs = torch.zeros(SIZE, dtype=torch.int64, device=device), numbers(device, 1, 3)

    def code() -> None:
        buffer[4:].zero_()
        buffer[locs] = locs * 10
        buffer[:1].copy_(locs[1:])

    captured(graph, code)
    buffer.fill_(9)
    locs.copy_(numbers(device, 2, 5))
    graph.replay()
    assert buffer.tolist() == [5, 9, 20, 9, 0, 50, 0, 0]


def test_a_value_on_the_host_cannot_be_captured(graph: Graph, device: str) -> None:
    values = numbers(device, 1, 2)
    with pytest.raises((CaptureError, RuntimeError)), graph.capture():
        values.sum().item()


def test_both_graphs_agree() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.is_available() is false")
    seen = []
    for device in ("cpu", "cuda"):
        table, index = torch.arange(SIZE, device=device) * 3, numbers(device, 1, 2, 4)
        out = torch.zeros(SIZE, dtype=torch.int64, device=device)

        def code(
            out: torch.Tensor = out, table: torch.Tensor = table, index: torch.Tensor = index
        ) -> None:
            out[index] = table[index] + out[index]
            out[index.flip(0)[:2]].add_(100)  # a copy: nothing is stored

        graph = make_graph(device)
        capture(graph, code)
        for start in (0, 3):
            index.copy_(numbers(device, start, start + 1, start + 4))
            graph.replay()
        seen.append(out.cpu().tolist())
    assert seen[0] == seen[1]
