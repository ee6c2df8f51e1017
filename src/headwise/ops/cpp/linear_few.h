// Linear maps of few rows, as in a step of decoding: they take as long as reading the weight. It is
// read once, in place, as torch stores it; a matmul would first copy it into another layout.
#pragma once

#include <algorithm>

#include "vector.h"

namespace headwise {

// Parsed by call.py: only declarations of these types.
struct LinearProblem {
    const void* weight;   // (O, D), contiguous, as all here
    const float* bias;    // (O,), or null
    const float* values;  // (rows, D)
    float* out;           // (rows, O): values weightᵀ + bias
    int64_t n_rows, width, n_outputs;  // width: D
    int32_t is_half;                   // weight in bfloat16; else float32
    int32_t n_threads;
};

template <class T>
struct LinearOfFew {
    static constexpr int ROWS = 5;  // at once: the hypotheses of a beam
    // Bytes to prefetch ahead: a recent Intel processor took up to 1.8 times as long without; AMD's
    // own prefetching suffices.
    static constexpr int64_t AHEAD = 4096;

    // Outputs `first` to `first + WIDTH` of all rows.
    static void block(const LinearProblem& problem, int64_t first) {
        for (int64_t row = 0; row < problem.n_rows; row += ROWS)
            of_rows<ROWS>(problem, row, first);
    }

  private:
    template <int n>
    static void of_rows(const LinearProblem& problem, int64_t row, int64_t first) {
        if constexpr (n > 1)
            if (row + n > problem.n_rows) return of_rows<n - 1>(problem, row, first);
        const int64_t D = problem.width, O = problem.n_outputs, n_here = O - first;
        const float* x = problem.values + row * D;
        const T* weight = (const T*)problem.weight + first * D;
        Floats parts[n][WIDTH] = {};
        for (int j = 0; j < WIDTH && j < n_here; ++j, weight += D) {
            Floats sum[n] = {};
            int64_t d = 0;
            for (; d + WIDTH <= D; d += WIDTH) {
                __builtin_prefetch((const char*)(weight + d) + AHEAD);
                const Floats w = load(weight + d);
                for (int r = 0; r < n; ++r) sum[r] = sum[r] + w * load(x + r * D + d);
            }
            if (d < D) {
                const Floats w = load(weight + d, (int)(D - d), 0.0f);
                for (int r = 0; r < n; ++r)
                    sum[r] = sum[r] + w * load(x + r * D + d, (int)(D - d), 0.0f);
            }
            for (int r = 0; r < n; ++r) parts[r][j] = sum[r];
        }
        for (int r = 0; r < n; ++r) {
            Floats value = sums(parts[r]);
            if (problem.bias) value = value + read(problem.bias + first, n_here, 0.0f);
            write(problem.out + (row + r) * O + first, value, n_here);
        }
    }
};

}  // namespace headwise
