// The threshold of α-entmax for as many rows at a time as a vector has lanes; mathematics as in
// ops/maps/reference.py.
//
// A row is stored as b = β(max - z). Entries with b ≥ 1 have no weight and are omitted, the others
// padded with infinity. The values of a row (shift, β, sums) are one lane of a vector, so that a
// Newton step for all rows costs as much as for one. Each row stops separately, so that results do
// not depend on the other rows.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "vector.h"

namespace headwise {

constexpr int ROWS = WIDTH;
constexpr int N_EVALUATIONS = 16;  // upper limit; the proved one is 16 to 20, for adversarial rows
// A row is solved if |Σ p - 1| is at most MASS_BORDER^β, clamped to the other two: the correction
// squares it, and what is left must be below one rounding.
constexpr float MASS_LOOSE = 4e-4f, MASS_TIGHT = 5e-7f, MASS_BORDER = 2e-7f;
constexpr float BETA_MIN = 1e-7f;

// How x is raised to 1/β.
struct Any {
    static constexpr int n_moment_passes = 2;  // a pass costs a fifth of an evaluation
};
struct Square {  // α = 1.5
    static constexpr int n_moment_passes = 1;  // a pass costs as much as an evaluation
};
struct Linear {  // α = 2
    static constexpr int n_moment_passes = 1;
};

struct Rows {
    int n;               // number of rows
    float* b[ROWS];      // of each row, padded to whole vectors
    float* s[ROWS];      // buffer of the same size: p^(2-α) of the last evaluation
    int n_vectors[ROWS];
    Floats beta;         // of each row
    Floats is_empty;     // 1 for a row without a key, else 0
    Floats shift_max;    // shift of a row of equal scores
    // the solution: p = max(x - correction, 0) s with x = max(1 - shift - b, 0)
    Floats shift;
    Floats correction;
};

static inline Floats natural(Floats log2_x) { return log2_x * 0.6931471805599453f; }

// 1 - 2^y, without cancellation for small y.
static inline Floats one_minus_exp2(Floats y) {
    const Floats t = natural(y);
    const Floats small = -t * (1.0f + t * (0.5f + t * (1.0f / 6 + t * (1.0f / 24))));
    return ((t > -0.05f) & (t < 0.05f)) ? small : 1.0f - exp2(y);
}

// Shift from count, mean and variance of the b below the level; as `_start` in ops/maps/reference.py.
static inline Floats moment_shift(
    const Rows& rows, Floats count, Floats sum, Floats squares) {
    const Floats beta = rows.beta;
    count = largest(count, splat(1.0f));
    const Floats mean = sum / count;
    const Floats variance = largest(squares / count - mean * mean, Floats{});
    const Floats gap =
        one_minus_exp2(-2.0f * beta * log2(count)) + variance * (1.0f - beta) / beta;
    const Floats under = largest(1.0f - gap, Floats{});
    Floats root;
    for (int lane = 0; lane < ROWS; ++lane) root[lane] = std::sqrt(under[lane]);
    const Floats shift = least(gap, splat(1.0f)) / (1.0f + root) - mean;
    return least(largest(shift, Floats{}), rows.shift_max);
}

// Add one vector of b to the moments of those below the bound.
static inline void add_moments(
    Floats b, Floats bound, Floats& count, Floats& sum, Floats& squares) {
    const Ints inside = b < bound;
    const Floats kept = inside ? b : Floats{};
    count = count + (inside ? splat(1.0f) : Floats{});
    sum = sum + kept;
    squares = squares + kept * kept;
}

struct Inside {
    Floats x;       // 0 off the support, NaN where b is
    Floats s;       // x^(1/β - 1), 0 off the support
    Floats log2_x;  // for `Any`; finite off the support too
};

template <class Power>
static inline Inside evaluate(Floats b, Floats shift, Floats exponent) {
    if constexpr (std::is_same_v<Power, Any>) {
        const Floats d = -shift - b;
        const Floats x = 1.0f + d;
        const Floats log2_x = log2_1p(d, x);
        const Floats s = exp2(exponent * log2_x);
        const Ints is_out = x <= 0.0f;
        return {is_out ? Floats{} : x, is_out ? Floats{} : s, log2_x};
    } else {
        const Floats inside = (1.0f - shift) - b;
        const Ints is_out = inside <= 0.0f;
        const Floats x = is_out ? Floats{} : inside;
        const Floats s = std::is_same_v<Power, Square> ? x : (is_out ? Floats{} : splat(1.0f));
        return {x, s, Floats{}};
    }
}

static inline Floats exponents(Floats beta) { return largest(1.0f / beta - 1.0f, splat(1e-30f)); }

// Count, sum and sum of squares of the b of each row below its level.
static inline void moments(
    const Rows& rows, Floats level, Floats& counts, Floats& totals, Floats& total_squares) {
    Floats count[ROWS], sum[ROWS], squares[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        count[r] = sum[r] = squares[r] = Floats{};
        if (r >= rows.n) continue;
        const Floats bound = splat(level[r]);
        for (int v = 0; v < rows.n_vectors[r]; ++v)
            add_moments(load(rows.b[r] + v * WIDTH), bound, count[r], sum[r], squares[r]);
    }
    counts = sums(count);
    totals = sums(sum);
    total_squares = sums(squares);
}

// Sums F of the weights and S of the s of each open row at its shift; 0 of the others.
template <class Power>
static inline void evaluate_sums(
    const Rows& rows, Ints is_open, Floats exponents, Floats& F, Floats& S) {
    Floats mass[ROWS], slope[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        Floats total = Floats{}, total_s = Floats{};
        if (is_open[r]) {
            const Floats shift = splat(rows.shift[r]), exponent = splat(exponents[r]);
            for (int first = 0; first < rows.n_vectors[r]; first += GROUP) {
                const int end = std::min(first + GROUP, rows.n_vectors[r]);
                Floats part = Floats{};
                for (int v = first; v < end; ++v) {
                    const Inside at =
                        evaluate<Power>(load(rows.b[r] + v * WIDTH), shift, exponent);
                    store(rows.s[r] + v * WIDTH, at.s);
                    part = part + at.x * at.s;
                    total_s = total_s + at.s;
                }
                total = total + part;
            }
        }
        mass[r] = total;
        slope[r] = total_s;
    }
    F = sums(mass);
    S = sums(slope);
}

// Solve: write shift, correction and s of every row.
template <class Power>
static inline void solve(Rows& rows) {
    const Floats beta = rows.beta;
    const Floats exponent = exponents(beta);
    const Floats tolerance = largest(
        least(exp2(beta * std::log2(MASS_BORDER)), splat(MASS_LOOSE)), splat(MASS_TIGHT));
    Floats F, S, squares;
    Floats level = splat(1.0f);
    for (int pass = 0; pass < Power::n_moment_passes; ++pass) {
        moments(rows, level, F, S, squares);
        rows.shift = moment_shift(rows, F, S, squares);
        level = 1.0f - rows.shift;
    }
    rows.correction = Floats{};
    Ints is_open = LANES < rows.n;
    for (int left = N_EVALUATIONS - 1; left >= 0; --left) {
        evaluate_sums<Power>(rows, is_open, exponent, F, S);
        F = F + rows.is_empty;
        S = largest(S, splat(FLT_MIN));
        const Floats excess = F - 1.0f;
        const Floats size = excess < 0.0f ? -excess : excess;
        const Ints needs_step = is_open & (left ? size > tolerance : Ints{});  // not for NaN
        rows.correction = is_open & ~needs_step ? excess / S : rows.correction;
        if (!any(needs_step)) return;
        // F = 0 (by rounding) leads back to t = 0
        F = largest(F, splat(FLT_MIN));
        const Floats y = beta * log2(F);
        Floats shift = rows.shift + F / S * one_minus_exp2(-y);
        shift = least(largest(shift, Floats{}), rows.shift_max);
        // an unchanged shift has converged to rounding
        const Ints has_moved = needs_step & (shift != rows.shift);
        rows.correction = needs_step & ~has_moved ? excess / S : rows.correction;
        rows.shift = needs_step ? shift : rows.shift;
        is_open = has_moved;
        if (!any(is_open)) return;
    }
}

// The weights of one vector of a solved row.
template <class Power>
static inline Floats weights(Floats b, Floats s, Floats shift, Floats correction) {
    const Floats distance = shift + b;
    Floats x = std::is_same_v<Power, Any> ? 1.0f - distance : (1.0f - shift) - b;
    x = x <= 0.0f ? Floats{} : x;
    const Floats moved = x - correction;
    return (moved <= 0.0f ? Floats{} : moved) * s;
}

}  // namespace headwise
