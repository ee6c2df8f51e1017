// Sixteen floats at a time, on any processor that GCC or Clang knows.
//
// The types are the compilers' vector extension: a processor with narrower registers gets two or
// four instructions for one. Where AVX-512 is there, what the extension cannot say (a part of a
// vector in memory, keeping chosen lanes) is said in its own words.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Lanes of two vectors, numbered 0 to 31.
#if defined(__clang__)
#define HEADWISE_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define HEADWISE_PICK(a, b, ...) __builtin_shuffle(a, b, (Ints{__VA_ARGS__}))
#endif

namespace headwise {

constexpr int WIDTH = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(64)));

struct BFloat16 {
    uint16_t bits;
};

static inline Floats splat(float value) { return Floats{} + value; }
static inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }
static inline Floats largest_or_nan(Floats a, Floats b) { return (b > a) | (b != b) ? b : a; }
static inline Floats least(Floats a, Floats b) { return a < b ? a : b; }

constexpr Ints LANES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline bool any(Ints condition) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
#else
    typedef int64_t Longs __attribute__((vector_size(64)));
    const Longs longs = (Longs)condition;
    return (longs[0] | longs[1] | longs[2] | longs[3] | longs[4] | longs[5] | longs[6] | longs[7]) != 0;
#endif
}

// ---- memory: `n` lanes of sixteen, the others are not touched and read as `fill`

static inline Floats load(const float* from) {
    Floats out;
    memcpy(&out, from, sizeof out);
    return out;
}

static inline Floats load(const BFloat16* from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

static inline Floats load(const float* from, int n, float fill) {
#if defined(__AVX512F__)
    return (Floats)_mm512_mask_loadu_ps((__m512)splat(fill), (__mmask16)((1u << n) - 1), from);
#else
    Floats out = splat(fill);
    memcpy(&out, from, sizeof(float) * n);
    return out;
#endif
}

static inline Floats load(const BFloat16* from, int n, float fill) {
    Halves halves = {};
    memcpy(&halves, from, sizeof(BFloat16) * n);
    const Floats read = (Floats)(__builtin_convertvector(halves, Words) << 16);
    return LANES < n ? read : splat(fill);
}

static inline void store(float* to, Floats value) { memcpy(to, &value, sizeof value); }

static inline void store(float* to, Floats value, int n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)value);
#else
    memcpy(to, &value, sizeof(float) * n);
#endif
}

static inline Halves rounded(Floats value) {
    const Words bits = (Words)value;  // to nearest, ties to even
    const Words up = (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16;
    const Words quiet = (bits >> 16) | 0x40u;  // rounding could make infinity of NaN
    return __builtin_convertvector(value == value ? up : quiet, Halves);
}

static inline void store(BFloat16* to, Floats value) {
    const Halves halves = rounded(value);
    memcpy(to, &halves, sizeof halves);
}

static inline void store(BFloat16* to, Floats value, int n) {
    const Halves halves = rounded(value);
    memcpy(to, &halves, sizeof(BFloat16) * n);
}

// Bytes of a mask, as all bits of a lane set where the byte is not 0.
static inline Ints load_mask(const uint8_t* from, int n) {
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    Bytes bytes = {};
    if (n == WIDTH)
        memcpy(&bytes, from, sizeof bytes);
    else
        memcpy(&bytes, from, n);
    return __builtin_convertvector(bytes, Ints) != 0;
}

// Write the lanes of `value` where `keep` is set next to each other, and say which they were, a bit
// a lane. All sixteen floats from `to` on may be overwritten.
static inline uint32_t compress(float* to, Floats value, Ints keep) {
#if defined(__AVX512F__)
    const __mmask16 bits = _mm512_test_epi32_mask((__m512i)keep, (__m512i)keep);
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(bits, (__m512)value));
    return bits;
#else
    uint32_t bits = 0;
    int n = 0;
    for (int lane = 0; lane < WIDTH; ++lane) {
        to[n] = value[lane];
        n += keep[lane] != 0;
        bits |= (uint32_t)(keep[lane] != 0) << lane;
    }
    return bits;
#endif
}

// The reverse: the next floats from `from` on in the lanes of `bits`, 0 in the others.
static inline Floats expand(const float* from, uint32_t bits) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_expandloadu_ps((__mmask16)bits, from);
#else
    Floats out = {};
    for (int lane = 0; lane < WIDTH; ++lane)
        if (bits >> lane & 1) out[lane] = *from++;
    return out;
#endif
}

// ---- sixteen reductions at once: lane r of the result is the reduction of parts[r]

template <class Operation>
static inline Floats reduce(Floats* parts, Operation operation) {
    for (int r = 0; r < 8; ++r) {
        const Floats a = parts[r], b = parts[r + 8];
        parts[r] = operation(
            HEADWISE_PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
            HEADWISE_PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
    }
    for (int r = 0; r < 4; ++r) {
        const Floats a = parts[r], b = parts[r + 4];
        parts[r] = operation(
            HEADWISE_PICK(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
            HEADWISE_PICK(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
    }
    for (int r = 0; r < 2; ++r) {
        const Floats a = parts[r], b = parts[r + 2];
        parts[r] = operation(
            HEADWISE_PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
            HEADWISE_PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
    }
    return operation(
        HEADWISE_PICK(parts[0], parts[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
        HEADWISE_PICK(parts[0], parts[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
}

static inline Floats sums(Floats* parts) {
    return reduce(parts, [](Floats a, Floats b) { return a + b; });
}

// ---- logarithm and exponential to base 2; coefficients: least greatest relative error

// log2(1 + d), given 1 + d > 0 as well, whose rounding would cost small d their digits.
static inline Floats log2_1p(Floats d, Floats x) {
    const Ints bits = (Ints)x;
    const Ints exponent = (bits - 0x3f3504f3) >> 23;  // x = m 2^exponent, m from √½ to √2
    const Floats m = (Floats)(bits - (exponent << 23));
    const Floats f = exponent == 0 ? d : m - 1.0f;
    Floats poly = splat(0.12583698332309723f);
    poly = poly * f - 0.20726972818374634f;
    poly = poly * f + 0.21571561694145203f;
    poly = poly * f - 0.23894482851028442f;
    poly = poly * f + 0.28791624307632446f;
    poly = poly * f - 0.3607036769390106f;
    poly = poly * f + 0.48091062903404236f;
    poly = poly * f - 0.7213473320007324f;
    poly = poly * f + 1.4426950216293335f;
    return __builtin_convertvector(exponent, Floats) + poly * f;
}

static inline Floats log2(Floats x) { return log2_1p(x - 1.0f, x); }

// 2^x for x from -126 to 126; below, 0.
static inline Floats exp2(Floats x) {
    const Floats shifter = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number
    const Floats whole = (x + shifter) - shifter;
    const Floats f = x - whole;
    Floats poly = splat(0.001327647129073739f);
    poly = poly * f + 0.009675540961325169f;
    poly = poly * f + 0.05550713092088699f;
    poly = poly * f + 0.24022120237350464f;
    poly = poly * f + 0.6931469440460205f;
    poly = poly * f + 1.0000001192092896f;
    const Ints bits = (Ints)poly + (__builtin_convertvector(whole, Ints) << 23);
    return x < -126.0f ? Floats{} : (Floats)bits;
}

// ---- random bits that anyone can draw again: hash of a key and sixteen counters

static inline uint64_t mixed(uint64_t x) {  // the finaliser of SplitMix64 (Steele et al. 2014)
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline Words random_words(uint64_t key, uint32_t first) {
    Words x = (Words)LANES + first + (uint32_t)key;  // murmur's finaliser, keyed before and within
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) + (uint32_t)(key >> 32);
    x = x * 0xc2b2ae35u;
    x = (x ^ (x >> 16)) * 0x27d4eb2fu;
    return x ^ (x >> 15);
}

}  // namespace headwise
