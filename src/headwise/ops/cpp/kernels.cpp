// Softmax and α-entmax along the rows of a contiguous tensor (B, H, Q, K), and their gradients;
// dropout; linear maps of few rows.
//
// Masks are read in place, with strides that may be 0, or given as lengths and causality, without a
// copy of the size of the scores. Rows are distributed over threads; no row depends on another.

#include <algorithm>

#include "attention_few.h"
#include "dropout.h"
#include "linear_few.h"
#include "loss.h"

using namespace headwise;

namespace {

constexpr int64_t SERIAL_FLOATS = 16384;  // up to here one thread is faster
constexpr int64_t SERIAL_MULTIPLICATIONS = 131072;  // the same for attention and linear maps

// Call `Kernel::block` for all rows, a block at a time, on `n_threads` threads.
template <class Kernel, class P>
void for_blocks(
    const P& problem, int64_t n_rows, int64_t n_keys, int64_t block_floats, int n_threads) {
    if (n_rows == 0 || n_keys == 0) return;
    const int64_t n_block =
        std::max<int64_t>(1, std::min<int64_t>(ROWS, block_floats / round_up(n_keys)));
    const int64_t n_blocks = (n_rows + n_block - 1) / n_block;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        Buffers buffers(n_block, n_keys, Kernel::N_BUFFERS);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < n_blocks; ++block) {
            const int64_t first = block * n_block;
            Kernel::block(problem, first, (int)std::min(n_block, n_rows - first), buffers);
        }
    }
}

template <class Kernel>
void run(const Problem& problem) {
    const int64_t n_rows = problem.n_rows, K = problem.size[3];
    const int n_threads = n_rows * K <= SERIAL_FLOATS ? 1 : problem.n_threads;
    for_blocks<Kernel>(problem, n_rows, K, BLOCK_FLOATS, n_threads);
}

template <class Kernel>
void run(const LossProblem& problem) {
    const int64_t n_rows = problem.n_rows, n_classes = problem.n_classes;
    const int n_threads = n_rows * n_classes <= SERIAL_FLOATS ? 1 : problem.n_threads;
    for_blocks<Kernel>(problem, n_rows, n_classes, LOSS_BLOCK_FLOATS, n_threads);
}

template <template <class, class> class Kernel, class T>
void loss(const LossProblem& problem) {
    switch (problem.map) {
        case SOFTMAX: return run<Kernel<Softmax, T>>(problem);
        case SQUARE: return run<Kernel<Square, T>>(problem);
        case LINEAR: return run<Kernel<Linear, T>>(problem);
        default: return run<Kernel<Any, T>>(problem);
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

template <class Kernel>
void run(const AttendProblem& problem) {
    const int64_t n_rows = problem.rows.n_rows, K = problem.rows.size[3];
    const int n_threads =
        n_rows * K * problem.width <= SERIAL_MULTIPLICATIONS ? 1 : problem.rows.n_threads;
    for_blocks<Kernel>(problem, n_rows, K, BLOCK_FLOATS, n_threads);
}

template <class T>
void attend(const AttendProblem& problem) {
    switch (problem.rows.map) {
        case SOFTMAX: return run<Attend<Softmax, T>>(problem);
        case ANY: return run<Attend<Any, T>>(problem);
        case SQUARE: return run<Attend<Square, T>>(problem);
        default: return run<Attend<Linear, T>>(problem);
    }
}

template <class Power, class T, bool with_alpha>
void backward_of(const Problem& problem) {
    problem.threshold ? run<Backward<Power, T, with_alpha, true>>(problem)
                      : run<Backward<Power, T, with_alpha, false>>(problem);
}

template <class T>
void backward(const Problem& problem) {
    switch (problem.map) {
        case SOFTMAX: return backward_of<Softmax, T, false>(problem);
        case ANY:
            return problem.grad_alpha ? backward_of<Any, T, true>(problem)
                                      : backward_of<Any, T, false>(problem);
        case SQUARE: return backward_of<Square, T, false>(problem);
        default: return backward_of<Linear, T, false>(problem);
    }
}

template <class T>
void drop(const DropoutProblem& problem) {
    const int64_t n_chunks = (problem.n + CHUNK - 1) / CHUNK;
    [[maybe_unused]] const int n_threads = problem.n <= SERIAL_FLOATS ? 1 : problem.n_threads;
#pragma omp parallel for schedule(static) num_threads(n_threads) if (n_threads > 1)
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) drop_chunk<T>(problem, chunk);
}

template <class T>
void linear_of_few(const LinearProblem& problem) {
    const int64_t n_products = problem.n_rows * problem.width * problem.n_outputs;
    [[maybe_unused]] const int n_threads =
        n_products <= SERIAL_MULTIPLICATIONS ? 1 : problem.n_threads;
#pragma omp parallel for schedule(static) num_threads(n_threads) if (n_threads > 1)
    for (int64_t first = 0; first < problem.n_outputs; first += WIDTH)
        LinearOfFew<T>::block(problem, first);
}

}  // namespace

extern "C" {

void headwise_forward(const Problem* problem) {
    problem->is_half ? forward<BFloat16>(*problem) : forward<float>(*problem);
}

void headwise_backward(const Problem* problem) {
    problem->is_half ? backward<BFloat16>(*problem) : backward<float>(*problem);
}

void headwise_attend(const AttendProblem* problem) {
    problem->is_half ? attend<BFloat16>(*problem) : attend<float>(*problem);
}

void headwise_loss_forward(const LossProblem* problem) {
    problem->is_half ? loss<LossForward, BFloat16>(*problem) : loss<LossForward, float>(*problem);
}

void headwise_loss_backward(const LossProblem* problem) {
    problem->is_half ? loss<LossBackward, BFloat16>(*problem) : loss<LossBackward, float>(*problem);
}

void headwise_dropout(const DropoutProblem* problem) {
    problem->is_half ? drop<BFloat16>(*problem) : drop<float>(*problem);
}

void headwise_linear_of_few(const LinearProblem* problem) {
    problem->is_half ? linear_of_few<BFloat16>(*problem) : linear_of_few<float>(*problem);
}
}
