"""The engine releases that kvproof supports, with the SHA-256 of every wheel.

How the hashes were learnt: ``pip install --dry-run --report - --no-deps --only-binary=:all:
--platform P --python-version V --target FOLDER sglang==X``, which prints the index's own hash, for
P in manylinux_2_34 x86_64 and aarch64 and V from 3.11 to 3.13. That is all there is: pip finds no
wheel of these releases for Python 3.14, none for macOS, and none for a glibc older than 2.34.
Without a wheel, a checkout can still be tested (``kvproof engine add --path``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Pins: TypeAlias = Mapping[str, str]
"""SHA-256 in hexadecimal by wheel file name."""

RELEASES: Mapping[str, Pins] = {
    "0.5.12": {
        "sglang-0.5.12-cp311-cp311-manylinux_2_34_aarch64.whl":
            "f9b12dea36a98c011cbd145c7dbf4b6223754292f6b1f7f429a1151b27ae307e",
        "sglang-0.5.12-cp311-cp311-manylinux_2_34_x86_64.whl":
            "4ed786a38655851fd055ef57380c34d29b87753b53f63457309f51e5bf48c2e6",
        "sglang-0.5.12-cp312-cp312-manylinux_2_34_aarch64.whl":
            "d109b5e1c2234786784adecd73e64261c5ff57b854df7dd2d3beee74e4b51228",
        "sglang-0.5.12-cp312-cp312-manylinux_2_34_x86_64.whl":
            "d3fc7ecb61ad3e533ebe1ae9b4109fbb62ecbf2d17453b62770c8a7ec49d539a",
        "sglang-0.5.12-cp313-cp313-manylinux_2_34_aarch64.whl":
            "17b45d603b8670605fec2c369da502df19aa670b2204ec2fe3f0fdeb3d51d37c",
        "sglang-0.5.12-cp313-cp313-manylinux_2_34_x86_64.whl":
            "a08d8271238974ca0f6bdf1de04906d159cbecb949e312a69488faa8158f77de",
    },
    "0.5.12.post1": {
        "sglang-0.5.12.post1-cp311-cp311-manylinux_2_34_aarch64.whl":
            "771fca0d8bfa5787223ae6c72b28c50a6cf71a94e85f1e8b9257636d2c0c7f9b",
        "sglang-0.5.12.post1-cp311-cp311-manylinux_2_34_x86_64.whl":
            "94b3f3cc6b97f1364f247b8d9c1d106ec63cf22c55d6b65bc40ff29b0206ef5f",
        "sglang-0.5.12.post1-cp312-cp312-manylinux_2_34_aarch64.whl":
            "646b693519868923b7d66ca77c441cc90b27b1ed7aa1e733d6e4d7ef44e16b3f",
        "sglang-0.5.12.post1-cp312-cp312-manylinux_2_34_x86_64.whl":
            "fb53554bcb592c26b94f609745620e1b1fa5e9fb4650de4bc3a8373542dacd4d",
        "sglang-0.5.12.post1-cp313-cp313-manylinux_2_34_aarch64.whl":
            "c0bf0723842fefff98f7fb2436409d53c1918543242ec28d2b2b1d30212c48d7",
        "sglang-0.5.12.post1-cp313-cp313-manylinux_2_34_x86_64.whl":
            "f54da8fcbc38db52d8dd35255b9d09f8d3c7edbebab510b7f27a19ee5787e794",
    },
    "0.5.13": {
        "sglang-0.5.13-cp311-cp311-manylinux_2_34_aarch64.whl":
            "d4045cea958e18ac1137321afd0b85b781d6149e747cd670bcbe7ec8f9625c76",
        "sglang-0.5.13-cp311-cp311-manylinux_2_34_x86_64.whl":
            "9d26266ab7e99165098f9e173f4a5a0ef6a0b64a6f30ef0b5ee859eead37e75a",
        "sglang-0.5.13-cp312-cp312-manylinux_2_34_aarch64.whl":
            "fb66fb1ebc8a5d61b9b40d29971afccbc5c8241eecc7e85ee6d6a5e49eb1c655",
        "sglang-0.5.13-cp312-cp312-manylinux_2_34_x86_64.whl":
            "2c32b23dade35e3e5038ed200580a692ab378e1c232ad690d893c6cfce95c1e8",
        "sglang-0.5.13-cp313-cp313-manylinux_2_34_aarch64.whl":
            "15c4874d353b94c2b3b22f635beaac60a7f823e4f30560e95561f9662162895f",
        "sglang-0.5.13-cp313-cp313-manylinux_2_34_x86_64.whl":
            "5d5c52a7f83f8f78b73cb61976deab0212bf8d0f8408307f3954fc139d263ca8",
    },
    "0.5.13.post1": {
        "sglang-0.5.13.post1-cp311-cp311-manylinux_2_34_aarch64.whl":
            "261e31eb6bfb767657ee9015b8fb795077cb9d5c425b192c9c35b9869f994781",
        "sglang-0.5.13.post1-cp311-cp311-manylinux_2_34_x86_64.whl":
            "1c1653ecf2893c7d7b1cf0c3e1cc9b7550ebad95c809de2f44bcc91b7a1e1fe3",
        "sglang-0.5.13.post1-cp312-cp312-manylinux_2_34_aarch64.whl":
            "e1ce7d4654a3e2a11a2a31dd3d2ea9cb011a1fd00406521c2b92bf4698ee073f",
        "sglang-0.5.13.post1-cp312-cp312-manylinux_2_34_x86_64.whl":
            "55a8f3a54cfb56d562ca5b3e77678d28a1ecb97eb89fc9f673c2fc3e33f2d544",
        "sglang-0.5.13.post1-cp313-cp313-manylinux_2_34_aarch64.whl":
            "d17b257c92f443e464079c788ef9068f61c49be14b67853ce8ac83d45f6e48f7",
        "sglang-0.5.13.post1-cp313-cp313-manylinux_2_34_x86_64.whl":
            "73a0130a0a0e1365f7dc5517648807b2da3cba3067259d993289e4458e3da5aa",
    },
    "0.5.14": {
        "sglang-0.5.14-cp311-cp311-manylinux_2_34_aarch64.whl":
            "f32e59a73d66d731e6a503503187ca4eb219beeb66b9c1710bbec6316d3d5863",
        "sglang-0.5.14-cp311-cp311-manylinux_2_34_x86_64.whl":
            "4fe16056b45c8aca00f5f90ceb174dc3a62a3f5dccf159c791370795cd00fc99",
        "sglang-0.5.14-cp312-cp312-manylinux_2_34_aarch64.whl":
            "aaf01032f6bcc5c3561fabf81389d79b1dfbb8a699a9e02e6e9ac5bcbd51a8f2",
        "sglang-0.5.14-cp312-cp312-manylinux_2_34_x86_64.whl":
            "4573aac774045ba926bab2f7efaaad7b120e4f84695ccf27c59d276f856deca8",
        "sglang-0.5.14-cp313-cp313-manylinux_2_34_aarch64.whl":
            "354186d798b39a698d8f506db955d461ee56cba145beda9ac1a11b72e37240bd",
        "sglang-0.5.14-cp313-cp313-manylinux_2_34_x86_64.whl":
            "2d22e6a17f6c73580aef25d224f3162a1e3bc9cd5043b4022d84975c5e96a0cd",
    },
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
    "0.5.15.post1": {
        "sglang-0.5.15.post1-cp311-cp311-manylinux_2_34_aarch64.whl":
            "accc9d72e0d59b6451cbac780671a55763d3d6cb5def750f7308a64d3780dbdd",
        "sglang-0.5.15.post1-cp311-cp311-manylinux_2_34_x86_64.whl":
            "8e182e1c449197cb6f98716a7cf432a3ea7af78c172f9b840ab28ad9e6cda9b4",
        "sglang-0.5.15.post1-cp312-cp312-manylinux_2_34_aarch64.whl":
            "975e3b021436acdcd95f6f471ce81a0a81098ceec2445b3423b1f062e749079f",
        "sglang-0.5.15.post1-cp312-cp312-manylinux_2_34_x86_64.whl":
            "d1cf208d6ed6bd1d66e6c284635cb671519855dcdfe119e3c4011b6797c90679",
        "sglang-0.5.15.post1-cp313-cp313-manylinux_2_34_aarch64.whl":
            "8692bad00972687d18db5f6a7e6f0ce8d5170b45c9b143a60cf9c7d19515dc96",
        "sglang-0.5.15.post1-cp313-cp313-manylinux_2_34_x86_64.whl":
            "5f7d745943b6d17ff05e98bb3be1c8665d3a725210e8c013fd89e767d81bdcfb",
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
    "0.5.17": {
        "sglang-0.5.17-cp311-cp311-manylinux_2_34_aarch64.whl":
            "dc67b73978d57eac1a41a41b594c41b0426845a14636546127fa4a99d902f4a0",
        "sglang-0.5.17-cp311-cp311-manylinux_2_34_x86_64.whl":
            "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16",
        "sglang-0.5.17-cp312-cp312-manylinux_2_34_aarch64.whl":
            "49b3cfa5b998c2ce0962c3da01e8f5e147c610cf7b0d4f8c294c97346c82b202",
        "sglang-0.5.17-cp312-cp312-manylinux_2_34_x86_64.whl":
            "fb4cba478a5dca5ee146550b39f33add1c4e475d21ee11810b86ed1c58068093",
        "sglang-0.5.17-cp313-cp313-manylinux_2_34_aarch64.whl":
            "0239754488a8af898e68df0864ed6d10e9142fede70256d473897578b72e850e",
        "sglang-0.5.17-cp313-cp313-manylinux_2_34_x86_64.whl":
            "b4cec115215aaf355f1ca94122ea0d00318f19f9d9d59846fdb674203efd1f94",
    },
    "0.5.18": {
        "sglang-0.5.18-cp311-cp311-manylinux_2_34_aarch64.whl":
            "fae5e92a9f3b880974ac731eb570e3d164886291807473bd95d2458f5b28957e",
        "sglang-0.5.18-cp311-cp311-manylinux_2_34_x86_64.whl":
            "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf",
        "sglang-0.5.18-cp312-cp312-manylinux_2_34_aarch64.whl":
            "279621e464e56c597150e542321350ea56e000e192d52fcffbd4cbe9ea80ca7f",
        "sglang-0.5.18-cp312-cp312-manylinux_2_34_x86_64.whl":
            "fba7bb31a5de4c014945cbc50e9357c9253cc965a423736c324b2aaccd2270dc",
        "sglang-0.5.18-cp313-cp313-manylinux_2_34_aarch64.whl":
            "acbb5bc107e42f6b9f364be12a248be4ec993085a8c6963df451def2437c75f3",
        "sglang-0.5.18-cp313-cp313-manylinux_2_34_x86_64.whl":
            "8a4fae5995751f32278f9466da6cb77d6dace1ae92b89a30ff8fdcf0c621c324",
    },
    "0.5.19": {
        "sglang-0.5.19-cp311-cp311-manylinux_2_34_aarch64.whl":
            "d93f4f6e3185cfe0cec423a58d0fe542831fbb8ea00f64d24b5b9020eb5ad142",
        "sglang-0.5.19-cp311-cp311-manylinux_2_34_x86_64.whl":
            "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b",
        "sglang-0.5.19-cp312-cp312-manylinux_2_34_aarch64.whl":
            "f32da6712a897ce94594ee1473bb14cc9b8cdf7702483e860aef8a3b74c488f2",
        "sglang-0.5.19-cp312-cp312-manylinux_2_34_x86_64.whl":
            "fdc65d1235f6861ad3a1116c36c2270e46a95f030200091f8de595c6c3426cd2",
        "sglang-0.5.19-cp313-cp313-manylinux_2_34_aarch64.whl":
            "38035efcd17d235c48a86f32c4052994ce55a465a2075bd12cbcbc76650138dd",
        "sglang-0.5.19-cp313-cp313-manylinux_2_34_x86_64.whl":
            "85391740b6f3c5c9b46d2bc79bd92e93dfeadc48f0bf8a9438344ac3c3256157",
    },
    "0.5.20": {
        "sglang-0.5.20-cp311-cp311-manylinux_2_34_aarch64.whl":
            "950b349dd495e02c3ab0bfb6a4d774325fcb3aa2da9348f12c84c0263610e945",
        "sglang-0.5.20-cp311-cp311-manylinux_2_34_x86_64.whl":
            "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
        "sglang-0.5.20-cp312-cp312-manylinux_2_34_aarch64.whl":
            "4eeb321ff70bef7eb9643260c06f3e47a76d8a15eaefbb95e06f2681bc74b014",
        "sglang-0.5.20-cp312-cp312-manylinux_2_34_x86_64.whl":
            "ffaced7e91c3536c63077b16b08210b5c1a2f362418e9841a8767d5e019cf08a",
        "sglang-0.5.20-cp313-cp313-manylinux_2_34_aarch64.whl":
            "09b4343dc3729c0805303903b1412e2d7fe35e18e9d2417b415d0cfd281410e2",
        "sglang-0.5.20-cp313-cp313-manylinux_2_34_x86_64.whl":
            "7b06bf7e579fc226e36d5139fcaf2a1a7110f5e13b9067476241660ba01e55a7",
    },
    "0.5.21": {
        "sglang-0.5.21-cp311-cp311-manylinux_2_34_aarch64.whl":
            "e9871035e62b19ce13605cd744a1ca30c6db66acb811a40febfa2cebcceb7710",
        "sglang-0.5.21-cp311-cp311-manylinux_2_34_x86_64.whl":
            "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20",
        "sglang-0.5.21-cp312-cp312-manylinux_2_34_aarch64.whl":
            "de4d193d53a67512d6a58a445a9c287bb44f0fab7e7a68b7cfcaf736d427523a",
        "sglang-0.5.21-cp312-cp312-manylinux_2_34_x86_64.whl":
            "ac300998eb6b1afcb2971b31317b66ef12891003bdf9d1a5c7e34f9d4e3dcf0d",
        "sglang-0.5.21-cp313-cp313-manylinux_2_34_aarch64.whl":
            "fa60cf992ec211ae4c5ce36feb4d3487020278b48e1bb9d1b77acd6cddaef204",
        "sglang-0.5.21-cp313-cp313-manylinux_2_34_x86_64.whl":
            "a6bcf45d0a18a39db6fd99d75540ba431cf7c9c41f7120047a5ee9d0e6444ca8",
    },
    "0.5.22": {
        "sglang-0.5.22-cp311-cp311-manylinux_2_34_aarch64.whl":
            "1a2e055df8f4b9613e00ae0998e24f2fc450fdf56088211ebb2425974976a7e4",
        "sglang-0.5.22-cp311-cp311-manylinux_2_34_x86_64.whl":
            "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b",
        "sglang-0.5.22-cp312-cp312-manylinux_2_34_aarch64.whl":
            "b3b44ba7c15a655ad26e457f72a8d78fc7951693290e9e783ded7d4527c57d57",
        "sglang-0.5.22-cp312-cp312-manylinux_2_34_x86_64.whl":
            "3505e3744366201296f94d244b3e7d3b0bb91b69726dc15e994070adb338ea2f",
        "sglang-0.5.22-cp313-cp313-manylinux_2_34_aarch64.whl":
            "4350f72c66aed9ea7d9f07039d411300845ad2def86a77ef59e04d26b5f20e5e",
        "sglang-0.5.22-cp313-cp313-manylinux_2_34_x86_64.whl":
            "232877ea7ec77103f2d00ef648cd81462f3b7a80c3564861ad9872a694c48dd3",
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
"""Wheels of each supported release of sglang, oldest first."""
