"""Writes the .npz fixtures of trace_file_test.cc with NumPy itself: python3 make_npz.py"""

import numpy as np

# loads[m][l][s][e] = 1000 m + 100 l + 10 s + e
mb, layer, rank, expert = np.meshgrid(
    np.arange(2), np.arange(3), np.arange(2), np.arange(4), indexing="ij"
)
loads = 1000 * mb + 100 * layer + 10 * rank + expert
np.savez("counts.npz", loads=loads, layer_ids=[1, 2, 5])
np.savez_compressed("counts_compressed.npz", loads=loads.astype("u2"))

# Three sequences of 2, 0 and 3 tokens, 2 layers, top-2 of 5 experts; one token without a route in
# layer 1.
ids = np.array(
    [
        [[0, 1], [2, 3]],
        [[0, 4], [2, 4]],
        [[1, 2], [-1, -1]],
        [[1, 3], [0, 1]],
        [[1, 4], [0, 2]],
    ],
    dtype=np.int16,
)
np.savez(
    "sequences.npz",
    routed_experts=ids,
    sequence_offsets=[0, 2, 2, 5],
    sequence_ids=np.array(["a", "längere", "c"]),
    sequence_rank=[0, 1, 1],
    sequence_micro_batch=[1, 0, 0],
    num_experts=5,
)
np.savez(
    "raw.npz",
    routed_experts=ids.astype(np.int32),
    token_rank=[0, 1, 0, 1, 0],
    token_micro_batch=[0, 0, 1, 0, 0],
    num_experts=np.int64(5),
    comment=np.array([7]),
)
# As vLLM returns them: all hidden layers, the dense ones all zero. Layer 0 is dense.
np.savez(
    "dense.npz",
    routed_experts=np.array([[[0, 0], [1, 2]], [[0, 0], [3, 2]]], dtype=np.uint8),
    token_rank=[0, 0],
    token_micro_batch=[0, 0],
    num_experts=4,
)
np.savez("fortran.npz", loads=np.asfortranarray(np.ones((1, 2, 2, 2), dtype=np.int32)))
np.savez("float.npz", loads=np.full((1, 1, 1, 2), np.nan))
np.savez("big_endian.npz", loads=np.ones((1, 1, 1, 2), dtype=">i4"))
np.savez("objects.npz", loads=np.array([{}], dtype=object))
np.savez("structured.npz", loads=np.zeros(1, dtype=[("a", "i4")]))
# 64 MiB of zeros in 65 kB.
np.savez_compressed("zeros.npz", loads=np.zeros((1, 1, 1024, 65536), dtype=np.uint8))
