// A problem, its rows in memory, and where they are kept while they are worked on.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "solve.h"

namespace headwise {

enum Map { SOFTMAX, ANY, SQUARE, LINEAR };  // as in native.py: α is 1, any, 1.5, 2

// Mirrored in native.py.
struct Problem {
    int64_t size[4];         // B, H, Q, K
    const void* source;      // forward: scores. backward: weights, or scores with `threshold`
    const void* grad;        // backward: gradient of the weights
    void* out;               // forward: weights. backward: gradient of the scores. May be `source`
    void* weights;           // backward from scores: where the weights go
    float* threshold;        // (rows, 2), maximum and shift: forward writes, backward reads; or null
    const float* beta;       // α - 1, or null where the map says it
    float* grad_alpha;       // backward: one a row, or null
    const uint8_t* mask;     // bytes, or null
    const int64_t* lengths;  // of the keys, one for each of B, or null
    int64_t beta_stride[3];  // B, H, Q
    int64_t mask_stride[4];
    int64_t query_offset;  // position of the first query
    int32_t is_causal;
    int32_t is_half;  // bfloat16 in and out; else float32
    int32_t map;      // one of `Map`
    int32_t n_threads;
    uint32_t n_kept;    // of 2^32 draws, how many keep a weight; 0: no dropout
    uint64_t seed;      // of the dropout
    int64_t first_row;  // number of the first row in what the seed is for
};

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t COMPACT_FROM = 96;     // keys; below, all of a row is less work than a choice
constexpr int64_t BLOCK_FLOATS = 8192;   // of a buffer: a block of rows stays in the first caches

struct Row {
    int64_t start;        // of the row in the tensor
    int64_t n_visible;    // keys before padding and the future begin
    const uint8_t* mask;  // of key 0, or null
    float beta;
};

inline int64_t round_up(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

inline Row row_at(const Problem& problem, int64_t index) {
    const int64_t Q = problem.size[2], K = problem.size[3];
    const int64_t q = index % Q, h = index / Q % problem.size[1], b = index / Q / problem.size[1];
    Row row{index * K, K, nullptr, problem.map == SQUARE ? 0.5f : 1.0f};
    if (problem.lengths) row.n_visible = std::min(K, std::max<int64_t>(0, problem.lengths[b]));
    if (problem.is_causal)
        row.n_visible = std::min(row.n_visible, problem.query_offset + q + 1);
    const int64_t* stride = problem.mask_stride;
    if (problem.mask) row.mask = problem.mask + b * stride[0] + h * stride[1] + q * stride[2];
    stride = problem.beta_stride;
    if (problem.beta)
        row.beta = problem.beta[b * stride[0] + h * stride[1] + q * stride[2]];
    row.beta = row.beta < BETA_MIN ? BETA_MIN : row.beta > 1.0f ? 1.0f : row.beta;
    return row;
}

// What scores are counted from: a row without a key still needs a number, and a row with an
// infinite score has none.
inline float top_of(float highest) {
    if (highest < -FLT_MAX) return -FLT_MAX;
    return highest > FLT_MAX ? std::numeric_limits<float>::quiet_NaN() : highest;
}

inline Ints allowed(const Row& row, int64_t mask_stride, int64_t k, int n) {
    return mask_stride ? load_mask(row.mask + k, n) : Ints{} - (int32_t)(*row.mask != 0);
}

// Scores of one row into `to`, minus infinity where masked and up to a whole vector; the maxima.
template <class T>
Floats read_scores(const T* from, const Row& row, int64_t mask_stride, float* to) {
    Floats highest = splat(-INFINITE);
    for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
        const int n = (int)std::min<int64_t>(WIDTH, row.n_visible - k);
        Floats z = n == WIDTH ? load(from + k) : load(from + k, n, -INFINITE);
        if (row.mask) z = allowed(row, mask_stride, k, n) ? z : splat(-INFINITE);
        store(to + k, z);
        highest = largest_or_nan(highest, z);
    }
    return highest;
}

// What is left of a row after its maximum is known: b, all of them or only those below 1.
struct Kept {
    std::vector<uint16_t> bits;  // where compact: the lanes of each vector that were kept
    bool is_compact;
};

inline int64_t keep_candidates(float* row, int64_t n, float highest, float beta, Kept& kept) {
    int64_t n_kept = 0;
    for (int64_t k = 0; k < n; k += WIDTH) {
        const Floats b = (highest - load(row + k)) * beta;
        const uint32_t bits = compress(row + n_kept, b, !(b >= 1.0f));
        kept.bits[k / WIDTH] = (uint16_t)bits;
        n_kept += __builtin_popcount(bits);
    }
    store(row + n_kept, splat(INFINITE));
    return n_kept;
}

struct Buffers {
    std::vector<float> first, second;
    Kept kept[ROWS];
    int64_t width;

    Buffers(int64_t n_rows, int64_t n_keys) : width(round_up(n_keys) + WIDTH) {
        first.resize(n_rows * width);
        second.resize(n_rows * width);
        if (n_keys >= COMPACT_FROM)
            for (Kept& row : kept) row.bits.resize(round_up(n_keys) / WIDTH);
    }
};

// Zeros behind the last vector that holds a visible key.
template <class T>
void write_rest(T* to, const Row& row, int64_t n_keys) {
    const int64_t written = round_up(row.n_visible);
    if (written < n_keys) memset((void*)(to + written), 0, sizeof(T) * (n_keys - written));
}

template <class T>
void write(T* to, Floats value, int64_t n) {
    if (n >= WIDTH)
        store(to, value);
    else
        store(to, value, (int)n);
}

// Which weights of a row stay, and how much greater they become.
struct Dropout {
    uint64_t key;
    uint32_t n_kept;
    float scale;

    Dropout(const Problem& problem, int64_t row)
        : key(mixed(problem.seed + mixed((uint64_t)(problem.first_row + row)))),
          n_kept(problem.n_kept),
          scale(problem.n_kept ? (float)(4294967296.0 / problem.n_kept) : 1.0f) {}

    Floats operator()(Floats values, int64_t first) const {
        if (!n_kept) return values;
        return random_words(key, (uint32_t)first) < n_kept ? values * scale : Floats{};
    }
};

}  // namespace headwise
