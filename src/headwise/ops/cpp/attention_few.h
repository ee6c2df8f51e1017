// Attention of few queries, as in a step of decoding. A matmul would first copy the keys into
// another layout; here keys and values are read in place.
#pragma once

#include "forward.h"

namespace headwise {

// Parsed by call.py: only declarations of these types.
struct AttendProblem {
    Problem rows;  // `input` and `out`: buffer for the scores, float32
    const void* query;
    const void* key;
    const void* value;
    void* context;  // (B, Q, H, E), contiguous
    int64_t query_stride[3], key_stride[3], value_stride[3];  // B, H, N; E is contiguous
    int64_t width, value_width;  // of queries and keys, of values
    int64_t group;               // number of heads of queries that share a head of keys
    const float* slopes;                                      // (H,), or null: no bias
    int64_t n_prefix;  // number of positions at the start without a bias
    float scale;
    int32_t is_half;  // bfloat16 in and out; else float32
};

// Load a vector of a head's entries, `left` of them valid; all if heads are `whole` vectors.
template <bool whole, class T>
inline Floats part_of(const T* from, int64_t left) {
    return whole ? load(from) : read(from, left, 0.0f);
}

// Scores of one query with `n` keys.
template <bool whole, class T>
void score(
    const T* query, const T* key, int64_t key_stride, int64_t n, int64_t width, float scale,
    float* to) {
    for (int64_t k = 0; k < n; k += WIDTH) {
        const int n_here = (int)std::min<int64_t>(WIDTH, n - k);
        Floats parts[WIDTH];
        for (int j = 0; j < WIDTH; ++j) {
            Floats sum = {};
            const T* here = key + (k + j) * key_stride;
            for (int64_t e = 0; j < n_here && e < width; e += WIDTH) {
                const Floats q = part_of<whole>(query + e, width - e);
                sum = sum + q * part_of<whole>(here + e, width - e);
            }
            parts[j] = sum;
        }
        write(to + k, sums(parts) * scale, n_here);
    }
}

// Subtract slope · |i - j| from the scores of one query at position i with `n` keys.
inline void subtract_bias(float* scores, float slope, int64_t i, int64_t n_prefix, int64_t n) {
    for (int64_t j = n_prefix; j < n; ++j) scores[j] -= slope * std::abs((float)(int32_t)(i - j));
}

// Weighted sum of the values; keys without a weight are skipped.
template <int n_vectors, bool whole, class T>
void weighted_sum(
    const float* weights, const T* value, int64_t value_stride, int64_t n, int64_t width, T* to) {
    Floats sum[n_vectors] = {};
    for (int64_t k = 0; k < n; ++k) {
        if (weights[k] == 0.0f) continue;
        const T* here = value + k * value_stride;
        for (int v = 0; v < n_vectors; ++v)
            sum[v] = sum[v] + weights[k] * part_of<whole>(here + v * WIDTH, width - v * WIDTH);
    }
    for (int v = 0; v < n_vectors; ++v) write(to + v * WIDTH, sum[v], width - v * WIDTH);
}

template <class Power, class T>
struct Attend {
    static constexpr int N_BUFFERS = Forward<Power, float>::N_BUFFERS;

    static void block(const AttendProblem& problem, int64_t first, int n_rows, Buffers& buffers) {
        (problem.width | problem.value_width) % WIDTH
            ? block_of<false>(problem, first, n_rows, buffers)
            : block_of<true>(problem, first, n_rows, buffers);
    }

  private:
    static constexpr int SUM_VECTORS = 4;  // vectors per sum

    template <bool whole>
    static void block_of(
        const AttendProblem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const Problem& rows = problem.rows;
        const int64_t H = rows.size[1], Q = rows.size[2], E = problem.value_width;
        float* scores = (float*)rows.out;
        int64_t n_visible[ROWS];
        RowReader reader(rows, first);
        for (int r = 0; r < n_rows; ++r) {
            const Position here(rows, first + r);
            const Row row = reader.next();
            n_visible[r] = row.n_visible;
            score<whole>(
                at(problem.query, problem.query_stride, here, 1, here.q),
                at(problem.key, problem.key_stride, here, problem.group, 0), problem.key_stride[2], row.n_visible,
                problem.width, problem.scale, scores + row.start);
            const int64_t i = rows.query_offset + here.q, n_prefix = problem.n_prefix;
            if (problem.slopes && i >= n_prefix)
                subtract_bias(
                    scores + row.start, problem.slopes[here.h], i, n_prefix, row.n_visible);
        }
        Forward<Power, float>::block(rows, first, n_rows, buffers);
        for (int r = 0; r < n_rows; ++r) {
            const Position here(rows, first + r);
            const float* weights = scores + (first + r) * rows.size[3];
            const T* value = at(problem.value, problem.value_stride, here, problem.group, 0);
            T* to = (T*)problem.context + ((here.b * Q + here.q) * H + here.h) * E;
            const int64_t stride = problem.value_stride[2], n = n_visible[r];
            int64_t e = 0;
            for (; e + SUM_VECTORS * WIDTH <= E; e += SUM_VECTORS * WIDTH)
                weighted_sum<SUM_VECTORS, true>(weights, value + e, stride, n, E - e, to + e);
            for (; e < E; e += WIDTH)
                weighted_sum<1, whole>(weights, value + e, stride, n, E - e, to + e);
        }
    }

    struct Position {
        int64_t b, h, q;

        Position(const Problem& rows, int64_t row)
            : b(row / (rows.size[2] * rows.size[1])),
              h(row / rows.size[2] % rows.size[1]),
              q(row % rows.size[2]) {}
    };

    static const T* at(
        const void* from, const int64_t* stride, const Position& here, int64_t group, int64_t n) {
        return (const T*)from + here.b * stride[0] + here.h / group * stride[1] + n * stride[2];
    }
};

}  // namespace headwise
