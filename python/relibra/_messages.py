"""Routing and loads as the messages that carry them, in pieces that fit into one each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from relibra.arrays import Array, require_integers, to_numpy
from relibra.job import ID_TYPES
from relibra.v1 import routing_pb2

# A sequence's routing is sent in pieces of about this size, each at its token offset.
PIECE_BYTES = 1 << 20
# Counts larger than this are uploaded in messages of this size before planning.
COUNTS_MESSAGE_ENTRIES = 1 << 18


def pieces(
    sequence_id: str, ids: Array, offset: int, sequence_tokens: int, prompt_group: str
) -> Iterator[Any]:
    """RoutingRecords of about PIECE_BYTES each; ids [tokens, layers, top_k] as for the wire."""
    tokens, layers, top_k = ids.shape
    row_bytes = max(1, layers * top_k * ids.itemsize)
    rows = max(1, PIECE_BYTES // row_bytes)
    for first in range(0, max(tokens, 1), rows):
        part = ids[first : first + rows]
        yield routing_pb2.RoutingRecord(
            sequence_id=sequence_id,
            token_offset=offset + first,
            sequence_tokens=sequence_tokens,
            prompt_group=prompt_group,
            ids=routing_pb2.RoutedIds(
                id_type=ID_TYPES[ids.dtype.name],
                num_tokens=len(part),
                num_layers=layers,
                top_k=top_k,
                ids=part.tobytes(),
            ),
        )


def checked_counts(loads: Any) -> Array:
    counts = require_integers(to_numpy(loads), "loads")
    if counts.ndim != 4:
        raise ValueError(
            "loads: expected [micro_batches, layers, source_ranks, experts], got shape "
            f"{counts.shape}"
        )
    wrong = np.argwhere((counts < 0) | (counts > np.uint64(2**32 - 1)))
    if len(wrong):
        m, layer, rank, expert = (int(index) for index in wrong[0])
        raise ValueError(
            f"loads: micro-batch {m}, layer {layer}, rank {rank}, expert {expert}: expected a "
            f"count of 32 bits, got {counts[m, layer, rank, expert]}"
        )
    return counts


def count_messages(counts: Array) -> Iterator[Any]:
    """LoadCounts messages of about COUNTS_MESSAGE_ENTRIES numbers each."""
    micro_batches, layers, ranks, experts = counts.shape
    matrices = counts.reshape(micro_batches * layers, ranks * experts)
    at_once = max(1, COUNTS_MESSAGE_ENTRIES // max(1, ranks * experts))
    for first in range(0, max(1, len(matrices)), at_once):
        message = routing_pb2.LoadCounts(
            num_micro_batches=micro_batches,
            num_layers=layers,
            num_source_ranks=ranks,
            num_experts=experts,
            first_entry=first,
        )
        for matrix in matrices[first : first + at_once]:
            message.entries.add(counts=matrix.tolist())
        yield message
