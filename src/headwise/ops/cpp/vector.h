// Arithmetic of vectors: maximum and minimum, several reductions at once, logarithm, exponential,
// random bits.
#pragma once

#include <utility>

#include "lanes.h"

namespace headwise {

static inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }
static inline Floats largest_or_nan(Floats a, Floats b) { return ((b > a) | (b != b)) ? b : a; }
static inline Floats least(Floats a, Floats b) { return a < b ? a : b; }

// ---- reductions of WIDTH vectors at once

// The lanes `lanes` of two vectors; those of the second are numbered from WIDTH on.
template <int... lanes>
static inline Floats picked(Floats a, Floats b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, lanes...);
#else
    return __builtin_shuffle(a, b, Ints{lanes...});
#endif
}

// Of two vectors in blocks of `block` lanes, move all even blocks to the first, all odd ones to the
// second.
template <int block, int... lane>
static inline void exchange(Floats& a, Floats& b, std::integer_sequence<int, lane...>) {
    const Floats even = picked<(lane / block % 2 ? WIDTH + lane - block : lane)...>(a, b);
    b = picked<(lane / block % 2 ? WIDTH + lane : lane + block)...>(a, b);
    a = even;
}

template <int block>
static inline void exchange(Floats& a, Floats& b) {
    exchange<block>(a, b, std::make_integer_sequence<int, WIDTH>());
}

// Lane r of the result is the reduction of vector r.
template <int block = WIDTH / 2, class Operation>
static inline Floats reduce(Floats* rows, Operation operation) {
    for (int r = 0; r < block; ++r) {
        exchange<block>(rows[r], rows[r + block]);
        rows[r] = operation(rows[r], rows[r + block]);
    }
    if constexpr (block > 1) return reduce<block / 2>(rows, operation);
    return rows[0];
}

static inline Floats sums(Floats* parts) {
    return reduce(parts, [](Floats a, Floats b) { return a + b; });
}

// A sum in groups of vectors: a plain sum of thousands loses digits.
constexpr int GROUP = 16;

struct LongSum {
    Floats total = Floats{}, recent = Floats{};
    int n_recent = 0;

    void add(Floats values) {
        recent = recent + values;
        if (++n_recent < GROUP) return;
        total = total + recent;
        recent = Floats{};
        n_recent = 0;
    }

    Floats sum() const { return total + recent; }
};

static inline float across_lanes(Floats values) {
    float sum = 0.0f;
    for (int lane = 0; lane < WIDTH; ++lane) sum += values[lane];
    return sum;
}

// ---- logarithm and exponential to base 2; minimax coefficients (relative error)

// log2(1 + d), given d and x = 1 + d > 0: the rounding of x alone would lose the digits of small d.
static inline Floats log2_1p(Floats d, Floats x) {
    const Ints bits = (Ints)x;
    const Ints exponent = (bits - 0x3f3504f3) >> 23;  // x = m 2^exponent, m from √½ to √2
    const Floats m = (Floats)(bits - (exponent << 23));
    const Floats f = exponent == 0 ? d : m - 1.0f;
    const Floats f2 = f * f, f4 = f2 * f2;  // Estrin: short chains
    const Floats low = (1.4426950216293335f - 0.7213473320007324f * f) +
                       (0.48091062903404236f - 0.3607036769390106f * f) * f2;
    const Floats high = (0.28791624307632446f - 0.23894482851028442f * f) +
                        (0.21571561694145203f - 0.20726972818374634f * f) * f2 +
                        0.12583698332309723f * f4;
    const Floats poly = low + high * f4;
    return __builtin_convertvector(exponent, Floats) + poly * f;
}

static inline Floats log2(Floats x) { return log2_1p(x - 1.0f, x); }

// 2^x for x from -126 to 126; 0 for smaller x.
static inline Floats exp2(Floats x) {
    const Floats shifter = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer
    const Floats shifted = x + shifter;
    const Floats f = x - (shifted - shifter), f2 = f * f;
    const Floats poly = (1.0000001192092896f + 0.6931469440460205f * f) +
                        ((0.24022120237350464f + 0.05550713092088699f * f) +
                         (0.009675540961325169f + 0.001327647129073739f * f) * f2) * f2;
    const Ints bits = (Ints)poly + ((Ints)shifted << 23);
    return x < -126.0f ? Floats{} : (Floats)bits;
}

// ---- counter-based random bits: hash of a key and counters

static inline uint64_t mixed(uint64_t x) {  // the finaliser of SplitMix64 (Steele et al. 2014)
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Murmur's finaliser, with the key added before and inside.
static inline Words random_words(uint64_t key, uint32_t first) {
    Words x = (Words)LANES + first + (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) + (uint32_t)(key >> 32);
    x = x * 0xc2b2ae35u;
    x = (x ^ (x >> 16)) * 0x27d4eb2fu;
    return x ^ (x >> 15);
}

}  // namespace headwise
