// Gradients of the scores and of α; see ops/maps/reference.py for the formulas.
#pragma once

#include "forward.h"

namespace headwise {

constexpr int64_t MIN_COMPACTED = 96;  // keys; for shorter rows, selecting costs more than it saves

// The quantities of a weight in the gradients.
struct Slope {
    Floats p;
    Floats s;      // p^(2-α)
    Floats p_psi;  // p ψ (see ops/maps/reference.py), if the gradient of α is requested
};

// e^y and ψ = (e^y - 1 - y) / β² of p, with y = -β ln p = z ln 2 ≥ 0. For z = w + f, integer w, and
// 2^f = 1 + f ln 2 + f² Q(f), the numerator is (2^w - 1 - w ln 2) + (2^w - 1) f ln 2 + 2^w f² Q(f):
// little cancels, and for w = 0 only the last term remains.
static inline Floats growth_and_psi(Floats z, float beta, Floats& psi) {
    const Floats shifter = splat(12582912.0f);  // as in `exp2`
    const Floats shifted = z + shifter, whole = shifted - shifter;
    const Floats f = z - whole, f2 = f * f;
    const Floats Q = (0.2402265f + 0.05550381f * f) +
                     ((0.009618172f + 0.001338125f * f) + 0.00015417278f * f2) * f2;
    const Floats power = (Floats)((Ints)splat(1.0f) + ((Ints)shifted << 23));
    const Floats linear = natural(f), curved = Q * f2;
    const Floats above = power - 1.0f;
    psi = ((above - natural(whole)) + above * linear + power * curved) * (1.0f / (beta * beta));
    return power + power * (linear + curved);
}

template <class Power>
static inline Slope slope_of_weight(Floats p, float beta) {
    if constexpr (std::is_same_v<Power, Softmax>) {
        return {p, p, Floats{}};
    } else if constexpr (std::is_same_v<Power, Linear>) {
        return {p, p <= 0.0f ? Floats{} : splat(1.0f), Floats{}};
    } else if constexpr (std::is_same_v<Power, Square>) {
        Floats root;
        for (int lane = 0; lane < WIDTH; ++lane) root[lane] = std::sqrt(p[lane]);
        return {p, root, Floats{}};
    } else {
        // for p = 0 the factors are finite, so that both products are 0
        const Floats log2_p = log2(largest(p, splat(FLT_MIN)));
        Floats psi;
        const Floats growth = growth_and_psi(log2_p * -beta, beta, psi);
        return {p, p * growth, p * psi};
    }
}

// The same from b and the shift (softmax: from the base-2 logarithm).
template <class Power>
static inline Slope slope_of_distance(Floats b, float beta, Floats shift, Floats exponent) {
    if constexpr (std::is_same_v<Power, Softmax>) {
        const Floats p = exp2(b);
        return {p, p, Floats{}};
    } else {
        const Inside at = evaluate<Power>(b, shift, exponent);
        const Floats p = at.x * at.s, s = p == p ? at.s : p;
        if constexpr (!std::is_same_v<Power, Any>) return {p, s, Floats{}};
        Floats psi;
        growth_and_psi(-at.log2_x, beta, psi);
        return {p, s, p == 0.0f ? Floats{} : p * psi};
    }
}

// One vector of a row's weights, or arguments of `slope_of_distance`.
template <class Power, class T, bool from_scores>
struct Source {
    const T* values;
    const Row& row;
    int64_t mask_stride;
    float top = 0.0f, shift = 0.0f;

    Source(const Problem& problem, const Row& row)
        : values((const T*)problem.input + row.start), row(row), mask_stride(problem.mask_stride[3]) {
        if (!from_scores) return;
        top = std::max(problem.threshold[2 * row.index], -FLT_MAX);
        shift = problem.threshold[2 * row.index + 1];
    }

    Floats operator()(int64_t k, int n) const {
        const float fill = from_scores ? -INFINITE : 0.0f;
        Floats value = read(values + k, n, fill);
        if (!from_scores) return value;
        if (row.mask) value = allowed(row, mask_stride, k, n) ? value : splat(-INFINITE);
        if (std::is_same_v<Power, Softmax>) return (value - top - shift) * 1.4426950408889634f;
        return (top - value) * row.beta;
    }

    // Whether lanes have, or may have, a weight.
    Ints has_weight(Floats value) const {
        if (!from_scores) return !(value == 0.0f);
        if (std::is_same_v<Power, Softmax>) return value != -INFINITE;
        return !(value >= 1.0f - shift);
    }

    Slope slope(Floats value, Floats exponent) const {
        if constexpr (from_scores)
            return slope_of_distance<Power>(value, row.beta, splat(shift), exponent);
        return slope_of_weight<Power>(value, row.beta);
    }
};

template <class Power, class T, bool with_alpha, bool from_scores>
struct Backward {
    // input, replaced by the weights; their gradient; s; p ψ
    enum Buffer { VALUES, GRAD, S, P_PSI };
    static constexpr int N_BUFFERS = 4;
    using RowSource = Source<Power, T, from_scores>;

    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        const bool compacts = K >= MIN_COMPACTED && !std::is_same_v<Power, Softmax>;
        Row row[ROWS];
        RowReader reader(problem, first);
        int n[ROWS];
        Floats total_s[ROWS], total[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            total_s[r] = total[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = reader.next();
            const RowSource source(problem, row[r]);
            const Dropout dropout(problem, row[r]);
            const T* grad = (const T*)problem.grad + row[r].start;
            Totals totals{buffers, source, r};
            if (compacts) {
                n[r] = compact(source, grad, dropout, buffers, r);
                for (int k = 0; k < n[r]; k += WIDTH)
                    totals.add(k, load(buffers.row(VALUES, r) + k), load(buffers.row(GRAD, r) + k));
            } else {
                n[r] = (int)row[r].n_visible;
                for (int k = 0; k < n[r]; k += WIDTH) {
                    const int lanes = std::min(WIDTH, n[r] - k);
                    const Floats value = source(k, lanes), dp = read_grad(grad, dropout, k, lanes);
                    totals.add(k, value, source.has_weight(value) ? dp : Floats{});
                }
            }
            total_s[r] = totals.s;
            total[r] = totals.s_dp;
            if (from_scores)
                put(buffers, VALUES, r, compacts, row[r], (T*)problem.weights, K, dropout);
        }
        const Floats centre = sums(total) / largest(sums(total_s), splat(FLT_MIN));
        Floats alpha[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            alpha[r] = Floats{};
            if (r >= n_rows) continue;
            float* grads = buffers.row(GRAD, r);
            for (int k = 0; k < n[r]; k += WIDTH) {
                const Floats s = load(buffers.row(S, r) + k);
                const Floats centred = s == 0.0f ? Floats{} : load(grads + k) - centre[r];
                if (with_alpha) alpha[r] = alpha[r] + load(buffers.row(P_PSI, r) + k) * centred;
                store(grads + k, s * centred);
            }
            put(buffers, GRAD, r, compacts, row[r], (T*)problem.out, K, Dropout());
        }
        if (with_alpha) store(problem.grad_alpha + row[0].index, -sums(alpha), n_rows);
    }

    // Sums over a row, after filling the buffers with the quantities of each key.
    struct Totals {
        Buffers& buffers;
        const RowSource& source;
        int r;
        Floats exponent = exponents(splat(source.row.beta)), s = Floats{}, s_dp = Floats{};

        void add(int k, Floats value, Floats dp) {
            const Slope slope = source.slope(value, exponent);
            s = s + slope.s;
            s_dp = s_dp + slope.s * dp;
            store(buffers.row(GRAD, r) + k, dp);
            store(buffers.row(S, r) + k, slope.s);
            if (with_alpha) store(buffers.row(P_PSI, r) + k, slope.p_psi);
            if (from_scores) store(buffers.row(VALUES, r) + k, slope.p);
        }
    };

    static Floats read_grad(const T* from, const Dropout& dropout, int k, int n) {
        return dropout(read(from + k, n, 0.0f), k);
    }

    // Compact the entries of a row that have a weight, and their gradients, padded to a whole
    // vector; return how many.
    static int compact(
        const RowSource& source, const T* grad, const Dropout& dropout, Buffers& buffers, int r) {
        float *values = buffers.row(VALUES, r), *grads = buffers.row(GRAD, r);
        const int n_visible = (int)source.row.n_visible;
        int n_kept = 0;
        for (int k = 0; k < n_visible; k += WIDTH) {
            const int n = std::min(WIDTH, n_visible - k);
            const Floats value = source(k, n);
            const Ints has_weight = source.has_weight(value);
            compress(grads + n_kept, read_grad(grad, dropout, k, n), has_weight);
            const uint32_t bits = compress(values + n_kept, value, has_weight);
            buffers.lanes[r][k / WIDTH] = (uint16_t)bits;
            n_kept += __builtin_popcount(bits);
        }
        store(grads + n_kept, Floats{});
        store(values + n_kept, splat(from_scores ? INFINITE : 0.0f));
        return n_kept;
    }

    // Write a buffer of a row to its position in a tensor.
    static void put(
        Buffers& buffers, Buffer buffer, int r, bool is_compacted, const Row& row, T* tensor,
        int64_t K, const Dropout& dropout) {
        const float* from = buffers.row(buffer, r);
        T* out = tensor + row.start;
        if (is_compacted) return spread(from, buffers.lanes[r].data(), row, out, K, dropout);
        for (int64_t k = 0; k < row.n_visible; k += WIDTH)
            write(out + k, dropout(load(from + k), k), K - k);
        write_rest(out, row, K);
    }
};

}  // namespace headwise
