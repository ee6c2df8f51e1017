// Vectors of as many floats as a register holds: sixteen with AVX-512, eight with AVX2, else four.
//
// The types are the vector extension of GCC and Clang. Operations that it lacks (partial loads and
// stores, compacting lanes) are here, with intrinsics where they are faster, else lane by lane.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headwise {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));

struct BFloat16 {
    uint16_t bits;
};

static inline Floats splat(float value) { return Floats{} + value; }

static inline Ints numbered() {
    Ints lanes;
    for (int lane = 0; lane < WIDTH; ++lane) lanes[lane] = lane;
    return lanes;
}

static const Ints LANES = numbered();

// One bit per lane, 1 where the lane is set (all its bits are).
static inline uint32_t bits_of(Ints condition) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)condition);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < WIDTH; ++lane) bits |= (uint32_t)(condition[lane] != 0) << lane;
    return bits;
#endif
}

static inline bool any(Ints condition) { return bits_of(condition) != 0; }

// ---- memory: the first `n` lanes; the others are not accessed, and loaded as `fill`

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
#elif defined(__AVX2__)
    const Ints is_loaded = LANES < n;
    const Floats read = (Floats)_mm256_maskload_ps(from, (__m256i)is_loaded);
    return is_loaded ? read : splat(fill);
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
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, (__m256i)(LANES < n), (__m256)value);
#else
    memcpy(to, &value, sizeof(float) * n);
#endif
}

// To nearest, ties to even. With AVX512_BF16 numbers below 2^-126 become 0: products of bfloat16 on
// such processors (dot products and AMX) read them as 0 as well.
static inline Halves rounded(Floats value) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
    const Words bits = (Words)value;
    const Words up = (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16;
    const Words quiet = (bits >> 16) | 0x40u;  // rounding could turn NaN into infinity
    return __builtin_convertvector(value == value ? up : quiet, Halves);
#endif
}

static inline void store(BFloat16* to, Floats value) {
    const Halves halves = rounded(value);
    memcpy(to, &halves, sizeof halves);
}

static inline void store(BFloat16* to, Floats value, int n) {
    const Halves halves = rounded(value);
    memcpy(to, &halves, sizeof(BFloat16) * n);
}

// The same for `n` that may exceed a whole vector.
template <class T>
static inline Floats read(const T* from, int64_t n, float fill) {
    return n >= WIDTH ? load(from) : load(from, (int)n, fill);
}

template <class T>
static inline void write(T* to, Floats value, int64_t n) {
    if (n >= WIDTH)
        store(to, value);
    else
        store(to, value, (int)n);
}

// Bytes of a mask -> lanes, all bits set where the byte is not 0.
static inline Ints load_mask(const uint8_t* from, int n) {
    Bytes bytes = {};
    if (n == WIDTH)
        memcpy(&bytes, from, sizeof bytes);
    else
        memcpy(&bytes, from, n);
    return __builtin_convertvector(bytes, Ints) != 0;
}

// ---- compacting selected lanes, and the reverse

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each subset of eight lanes, one byte per lane: the index of its source lane.
struct Permutations {
    uint64_t compacting[256] = {}, expanding[256] = {};

    constexpr Permutations() {
        for (int bits = 0; bits < 256; ++bits) {
            int n = 0;
            for (int lane = 0; lane < 8; ++lane) {
                if (!(bits >> lane & 1)) continue;
                compacting[bits] |= (uint64_t)lane << (8 * n);
                expanding[bits] |= (uint64_t)n++ << (8 * lane);
            }
        }
    }
};

constexpr Permutations PERMUTATIONS;

static inline Floats permuted(Floats value, uint64_t order) {
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)order));
    return (Floats)_mm256_permutevar8x32_ps((__m256)value, lanes);
}
#endif

// Write the lanes of `value` where `keep` is set next to each other; return which they are, one bit
// per lane. A whole vector from `to` on may be overwritten.
static inline uint32_t compress(float* to, Floats value, Ints keep) {
    const uint32_t bits = bits_of(keep);
#if defined(__AVX512F__)
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)value));
#elif defined(__AVX2__)
    store(to, permuted(value, PERMUTATIONS.compacting[bits]));
#else
    for (int lane = 0, n = 0; lane < WIDTH; ++lane) {
        to[n] = value[lane];
        n += bits >> lane & 1;
    }
#endif
    return bits;
}

// The reverse: floats from `from` on, into the lanes of `bits`, 0 in the others. A whole vector may
// be read.
static inline Floats expand(const float* from, uint32_t bits) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_expand_ps((__mmask16)bits, (__m512)load(from));
#elif defined(__AVX2__)
    const Ints is_set = ((Ints{} + (int32_t)bits) >> LANES & 1) != 0;
    return is_set ? permuted(load(from), PERMUTATIONS.expanding[bits]) : Floats{};
#else
    Floats out = {};
    for (int lane = 0; lane < WIDTH; ++lane)
        if (bits >> lane & 1) out[lane] = *from++;
    return out;
#endif
}

}  // namespace headwise
