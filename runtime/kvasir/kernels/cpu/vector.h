// Vectors of sixteen floats in the extension of GCC and Clang, which compiles to AVX-512, AVX2 or NEON. Numbers are
// stored as bfloat16 or float32 and computed in float32.

#include <stdint.h>

typedef float f32x16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i32x16 __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u32x16 __attribute__((vector_size(64), aligned(4)));
typedef uint16_t u16x16 __attribute__((vector_size(32), aligned(2)));
typedef uint16_t bf16;
typedef float f32;

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

INLINE f32x16 load_bf16(const bf16 *from) {
    return (f32x16)(__builtin_convertvector(*(const u16x16 *)from, u32x16) << 16);
}

// Rounds to the nearest, ties to even; NaN stays NaN.
INLINE void store_bf16(bf16 *to, f32x16 x) {
    u32x16 bits = (u32x16)x;
    u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u32x16 nan = (u32x16)(x != x);
    *(u16x16 *)to = __builtin_convertvector((rounded & ~nan) | (0x7fc0 & nan), u16x16);
}

INLINE f32x16 load_f32(const f32 *from) { return *(const f32x16 *)from; }
INLINE void store_f32(f32 *to, f32x16 x) { *(f32x16 *)to = x; }

INLINE f32x16 splat(float x) { return (f32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE f32x16 choose(i32x16 condition, f32x16 yes, f32x16 no) {
    return (f32x16)(((i32x16)yes & condition) | ((i32x16)no & ~condition));
}
INLINE f32x16 larger(f32x16 a, f32x16 b) { return choose(a > b, a, b); }
INLINE f32x16 smaller(f32x16 a, f32x16 b) { return choose(a < b, a, b); }

// The floats of a register (AVX-512, AVX2, or two of NEON), for the sums of matrix products.
#ifdef __AVX512F__
#define WIDE 16
#define OUTPUTS_AT_ONCE 6
#else
#define WIDE 8
#define OUTPUTS_AT_ONCE 3
#endif
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef uint32_t wide_bits __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef uint16_t wide_halves __attribute__((vector_size(2 * WIDE), aligned(2)));

INLINE wide load_wide_f32(const f32 *from) { return *(const wide *)from; }
INLINE wide load_wide_bf16(const bf16 *from) {
    return (wide)(__builtin_convertvector(*(const wide_halves *)from, wide_bits) << 16);
}
// The last numbers of a row, fewer than WIDE, followed by zeros.
INLINE wide load_some_f32(const f32 *from, int64_t count) {
    f32 numbers[WIDE] = {0};
    for (int64_t i = 0; i < count; i++) numbers[i] = from[i];
    return load_wide_f32(numbers);
}
INLINE wide load_some_bf16(const bf16 *from, int64_t count) {
    bf16 numbers[WIDE] = {0};
    for (int64_t i = 0; i < count; i++) numbers[i] = from[i];
    return load_wide_bf16(numbers);
}
INLINE float load_one_f32(const f32 *from) { return *from; }
INLINE float load_one_bf16(const bf16 *from) {
    union { uint32_t bits; float number; } widened = {(uint32_t)*from << 16};
    return widened.number;
}
INLINE void store_one_f32(f32 *to, float x) { *to = x; }
INLINE void store_one_bf16(bf16 *to, float x) {
    bf16 numbers[LANES];
    store_bf16(numbers, splat(x));
    *to = numbers[0];
}

// e^x to 2 units in the last place (Cephes' expf); 0 below -87, e^88 above 88. 2^n is multiplied, not added to the
// exponent's bits: then NaN stays NaN, whatever its own bits are.
INLINE f32x16 exp_of(f32x16 x) {
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    f32x16 in_range = smaller(splat(88.0f), larger(splat(-87.0f), x));  // NaN stays in this order of arguments
    f32x16 shifted = in_range * 1.44269504f + magic;
    f32x16 n = shifted - magic;
    f32x16 r = in_range - n * 0.693359375f + n * 2.12194440e-4f;
    f32x16 p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    f32x16 power = (f32x16)(((i32x16)shifted - ((i32x16)magic - 127)) << 23);
    return choose(x < splat(-87.0f), splat(0.0f), p * power);
}

INLINE f32x16 tanh_of(f32x16 x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

// The natural logarithm of a positive normal number (Cephes' logf); NaN and infinity stay themselves.
INLINE f32x16 log_of(f32x16 x) {
    i32x16 bits = (i32x16)x, exponent = ((bits - 0x3f3504f3) >> 23);  // mantissas from sqrt(1/2) to sqrt(2)
    f32x16 f = (f32x16)(bits - (exponent << 23)) - 1.0f, e = __builtin_convertvector(exponent, f32x16), z = f * f;
    f32x16 p = splat(7.0376836292e-2f);
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    f32x16 y = p * f * z - e * 2.12194440e-4f - 0.5f * z;
    return choose((x != x) | (x > 3.4e38f), x, f + y + e * 0.693359375f);
}

#define SWAP(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)

INLINE float sum_of(f32x16 x) {
    x += SWAP(x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += SWAP(x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += SWAP(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return x[0] + x[1];
}

INLINE float sum_of_wide(wide x) {
    float parts[WIDE];
    *(wide *)parts = x;
    for (int half = WIDE / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

INLINE float max_of(f32x16 x) {
    x = larger(x, SWAP(x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    x = larger(x, SWAP(x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    x = larger(x, SWAP(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return x[0] > x[1] ? x[0] : x[1];
}

// The sums of 16 vectors, one in each lane: a tree that halves their number at each step.
INLINE f32x16 sums_of(f32x16 v[LANES]) {
    for (int i = 0; i < 8; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return __builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}
