"""Where kernels run: Triton's interpreter, an NVIDIA GPU (``cuda``) or an AMD one (``hip``).

A backend that this machine lacks is `missing`, with the reason; nothing that needed it may count as
passed. Results carry the `label`, which names the GPU's architecture.

Torch is imported where it is asked: that takes two seconds, and most commands have no use for it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from kvproof.kernels.engines.errors import EngineError

KernelBackend: TypeAlias = Literal["interpreter", "cuda", "hip"]

KERNEL_BACKENDS: tuple[KernelBackend, ...] = get_args(KernelBackend)


def missing(backend: KernelBackend) -> str | None:
    """Why kernels cannot run there on this machine; None if they can."""
    import torch  # noqa: PLC0415  # in an engine's process it comes before the shims

    if backend == "interpreter":
        return None
    built = torch.version.cuda if backend == "cuda" else torch.version.hip
    if built is None:
        return f"this torch ({torch.__version__}) is built without {backend}"
    if not torch.cuda.is_available():
        return f"torch finds no GPU for {backend}"
    return None


def require(backend: KernelBackend) -> None:
    """Raise EngineError if kernels cannot run there on this machine."""
    reason = missing(backend)
    if reason is not None:
        raise EngineError(
            f"no kernels can run on {backend}: {reason}", fix="leave --backend out, or use a GPU"
        )


def device(backend: KernelBackend) -> str:
    """Torch's name of the device that tensors of a launch lie on; for a HIP GPU it is cuda too."""
    return "cpu" if backend == "interpreter" else "cuda"


def label(backend: KernelBackend) -> str:
    """Name in results: ``interpreter``, ``cuda:sm_90``, ``hip:gfx942``. The GPU must be there."""
    if backend == "interpreter":
        return backend
    import torch  # noqa: PLC0415

    if backend == "hip":
        name: str = torch.cuda.get_device_properties(0).gcnArchName
        return f"hip:{name.partition(':')[0]}"
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:sm_{major}{minor}"
