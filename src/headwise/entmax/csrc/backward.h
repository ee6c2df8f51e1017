// Gradients of the scores and of α; see function.py for the formulas.
#pragma once

#include "forward.h"

namespace headwise {

// s = p^(2-α), and p ψ (see function.py) where the gradient of α is asked for.
template <class Power, bool with_alpha>
inline Floats slope(Floats p, float beta, Floats& p_psi) {
    p_psi = Floats{};
    const Ints is_out = p <= 0.0f;
    if constexpr (std::is_same_v<Power, Softmax>) {
        return p;
    } else if constexpr (std::is_same_v<Power, Linear>) {
        return is_out ? Floats{} : splat(1.0f);
    } else if constexpr (std::is_same_v<Power, Square>) {
        Floats root;
        for (int lane = 0; lane < WIDTH; ++lane) root[lane] = std::sqrt(p[lane]);
        return root;
    } else {
        const Floats log2_p = log2(largest(p, splat(FLT_MIN)));
        const Floats growth = exp2(log2_p * -beta);  // e^y, y = -β ln p
        const Floats s = is_out ? Floats{} : p * growth;
        if constexpr (with_alpha) {
            const Floats log_p = natural(log2_p), y = log_p * -beta;
            Floats series = splat(1.0f / 40320);
            series = series * y + 1.0f / 5040;
            series = series * y + 1.0f / 720;
            series = series * y + 1.0f / 120;
            series = series * y + 1.0f / 24;
            series = series * y + 1.0f / 6;
            series = series * y + 0.5f;
            const Floats direct = (growth - 1.0f - y) * (1.0f / (beta * beta));
            const Floats psi = y < 0.6f ? series * log_p * log_p : direct;
            p_psi = is_out ? Floats{} : p * psi;
        }
        return s;
    }
}

// One vector of a row's weights: as they were written, or from the scores and the threshold.
template <class Power, class T, bool from_scores>
struct Weights {
    const T* source;
    const Row& row;
    int64_t mask_stride;
    float top, shift, exponent;
    bool row_is_empty;

    Weights(const Problem& problem, const Row& row, int64_t index)
        : source((const T*)problem.source + row.start), row(row), mask_stride(problem.mask_stride[3]) {
        if (!from_scores) return;
        row_is_empty = problem.threshold[2 * index] == -INFINITE;
        top = row_is_empty ? -FLT_MAX : problem.threshold[2 * index];
        shift = problem.threshold[2 * index + 1];
        exponent = std::max(1.0f / row.beta - 1.0f, 1e-30f);
    }

    Floats operator()(int64_t k, int n) const {
        const float fill = from_scores ? -INFINITE : 0.0f;
        Floats value = n == WIDTH ? load(source + k) : load(source + k, n, fill);
        if constexpr (from_scores) {
            if (row.mask) value = allowed(row, mask_stride, k, n) ? value : splat(-INFINITE);
            if constexpr (std::is_same_v<Power, Softmax>) {
                // in a row without a key nothing is known of the shift
                return row_is_empty ? Floats{}
                                    : exp2((value - top - shift) * 1.4426950408889634f);
            } else {
                const Floats b = (top - value) * row.beta;
                if (!any(!(b >= 1.0f))) return Floats{};
                Floats x, s;
                evaluate<Power>(b, splat(shift), splat(exponent), x, s);
                return x * s;
            }
        }
        return value;
    }
};

template <class Power, class T, bool with_alpha, bool from_scores>
struct Backward {
    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const bool skips = problem.size[3] >= COMPACT_FROM;  // most vectors of long rows are zeros
        Row row[ROWS];
        Floats total_s[ROWS], total[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            total_s[r] = total[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = row_at(problem, first + r);
            const Weights<Power, T, from_scores> weights(problem, row[r], first + r);
            const Dropout dropout(problem, first + r);
            const T* dp_row = (const T*)problem.grad + row[r].start;
            T* p_row = (T*)problem.weights + row[r].start;
            float* s_row = buffers.first.data() + r * buffers.width;
            float* psi_row = buffers.second.data() + r * buffers.width;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH) {
                const int n = (int)std::min<int64_t>(WIDTH, row[r].n_visible - k);
                const Floats p = weights(k, n);
                Floats s = Floats{}, p_psi = Floats{};
                const bool is_there = !skips || any(!(p == 0.0f));
                if (is_there) {
                    s = slope<Power, with_alpha>(p, row[r].beta, p_psi);
                    const Floats dp = read_grad(dp_row, k, n, dropout);
                    total_s[r] = total_s[r] + s;
                    total[r] = total[r] + s * (p == 0.0f ? Floats{} : dp);
                }
                if (from_scores)
                    write(p_row + k, is_there ? dropout(p, k) : p, problem.size[3] - k);
                store(s_row + k, s);
                if (with_alpha) store(psi_row + k, p_psi);
            }
            if (from_scores) write_rest(p_row, row[r], problem.size[3]);
        }
        const Floats centre = sums(total) / largest(sums(total_s), splat(FLT_MIN));
        Floats alpha[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            alpha[r] = Floats{};
            if (r >= n_rows) continue;
            alpha[r] = write_row(problem, row[r], centre[r], r, buffers, Dropout(problem, first + r));
        }
        if (with_alpha) {
            const Floats grads = -sums(alpha);
            store(problem.grad_alpha + first, grads, n_rows);
        }
    }

    static Floats read_grad(const T* from, int64_t k, int n, const Dropout& dropout) {
        return dropout(n == WIDTH ? load(from + k) : load(from + k, n, 0.0f), k);
    }

    static Floats write_row(
        const Problem& problem, const Row& row, float centre, int r, const Buffers& buffers,
        const Dropout& dropout) {
        const int64_t K = problem.size[3];
        const T* dp_row = (const T*)problem.grad + row.start;
        T* out = (T*)problem.out + row.start;
        const float* s_row = buffers.first.data() + r * buffers.width;
        const float* psi_row = buffers.second.data() + r * buffers.width;
        Floats alpha = Floats{};
        for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
            const int n = (int)std::min<int64_t>(WIDTH, row.n_visible - k);
            const Floats s = load(s_row + k);
            const Floats dp = read_grad(dp_row, k, n, dropout);
            const Floats centred = s == 0.0f ? Floats{} : dp - centre;
            write(out + k, s * centred, K - k);
            if (with_alpha) alpha = alpha + load(psi_row + k) * centred;
        }
        write_rest(out, row, K);
        return alpha;
    }
};

}  // namespace headwise
