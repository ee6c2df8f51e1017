// Dropout of a tensor without a mask: who knows the seed can draw it again.
#pragma once

#include "rows.h"

namespace headwise {

// Mirrored in native_dropout.py.
struct DropoutProblem {
    const void* source;
    void* out;  // may be `source`
    int64_t n;
    uint64_t seed;
    uint32_t n_kept;  // of 2^32 draws, how many keep an entry; not 0
    int32_t is_half;
    int32_t n_threads;
};

constexpr int64_t STRETCH = 4096;  // entries that share a key

template <class T>
void drop_stretch(const DropoutProblem& problem, int64_t stretch) {
    const int64_t start = stretch * STRETCH;
    const Dropout dropout(problem.seed, stretch, problem.n_kept);
    const T* from = (const T*)problem.source + start;
    T* out = (T*)problem.out + start;
    const int64_t n = std::min(STRETCH, problem.n - start);
    for (int64_t k = 0; k < n; k += WIDTH)
        write(out + k, dropout(read(from + k, n - k, 0.0f), k), n - k);
}

}  // namespace headwise
