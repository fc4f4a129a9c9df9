"""Inside and outside values of many sentences of one length at once (Liu et al. 2022, A.1: joint probabilities).

Up to LANES sentences go side by side through the operations of a `Program`, so that every operation is a few vector
instructions and the chart stays in cache. Emissions are divided by the largest emission of their word (the scale
cancels in every conditional); a sentence whose scaled probability is still below TINY is redone with logarithms.
"""

import numpy as np
from numba import njit

LANES = 64
TINY = 1e-200


@njit(cache=True, fastmath={"contract"})
def _inside(program, words, scaled, inside):
    """inside: (slots, lanes) filled for words (lanes, T); scaled: (V, E) emissions."""
    # The number of lanes is read from the array: with a small constant LLVM unrolls the loops instead of vectorising.
    lanes = inside.shape[1]
    inside[:] = 0.0
    inside[0, :] = 1.0
    n_emit = scaled.shape[1]
    for t in range(program.length):
        for e in range(n_emit):
            row = inside[1 + t * n_emit + e]
            for b in range(lanes):
                row[b] = scaled[words[b, t], e]
    both = np.empty(lanes)
    for o in range(len(program.split_start) - 1):
        both[:] = 0.0
        for s in range(program.split_start[o], program.split_start[o + 1]):
            x, y = inside[program.left[s]], inside[program.right[s]]
            for b in range(lanes):
                both[b] += x[b] * y[b]
        for r in range(program.rule_start[o], program.rule_start[o + 1]):
            z, p = inside[program.parent[r]], program.p[r]
            for b in range(lanes):
                z[b] += p * both[b]


@njit(cache=True, fastmath={"contract"})
def _outside(program, inside, root, outside):
    """outside: (slots, lanes), the derivative of the root's inside value by every inside value."""
    lanes = inside.shape[1]
    outside[:] = 0.0
    outside[root, :] = 1.0
    both = np.empty(lanes)
    for o in range(len(program.split_start) - 2, -1, -1):
        both[:] = 0.0
        for r in range(program.rule_start[o], program.rule_start[o + 1]):
            z, p = outside[program.parent[r]], program.p[r]
            for b in range(lanes):
                both[b] += p * z[b]
        for s in range(program.split_start[o], program.split_start[o + 1]):
            x, y = inside[program.left[s]], inside[program.right[s]]
            dx, dy = outside[program.left[s]], outside[program.right[s]]
            for b in range(lanes):
                dx[b] += both[b] * y[b]
            for b in range(lanes):
                dy[b] += both[b] * x[b]


@njit(cache=True)
def _add_logs(a, b):
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@njit(cache=True)
def _log_inside_outside(program, words, scaled, root):
    """The same for one sentence in logarithms: slow, free of underflow."""
    inside = np.full(program.slots, -np.inf)
    outside = np.full(program.slots, -np.inf)
    inside[0] = 0.0
    n_emit = scaled.shape[1]
    for t in range(program.length):
        for e in range(n_emit):
            if scaled[words[t], e] > 0:
                inside[1 + t * n_emit + e] = np.log(scaled[words[t], e])
    for o in range(len(program.split_start) - 1):
        both = -np.inf
        for s in range(program.split_start[o], program.split_start[o + 1]):
            both = _add_logs(both, inside[program.left[s]] + inside[program.right[s]])
        for r in range(program.rule_start[o], program.rule_start[o + 1]):
            z = program.parent[r]
            inside[z] = _add_logs(inside[z], program.log_p[r] + both)
    outside[root] = 0.0
    for o in range(len(program.split_start) - 2, -1, -1):
        both = -np.inf
        for r in range(program.rule_start[o], program.rule_start[o + 1]):
            both = _add_logs(both, program.log_p[r] + outside[program.parent[r]])
        for s in range(program.split_start[o], program.split_start[o + 1]):
            x, y = program.left[s], program.right[s]
            outside[x] = _add_logs(outside[x], both + inside[y])
            outside[y] = _add_logs(outside[y], both + inside[x])
    return inside, outside


@njit(cache=True)
def _lanes(n):
    """How many sentences go side by side: at most LANES, a multiple of 8, with few idle lanes in the last block."""
    blocks = (n + LANES - 1) // LANES
    return ((n + blocks - 1) // blocks + 7) // 8 * 8


@njit(cache=True)
def _block(words, start, block):
    """Sentences from `start` on, as many as there are lanes; the last one is repeated where there are no more."""
    for b in range(len(block)):
        block[b] = words[min(start + b, len(words) - 1)]
    return min(len(block), len(words) - start)


@njit(cache=True)
def log_totals(program, words, scaled, root):
    """log of the root's inside value under the scaled emissions, (n,), for words (n, T)."""
    total = np.empty(len(words))
    lanes = _lanes(len(words))
    inside = np.empty((program.slots, lanes))
    block = np.empty((lanes, program.length), dtype=np.int64)
    for start in range(0, len(words), lanes):
        many = _block(words, start, block)
        _inside(program, block, scaled, inside)
        for b in range(many):
            if inside[root, b] >= TINY:
                total[start + b] = np.log(inside[root, b])
            else:
                total[start + b] = _log_inside_outside(program, block[b], scaled, root)[0][root]
    return total


@njit(cache=True)
def word_weights(program, words, scaled, mass, root):
    """Weights (n, T, E) whose product with the emission rows of the emitters is p(x_t = v | x_-t).

    mass: (E,), the sum of each of these rows. Weights are nan where x_-t is impossible.
    Returns the weights and whether each sentence is possible, (n,).
    """
    n_emit = scaled.shape[1]
    weights = np.empty((len(words), program.length, n_emit))
    possible = np.ones(len(words), dtype=np.bool_)
    lanes = _lanes(len(words))
    inside = np.empty((program.slots, lanes))
    outside = np.empty((program.slots, lanes))
    block = np.empty((lanes, program.length), dtype=np.int64)
    for start in range(0, len(words), lanes):
        many = _block(words, start, block)
        _inside(program, block, scaled, inside)
        _outside(program, inside, root, outside)
        for b in range(many):
            i = start + b
            if inside[root, b] >= TINY:
                for t in range(program.length):
                    for e in range(n_emit):
                        weights[i, t, e] = outside[1 + t * n_emit + e, b]
            else:
                log_inside, log_outside = _log_inside_outside(program, block[b], scaled, root)
                possible[i] = log_inside[root] > -np.inf
                for t in range(program.length):
                    here = log_outside[1 + t * n_emit : 1 + (t + 1) * n_emit]
                    top = here.max() if here.max() > -np.inf else 0.0
                    weights[i, t] = np.exp(here - top)
            for t in range(program.length):
                total = 0.0
                for e in range(n_emit):
                    total += weights[i, t, e] * mass[e]
                factor = 1.0 / total if total > 0 else np.nan
                for e in range(n_emit):
                    weights[i, t, e] *= factor
    return weights, possible


@njit(cache=True)
def log_inside_at(program, words, scaled, slots):
    """log inside value of some slots under the scaled emissions, (n, K)."""
    values = np.empty((len(words), len(slots)))
    lanes = _lanes(len(words))
    inside = np.empty((program.slots, lanes))
    block = np.empty((lanes, program.length), dtype=np.int64)
    for start in range(0, len(words), lanes):
        many = _block(words, start, block)
        _inside(program, block, scaled, inside)
        for b in range(many):
            column = inside[:, b].copy()
            if column[slots].max() < TINY:
                logs = _log_inside_outside(program, block[b], scaled, slots[0])[0]
                for k in range(len(slots)):
                    values[start + b, k] = logs[slots[k]]
            else:
                for k in range(len(slots)):
                    values[start + b, k] = np.log(column[slots[k]])
    return values


@njit(cache=True)
def posteriors_at(program, words, scaled, root, slots):
    """p(the sentence's tree holds the slot | sentence), (n, K); nan for impossible sentences."""
    values = np.empty((len(words), len(slots)))
    lanes = _lanes(len(words))
    inside = np.empty((program.slots, lanes))
    outside = np.empty((program.slots, lanes))
    block = np.empty((lanes, program.length), dtype=np.int64)
    for start in range(0, len(words), lanes):
        many = _block(words, start, block)
        _inside(program, block, scaled, inside)
        _outside(program, inside, root, outside)
        for b in range(many):
            if inside[root, b] >= TINY:
                for k in range(len(slots)):
                    values[start + b, k] = inside[slots[k], b] * outside[slots[k], b] / inside[root, b]
            else:
                log_in, log_out = _log_inside_outside(program, block[b], scaled, root)
                for k in range(len(slots)):
                    values[start + b, k] = np.exp(log_in[slots[k]] + log_out[slots[k]] - log_in[root])
    return values


@njit(cache=True)
def best_splits(program, words, scaled):
    """The split that made every slot in its best derivation, (slots,), for one sentence; -1 for a word."""
    best = np.full(program.slots, -np.inf)
    made_by = np.full(program.slots, -1)
    best[0] = 0.0
    n_emit = scaled.shape[1]
    for t in range(program.length):
        for e in range(n_emit):
            if scaled[words[t], e] > 0:
                best[1 + t * n_emit + e] = np.log(scaled[words[t], e])
    for o in range(len(program.split_start) - 1):
        top, where = -np.inf, -1
        for s in range(program.split_start[o], program.split_start[o + 1]):
            value = best[program.left[s]] + best[program.right[s]]
            if value > top:
                top, where = value, s
        for r in range(program.rule_start[o], program.rule_start[o + 1]):
            z = program.parent[r]
            if program.log_p[r] + top > best[z]:
                best[z] = program.log_p[r] + top
                made_by[z] = where
    return made_by
