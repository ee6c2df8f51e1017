// Layer norm of float32 rows that writes bfloat16. Its backward pass adds the gradient of the
// residual stream. Both take blocks of rows: gradients of weight and bias are summed by block.
#pragma once

#include "rows.h"

namespace headwise {

// Parsed by call.py: only declarations of these types.
struct NormProblem {
    const float* values;  // (N, D), contiguous, as all here
    const float* weight;  // (D,)
    const float* bias;    // (D,)
    float* moments;       // (N, 2), mean and 1 / deviation: forward writes, backward reads
    BFloat16* normed;     // (N, D), forward
    // Backward: the gradients of `normed` (N, D) and of the residual stream (N, D); their sum in
    // `values` (N, D); of weight and bias by block (blocks, 2, D), 0 before.
    const BFloat16* grad;
    const float* stream_grad;
    float* values_grad;
    float* parts;
    int64_t n_rows, width, n_block;  // N, D, rows of a block
    float epsilon;
    int32_t n_threads;
};

inline void norm_forward(const NormProblem& problem, int64_t first, int64_t end) {
    const int64_t D = problem.width;
    // all moments first: writing a row would wait for its sums
    for (int64_t row = first; row < end; ++row) {
        const float* x = problem.values + row * D;
        // near the mean, so that a large one costs no digits
        const float middle = across_lanes(read(x, D, 0.0f)) / std::min<int64_t>(D, WIDTH);
        Floats sum = {}, square = {};
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats moved = read(x + d, n, middle) - middle;
            sum = sum + moved;
            square = square + moved * moved;
        }
        const float moved = across_lanes(sum) / D, squared = across_lanes(square) / D;
        problem.moments[2 * row] = middle + moved;
        problem.moments[2 * row + 1] = 1 / std::sqrt(squared - moved * moved + problem.epsilon);
    }
    for (int64_t row = first; row < end; ++row) {
        const float mean = problem.moments[2 * row], scale = problem.moments[2 * row + 1];
        BFloat16* out = problem.normed + row * D;
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats normed = (read(problem.values + row * D + d, n, 0.0f) - mean) * scale;
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
        const BFloat16* grad = problem.grad + row * D;
        const float mean = problem.moments[2 * row], scale = problem.moments[2 * row + 1];
        Floats sum = {}, product = {};
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats g = read(grad + d, n, 0.0f), p = g * read(problem.weight + d, n, 0.0f);
            const Floats normed = (read(problem.values + row * D + d, n, 0.0f) - mean) * scale;
            sum = sum + p;
            product = product + p * normed;
            write(weights + d, read(weights + d, n, 0.0f) + g * normed, n);
            write(biases + d, read(biases + d, n, 0.0f) + g, n);
        }
        const float shift = across_lanes(sum) / D, slope = across_lanes(product) / D;
        for (int64_t d = 0, n = D; n > 0; d += WIDTH, n -= WIDTH) {
            const Floats p = read(grad + d, n, 0.0f) * read(problem.weight + d, n, 0.0f);
            const Floats normed = (read(problem.values + row * D + d, n, 0.0f) - mean) * scale;
            const Floats added = read(problem.stream_grad + row * D + d, n, 0.0f);
            const Floats grad_of_values = added + (p - shift - normed * slope) * scale;
            write(problem.values_grad + row * D + d, grad_of_values, n);
        }
    }
}

}  // namespace headwise
