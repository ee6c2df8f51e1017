// The entmax loss over a vocabulary: forward reads a row twice, backward once, and nothing of the
// vocabulary's size is saved. See ops/losses/reference.py for the formulas.
#pragma once

#include "backward.h"

namespace headwise {

// Parsed by call.py: only declarations of these types. Rows are (N, V).
struct LossProblem {
    int64_t n_rows, n_classes;
    const void* scores;
    void* out;              // backward: gradient of the scores
    float* threshold;       // (N, 2), maximum and shift: forward writes, backward reads
    float* value;           // forward: <p, z> + H(p), z minus its maximum
    float* support;         // forward: classes with a probability
    float* total;           // forward: sum of the scores, or null
    const int64_t* target;  // backward
    const float* grad;      // backward: of each row's loss
    float alpha;
    float smoothing;
    float eps_v;  // smoothing / V
    int32_t is_half;
    int32_t map;
    int32_t n_threads;
};

constexpr int64_t LOSS_BLOCK_FLOATS = 1 << 17;  // few of a row's classes have b < 1

// Maximum of a row, and the sum of its scores.
template <class T>
float maximum(const T* row, int64_t n, float& total) {
    Floats highest = splat(-INFINITE);
    LongSum sum;
    for (int64_t k = 0; k < n; k += WIDTH) {
        const Floats z = read(row + k, n - k, -INFINITE);
        highest = largest_or_nan(highest, z);
        sum.add(LANES < (int)std::min<int64_t>(WIDTH, n - k) ? z : Floats{});
    }
    total = across_lanes(sum.sum());
    float top = highest[0];
    for (int lane = 1; lane < WIDTH; ++lane)
        if (highest[lane] > top || highest[lane] != highest[lane]) top = highest[lane];
    return top;
}

template <class T>
int64_t candidates(const T* row, int64_t n, float top, float beta, float* to) {
    int64_t n_kept = 0;
    for (int64_t k = 0; k < n; k += WIDTH) {
        const Floats z = read(row + k, n - k, -INFINITE);
        const Floats b = (top - z) * beta;
        const Ints kept = !(b >= 1.0f);
        if (any(kept)) n_kept += __builtin_popcount(compress(to + n_kept, b, kept));
    }
    store(to + n_kept, splat(INFINITE));
    return n_kept;
}

template <class Power, class T>
struct LossForward {
    static constexpr int N_BUFFERS = 2;

    static void block(const LossProblem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t V = problem.n_classes;
        const float beta = problem.alpha - 1.0f;
        Rows rows;
        rows.n = n_rows;
        rows.beta = splat(beta);
        rows.is_empty = Floats{};
        rows.shift_max = one_minus_exp2(-rows.beta * log2(splat((float)V)));
        float top[ROWS];
        for (int r = 0; r < n_rows; ++r) {
            const T* row = (const T*)problem.scores + (first + r) * V;
            float total;
            top[r] = maximum(row, V, total);
            if (problem.total) problem.total[first + r] = total;
            if (top[r] == -INFINITE) rows.is_empty[r] = 1.0f;
            rows.b[r] = buffers.row(0, r);
            rows.s[r] = buffers.row(1, r);
            const int64_t n_kept = candidates(row, V, top_of(top[r]), beta, rows.b[r]);
            rows.n_vectors[r] = (int)(round_up(n_kept) / WIDTH);
        }
        solve<Power>(rows);
        const Floats shift = rows.shift + rows.correction * beta;
        Floats mean_b[ROWS], support[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            mean_b[r] = support[r] = Floats{};
            if (r >= n_rows) continue;
            problem.threshold[2 * (first + r)] = top[r];
            problem.threshold[2 * (first + r) + 1] = shift[r];
            for (int v = 0; v < rows.n_vectors[r]; ++v) {
                const Floats b = load(rows.b[r] + v * WIDTH), s = load(rows.s[r] + v * WIDTH);
                const Floats p =
                    weights<Power>(b, s, splat(rows.shift[r]), splat(rows.correction[r]));
                const Ints is_in = !(p == 0.0f);  // b is infinite after the last class
                mean_b[r] = mean_b[r] + (is_in ? p * b : Floats{});
                support[r] = support[r] + (is_in ? splat(1.0f) : Floats{});
            }
        }
        store(problem.value + first, (shift / beta - sums(mean_b)) / problem.alpha, n_rows);
        store(problem.support + first, sums(support), n_rows);
    }
};

// α = 1, cross-entropy: the value is the logarithm of the sum, and so is the shift.
template <class T>
struct LossForward<Softmax, T> {
    static constexpr int N_BUFFERS = 0;

    static void block(const LossProblem& problem, int64_t first, int n_rows, Buffers&) {
        const int64_t V = problem.n_classes;
        for (int64_t index = first; index < first + n_rows; ++index) {
            const T* row = (const T*)problem.scores + index * V;
            float score_sum;
            const float top = maximum(row, V, score_sum), finite_top = top_of(top);
            LongSum total;
            int64_t support = 0;
            for (int64_t k = 0; k < V; k += WIDTH) {
                const Floats z = read(row + k, V - k, -INFINITE);
                const Floats e = exp2((z - finite_top) * 1.4426950408889634f);
                support += __builtin_popcount(bits_of(!(e == 0.0f)));
                total.add(e);
            }
            const float log_sum = top == top ? std::log(across_lanes(total.sum())) : top;
            if (problem.total) problem.total[index] = score_sum;
            problem.threshold[2 * index] = top;
            problem.threshold[2 * index + 1] = problem.value[index] = log_sum;
            problem.support[index] = (float)support;
        }
    }
};

template <class Power, class T>
struct LossBackward {
    static constexpr int N_BUFFERS = 0;

    static void block(const LossProblem& problem, int64_t first, int n_rows, Buffers&) {
        for (int r = 0; r < n_rows; ++r) one_row(problem, first + r);
    }

    static Floats probability(Floats z, float top, float shift, float beta, float exponent) {
        if constexpr (std::is_same_v<Power, Softmax>)
            return exp2((z - top - shift) * 1.4426950408889634f);
        const Floats b = (top - z) * beta;
        if (!any(!(b >= 1.0f))) return Floats{};
        const Inside at = evaluate<Power>(b, splat(shift), splat(exponent));
        return at.x * at.s;
    }

    static void one_row(const LossProblem& problem, int64_t index) {
        const int64_t V = problem.n_classes, target = problem.target[index];
        const T* row = (const T*)problem.scores + index * V;
        T* out = (T*)problem.out + index * V;
        const float scale = problem.grad[index], scaled_eps_v = problem.eps_v * scale;
        if (scale == 0.0f) {  // scale 0 gives zero gradient, even with NaN
            memset((void*)out, 0, sizeof(T) * V);
            return;
        }
        const float beta = problem.alpha - 1.0f, exponent = exponents(splat(beta))[0];
        float top = problem.threshold[2 * index];
        const float shift = problem.threshold[2 * index + 1];
        if (top == -INFINITE) top = -FLT_MAX;
        for (int64_t k = 0; k < V; k += WIDTH) {
            const int lanes = (int)std::min<int64_t>(WIDTH, V - k);
            const Floats z = read(row + k, lanes, -INFINITE);
            const Floats p = probability(z, top, shift, beta, exponent);
            Floats grad = p * scale - scaled_eps_v;
            if (target >= k && target < k + lanes) {
                const int lane = (int)(target - k);
                grad[lane] = (p[lane] - 1.0f + problem.smoothing) * scale - scaled_eps_v;
            }
            write(out + k, grad, V - k);
        }
    }
};

}  // namespace headwise
