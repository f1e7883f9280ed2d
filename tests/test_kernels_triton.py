"""The Triton kernels against the oracle, in Triton's interpreter on the CPU, and compiled ahead of time for a chip.

Triton reads TRITON_INTERPRET when it is imported, so all cases run in one child process, which is this file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest  # noqa: F401  (loads the pack as `carnator`)

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
# dtype, head_dim, queries, keys, block_q, block_k, density, and what is special about the case
CASES = {
    "float32": ("float32", 64, 200, 300, 64, 64, 0.5, ""),
    "float16": ("float16", 64, 200, 300, 64, 64, 0.5, ""),
    "bfloat16": ("bfloat16", 64, 200, 300, 64, 64, 0.5, ""),
    "float32, head_dim 128": ("float32", 128, 150, 200, 64, 64, 0.5, ""),
    "float16, head_dim 128": ("float16", 128, 200, 200, 128, 64, 0.5, ""),
    "bfloat16, head_dim 128": ("bfloat16", 128, 200, 200, 128, 64, 0.5, ""),
    "no ragged end": ("float16", 64, 128, 256, 64, 64, 0.4, ""),
    "one token past a block": ("bfloat16", 128, 129, 65, 64, 64, 0.6, ""),
    "key blocks of 128, the tail in the first half": ("float16", 64, 100, 290, 64, 128, 0.6, ""),
    "all blocks kept": ("float16", 64, 130, 200, 64, 64, 1.0, ""),
    "a single block": ("float32", 64, 30, 20, 64, 64, 1.0, ""),
    "one mask for all": ("float16", 64, 100, 130, 64, 64, 0.5, "shared"),
    "tokens outermost in memory": ("bfloat16", 64, 100, 130, 64, 64, 0.5, "strided"),
    "last dimension not contiguous": ("float32", 64, 70, 70, 64, 64, 0.5, "transposed"),
    "empty rows": ("float16", 64, 200, 200, 64, 64, 0.0, "empty"),
    "empty lists in the kernel itself": ("float32", 64, 100, 100, 64, 64, 0.0, "unfilled"),
    "large scores": ("bfloat16", 128, 70, 130, 64, 64, 0.7, "large"),
}
# dtype, head_dim, queries, keys, block_q, block_k, rows
MASSES = {
    "mass float32": ("float32", 64, 150, 200, 64, 64, None),
    "mass float16": ("float16", 64, 150, 130, 64, 64, 16),
    "mass bfloat16": ("bfloat16", 128, 150, 130, 128, 64, 12),
    "mass, key blocks of 192": ("float32", 64, 70, 400, 64, 192, 16),
    "mass, heads in several launches": ("float32", 64, 70, 70, 64, 64, 5),
}


def run_attention(dtype, head_dim, seq_q, seq_k, block_q, block_k, density, special):
    """(relative error of the output, largest absolute error of the LSE, whether every number is finite)."""
    from carnator.kernels import BlockMask, block_sparse_attention

    g = torch.Generator().manual_seed(0)
    heads, kind = 2, getattr(torch, dtype)
    gain = 3.0 if special == "large" else 1.0
    batch = 2 if special == "strided" else 1
    q, k, v = (torch.randn(batch, heads, n, head_dim, generator=g) for n in (seq_q, seq_k, seq_k))
    q, k, v = (q * gain).to(kind), k.to(kind), v.to(kind)
    if special == "strided":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if special == "transposed":
        q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v))
    kept = torch.rand(1, 1 if special == "shared" else heads, -(-seq_q // block_q), -(-seq_k // block_k), generator=g)
    kept = kept < density
    if density:
        kept[:, 0, 0, -1] = True  # the ragged tail is in some lists, and alone in one
        kept[:, -1, -1] = False
        kept[:, -1, -1, -1] = True
    mask = BlockMask(kept, seq_q, seq_k, block_q, block_k)
    exact = (x.double() for x in (q, k, v))
    want, want_lse = block_sparse_attention(*exact, mask, backend="reference", return_lse=True)
    if special == "unfilled":
        from carnator.kernels.triton import attention

        out, lse = attention(q, k, v, mask, 1.0, True)
        return float(out.abs().max()), float((lse != float("-inf")).sum()), True
    out, lse = block_sparse_attention(q, k, v, mask, backend="triton", return_lse=True)
    again = block_sparse_attention(q, k, v, mask, backend="triton")
    assert torch.equal(out, again) and out.dtype == kind and out.shape == q.shape
    error = float((out.double() - want).norm() / want.norm())
    return error, float((lse - want_lse).abs().max()), bool(out.isfinite().all())


def run_mass(dtype, head_dim, seq_q, seq_k, block_q, block_k, rows):
    """Relative error of the recorded mass against the oracle on the same rows."""
    from carnator.kernels import mass, recording, reference
    from carnator.kernels.triton import recording as launches

    launches.SCRATCH = 1
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 2, n, head_dim, generator=g).to(getattr(torch, dtype)) for n in (seq_q, seq_k))
    got = mass(q, k, block_q, block_k, rows=rows, backend="triton")
    index = recording.sample_rows(seq_q, block_q, rows)
    want = reference.mass(q, k, block_q, block_k, head_dim ** -0.5, index)
    assert got.shape == want.shape and torch.allclose(got.sum(-1), torch.ones(1), atol=1e-4)
    return float((got - want).norm() / want.norm()), 0.0, True


def widen_bfloat16_dots():
    """Triton 3.8's interpreter multiplies the raw uint16 bits of bfloat16 in `tl.dot`: hand it float32."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype("uint32") << 16).view("float32"), tl.float32)

    def create_dot(self, a, b, d, *rest):
        return original(self, widened(a), widened(b), d, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


def child():
    """Run every case and write {name: [dtype, error, lse error, finite]} to stdout."""
    torch.set_num_threads(1)
    widen_bfloat16_dots()
    results = {name: (case[0], *run_attention(*case)) for name, case in CASES.items()}
    results |= {name: (case[0], *run_mass(*case)) for name, case in MASSES.items()}
    print(json.dumps(results))  # noqa: T201


@pytest.fixture(scope="session")
def interpreted():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_the_oracle(interpreted, name):
    dtype, error, lse_error, finite = interpreted[name]
    tolerance = TOLERANCE[dtype]
    assert finite and error < tolerance and lse_error < 20 * tolerance


@pytest.mark.parametrize("name", MASSES)
def test_recorded_mass_equals_the_oracle(interpreted, name):
    dtype, error, _, _ = interpreted[name]
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("chip", ["sm_89", "gfx942"])
def test_the_kernel_compiles_for_a_chip_without_spills(chip, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from carnator.bench._compiled import forward, scores

    for made in (forward(chip, 128, 128), scores(chip, 128)):
        assert made.sound, made
        assert made.registers <= 255 and made.shared <= 64 << 10


if __name__ == "__main__":
    child()
