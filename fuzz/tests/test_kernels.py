"""Differential runs of every kernel of the installed releases."""

from __future__ import annotations

from kvproof.fuzz.targets import Target
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.compare import compare, comparisons_of

LAUNCHES: dict[KernelBackend, int] = {"interpreter": 2, "cuda": 200, "hip": 200}


def test_every_kernel_does_what_it_should(release: Target, backend: KernelBackend) -> None:
    results = list(compare(release.engine, backend=backend, launches=LAUNCHES[backend]))
    assert [one for one in results if one.is_news] == []
    family = family_of(release.engine.root)
    assert {one.name for one in results} == {one.name for one in comparisons_of(family)}
    ran = [one for one in results if one.verdict == "holds"]
    # What is left out is C++; every Triton kernel was compared.
    assert {one.name for one in comparisons_of(family) if one.role not in family.native} <= {
        one.name for one in ran
    }
    assert all(one.launches == LAUNCHES[backend] and one.cells for one in ran)
    assert all(one.backend.partition(":")[0] == backend for one in ran)
    assert all(one.reason for one in results if one.verdict == "skipped")
