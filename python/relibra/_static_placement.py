"""The twin in Python of planner_service/core/static_placement.cc: same steps, same placements.

Where the comments here are short, the C++ headers say the rest.
"""

from __future__ import annotations

import math

_LEAST_GAIN = 1e-9
_ROUNDING = 1e-12
_CLOSE_ENOUGH = 1e-4
_WORTH_TRYING = 0.01
_TRIED_SLOTS = 256
_MOST_TRIES = 8


def _validate(experts: int, physical: int, groups: int, nodes: int, gpus: int) -> None:
    if experts < 1:
        raise ValueError(f"experts: expected >= 1, got {experts}")
    if physical < experts:
        raise ValueError(f"num_replicas: expected at least the {experts} experts, got {physical}")
    if physical % gpus:
        raise ValueError(f"num_replicas: {physical} replicas do not divide evenly over {gpus} GPUs")
    if groups % nodes == 0:
        if experts % groups:
            raise ValueError(
                f"num_groups: {experts} experts do not divide evenly into {groups} groups"
            )
        if gpus % nodes:
            raise ValueError(f"num_gpus: {gpus} GPUs do not divide evenly over {nodes} nodes")


def _sum(values: list[float]) -> float:
    """Left to right, as C++ does; Python 3.12's sum() rounds otherwise."""
    total = 0.0
    for value in values:
        total += value
    return total


class _Layout:
    """One layer's experts, replicated and laid out; experts are numbered node by node."""

    def __init__(self, order: list[int], weight: list[float], physical: int, nodes: int, gpus: int):
        self.order = order
        self.weight = [weight[expert] for expert in order]
        self.nodes = nodes
        self.gpus = gpus
        self.slots = physical // gpus
        self.node_slots = physical // nodes
        self.node_experts = len(order) // nodes
        self.node_gpus = gpus // nodes
        size = self.node_experts
        self.floor = max(
            _sum(self.weight[n * size : (n + 1) * size]) / self.node_gpus for n in range(nodes)
        )
        self.share: list[float] = []
        self.count: list[int] = []
        self.replicas: list[list[int]] = []  # of each node
        self.on: list[list[int]] = []  # of each GPU, its experts
        self.load: list[float] = []

    def replicate(self, cap: int) -> None:
        self.count = [1] * len(self.weight)
        self.share = list(self.weight)
        self.replicas = []
        for node in range(self.nodes):
            own = range(node * self.node_experts, (node + 1) * self.node_experts)
            replicas = list(own)
            while len(replicas) < self.node_slots:
                hottest = max(
                    (e for e in own if self.count[e] < cap), key=lambda e: (self.share[e], -e)
                )
                replicas.append(hottest)
                self.count[hottest] += 1
                self.share[hottest] = self.weight[hottest] / self.count[hottest]
            self.replicas.append(replicas)

    def node_of(self, gpu: int) -> range:
        first = gpu // self.node_gpus * self.node_gpus
        return range(first, first + self.node_gpus)

    def put(self, gpu: int, expert: int) -> None:
        self.on[gpu].append(expert)
        self.load[gpu] += self.share[expert]

    def pack(self, apart: bool) -> None:
        self.on = [[] for _ in range(self.gpus)]
        self.load = [0.0] * self.gpus
        for node, replicas in enumerate(self.replicas):
            gpus = self.node_of(node * self.node_gpus)
            for expert in sorted(replicas, key=lambda e: -self.share[e]):
                open_gpus = [g for g in gpus if len(self.on[g]) < self.slots]
                fit = [g for g in open_gpus if not (apart and expert in self.on[g])]
                if fit:
                    self.put(min(fit, key=lambda g: (self.load[g], g)), expert)
                else:
                    lightest = min(open_gpus, key=lambda g: (self.load[g], g))
                    self.put_by_passing_on(gpus, lightest, expert)

    def put_by_passing_on(self, gpus: range, lightest: int, expert: int) -> None:
        best: tuple[float, int, int] | None = None
        for gpu in gpus:
            if expert in self.on[gpu]:
                continue
            for slot, other in enumerate(self.on[gpu]):
                if other in self.on[lightest]:
                    continue
                load = max(
                    self.load[gpu] - self.share[other] + self.share[expert],
                    self.load[lightest] + self.share[other],
                )
                if best is None or load < best[0]:
                    best = (load, gpu, slot)
        assert best is not None  # see StaticLayout::PutByPassingOn
        _, gpu, slot = best
        passed_on = self.on[gpu][slot]
        self.put(lightest, passed_on)
        self.load[gpu] += self.share[expert] - self.share[passed_on]
        self.on[gpu][slot] = expert

    def refine(self, apart: bool, target: float) -> None:
        for _ in range(8 * self.gpus):
            fullest = max(range(self.gpus), key=lambda g: (self.load[g], -g))
            if self.load[fullest] <= target:
                return
            if not self.swap(fullest, apart) and not self.shift(fullest):
                return

    def swap(self, fullest: int, apart: bool) -> bool:
        full = self.load[fullest]
        best = full * (1 - _LEAST_GAIN)
        found: tuple[int, int, int] | None = None
        mine = self.on[fullest]
        node = self.node_of(fullest)
        lightest = min(node, key=lambda g: (self.load[g], g))
        for gpu in [lightest, *(g for g in node if g != lightest)]:
            if gpu == fullest or (full + self.load[gpu]) / 2 >= best:
                continue
            theirs = self.on[gpu]
            for slot, expert in enumerate(mine):
                for place, other in enumerate(theirs):
                    difference = self.share[expert] - self.share[other]
                    load = max(full - difference, self.load[gpu] + difference)
                    if load >= best or (apart and (expert in theirs or other in mine)):
                        continue
                    best = load
                    found = (slot, gpu, place)
        if found is None:
            return False
        self.apply_swap(fullest, *found)
        return True

    def apply_swap(self, gpu: int, slot: int, other_gpu: int, place: int) -> None:
        expert, other = self.on[gpu][slot], self.on[other_gpu][place]
        difference = self.share[expert] - self.share[other]
        self.load[gpu] -= difference
        self.load[other_gpu] += difference
        self.on[gpu][slot], self.on[other_gpu][place] = other, expert

    def shift(self, fullest: int) -> bool:
        best = self.load[fullest] * (1 - _LEAST_GAIN)
        found: tuple[int, int, int] | None = None
        node = fullest // self.node_gpus
        own = range(node * self.node_experts, (node + 1) * self.node_experts)
        for gpu in self.node_of(fullest):
            for slot, old in enumerate(self.on[gpu]):
                if self.count[old] == 1:
                    continue
                for expert in own if gpu == fullest else self.on[fullest]:
                    if self.count[expert] >= self.node_gpus or expert in self.on[gpu]:
                        continue
                    load = self.load_after_shift(gpu, old, expert, best)
                    if load < best:
                        best = load
                        found = (gpu, slot, expert)
        if found is None:
            return False
        self.apply_shift(*found)
        return True

    def load_after_shift(self, gpu: int, old: int, expert: int, bound: float) -> float:
        expert_share = self.weight[expert] / (self.count[expert] + 1)
        old_share = self.weight[old] / (self.count[old] - 1)
        gained = old_share - self.share[old]
        lost = self.share[expert] - expert_share
        most = self.load[gpu] + self.on[gpu].count(old) * gained + expert_share - old_share
        for other in self.node_of(gpu):
            if most >= bound:
                break
            olds, experts = self.on[other].count(old), self.on[other].count(expert)
            if other != gpu and (olds or experts):
                most = max(most, self.load[other] + olds * gained - experts * lost)
        return min(most, bound)

    def apply_shift(self, gpu: int, slot: int, expert: int) -> None:
        old = self.on[gpu][slot]
        self.count[expert] += 1
        self.count[old] -= 1
        for changed in (expert, old):
            self.share[changed] = self.weight[changed] / self.count[changed]
        self.on[gpu][slot] = expert
        for other in self.node_of(gpu):
            self.load[other] = _sum([self.share[e] for e in self.on[other]])

    def spread_duplicates(self) -> None:
        most = max(self.load)
        for gpu in range(self.gpus):
            for slot in range(self.slots):
                if self.on[gpu].count(self.on[gpu][slot]) > 1:
                    self.spread(gpu, slot, most)

    def spread(self, gpu: int, slot: int, most: float) -> None:
        expert = self.on[gpu][slot]
        for other_gpu in self.node_of(gpu):
            if expert in self.on[other_gpu]:
                continue
            for place, other in enumerate(self.on[other_gpu]):
                difference = self.share[expert] - self.share[other]
                if (
                    other not in self.on[gpu]
                    and self.load[gpu] - difference <= most
                    and self.load[other_gpu] + difference <= most
                ):
                    self.apply_swap(gpu, slot, other_gpu, place)
                    return

    def max_load(self) -> float:
        return max(_sum([self.share[e] for e in experts]) for experts in self.on)

    def result(self) -> tuple[list[int], list[int]]:
        """The placement [physical] and the counts [experts], by logical expert."""
        physical = [e for experts in self.on for e in sorted(self.order[x] for x in experts)]
        count = [0] * len(self.order)
        for expert, number in zip(self.order, self.count, strict=True):
            count[expert] = number
        return physical, count


class StaticPlacer:
    """Places one layer after another, as the C++ class of this name."""

    def __init__(self, experts: int, physical: int, groups: int, nodes: int, gpus: int):
        _validate(experts, physical, groups, nodes, gpus)
        if groups % nodes:
            groups = nodes = 1
        self.experts, self.physical = experts, physical
        self.groups, self.nodes, self.gpus = groups, nodes, gpus
        self.node_groups = groups // nodes
        self.group_load: list[float] = []
        self.node_load: list[float] = []
        self.packed: list[int] = []  # the groups of node 0, of node 1, ...

    def place(self, weight: list[float]) -> tuple[list[int], list[int]]:
        """The slots' experts [physical] and the experts' replica counts [experts]."""
        for expert, load in enumerate(weight):
            if not math.isfinite(load) or load < 0:
                raise ValueError(f"expert {expert}: expected a finite load >= 0, got {load:g}")
        if not math.isfinite(_sum(weight)):
            raise ValueError("the sum of loads overflows")
        self.pack_groups(weight)
        free = self.lay_out_freely(weight)
        published = free.max_load() * (1 + _ROUNDING)
        if self.physical // self.gpus <= self.experts // self.nodes:
            swapped = self.swap_groups()
            layout = self.lay_out_apart(weight, published)
            if layout.max_load() <= published:
                return self.try_other_nodes(weight, published, layout).result()
            if swapped:
                self.pack_groups(weight)
                layout = self.lay_out_apart(weight, published)
                if layout.max_load() <= published:
                    return layout.result()
        free.refine(False, free.floor * (1 + _CLOSE_ENOUGH))
        free.spread_duplicates()
        return free.result()

    def new_layout(self, weight: list[float]) -> _Layout:
        size = self.experts // self.groups
        order = [group * size + i for group in self.packed for i in range(size)]
        return _Layout(order, weight, self.physical, self.nodes, self.gpus)

    def lay_out_freely(self, weight: list[float]) -> _Layout:
        layout = self.new_layout(weight)
        layout.replicate(self.physical)
        layout.pack(apart=False)
        return layout

    def lay_out_apart(self, weight: list[float], published: float) -> _Layout:
        layout = self.new_layout(weight)
        layout.replicate(layout.node_gpus)
        layout.pack(apart=True)
        layout.refine(True, min(published, layout.floor * (1 + _CLOSE_ENOUGH)))
        return layout

    def pack_groups(self, weight: list[float]) -> None:
        size = self.experts // self.groups
        load = [_sum(weight[g * size : (g + 1) * size]) for g in range(self.groups)]
        self.group_load = load
        if self.node_groups == 1:
            self.packed = list(range(self.groups))
            self.node_load = list(load)
            return
        content: list[list[int]] = [[] for _ in range(self.nodes)]
        self.node_load = [0.0] * self.nodes
        for group in sorted(range(self.groups), key=lambda g: -load[g]):
            best = min(
                (n for n in range(self.nodes) if len(content[n]) < self.node_groups),
                key=lambda n: (self.node_load[n], n),
            )
            content[best].append(group)
            self.node_load[best] += load[group]
        self.packed = [group for groups in content for group in groups]

    def swaps_of_heaviest(self) -> list[tuple[float, int, int]]:
        """(load of the heavier node afterwards, place, other place) of every swap of two groups."""
        heaviest = max(range(self.nodes), key=lambda n: (self.node_load[n], -n))
        swaps = []
        for place in range(heaviest * self.node_groups, (heaviest + 1) * self.node_groups):
            for other in range(self.groups):
                node = other // self.node_groups
                if node != heaviest:
                    difference = self.difference(place, other)
                    load = max(
                        self.node_load[heaviest] - difference, self.node_load[node] + difference
                    )
                    swaps.append((load, place, other))
        return swaps

    def difference(self, place: int, other: int) -> float:
        return self.group_load[self.packed[place]] - self.group_load[self.packed[other]]

    def swap_groups(self) -> bool:
        any_swap = False
        for _ in range(4 * self.groups if self.node_groups > 1 else 0):
            swaps = [swap for swap in self.swaps_of_heaviest() if self.difference(*swap[1:]) > 0]
            load, place, other = min(swaps, default=(math.inf, 0, 0))
            if load >= max(self.node_load) * (1 - _LEAST_GAIN):
                break
            difference = self.difference(place, other)
            self.node_load[place // self.node_groups] -= difference
            self.node_load[other // self.node_groups] += difference
            self.exchange(place, other)
            any_swap = True
        return any_swap

    def exchange(self, place: int, other: int) -> None:
        self.packed[place], self.packed[other] = self.packed[other], self.packed[place]

    def try_other_nodes(self, weight: list[float], published: float, layout: _Layout) -> _Layout:
        most_tries = min(_TRIED_SLOTS // self.physical, _MOST_TRIES)
        best = layout.max_load()
        if self.node_groups == 1 or best <= layout.floor * (1 + _WORTH_TRYING):
            return layout
        tries = [swap for swap in self.swaps_of_heaviest() if swap[0] / layout.node_gpus < best]
        for _, place, other in sorted(tries)[:most_tries]:
            self.exchange(place, other)
            tried = self.lay_out_apart(weight, published)
            self.exchange(place, other)
            if tried.max_load() < best * (1 - _LEAST_GAIN):
                layout, best = tried, tried.max_load()
        return layout
