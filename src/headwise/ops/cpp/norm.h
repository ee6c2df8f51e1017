// Layer norm of float32 rows that writes bfloat16. Its backward pass adds the gradient of the
// residual stream. Both take blocks of rows: gradients of weight and bias are summed by block.
#pragma once

#include "rows.h"

namespace headwise {

// Parsed by call.py: only declarations of these types.
struct NormProblem {
    const float* source;  // (N, D), contiguous, as all here
    const float* weight;  // (D,)
    const float* bias;    // (D,)
    float* moments;       // (N, 2), mean and 1 / deviation: forward writes, backward reads
    void* normed;         // (N, D), bfloat16: forward writes; backward reads its gradient
    const float* added;   // (N, D), backward: gradient of the residual stream
    float* out;           // (N, D), backward: gradient of `source`, plus `added`; forward: null
    float* parts;         // (blocks, 2, D), backward: gradients of weight and bias; 0 before
    int64_t n_rows, width, n_block;  // N, D, rows of a block
    float epsilon;
    int32_t n_threads;
};

inline void norm_forward(const NormProblem& problem, int64_t first, int64_t end) {
    const int64_t D = problem.width;
    // all moments first: writing a row would wait for its sums
    for (int64_t row = first; row < end; ++row) {
        const float* x = problem.source + row * D;
        Floats sum = {}, square = {};
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats moved = read(x + d, n, x[0]) - x[0];  // a large mean costs no digits
            sum = sum + moved;
            square = square + moved * moved;
        }
        const float moved = across_lanes(sum) / D, squared = across_lanes(square) / D;
        problem.moments[2 * row] = x[0] + moved;
        problem.moments[2 * row + 1] = 1 / std::sqrt(squared - moved * moved + problem.epsilon);
    }
    for (int64_t row = first; row < end; ++row) {
        const float mean = problem.moments[2 * row], scale = problem.moments[2 * row + 1];
        BFloat16* out = (BFloat16*)problem.normed + row * D;
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats normed = (read(problem.source + row * D + d, n, 0.0f) - mean) * scale;
            const Floats weighted = normed * read(problem.weight + d, n, 0.0f);
            write(out + d, weighted + read(problem.bias + d, n, 0.0f), n);
        }
    }
}

inline void norm_backward(const NormProblem& problem, int64_t first, int64_t end) {
    const int64_t D = problem.width;
    float* weights = problem.parts + first / problem.n_block * 2 * D;
    float* biases = weights + D;
    for (int64_t row = first; row < end; ++row) {
        const BFloat16* grad = (const BFloat16*)problem.normed + row * D;
        const float mean = problem.moments[2 * row], scale = problem.moments[2 * row + 1];
        Floats sum = {}, product = {};
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats g = read(grad + d, n, 0.0f), p = g * read(problem.weight + d, n, 0.0f);
            const Floats normed = (read(problem.source + row * D + d, n, 0.0f) - mean) * scale;
            sum = sum + p;
            product = product + p * normed;
            write(weights + d, read(weights + d, n, 0.0f) + g * normed, n);
            write(biases + d, read(biases + d, n, 0.0f) + g, n);
        }
        const float shift = across_lanes(sum) / D, slope = across_lanes(product) / D;
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats p = read(grad + d, n, 0.0f) * read(problem.weight + d, n, 0.0f);
            const Floats normed = (read(problem.source + row * D + d, n, 0.0f) - mean) * scale;
            const Floats added = read(problem.added + row * D + d, n, 0.0f);
            write(problem.out + row * D + d, added + (p - shift - normed * slope) * scale, n);
        }
    }
}

}  // namespace headwise
