"""The engine releases that kvproof supports, with the SHA-256 of every wheel.

How the hashes were learnt: ``pip download --no-deps --only-binary=:all: --platform P
--python-version V sglang==X``, then ``pip hash``, for P in manylinux_2_34 x86_64 and aarch64 and V
from 3.11 to 3.14. That is all there is: pip finds no wheel of these releases for Python 3.14, none
for macOS, and none for a glibc older than 2.34. Without a wheel, a checkout can still be tested
(``kvproof engine add --path``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Pins: TypeAlias = Mapping[str, str]
"""SHA-256 in hexadecimal by wheel file name."""

RELEASES: Mapping[str, Pins] = {
    "0.5.15": {
        "sglang-0.5.15-cp311-cp311-manylinux_2_34_aarch64.whl":
            "4e2968e31a0448c9c40336c651cba83cbb1e77eb058c4d4b2859ca2f7a538de6",
        "sglang-0.5.15-cp311-cp311-manylinux_2_34_x86_64.whl":
            "21492759b4b99e117bd81610f633422f3fdae2896c2cde6931eab886deccc44f",
        "sglang-0.5.15-cp312-cp312-manylinux_2_34_aarch64.whl":
            "1c2d2602b4ba04c6a71d2f3bf2e3654da53987536f0d65dbe4f57cdc65c9812e",
        "sglang-0.5.15-cp312-cp312-manylinux_2_34_x86_64.whl":
            "b737df527bbba96fe098a02d182e98f72a1b3564d7fc754629041129a5d8edc1",
        "sglang-0.5.15-cp313-cp313-manylinux_2_34_aarch64.whl":
            "1485e80ec326ed25b67d206051ac9ab48785326d4c939c98aa5bb19cfcc2442d",
        "sglang-0.5.15-cp313-cp313-manylinux_2_34_x86_64.whl":
            "cdc046eb8b9eb5f622dc0926379c52530c4de55725886620628e8785c15d8a8c",
    },
    "0.5.16": {
        "sglang-0.5.16-cp311-cp311-manylinux_2_34_aarch64.whl":
            "5192493cdf41e1b743f7e7b42e5dea590fbd4082f83853a799443e472c16cae0",
        "sglang-0.5.16-cp311-cp311-manylinux_2_34_x86_64.whl":
            "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
        "sglang-0.5.16-cp312-cp312-manylinux_2_34_aarch64.whl":
            "0e8cba306da591eaece3412f142da77494e87508ccf68bc3844660d281995138",
        "sglang-0.5.16-cp312-cp312-manylinux_2_34_x86_64.whl":
            "b8ed16e72c7d6a643e31ba52e3ff106439e9dbb78543950e4c810158b826ea8e",
        "sglang-0.5.16-cp313-cp313-manylinux_2_34_aarch64.whl":
            "999980707e1aeb2a003d9ac1ef41d5dde6782f6cf991ef02f98c66d7823027ef",
        "sglang-0.5.16-cp313-cp313-manylinux_2_34_x86_64.whl":
            "4606c41afe011cffd8c729c5c53f18c0a076522b07b860d71039fb5a62325445",
    },
    "0.5.23": {
        "sglang-0.5.23-cp311-cp311-manylinux_2_34_aarch64.whl":
            "4d23d6abe82435c4b1b5db7b6d89e6f398d0128efbd9b873ac3a1ab6ea17b5ee",
        "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl":
            "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
        "sglang-0.5.23-cp312-cp312-manylinux_2_34_aarch64.whl":
            "2d538a89a6e7b1b0707e2ab7f8edef4af6a7beb5da661f9a231cddcdf5308417",
        "sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl":
            "8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6",
        "sglang-0.5.23-cp313-cp313-manylinux_2_34_aarch64.whl":
            "03b67b6b8206113aec8906b9b06b8e51139c4553dedac0650228a0ddbb43a4ef",
        "sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl":
            "10f0b2b29c8fea616e4b27cbbbb147f32a879bf3db71c9767425a3d9d77a36cb",
    },
}  # fmt: skip
"""Wheels of each supported release of sglang."""
