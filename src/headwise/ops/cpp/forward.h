// Weights from scores.
#pragma once

#include "rows.h"

namespace headwise {

struct Softmax {};

template <class Power, class T>
struct Forward {
    static constexpr int N_BUFFERS = 2;

    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        Row row[ROWS];
        RowReader reader(problem, first);
        Rows rows;
        float beta[ROWS];
        Floats part[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            beta[r] = 1.0f;
            if (r >= n_rows) continue;
            row[r] = reader.next();
            beta[r] = row[r].beta;
            rows.b[r] = buffers.row(0, r);
            rows.s[r] = buffers.row(1, r);
            part[r] = read_scores(
                (const T*)problem.input + row[r].start, row[r], problem.mask_stride[3],
                rows.b[r]);
        }
        const Floats highest = reduce(part, largest_or_nan);
        for (int r = 0; r < n_rows; ++r) {
            const int n_kept = keep_candidates(
                rows.b[r], row[r].n_visible, top_of(highest[r]), beta[r], buffers.lanes[r].data());
            rows.n_vectors[r] = (int)(round_up(n_kept) / WIDTH);
        }
        rows.n = n_rows;
        rows.beta = load(beta);
        rows.is_empty = highest == -INFINITE ? splat(1.0f) : Floats{};
        rows.shift_max = one_minus_exp2(-rows.beta * log2(splat((float)K)));
        solve<Power>(rows);
        if (problem.threshold) {
            // to first order, a step along s is a step of the shift
            const Floats shift = rows.shift + rows.correction * rows.beta;
            for (int r = 0; r < n_rows; ++r) {
                problem.threshold[2 * row[r].index] = highest[r];
                problem.threshold[2 * row[r].index + 1] = shift[r];
            }
        }
        for (int r = 0; r < n_rows; ++r) {
            const Dropout dropout(problem, row[r]);
            T* out = (T*)problem.out + row[r].start;
            const Floats shift = splat(rows.shift[r]), correction = splat(rows.correction[r]);
            for (int k = 0; k < rows.n_vectors[r] * WIDTH; k += WIDTH) {
                float* b = rows.b[r] + k;
                store(b, weights<Power>(load(b), load(rows.s[r] + k), shift, correction));
            }
            spread(rows.b[r], buffers.lanes[r].data(), row[r], out, K, dropout);
        }
    }
};

template <class T>
struct Forward<Softmax, T> {
    static constexpr int N_BUFFERS = 1;

    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        Row row[ROWS];
        RowReader reader(problem, first);
        Floats part[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            row[r] = reader.next();
            part[r] = read_scores(
                (const T*)problem.input + row[r].start, row[r], problem.mask_stride[3],
                buffers.row(0, r));
        }
        const Floats highest = reduce(part, largest_or_nan);
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            if (r >= n_rows) continue;
            float* z = buffers.row(0, r);
            const float top = top_of(highest[r]);
            LongSum total;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH) {
                const Floats e = exp2((load(z + k) - top) * 1.4426950408889634f);
                store(z + k, e);
                total.add(e);
            }
            part[r] = total.sum();
        }
        const Floats total = sums(part);
        const Floats scale = highest == -INFINITE ? Floats{} : 1.0f / total;
        const Floats shift = natural(log2(total));
        for (int r = 0; r < n_rows; ++r) {
            const Dropout dropout(problem, row[r]);
            if (problem.threshold) {
                problem.threshold[2 * row[r].index] = highest[r];
                problem.threshold[2 * row[r].index + 1] = shift[r];
            }
            const float* e = buffers.row(0, r);
            T* out = (T*)problem.out + row[r].start;
            for (int64_t k = 0; k < row[r].n_visible; k += WIDTH)
                write(out + k, dropout(load(e + k) * scale[r], k), K - k);
            write_rest(out, row[r], K);
        }
    }
};

}  // namespace headwise
