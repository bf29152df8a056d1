// Sixteen floats at a time, in the vector extension that GCC and Clang share; the compiler maps it to what the
// machine has (AVX-512, AVX2, NEON). Numbers are stored as bfloat16 or float32 and computed in float32.

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

// To the nearest, ties to even; NaN stays NaN.
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

// e^x to 2 units in the last place (Cephes' expf); 0 below -87, e^88 above 88. 2^n is multiplied, not added to the
// exponent's bits: then NaN stays NaN, whatever its own bits are.
INLINE f32x16 exp_of(f32x16 x) {
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    f32x16 in_range = smaller(splat(88.0f), larger(splat(-87.0f), x));  // in this order NaN stays
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

#define SWAP(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)

INLINE float sum_of(f32x16 x) {
    x += SWAP(x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += SWAP(x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += SWAP(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return x[0] + x[1];
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
