// A problem, its rows in memory, and the buffers for working on them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "solve.h"

namespace headwise {

enum Map { SOFTMAX, ANY, SQUARE, LINEAR };  // as `Power` in ops/family.py: α is 1, any, 1.5, 2

// Parsed by call.py: only declarations of these types.
struct Problem {
    int64_t size[4];            // B, H and Q of a call, and K
    int64_t first_row, n_rows;  // the rows of the call to compute
    // Of these rows alone, contiguous:
    const void* input;       // forward: scores. backward: weights, or scores with `threshold`
    const void* grad;        // backward: gradient of the weights
    void* out;               // forward: weights. backward: gradient of the scores. May be `input`
    void* weights;           // backward from scores: receives the weights
    // Of all rows of the call:
    float* threshold;        // (rows, 2), maximum and shift: forward writes, backward reads; or null
    const float* beta;       // α - 1, or null if the map determines it
    float* grad_alpha;       // backward: one per row, or null
    const uint8_t* mask;     // bytes, or null
    const int64_t* key_lengths;  // one for each of B, or null
    int64_t beta_stride[3];  // B, H, Q
    int64_t mask_stride[4];
    int64_t query_offset;  // position of the first query
    int32_t causal;
    int32_t is_half;  // bfloat16 in and out; else float32
    int32_t map;      // one of `Map`
    int32_t n_threads;
    uint32_t n_kept;    // how many of 2^32 draws keep a weight; 0: no dropout
    uint64_t seed;      // of the dropout
};

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t BLOCK_FLOATS = 8192;  // per buffer: a block of rows stays in the L1 and L2 caches

struct Row {
    int64_t index;        // among the rows of the call
    int64_t start;        // of the row in `input`
    int64_t n_visible;    // keys before padding and future positions
    const uint8_t* mask;  // of key 0, or null
    float beta;
};

constexpr int64_t round_up(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

// Iterates over the rows to compute, starting at the one numbered `first` of them.
class RowReader {
  public:
    RowReader(const Problem& problem, int64_t first)
        : problem(problem), index(problem.first_row + first), start(first * problem.size[3]) {
        q = index % problem.size[2];  // divisions are slow: once, then counting
        const int64_t bh = index / problem.size[2];
        h = bh % problem.size[1];
        b = bh / problem.size[1];
    }

    Row next() {
        const int64_t Q = problem.size[2], K = problem.size[3];
        Row row{index, start, K, nullptr, problem.map == SQUARE ? 0.5f : 1.0f};
        if (problem.key_lengths) row.n_visible = std::min(K, std::max<int64_t>(0, problem.key_lengths[b]));
        if (problem.causal)
            row.n_visible =
                std::max<int64_t>(0, std::min(row.n_visible, problem.query_offset + q + 1));
        const int64_t* stride = problem.mask_stride;
        if (problem.mask) row.mask = problem.mask + b * stride[0] + h * stride[1] + q * stride[2];
        stride = problem.beta_stride;
        if (problem.beta)
            row.beta = problem.beta[b * stride[0] + h * stride[1] + q * stride[2]];
        row.beta = row.beta < BETA_MIN ? BETA_MIN : row.beta > 1.0f ? 1.0f : row.beta;
        ++index, start += K;
        if (++q == Q) {
            q = 0;
            if (++h == problem.size[1]) h = 0, ++b;
        }
        return row;
    }

  private:
    const Problem& problem;
    int64_t index, start, b, h, q;
};

// The maximum that scores are subtracted from: finite for a row without keys, NaN for a row with an
// infinite score.
inline float top_of(float highest) {
    if (highest < -FLT_MAX) return -FLT_MAX;
    return highest > FLT_MAX ? std::numeric_limits<float>::quiet_NaN() : highest;
}

inline Ints allowed(const Row& row, int64_t mask_stride, int64_t k, int n) {
    return mask_stride ? load_mask(row.mask + k, n) : Ints{} - (int32_t)(*row.mask != 0);
}

// Copy one row's scores to `to`, -inf where masked and up to a whole vector; return the maxima.
template <class T>
Floats read_scores(const T* from, const Row& row, int64_t mask_stride, float* to) {
    Floats highest = splat(-INFINITE);
    for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
        const int n = (int)std::min<int64_t>(WIDTH, row.n_visible - k);
        Floats z = read(from + k, n, -INFINITE);
        if (row.mask) z = allowed(row, mask_stride, k, n) ? z : splat(-INFINITE);
        store(to + k, z);
        highest = largest_or_nan(highest, z);
    }
    return highest;
}

// Buffers for a block of rows: `width` floats per row, and for each vector of a row a bit mask of
// the kept lanes.
struct Buffers {
    std::vector<float> buffers[4];
    std::vector<uint16_t> lanes[ROWS];
    int64_t width;

    Buffers(int64_t n_rows, int64_t n_keys, int n_buffers) : width(round_up(n_keys) + WIDTH) {
        for (int i = 0; i < n_buffers; ++i) buffers[i].resize(n_rows * width);
        for (int r = 0; r < n_rows; ++r) lanes[r].resize(round_up(n_keys) / WIDTH);
    }

    float* row(int buffer, int r) { return buffers[buffer].data() + r * width; }
};

// Replace a row's scores by its b < 1, compacted and padded to a whole vector; return how many.
inline int keep_candidates(float* row, int64_t n, float top, float beta, uint16_t* lanes) {
    int n_kept = 0;
    for (int64_t k = 0; k < n; k += WIDTH) {
        const Floats b = (top - load(row + k)) * beta;
        const uint32_t bits = compress(row + n_kept, b, !(b >= 1.0f));
        lanes[k / WIDTH] = (uint16_t)bits;
        n_kept += __builtin_popcount(bits);
    }
    store(row + n_kept, splat(INFINITE));
    return n_kept;
}

// Write zeros after the last vector that has a visible key.
template <class T>
void write_rest(T* to, const Row& row, int64_t n_keys) {
    const int64_t written = round_up(row.n_visible);
    if (written < n_keys) memset((void*)(to + written), 0, sizeof(T) * (n_keys - written));
}

// Which weights of a row dropout keeps, and the factor on them.
struct Dropout {
    uint64_t key = 0;
    uint32_t n_kept = 0;  // 0: all
    float scale = 1.0f;

    Dropout() = default;

    Dropout(uint64_t seed, int64_t row, uint32_t n_kept)
        : key(n_kept ? mixed(seed + mixed((uint64_t)row)) : 0),
          n_kept(n_kept),
          scale(n_kept ? (float)(4294967296.0 / n_kept) : 1.0f) {}

    Dropout(const Problem& problem, const Row& row)
        : Dropout(problem.seed, row.index, problem.n_kept) {}

    Floats operator()(Floats values, int64_t first) const {
        if (!n_kept) return values;
        return random_words(key, (uint32_t)first) < n_kept ? values * scale : Floats{};
    }
};

// The reverse of compacting: write the kept values of a row to their positions, zeros between.
template <class T>
void spread(
    const float* kept, const uint16_t* lanes, const Row& row, T* out, int64_t n_keys,
    const Dropout& dropout) {
    for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
        const uint32_t bits = lanes[k / WIDTH];
        write(out + k, dropout(expand(kept, bits), k), n_keys - k);
        kept += __builtin_popcount(bits);
    }
    write_rest(out, row, n_keys);
}

}  // namespace headwise
