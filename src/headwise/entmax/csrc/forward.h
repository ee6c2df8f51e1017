// Weights from scores.
#pragma once

#include "rows.h"

namespace headwise {

struct Softmax {};

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
                (const T*)problem.source + row[r].start, row[r], problem.mask_stride[3], rows.b[r]);
        }
        const Floats highest = reduce(part, largest_or_nan);
        rows.beta = beta;
        rows.is_empty = highest == -INFINITE ? splat(1.0f) : Floats{};
        rows.shift_max = one_minus_exp2(-beta * log2(n_keys));
        for (int r = 0; r < n_rows; ++r) {
            const int64_t n = row[r].n_visible;
            const float top = top_of(highest[r]);
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
        if (problem.threshold) {
            // a step along s is to first order a step of the shift
            const Floats shift = rows.shift + rows.correction * beta;
            for (int r = 0; r < n_rows; ++r) {
                problem.threshold[2 * (first + r)] = highest[r];
                problem.threshold[2 * (first + r) + 1] = shift[r];
            }
        }
        for (int r = 0; r < n_rows; ++r) {
            const Dropout dropout(problem, first + r);
            T* out = (T*)problem.out + row[r].start;
            write_row(out, K, row[r], rows, r, buffers.kept[r], dropout);
        }
    }

    static void write_row(
        T* out, int64_t K, const Row& row, const Rows& rows, int r, const Kept& kept,
        const Dropout& dropout) {
        const float shift = rows.shift[r], correction = rows.correction[r];
        const float *b = rows.b[r], *s = rows.s[r];
        if (kept.is_compact) {
            float* p = rows.s[r];
            for (int v = 0; v < rows.n_vectors[r]; ++v)
                store(p + v * WIDTH,
                      weights<Power>(load(b + v * WIDTH), load(s + v * WIDTH), shift, correction));
            for (int64_t k = 0; k < row.n_visible; k += WIDTH) {
                const uint32_t bits = kept.bits[k / WIDTH];
                write(out + k, dropout(expand(p, bits), k), K - k);
                p += __builtin_popcount(bits);
            }
        } else {
            for (int64_t k = 0; k < row.n_visible; k += WIDTH)
                write(out + k,
                      dropout(weights<Power>(load(b + k), load(s + k), shift, correction), k), K - k);
        }
        write_rest(out, row, K);
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
                (const T*)problem.source + row[r].start, row[r], problem.mask_stride[3],
                buffers.first.data() + r * buffers.width);
        }
        const Floats highest = reduce(part, largest_or_nan);
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            float* z = buffers.first.data() + r * buffers.width;
            const float top = top_of(highest[r]);
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
        const Floats shift = natural(log2(total));
        for (int r = 0; r < n_rows; ++r) {
            const Dropout dropout(problem, first + r);
            if (problem.threshold) {
                problem.threshold[2 * (first + r)] = highest[r];
                problem.threshold[2 * (first + r) + 1] = shift[r];
            }
            const float* e = buffers.first.data() + r * buffers.width;
            T* out = (T*)problem.out + row[r].start;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH)
                write(out + k, dropout(load(e + k) * scale[r], k), K - k);
            write_rest(out, row[r], K);
        }
    }
};

}  // namespace headwise
