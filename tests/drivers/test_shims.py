"""Stubs stand in for what the engine needs to be imported, and for nothing else."""

import subprocess
import sys
import textwrap

import pytest

ENGINE = {
    "sglang/__init__.py": "",
    "sglang/serving.py": """
        import missing_server
        from missing_server.routes import Route, decorator

        class MyRoute(Route):
            pass

        @decorator
        def handle(request: missing_server.Request | None = None):
            return 7
    """,
    "sglang/kernels.py": """
        try:
            import missing_gpu
            HAS_GPU = True
        except ImportError:
            HAS_GPU = False
        import missing_tables
    """,
    "sglang/lazy.py": """
        def compute():
            import missing_gpu
            return missing_gpu.answer()
    """,
    "other.py": "import missing_elsewhere",
}

RUN = """
    from kvproof.kernels.engines import import_stubs
    import_stubs.install()
    import sglang.serving, sglang.kernels, sglang.lazy, importlib.util
    assert sglang.serving.handle() == 7
    assert not sglang.kernels.HAS_GPU
    assert importlib.util.find_spec("missing_gpu") is None
    for act in (sglang.lazy.compute, lambda: __import__("other"), lambda: __import__("sglang.no")):
        try:
            act()
        except ImportError:
            continue
        raise AssertionError(act)
    print(*[name for name in import_stubs.stubbed_modules() if name.startswith("missing")])
"""


def test_only_unguarded_imports_at_the_top_of_the_engine_are_stubbed(tmp_path):
    for name, text in ENGINE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN)], cwd=tmp_path, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split() == ["missing_server", "missing_server.routes", "missing_tables"]


@pytest.mark.parametrize("gate", [True, False])
def test_without_an_engine_the_shims_say_so(tmp_path, gate):
    run = (
        "from kvproof.kernels.engines import shims, errors\n"
        "try:\n"
        f"    shims.install(rocm_gate={gate}, allocator_twins=False)\n"
        "    shims.engine_family()\n"
        "except errors.EngineError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "sglang is not on its path" in found.stdout
