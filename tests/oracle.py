"""The sampler's kernels once more, in plain Python without speed in mind."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from cellcohort.sampling import BatchSampler
from cellcohort.sampling.drawing.cap import MOST_TRIES
from cellcohort.sampling.drawing.time_window import CLASSES, SMALL, TOLERANCE
from cellcohort.sampling.planning.plan import Plan

MASK = 2**64 - 1
PARTS = 2**36  # of a cell
PLASTIC = 0.7548776662466927
GOLDEN, MIX1, MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(key: int, value: int) -> int:
    z = ((key ^ (value * GOLDEN & MASK)) + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * MIX1) & MASK
    z = ((z ^ (z >> 27)) * MIX2) & MASK
    return z ^ (z >> 31)


def key_of(*parts: int) -> int:
    key = len(parts)
    for part in parts:
        key = mix(key, part)
    return key


def permuted(index: int, n: int, key: int) -> int:
    if n <= 1:
        return 0
    bits = max(1, (n - 1).bit_length())
    x = index
    while True:
        k = key
        for _ in range(4):
            k = (k * MIX1 + GOLDEN) & MASK
            x = (x + (k >> 24)) % 2**bits
            x = (x * ((k >> 40) | 1)) % 2**bits
            x ^= x >> (bits + 1) // 2
        if x < n:
            return x


def stride(n: int, key: int) -> int:
    kind = key % 6
    step = int(n / (kind // 2 + 1.618033988749895))
    step = max(1, step if kind % 2 == 0 else n - step)
    while math.gcd(step, n) != 1:
        step += 1
    return step


def offset_of(cell_class: int, key: int) -> int:
    x = cell_class
    for _ in range(3):
        x = (x + key) % CLASSES * (key >> 6 | 1) % CLASSES
        x ^= x >> 3
        key >>= 12
    return x


class Cap:
    """Admits at most `most` cells of a label; 0 admits all."""

    def __init__(self, plan: Plan) -> None:
        self.label, self.most, self.held = plan.strata.capped, plan.cap, {}

    def admit(self, position: int, most: int) -> bool:
        label = int(self.label[position])
        if self.held.get(label, 0) >= most:
            return False
        self.held[label] = self.held.get(label, 0) + 1
        return True

    def choose(self, candidates: list[int], need: int, capped: bool) -> list[int]:
        """The first `need` admitted candidates; where they run out, those turned away, cap raised one by one."""
        if not self.most or not capped:
            return candidates[:need]
        chosen: list[int] = []
        away: list[int] = []
        for position in candidates[: MOST_TRIES * (need + 8)]:
            if len(chosen) < need:
                (chosen if self.admit(position, self.most) else away).append(position)
        most = self.most
        while len(chosen) < need:
            most += 1
            for position in list(away):
                if len(chosen) < need and self.admit(position, most):
                    chosen.append(position)
                    away.remove(position)
        return chosen


def batch(sampler: BatchSampler, epoch: int, step: int) -> list[int]:
    plan = sampler._picker.plan
    if sampler.scope == "global":
        return whole(plan, epoch, step)[sampler.rank :: sampler.world_size]
    return whole(plan, epoch, step * sampler.world_size + sampler.rank)


def whole(plan: Plan, epoch: int, number: int) -> list[int]:
    spec = plan.spec(epoch, number)
    key = key_of(plan.seed, epoch)
    stratum, n_cells = spec.stratum.tolist(), spec.n_cells.tolist()
    if plan.timed:
        return windowed(plan, list(zip(stratum, n_cells, strict=True)), spec.focal, number, key)
    cap = Cap(plan)
    walks = [walk(plan, s, n, b, key) for s, n, b in zip(stratum, n_cells, spec.before.tolist(), strict=True)]
    size = plan.strata.size
    return [p for s, n, w in zip(stratum, n_cells, walks, strict=True) for p in cap.choose(w, n, n <= size[s])]


def walk(plan: Plan, s: int, need: int, before: int, key: int) -> list[int]:
    """Cells of a stratum in the order in which a batch looks at them."""
    strata = plan.strata
    cells = strata.order[strata.start[s] : strata.start[s + 1]].tolist()
    n, stratum_key = len(cells), mix(key, s)
    if not plan.cap:
        return [cells[permuted((before + i) % n, n, stratum_key)] for i in range(need)]
    step, offset = stride(n, stratum_key), (stratum_key >> 2) % n

    def cell(i: int) -> int:
        rank = (offset + (before + i) * step) % n
        block = rank // 16
        return cells[rank ^ (mix(stratum_key, block) % 16) if 16 * (block + 1) <= n else rank]

    rest = n - need
    beyond = [need + (i + rest // 2) % rest for i in range(rest)] if rest > 0 else []
    return [cell(i) for i in [*range(need), *beyond]]


def focal_time(plan: Plan, leader: int, turn: int, epoch: int) -> float:
    strata = plan.strata
    times = [
        t
        for s in np.flatnonzero(strata.group == leader)
        for t in strata.times[strata.times_indptr[s] : strata.times_indptr[s + 1]]
    ]
    index = permuted(turn % len(times), len(times), mix(key_of(plan.seed, epoch, leader), turn // len(times)))
    for time in [*times[index:], *times[:index]]:
        if np.isfinite(time):
            return float(time)
    return -math.inf


def windowed(plan: Plan, taken: list[tuple[int, int]], focal: float, number: int, key: int) -> list[int]:
    strata, half_width = plan.strata, plan.half_width
    slices = []
    for s, _ in taken:
        indices = slice(strata.times_indptr[s], strata.times_indptr[s + 1])
        cells = np.diff(strata.times_start[strata.times_indptr[s] : strata.times_indptr[s + 1] + 1])
        times = np.repeat(strata.times[indices], cells)
        begin = int((times < focal - half_width - TOLERANCE).sum())
        end = int((times <= focal + half_width + TOLERANCE).sum())
        slices.append(([range(begin, end)], [range(begin), range(end, len(times))]))
    exact = plan.places * plan.share_inside + 1e-9
    inside = int(exact) + int((number + 1) * (exact % 1)) - int(number * (exact % 1))
    wanted = share_out([n for _, n in taken], slices, inside, number)
    cap, chosen = Cap(plan), []
    for (s, n), parts, n_inside in zip(taken, slices, wanted, strict=True):
        for part, need in ((0, n_inside), (1, n - n_inside)):
            if need:
                candidates = by_class(plan, s, parts[part], part, number, key, need)
                chosen += cap.choose(candidates, need, need <= sum(map(len, parts[part])))
    return chosen


def share_out(counts: list[int], slices: list[tuple[list[range], list[range]]], inside: int, number: int) -> list[int]:
    low, high = [], []
    for n, parts in zip(counts, slices, strict=True):
        near, far = (sum(map(len, part)) for part in parts)
        times = math.ceil(n / (near + far))
        low.append(max((times - 1) * near, n - times * far))
        high.append(min(times * near, n - (times - 1) * far))
    wanted = [min(max(n * inside // sum(counts), a), b) for n, a, b in zip(counts, low, high, strict=True)]
    rest = min(max(inside, sum(low)), sum(high)) - sum(wanted)
    while rest:
        sign = 1 if rest > 0 else -1
        space = [b - w if sign > 0 else w - a for w, a, b in zip(wanted, low, high, strict=True)]
        each = max(1, abs(rest) // sum(s > 0 for s in space))
        for i in range(len(counts)):
            e = (i + number) % len(counts)
            moved = min(each, space[e], abs(rest))
            wanted[e] += sign * moved
            rest -= sign * moved
    return wanted


def by_class(plan: Plan, s: int, runs: list[range], part: int, number: int, key: int, need: int) -> list[int]:
    """Cells inside (part 0) or outside (part 1) the window in the order in which a batch looks at them."""
    strata = plan.strata
    cells = strata.order[strata.start[s] : strata.start[s + 1]].tolist()
    stratum_key, walk_key = mix(key, s), mix(mix(key, number), s)
    if len(cells) <= SMALL:
        stratum_key = mix(stratum_key, number // CLASSES)
    shift = stratum_key % CLASSES if len(cells) > CLASSES else 0
    blocks = [
        (run, block)
        for run in runs
        if run
        for block in range((run[0] + shift) // CLASSES, (run[-1] + shift) // CLASSES + 1)
    ]
    found: list[int] = []
    visit = 0
    while visit < CLASSES or len(found) < need:
        cell_class = number % CLASSES ^ int(f"{visit % CLASSES:06b}"[::-1], 2)
        for i in range(len(blocks)):
            run, block = blocks[permuted(i, len(blocks), mix(walk_key, 2 * visit + part))]
            rank = block * CLASSES - shift + offset_of(cell_class, mix(stratum_key, block))
            if rank in run:
                found.append(cells[rank])
        visit += 1
    return found


def primary_groups(end: list[int], begin: int, n: int, key: int) -> list[int]:
    """The groups that the first batches of all epochs are built around."""
    step = round((math.sqrt(5) - 1) / 2 * 2**32) | 1
    numbers = [16 * (i // 16) + permuted(i % 16, 16, mix(key, i // 16)) for i in range(n)]
    return [next(g for g, e in enumerate(end) if (begin + i * step) % 2**32 < e) for i in numbers]


def occurrences_before(end: list[int], begin: int, first: int, key: int) -> list[int]:
    """How many batches before number `first` are built around each group."""
    led = primary_groups(end, begin, first, key)
    return [led.count(group) for group in range(len(end))]


def round_batch(plan: Plan, group: int, occurrence: int) -> list[tuple[int, int]]:
    """The strata that the n-th batch of a group takes, by label, and the cells of each."""
    batches, strata = plan.batches, plan.strata
    targets, key = batches.targets, mix(int(batches.key), group)
    own_strata = [s for s in range(len(strata.group)) if strata.group[s] == group]
    cells, own, leak = targets.cells(), float(targets.own[group]), float(batches.leaks.cells[group])
    if leak:
        occurrence += key >> 44
    offset = offset_at(occurrence)
    joint = bool(batches.leaks.joint[group])
    taken = own_cells(
        [cells[s] for s in own_strata], own, plan.places, (occurrence, offset), bool(targets.equal[group]), key
    )
    n_own = sum(taken)
    found: list[tuple[int, int]] = []
    if joint:
        psi, upto, share = (occurrence * PLASTIC) % 1.0 * (1 - 1e-6) + 1e-9, 0, leak / plan.places
        for s, n in zip(own_strata, taken, strict=True):
            leaked = int((upto + n) * share + psi) - int(upto * share + psi)
            upto += n
            found += [(s, n - leaked), *leaks(plan, group, int(strata.label[s]), leaked, occurrence)]
        return [(s, n) for s, n in found if n]
    line = leak_line(plan, group)
    labels = [label_at(line, n_own + 1 - offset / PARTS - own + j) for j in range(plan.places - n_own)]
    for label in sorted({*labels, *(int(strata.label[s]) for s in own_strata)}):
        found += [(s, n) for s, n in zip(own_strata, taken, strict=True) if strata.label[s] == label]
        found += leaks(plan, group, label, labels.count(label), occurrence)
    return [(s, n) for s, n in found if n]


def primary_sets(often: list[int], k: int, n: int, begin: int, key: int) -> list[list[int]]:
    """The groups that the first batches of all epochs have a block of each, where `often` adds up to k times 2**32."""
    step, sets = round((math.sqrt(5) - 1) / 2 * 2**32) | 1, []
    for run in range(-(-n // 16)):
        run_key, start, low = mix(key, run), (begin + run * step) % 2**32, 0
        batches = []
        for length in often:
            batches.append(sum(low <= start + j * 2**32 < low + 16 * length for j in range(16 * k)))
            low += 16 * length
        order = [permuted(j, len(often), mix(run_key, 0)) for j in range(len(often))]
        line = [group for group in order for _ in range(batches[group])]
        sets += [line[permuted(place, 16, run_key) :: 16] for place in range(16)]
    return sets[:n]


def round_set(plan: Plan, primary: list[int], turn: int) -> list[tuple[int, int]]:
    """The strata that batch `turn` of all epochs takes, with a block of each primary group, and the cells of each."""
    strata, targets, places = plan.strata, plan.batches.targets, plan.places
    k, size, label_of, key = len(primary), plan.strata.size, plan.strata.label, int(plan.batches.key)
    exact = plan.leaky * places + 1e-9
    n_leak = int(exact) + int((turn + 1) * (exact % 1)) - int(turn * (exact % 1))
    n_labels = len(strata.levels)
    ratio = [shares[strata.levels[:, level]] for level, shares in enumerate(plan_ratios(plan))]
    weight = split(1.0, strata.levels, ratio, np.full(n_labels, 9e9))
    own = [{int(label_of[s]): s for s in np.flatnonzero(strata.group == group)} for group in primary]
    outside = [
        [s for s in np.flatnonzero(label_of == each) if strata.group[s] not in primary] for each in range(n_labels)
    ]
    psi = (turn * PLASTIC) % 1.0 * (1 - 1e-6) + 1e-9
    cells = (places - plan.leaky * places) / k
    found: list[tuple[int, int, int]] = []
    whole = all(
        len(labels) == n_labels and all(size[s] >= math.ceil(cells * weight[each] + 2) for each, s in labels.items())
        for labels in own
    )
    if whole:
        equal = bool(plan.batches._blocks.labels.equal[0])
        of_label = own_cells(list(weight * places), places, places, (turn, offset_at(turn)), equal, key)
        upto, dealt = 0, 0
        for each, n in enumerate(of_label):
            leaked = int((upto + n) * (n_leak / places) + psi) - int(upto * (n_leak / places) + psi)
            upto += n
            blocks = [(dealt + i + turn) % k for i in range(n - leaked)]
            dealt += n - leaked
            found += [(each, own[b][each], blocks.count(b)) for b in range(k)]
            if leaked > sum(size[s] for s in outside[each]):
                whole = False
                break
            found += [(each, s, m) for s, m in spread(outside[each], size, leaked, each, turn)]
    if not whole:
        found = []
        for b, group in enumerate(primary):
            n = (places - n_leak) // k + ((b + turn) % k < (places - n_leak) % k)
            mine = [s for s in range(len(label_of)) if strata.group[s] == group]
            part = targets.own[group] - math.floor(targets.own[group] + 1e-9)
            u = min(max((turn * PLASTIC + b / k) % 1.0, 1e-6), 1 - 1e-6)
            theta = u if part < 1e-9 else u * (1 - part) if n < targets.own[group] else 1 - part + u * part
            goal = [targets.cells()[s] for s in mine]
            turns = (turn * k + b, (int(theta * PARTS) - 1) | 1)
            taken = own_cells(goal, float(targets.own[group]), n, turns, bool(targets.equal[group]), mix(key, group))
            found += [(int(label_of[s]), s, m) for s, m in zip(mine, taken, strict=True)]
        there = [each for each in range(n_labels) if outside[each]]
        if n_leak:
            cells_there = np.array([sum(size[s] for s in outside[each]) for each in there])
            ends = np.cumsum(fill(float(n_leak), cells_there, weight[there]))
            ends[-1] = n_leak
            for each, low, high in zip(there, [0.0, *ends[:-1]], ends, strict=True):
                count = int(high + psi) - int(low + psi)
                found += [(each, s, m) for s, m in spread(outside[each], size, count, each, turn)]
        found.sort(key=lambda entry: entry[0])
    return [(int(s), m) for _, s, m in found if m]


def spread(others: list[int], size: np.ndarray, count: int, label: int, turn: int) -> list[tuple[int, int]]:
    """Strata that some cells come from: points one step apart on the cells of all."""
    owner = [s for s in others for _ in range(size[s])]
    theta = (turn * (math.sqrt(2) - 1) + label * PLASTIC) % 1.0
    places = [owner[int((i + theta) * (len(owner) / count))] for i in range(count)]
    return [(s, places.count(s)) for s in dict.fromkeys(places)]


def offset_at(occurrence: int) -> int:
    """How far the places of the n-th batch have moved on, in parts of a cell."""
    return (PARTS // 4 - 1 + occurrence * 2 * (round((math.sqrt(5) - 1) / 2 * PARTS / 2) | 1)) % PARTS


def own_cells(target: list[float], own: float, places: int, turn: tuple[int, int], equal: bool, key: int) -> list[int]:
    """Cells of each stratum of the group: places one apart on the line on which the targets lie end to end."""
    occurrence, offset = turn
    n, cells = len(target), [0] * len(target)
    if equal and abs(own - round(own)) < 1e-9:
        total = round(own)
        cells, spare = [total // n] * n, total % n
        per_round = n // math.gcd(n, spare)
        for j in range(spare):
            place = (occurrence % per_round * spare + j) % n
            cells[permuted(place, n, mix(key, occurrence // per_round))] += 1
        return cells
    ends = [2 * round(end * PARTS / 2) for end in np.cumsum(target).tolist()]
    for j in range(places):
        point = (j + 1) * PARTS - offset
        if point < 2 * round(own * PARTS / 2):
            slot = min(n - 1, sum(end <= point for end in ends))
            cells[permuted(slot, n, mix(key, occurrence // n)) if equal else slot] += 1
    return cells


def leak_line(plan: Plan, group: int) -> list[tuple[int, float]]:
    """Labels that leak into the batches of a group, and where the target of each ends on their line."""
    strata, leak = plan.strata, float(plan.batches.leaks.cells[group])
    others = np.zeros(len(strata.levels))
    np.add.at(others, strata.label, np.where(strata.group == group, 0, strata.size))
    labels = np.flatnonzero(others)
    if not len(labels) or not leak:
        return []
    ratio = [shares[strata.levels[labels, level]] for level, shares in enumerate(plan_ratios(plan))]
    target = split(leak, strata.levels[labels], ratio, others[labels])
    return list(zip(labels.tolist(), np.cumsum(target).tolist(), strict=True))


def plan_ratios(plan: Plan) -> list[np.ndarray]:
    return [asked.share for asked in plan._shares.values()]


def label_at(line: list[tuple[int, float]], place: float) -> int:
    return next((label for label, end in line if place < end), line[-1][0])


def leaks(plan: Plan, group: int, label: int, count: int, occurrence: int) -> list[tuple[int, int]]:
    """Strata of the other groups that some cells of a label come from: points one step apart on their cells."""
    strata = plan.strata
    others = [s for s in range(len(strata.group)) if strata.label[s] == label and strata.group[s] != group]
    owner = [s for s in others for _ in range(strata.size[s])]
    theta = (occurrence * (math.sqrt(2) - 1) + label * PLASTIC) % 1.0
    found: dict[int, int] = {}
    for k in range(count):
        s = owner[min(len(owner) - 1, int((k + theta) * (len(owner) / count)))]
        found[s] = found.get(s, 0) + 1
    return list(found.items())


def split(total: float, levels: np.ndarray, ratio: list[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Split a total by the first level, each part by the second, and so on; as evenly as the cells allow."""
    for limited in (False, True):
        part = np.full(len(size), float(total))
        for level, weights in enumerate(ratio):
            for prefix in sorted({tuple(row[:level]) for row in levels.tolist()}):
                inside = np.array([tuple(row[:level]) == prefix for row in levels.tolist()])
                codes = sorted({int(code) for code in levels[inside, level]})
                rows = [inside & (levels[:, level] == code) for code in codes]
                of_code = np.array([weights[row][0] for row in rows])
                cells = np.array([size[row].sum() for row in rows])
                whole = part[inside][0]
                parts = fill(whole, cells, of_code) if limited else whole * of_code / of_code.sum()
                for row, one in zip(rows, parts, strict=True):
                    part[row] = one
        if (part <= size).all():
            break
    return part


def asked_of_strata(
    frame: pd.DataFrame, primary: int, leaky: float, places: int
) -> list[tuple[tuple[int, int], float]]:
    """Cells asked of every (experiment, condition) in a batch, own and leaked, both shared out evenly by condition."""
    own, others = frame[frame.experiment == primary], frame[frame.experiment != primary]
    leak = min(leaky * places, len(others))
    asked = []
    for part, total in ((own, places - leak), (others, leak)):
        per_condition = part.groupby("condition").size()
        per_stratum = part.groupby(["experiment", "condition"]).size()
        target = fill(total, per_condition.to_numpy())
        for (experiment, condition), n in per_stratum.items():
            share = target[per_condition.index.get_loc(condition)]
            asked.append(((experiment, condition), share * n / per_condition[condition]))
    return asked


def fill(total: float, size: np.ndarray, ratio: np.ndarray | None = None) -> np.ndarray:
    """Split a total in proportion to ratio; no part gets more than its size while another has cells left."""
    if ratio is not None and (ratio != ratio[0]).any():
        return fill_by_ratio(total, size, ratio)
    part = np.zeros(len(size))
    times = max(1, math.ceil(total / size.sum()))
    part[:] = (times - 1) * size
    for _ in range(len(size) + 1):
        room = part < times * size - 1e-12
        rest = total - part.sum()
        if rest < 1e-9 or not room.any():
            break
        level = part[room].min()
        lowest = room & (part <= level + 1e-12)
        above = part[room & ~lowest].min() if (room & ~lowest).any() else np.inf
        step = min(rest / lowest.sum(), (times * size - part)[lowest].min(), above - level)
        part[lowest] += step
    return part


def fill_by_ratio(total: float, size: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """As `fill`: parts that reach their size are fixed one after another, and the others share the rest by ratio."""
    times = max(1, math.ceil(total / size.sum()))
    low, high = (times - 1) * size.astype(float), times * size.astype(float)
    left, right = 0.0, float((high / ratio).max())
    for _ in range(200):  # the scale at which clip(scale * ratio, low, high) sums up to the total
        middle = (left + right) / 2
        left, right = (middle, right) if np.clip(middle * ratio, low, high).sum() < total else (left, middle)
    return np.clip(right * ratio, low, high)


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum of ``(a * i + b) // m`` over i from 0 to n - 1, in whole numbers of any size."""
    total = 0
    while n:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b, m, a = (a * n + b) // m, (a * n + b) % m, a, m
    return total
