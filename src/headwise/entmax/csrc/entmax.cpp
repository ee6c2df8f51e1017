// Softmax and α-entmax along the rows of a contiguous tensor (B, H, Q, K), and their gradients.
//
// Masks are read where they lie, by strides that may be 0, or given as lengths and causality: no
// copy as large as the scores is made. Threads share out rows; no row depends on another.

#include <cstdint>
#include <limits>
#include <vector>

#include "solve.h"

using namespace headwise;

enum Map { SOFTMAX, ANY, SQUARE, LINEAR };  // as in native.py: α is 1, any, 1.5, 2

extern "C" {

// Mirrored in native.py.
struct Problem {
    int64_t size[4];         // B, H, Q, K
    const void* scores;      // forward: scores. backward: weights
    const void* grad;        // backward: gradient of the weights
    void* out;               // forward: weights (may be the scores). backward: gradient of the scores
    const float* beta;       // α - 1, or null where the map says it
    float* grad_alpha;       // backward: one a row, or null
    const uint8_t* mask;     // bytes, or null
    const int64_t* lengths;  // of the keys, one for each of B, or null
    int64_t beta_stride[3];  // B, H, Q
    int64_t mask_stride[4];
    int64_t query_offset;  // position of the first query
    int32_t is_causal;
    int32_t is_half;  // bfloat16 in and out; else float32
    int32_t map;      // one of the maps below
    int32_t n_threads;
};
}

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t COMPACT_FROM = 96;     // keys; below, all of a row is less work than a choice
constexpr int64_t BLOCK_FLOATS = 8192;   // of a buffer: a block of rows stays in the first caches
constexpr int64_t SERIAL_FLOATS = 16384;  // a problem of this size is done before threads wake up

struct Softmax {};

struct Row {
    int64_t start;        // of the row in the tensor
    int64_t n_visible;    // keys before padding and the future begin
    const uint8_t* mask;  // of key 0, or null
    float beta;
};

int64_t round_up(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

Row row_at(const Problem& problem, int64_t index) {
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

// Scores of one row into `to`, minus infinity where masked and up to a whole vector; the maxima.
template <class T>
Floats read_scores(const T* from, const Row& row, int64_t mask_stride, float* to) {
    Floats highest = splat(-INFINITE);
    for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
        const int n = (int)std::min<int64_t>(WIDTH, row.n_visible - k);
        Floats z = n == WIDTH ? load(from + k) : load(from + k, n, -INFINITE);
        if (row.mask) {
            const Ints allowed =
                mask_stride ? load_mask(row.mask + k, n) : Ints{} - (int32_t)(*row.mask != 0);
            z = allowed ? z : splat(-INFINITE);
        }
        store(to + k, z);
        highest = !(z <= highest) ? z : highest;  // NaN takes over
    }
    return highest;
}

// What is left of a row after its maximum is known: b, all of them or only those below 1.
struct Kept {
    std::vector<uint16_t> bits;  // where compact: the lanes of each vector that were kept
    bool is_compact;
};

int64_t keep_candidates(float* row, int64_t n, float highest, float beta, Kept& kept) {
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

template <class T>
void write_zeros(T* to, int64_t from, int64_t n) {
    memset((void*)(to + from), 0, sizeof(T) * (n - from));
}

template <class T>
void write(T* to, Floats value, int64_t n) {
    if (n >= WIDTH)
        store(to, value);
    else
        store(to, value, (int)n);
}

template <class Power, class T>
struct Forward {
    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        Row row[ROWS];
        Floats part[ROWS], beta = splat(1.0f), n_keys = splat(1.0f);
        Rows rows;
        rows.n = n_rows;
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = row_at(problem, first + r);
            rows.b[r] = buffers.first.data() + r * buffers.width;
            rows.s[r] = buffers.second.data() + r * buffers.width;
            beta[r] = row[r].beta;
            n_keys[r] = (float)K;
            part[r] = read_scores(
                (const T*)problem.scores + row[r].start, row[r], problem.mask_stride[3], rows.b[r]);
        }
        const Floats highest = reduce(
            part, [](Floats a, Floats b) { return !(b <= a) ? b : a; });
        rows.beta = beta;
        rows.is_empty = highest == -INFINITE ? splat(1.0f) : Floats{};
        rows.shift_max = one_minus_exp2(-beta * log2(n_keys));
        for (int r = 0; r < n_rows; ++r) {
            const int64_t n = row[r].n_visible;
            const float top = highest[r] < -FLT_MAX ? -FLT_MAX : highest[r];
            Kept& kept = buffers.kept[r];
            kept.is_compact = n >= COMPACT_FROM;
            if (kept.is_compact) {
                rows.n_vectors[r] =
                    (int)(round_up(keep_candidates(rows.b[r], n, top, beta[r], kept)) / WIDTH);
                continue;
            }
            rows.n_vectors[r] = (int)(round_up(n) / WIDTH);
            for (int v = 0; v < rows.n_vectors[r]; ++v) {
                float* at = rows.b[r] + v * WIDTH;
                store(at, (top - load(at)) * beta[r]);
            }
        }
        solve<Power>(rows);
        for (int r = 0; r < n_rows; ++r)
            write_row((T*)problem.out + row[r].start, K, row[r], rows, r, buffers.kept[r]);
    }

    static void write_row(
        T* out, int64_t K, const Row& row, const Rows& rows, int r, const Kept& kept) {
        const float shift = rows.shift[r], correction = rows.correction[r];
        const float *b = rows.b[r], *s = rows.s[r];
        if (kept.is_compact) {
            float* p = rows.s[r];
            for (int v = 0; v < rows.n_vectors[r]; ++v)
                store(p + v * WIDTH,
                      weights<Power>(load(b + v * WIDTH), load(s + v * WIDTH), shift, correction));
            for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
                const uint32_t bits = kept.bits[k / WIDTH];
                write(out + k, expand(p, bits), K - k);
                p += __builtin_popcount(bits);
            }
        } else {
            for (int64_t k = 0; k < row.n_visible; k += WIDTH)
                write(out + k, weights<Power>(load(b + k), load(s + k), shift, correction), K - k);
        }
        const int64_t written = std::min(K, round_up(row.n_visible));
        if (written < K) write_zeros(out, written, K);
    }
};

template <class T>
struct Forward<Softmax, T> {
    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        Row row[ROWS];
        Floats part[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = row_at(problem, first + r);
            part[r] = read_scores(
                (const T*)problem.scores + row[r].start, row[r], problem.mask_stride[3],
                buffers.first.data() + r * buffers.width);
        }
        const Floats highest = reduce(
            part, [](Floats a, Floats b) { return !(b <= a) ? b : a; });
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            float* z = buffers.first.data() + r * buffers.width;
            const float top = highest[r] < -FLT_MAX ? -FLT_MAX : highest[r];
            Floats recent = Floats{};
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH) {
                const Floats e = exp2((load(z + k) - top) * 1.4426950408889634f);
                store(z + k, e);
                recent = recent + e;
                if (k / WIDTH % SUMMED != SUMMED - 1) continue;
                part[r] = part[r] + recent;
                recent = Floats{};
            }
            part[r] = part[r] + recent;
        }
        const Floats total = sums(part);
        const Floats scale = highest == -INFINITE ? Floats{} : 1.0f / total;
        for (int r = 0; r < n_rows; ++r) {
            const float* e = buffers.first.data() + r * buffers.width;
            T* out = (T*)problem.out + row[r].start;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH)
                write(out + k, load(e + k) * scale[r], K - k);
            const int64_t written = std::min(K, round_up(row[r].n_visible));
            if (written < K) write_zeros(out, written, K);
        }
    }
};

// s = p^(2-α), and p ψ (see function.py) where the gradient of α is asked for.
template <class Power, bool with_alpha>
inline Floats slope(Floats p, float beta, Floats& p_psi) {
    p_psi = Floats{};
    const Ints is_out = p <= 0.0f;
    if constexpr (std::is_same_v<Power, Softmax>) {
        return p;
    } else if constexpr (std::is_same_v<Power, Linear>) {
        return is_out ? Floats{} : splat(1.0f);
    } else if constexpr (std::is_same_v<Power, Square>) {
        Floats root;
        for (int lane = 0; lane < WIDTH; ++lane) root[lane] = std::sqrt(p[lane]);
        return root;
    } else {
        const Floats log2_p = log2(largest(p, splat(FLT_MIN)));
        const Floats growth = exp2(log2_p * -beta);  // e^y, y = -β ln p
        const Floats s = is_out ? Floats{} : p * growth;
        if constexpr (with_alpha) {
            const Floats log_p = natural(log2_p), y = log_p * -beta;
            Floats series = splat(1.0f / 40320);
            series = series * y + 1.0f / 5040;
            series = series * y + 1.0f / 720;
            series = series * y + 1.0f / 120;
            series = series * y + 1.0f / 24;
            series = series * y + 1.0f / 6;
            series = series * y + 0.5f;
            const Floats direct = (growth - 1.0f - y) * (1.0f / (beta * beta));
            const Floats psi = y < 0.6f ? series * log_p * log_p : direct;
            p_psi = is_out ? Floats{} : p * psi;
        }
        return s;
    }
}

template <class Power, class T, bool with_alpha>
struct Backward {
    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        const bool skips = K >= COMPACT_FROM;  // in long rows most vectors hold zeros alone
        Row row[ROWS];
        Floats total_s[ROWS], total[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            total_s[r] = total[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = row_at(problem, first + r);
            const T* p_row = (const T*)problem.scores + row[r].start;
            const T* dp_row = (const T*)problem.grad + row[r].start;
            float* s_row = buffers.first.data() + r * buffers.width;
            float* psi_row = buffers.second.data() + r * buffers.width;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH) {
                const int n = (int)std::min<int64_t>(WIDTH, row[r].n_visible - k);
                const Floats p = n == WIDTH ? load(p_row + k) : load(p_row + k, n, 0.0f);
                Floats s = Floats{}, p_psi = Floats{};
                if (!skips || any(!(p == 0.0f))) {
                    s = slope<Power, with_alpha>(p, row[r].beta, p_psi);
                    const Floats read = n == WIDTH ? load(dp_row + k) : load(dp_row + k, n, 0.0f);
                    total_s[r] = total_s[r] + s;
                    total[r] = total[r] + s * (p == 0.0f ? Floats{} : read);
                }
                store(s_row + k, s);
                if (with_alpha) store(psi_row + k, p_psi);
            }
        }
        const Floats centre = sums(total) / largest(sums(total_s), splat(FLT_MIN));
        Floats alpha[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            alpha[r] = Floats{};
            if (r < n_rows) alpha[r] = write_row(problem, row[r], centre[r], r, buffers);
        }
        if (with_alpha) {
            const Floats grads = -sums(alpha);
            store(problem.grad_alpha + first, grads, n_rows);
        }
    }

    static Floats write_row(
        const Problem& problem, const Row& row, float centre, int r, const Buffers& buffers) {
        const int64_t K = problem.size[3];
        const T* dp_row = (const T*)problem.grad + row.start;
        T* out = (T*)problem.out + row.start;
        const float* s_row = buffers.first.data() + r * buffers.width;
        const float* psi_row = buffers.second.data() + r * buffers.width;
        Floats alpha = Floats{};
        for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
            const int n = (int)std::min<int64_t>(WIDTH, row.n_visible - k);
            const Floats s = load(s_row + k);
            const Floats read = n == WIDTH ? load(dp_row + k) : load(dp_row + k, n, 0.0f);
            const Floats centred = (s == 0.0f ? Floats{} : read - centre);
            write(out + k, s * centred, K - k);
            if (with_alpha) alpha = alpha + load(psi_row + k) * centred;
        }
        const int64_t written = std::min(K, round_up(row.n_visible));
        if (written < K) write_zeros(out, written, K);
        return alpha;
    }
};

template <class Kernel>
void run(const Problem& problem) {
    const int64_t n_rows = problem.size[0] * problem.size[1] * problem.size[2];
    const int64_t K = problem.size[3];
    if (n_rows == 0 || K == 0) return;
    int64_t n_block = std::max<int64_t>(1, std::min<int64_t>(ROWS, BLOCK_FLOATS / round_up(K)));
    const int64_t n_blocks = (n_rows + n_block - 1) / n_block;
    const int n_threads = n_rows * K <= SERIAL_FLOATS ? 1 : problem.n_threads;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        Buffers buffers(n_block, K);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < n_blocks; ++block) {
            const int64_t first = block * n_block;
            Kernel::block(problem, first, (int)std::min(n_block, n_rows - first), buffers);
        }
    }
}

template <class T>
void forward(const Problem& problem) {
    switch (problem.map) {
        case SOFTMAX: return run<Forward<Softmax, T>>(problem);
        case ANY: return run<Forward<Any, T>>(problem);
        case SQUARE: return run<Forward<Square, T>>(problem);
        default: return run<Forward<Linear, T>>(problem);
    }
}

template <class T>
void backward(const Problem& problem) {
    switch (problem.map) {
        case SOFTMAX: return run<Backward<Softmax, T, false>>(problem);
        case ANY:
            return problem.grad_alpha ? run<Backward<Any, T, true>>(problem)
                                      : run<Backward<Any, T, false>>(problem);
        case SQUARE: return run<Backward<Square, T, false>>(problem);
        default: return run<Backward<Linear, T, false>>(problem);
    }
}

}  // namespace

extern "C" {

void headwise_forward(const Problem* problem) {
    problem->is_half ? forward<BFloat16>(*problem) : forward<float>(*problem);
}

void headwise_backward(const Problem* problem) {
    problem->is_half ? backward<BFloat16>(*problem) : backward<float>(*problem);
}
}
