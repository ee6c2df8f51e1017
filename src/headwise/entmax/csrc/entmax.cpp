// Softmax and α-entmax along the rows of a contiguous tensor (B, H, Q, K), and their gradients.
//
// Masks are read where they lie, by strides that may be 0, or given as lengths and causality: no
// copy as large as the scores is made. Threads share out rows; no row depends on another.

#include <algorithm>

#include "backward.h"

using namespace headwise;

namespace {

constexpr int64_t SERIAL_FLOATS = 16384;  // a problem of this size is done before threads wake up

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

}  // namespace

extern "C" {

void headwise_forward(const Problem* problem) {
    problem->is_half ? forward<BFloat16>(*problem) : forward<float>(*problem);
}

void headwise_backward(const Problem* problem) {
    problem->is_half ? backward<BFloat16>(*problem) : backward<float>(*problem);
}
}
