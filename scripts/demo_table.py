#!/usr/bin/env python3
"""Usage: demo_table.py RUN STEPS RANKS: prints the demo's table from the files in RUN."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Reads the agents' lines and the policies of each step, prints one table."""
    run, steps, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    agents = [json.loads((run / f"agent{rank}.json").read_text()) for rank in range(ranks)]
    print()
    print(f"{ranks} agents, {steps} steps: imbalance (load of the slowest GPU / mean)")
    print("step   no balancing   EPLB, oracle   ReLibra planned   ReLibra ran   ideal")
    for step in range(steps):
        policies = {
            row["policy"]: row["imbalance"]
            for row in json.loads((run / f"policies{step}.json").read_text())["policies"]
        }
        ran = agents[0]["imbalance_after"][step]
        before = agents[0]["imbalance_before"][step]
        print(
            f"{step:4}   {policies['none']:12.3f}   {policies['eplb']:12.3f}"
            f"   {before:6.3f} -> {policies['relibra']:5.3f}   {ran:11.3f}"
            f"   {policies['ideal']:5.3f}"
        )
    moved, replicas, gradients = (
        sum(agent[key] for agent in agents)
        for key in ("moved_bytes", "replica_bytes", "gradient_bytes")
    )
    worst = max(agent["max_relative_error"] for agent in agents)
    tolerance = max(agent["tolerance"] for agent in agents)
    verdict = "equal" if all(agent["passed"] for agent in agents) else "DIFFERENT"
    print()
    print(
        f"moved over UCX  {moved / 1e6:.2f} MB of homes ({agents[0]['moves']} moves),"
        f" {replicas / 1e6:.2f} MB of replicas ({agents[0]['replicas']}),"
        f" {gradients / 1e6:.2f} MB of gradients"
    )
    print(
        f"same numbers    outputs, gradients, weights, momentum against one process: {verdict}"
        f" (relative error {worst:.1e}, limit {tolerance:.0e})"
    )


if __name__ == "__main__":
    main()
