// Dropout of a tensor without a saved mask: the seed reproduces the draws.
#pragma once

#include "rows.h"

namespace headwise {

// Parsed by call.py: only declarations of these types.
struct DropoutProblem {
    const void* source;
    void* out;  // may be `source`
    int64_t n;
    uint64_t seed;
    uint32_t n_kept;  // how many of 2^32 draws keep an entry; not 0
    int32_t is_half;  // bfloat16 in and out; else float32
    int32_t n_threads;
};

constexpr int64_t CHUNK = 4096;  // entries per key of the generator

template <class T>
void drop_chunk(const DropoutProblem& problem, int64_t chunk) {
    const int64_t start = chunk * CHUNK;
    const Dropout dropout(problem.seed, chunk, problem.n_kept);
    const T* from = (const T*)problem.source + start;
    T* out = (T*)problem.out + start;
    const int64_t n = std::min(CHUNK, problem.n - start);
    for (int64_t k = 0; k < n; k += WIDTH)
        write(out + k, dropout(read(from + k, n - k, 0.0f), k), n - k);
}

}  // namespace headwise
