// Dropout of a tensor without a saved mask: the seed reproduces the draws. Fused with a preceding
// ReLU or a following sum, to save passes over the tensors.
#pragma once

#include "rows.h"

namespace headwise {

enum Before { NOTHING, RELU, RELU_BACKWARD };

// Parsed by call.py: only declarations of these types.
struct DropoutProblem {
    const void* source;
    void* out;           // may be `source`
    const void* added;   // added after dropout, of the type of `out`; or null
    const void* result;  // RELU_BACKWARD: result of RELU, of the type of `out`
    int64_t n;
    uint64_t seed;
    uint32_t n_kept;  // how many of 2^32 draws keep an entry; not 0
    int32_t before;
    int32_t is_source_half, is_out_half;
    int32_t n_threads;
};

constexpr int64_t CHUNK = 4096;  // entries per key of the generator

template <int before, class From, class To>
void drop_chunk(const DropoutProblem& problem, int64_t chunk) {
    const int64_t start = chunk * CHUNK;
    const Dropout dropout(problem.seed, chunk, problem.n_kept);
    const From* from = (const From*)problem.source + start;
    const To* added = problem.added ? (const To*)problem.added + start : nullptr;
    const To* result = problem.result ? (const To*)problem.result + start : nullptr;
    To* out = (To*)problem.out + start;
    const int64_t n = std::min(CHUNK, problem.n - start);
    for (int64_t k = 0; k < n; k += WIDTH) {
        Floats value = read(from + k, n - k, 0.0f);
        if (before == RELU_BACKWARD) {
            const Floats passed = read(result + k, n - k, 0.0f);
            value = passed <= 0.0f ? Floats{} : value * dropout.scale;
        } else {
            if (before == RELU) value = value < 0.0f ? Floats{} : value;
            value = dropout(value, k);
            if (added) value = value + read(added + k, n - k, 0.0f);
        }
        write(out + k, value, n - k);
    }
}

}  // namespace headwise
