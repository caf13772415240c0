"""verl: plan a step from a batch's routed_experts, for the micro-batches that verl made.

Usage: python verl_batch.py HOST:PORT

In verl, `batch` is the DataProto after generate_sequences (R3) or compute_log_prob (R2).
"""

import numpy as np
import recorded

from relibra import LayerAxis, Planner
from relibra.adapters import verl

STEP = 17
PROMPT, RESPONSE = 8, 56


def batch() -> dict[str, object]:
    """Prompts padded on the left, answers on the right; the last token's row is zero."""
    rows = 16
    routed = np.zeros((rows, PROMPT + RESPONSE, recorded.HIDDEN_LAYERS, recorded.TOP_K), np.int16)
    mask = np.zeros((rows, PROMPT + RESPONSE), np.int64)
    for row in range(rows):
        first, end = row % PROMPT, PROMPT + RESPONSE - row
        mask[row, first:end] = 1
        ids = recorded.routing(row, end - first - 1, LayerAxis.ALL_LAYERS)
        routed[row, first : end - 1] = ids
    uids = np.array([f"prompt-{row // 4}" for row in range(rows)], dtype=object)
    return {"routed_experts": routed, "attention_mask": mask, "uid": uids}


def main() -> None:
    job = recorded.job("verl-example", LayerAxis.ALL_LAYERS)
    with Planner(recorded.address(), job) as planner:
        names = verl.add_batch(planner, batch(), step=STEP)
        # Each of 8 data-parallel ranks gets two rows, and rearrange_micro_batches on that rank
        # made a micro-batch of each.
        rank_names = [names[2 * rank : 2 * rank + 2] for rank in range(8)]
        composition = verl.composition([[[0], [1]]] * 8, rank_names)
        recorded.show(planner, planner.plan_step(STEP, composition))
        planner.delete_job()


if __name__ == "__main__":
    main()
