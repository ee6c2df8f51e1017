// The threshold of α-entmax for up to sixteen rows at a time; the mathematics is that of solver.py.
//
// A row stands in memory as b = β(max - z), padded to whole vectors with infinity. Of b ≥ 1 no
// weight can come, so long rows hold only the rest. What belongs to a row (shift, β, sums) is a
// lane of a vector, and so sixteen rows take a Newton step at the price of one; each stops by
// itself, so that no row depends on those beside it.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "vector.h"

namespace headwise {

constexpr int ROWS = WIDTH;
constexpr int N_EVALUATIONS = 16;  // cap; the proof gives 16 to 20 for adversarial rows
constexpr float MASS_LOOSE = 4e-4f, MASS_TIGHT = 5e-7f, MASS_BORDER = 2e-7f;  // as in solver.py
constexpr int SUMMED = 16;  // vectors to one partial sum: one sum of thousands loses digits
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
    int n;                // rows that are there
    float* b[ROWS];       // scaled distances from the maximum
    float* s[ROWS];       // room of the same size: p^(2-α) of the last evaluation
    int n_vectors[ROWS];  // vectors of b
    Floats beta;          // of each row
    Floats is_empty;      // 1 for a row without a key, else 0
    Floats shift_max;     // shift of a row of equal scores
    // the solution: p = max(x - correction, 0) s with x = max(1 - shift - b, 0)
    Floats shift;
    Floats correction;
};

static inline Floats natural(Floats log2_x) { return log2_x * 0.6931471805599453f; }

// 1 - 2^y, without a difference where y is small.
static inline Floats one_minus_exp2(Floats y) {
    const Floats t = natural(y);
    const Floats small = -t * (1.0f + t * (0.5f + t * (1.0f / 6 + t * (1.0f / 24))));
    return (t > -0.05f) & (t < 0.05f) ? small : 1.0f - exp2(y);
}

// Shift from count, mean and variance of the b below the level; see `_moment_start`.
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

template <class Power>
static inline void moment_start(Rows& rows) {
    Floats level = splat(1.0f);
    for (int pass = 0; pass < Power::n_moment_passes; ++pass) {
        Floats count[ROWS], sum[ROWS], squares[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            count[r] = sum[r] = squares[r] = Floats{};
            if (r >= rows.n) continue;
            const Floats bound = splat(level[r]);
            for (int v = 0; v < rows.n_vectors[r]; ++v) {
                const Floats b = load(rows.b[r] + v * WIDTH);
                const Ints inside = b < bound;
                const Floats kept = inside ? b : Floats{};
                count[r] = count[r] + (inside ? splat(1.0f) : Floats{});
                sum[r] = sum[r] + kept;
                squares[r] = squares[r] + kept * kept;
            }
        }
        rows.shift = moment_shift(rows, sums(count), sums(sum), sums(squares));
        level = 1.0f - rows.shift;
    }
}

// x and s at a shift; both 0 off the support, NaN where b is.
template <class Power>
static inline void evaluate(Floats b, Floats shift, Floats exponent, Floats& x, Floats& s) {
    if constexpr (std::is_same_v<Power, Any>) {
        const Floats distance = shift + b;
        const Floats inside = 1.0f - distance;
        const Floats power = exp2(exponent * log2_1p(-distance, inside));
        const Ints is_out = inside <= 0.0f;
        x = is_out ? Floats{} : inside;
        s = is_out ? Floats{} : power;
    } else {
        const Floats inside = (1.0f - shift) - b;
        const Ints is_out = inside <= 0.0f;
        x = is_out ? Floats{} : inside;
        s = std::is_same_v<Power, Square> ? x : (is_out ? Floats{} : splat(1.0f));
    }
}

// Solve: afterwards shift, correction and s of every row stand in `rows`.
template <class Power>
static inline void solve(Rows& rows) {
    const Floats beta = rows.beta;
    const Floats exponent = largest(1.0f / beta - 1.0f, splat(1e-30f));
    const Floats tolerance = largest(
        least(exp2(beta * std::log2(MASS_BORDER)), splat(MASS_LOOSE)), splat(MASS_TIGHT));
    moment_start<Power>(rows);
    rows.correction = Floats{};
    Ints is_open = LANES < rows.n;
    Floats mass[ROWS], slope[ROWS];
    for (int r = 0; r < ROWS; ++r) mass[r] = slope[r] = Floats{};
    for (int left = N_EVALUATIONS - 1; left >= 0; --left) {
        for (int r = 0; r < rows.n; ++r) {
            Floats total = Floats{}, total_s = Floats{};
            if (is_open[r]) {
                const Floats shift = splat(rows.shift[r]), power = splat(exponent[r]);
                for (int first = 0; first < rows.n_vectors[r]; first += SUMMED) {
                    const int end = std::min(first + SUMMED, rows.n_vectors[r]);
                    Floats part = Floats{};
                    for (int v = first; v < end; ++v) {
                        Floats x, s;
                        evaluate<Power>(load(rows.b[r] + v * WIDTH), shift, power, x, s);
                        store(rows.s[r] + v * WIDTH, s);
                        part = part + x * s;
                        total_s = total_s + s;
                    }
                    total = total + part;
                }
            }
            mass[r] = total;
            slope[r] = total_s;
        }
        Floats F = sums(mass) + rows.is_empty;
        const Floats S = largest(sums(slope), splat(FLT_MIN));
        const Floats excess = F - 1.0f;
        const Floats size = excess < 0.0f ? -excess : excess;
        const Ints goes_on = is_open & (left ? size > tolerance : Ints{});  // not for NaN
        rows.correction = is_open & ~goes_on ? excess / S : rows.correction;
        if (!any(goes_on)) return;
        // F = 0, rounding right of the support, leads back to the left end
        F = largest(F, splat(FLT_MIN));
        const Floats y = beta * log2(F);
        Floats shift = rows.shift + F / S * one_minus_exp2(-y);
        shift = least(largest(shift, Floats{}), rows.shift_max);
        // a shift that stands still has come as far as rounding lets it
        const Ints moves = goes_on & (shift != rows.shift);
        rows.correction = goes_on & ~moves ? excess / S : rows.correction;
        rows.shift = goes_on ? shift : rows.shift;
        is_open = moves;
        if (!any(is_open)) return;
    }
}

// The weights of one vector of a solved row.
template <class Power>
static inline Floats weights(Floats b, Floats s, float shift, float correction) {
    const Floats distance = splat(shift) + b;
    Floats x = std::is_same_v<Power, Any> ? 1.0f - distance : splat(1.0f - shift) - b;
    x = x <= 0.0f ? Floats{} : x;
    const Floats moved = x - correction;
    return (moved <= 0.0f ? Floats{} : moved) * s;
}

}  // namespace headwise
