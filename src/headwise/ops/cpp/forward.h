// Weights from scores.
#pragma once

#include "rows.h"

namespace headwise {

struct Softmax {};

// Replace b of the kept keys of each row r, from b[r] on, by their weights.
template <class Power>
inline void solve_along(Rows& rows, float* const* b, const int* n_kept, Buffers& buffers) {
    Along layout;
    layout.n_rows = rows.n;
    for (int r = 0; r < rows.n; ++r) {
        layout.b[r] = b[r];
        layout.s[r] = buffers.row(1, r);
        layout.n_vectors[r] = (int)(round_up(n_kept[r]) / WIDTH);
    }
    solve<Power>(rows, layout);
    for (int r = 0; r < rows.n; ++r) {
        const Floats shift = splat(rows.shift[r]), correction = splat(rows.correction[r]);
        for (int k = 0; k < n_kept[r]; k += WIDTH) {
            const Floats s = load(layout.s[r] + k);
            store(b[r] + k, weights<Power>(load(b[r] + k), s, shift, correction));
        }
    }
}

// There are as many buffer rows as lanes, so that interleaved rows fit into them.
static_assert(round_up(ACROSS_UP_TO) * ROWS <= BLOCK_FLOATS);

template <class Power>
inline void solve_across(Rows& rows, float* const* b, const int* n_kept, Buffers& buffers) {
    const int n_max = *std::max_element(n_kept, n_kept + rows.n);
    float *across = buffers.row(1, 0), *s = buffers.row(2, 0);
    Floats square[ROWS];
    for (int first = 0; first < n_max; first += WIDTH) {
        for (int r = 0; r < ROWS; ++r) {
            const bool is_loaded = r < rows.n && first < n_kept[r];
            square[r] = is_loaded ? load(b[r] + first) : splat(INFINITE);
        }
        transpose(square);
        for (int k = 0; k < WIDTH; ++k) store(across + (first + k) * WIDTH, square[k]);
    }
    solve<Power>(rows, Across{across, s, n_max});
    for (int first = 0; first < n_max; first += WIDTH) {
        for (int k = 0; k < WIDTH; ++k) {
            const int at = (first + k) * WIDTH;
            square[k] =
                weights<Power>(load(across + at), load(s + at), rows.shift, rows.correction);
        }
        transpose(square);
        for (int r = 0; r < rows.n; ++r) store(b[r] + first, square[r]);
    }
}

template <class Power, class T>
struct Forward {
    static constexpr int N_BUFFERS = 3;

    static void block(const Problem& problem, int64_t first, int n_rows, Buffers& buffers) {
        const int64_t K = problem.size[3];
        Row row[ROWS];
        RowReader reader(problem, first);
        float beta[ROWS], *kept[ROWS];
        Floats part[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            part[r] = Floats{};
            beta[r] = 1.0f;
            if (r >= n_rows) continue;
            row[r] = reader.next();
            beta[r] = row[r].beta;
            kept[r] = buffers.row(0, r);
            part[r] = read_scores(
                (const T*)problem.source + row[r].start, row[r], problem.mask_stride[3], kept[r]);
        }
        const Floats highest = reduce(part, largest_or_nan);
        int n_kept[ROWS];
        for (int r = 0; r < n_rows; ++r)
            n_kept[r] = keep_candidates(
                kept[r], row[r].n_visible, top_of(highest[r]), beta[r], buffers.lanes[r].data());
        Rows rows;
        rows.n = n_rows;
        rows.beta = load(beta);
        rows.is_empty = highest == -INFINITE ? splat(1.0f) : Floats{};
        rows.shift_max = one_minus_exp2(-rows.beta * log2(splat((float)K)));
        if (K <= ACROSS_UP_TO)
            solve_across<Power>(rows, kept, n_kept, buffers);
        else
            solve_along<Power>(rows, kept, n_kept, buffers);
        if (problem.threshold) {
            // to first order, a step along s is a step of the shift
            const Floats shift = rows.shift + rows.correction * rows.beta;
            for (int r = 0; r < n_rows; ++r) {
                problem.threshold[2 * (first + r)] = highest[r];
                problem.threshold[2 * (first + r) + 1] = shift[r];
            }
        }
        for (int r = 0; r < n_rows; ++r) {
            const Dropout dropout(problem, first + r);
            T* out = (T*)problem.out + row[r].start;
            spread(kept[r], buffers.lanes[r].data(), row[r], out, K, dropout);
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
                (const T*)problem.source + row[r].start, row[r], problem.mask_stride[3],
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
            const Dropout dropout(problem, first + r);
            if (problem.threshold) {
                problem.threshold[2 * (first + r)] = highest[r];
                problem.threshold[2 * (first + r) + 1] = shift[r];
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
