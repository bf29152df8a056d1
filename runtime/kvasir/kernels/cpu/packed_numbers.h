// The numbers of quantised weights as vectors of PANEL outputs: float32, or pairs of bfloat16 where the processor has a
// dot product of them. Both are exact, except that pairs round a table (NF4) to bfloat16.
//
// A step is 8 inputs of PANEL outputs. INT4: 32 bits for each output, input k in bits 4k to 4k + 3. INT8 and FLOAT8: 4
// rows of PANEL pairs of bytes. BYTES: 2 rows of PANEL times 4 bytes, 128 higher. WIDENED: float32 [8, PANEL], or pairs
// [4, PANEL].

#ifdef __x86_64__
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#define VECTORS 4
#define PANEL (VECTORS * WIDE)
#define STEP 8
#define UNROLL _Pragma("GCC unroll 16")  // keeps arrays in registers
#ifdef __AVX512F__
#define FEW_TILE 4
#define MAX_TILE 6
#else
#define FEW_TILE 2
#define MAX_TILE 3
#endif

enum { INT4, INT8, FLOAT8, BYTES };  // BYTES: int8, for x in int8
enum { PAIRS = 4, WIDENED = 8 };  // a form is a kind and these flags
#define KIND(form) ((form) & 3)

typedef int32_t wide_int __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef _Float16 wide_float16 __attribute__((vector_size(2 * WIDE), aligned(2)));
typedef int8_t wide_int8 __attribute__((vector_size(WIDE), aligned(1)));

// 16 floats in registers.
#if defined(__AVX512F__)
typedef __m512 float_table;
INLINE float_table load_table(const float *from) { return _mm512_loadu_ps(from); }
INLINE wide look_up(float_table table, wide_bits index) {  // by the low 4 bits
    return (wide)_mm512_permutexvar_ps((__m512i)index, table);
}
#elif defined(__AVX2__)
typedef struct { __m256 low, high; } float_table;
INLINE float_table load_table(const float *from) {
    return (float_table){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
INLINE wide look_up(float_table table, wide_bits index) {
    __m256i i = (__m256i)index;
    __m256 low = _mm256_permutevar8x32_ps(table.low, i), high = _mm256_permutevar8x32_ps(table.high, i);
    return (wide)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
#else
typedef uint8x16x4_t float_table;
INLINE float_table load_table(const float *from) { return vld1q_u8_x4((const uint8_t *)from); }
INLINE wide look_up(float_table table, wide_bits index) {
    union { wide_bits bits; uint8x16_t bytes[2]; } i = {(index & 15) * 0x04040404 + 0x03020100};
    union { uint8x16_t bytes[2]; wide numbers; } found;
    for (int half = 0; half < 2; half++) found.bytes[half] = vqtbl4q_u8(table, i.bytes[half]);
    return found.numbers;
}
#endif

typedef wide_bits pairs;
typedef struct { float_table floats; pairs pairs; } tables;
#ifdef __AVX512BF16__
#define HAS_PAIRS 1
// Each twice, as the fifth bit of an index is arbitrary.
INLINE pairs load_pair_table(const float *from) {
    __m512 numbers = _mm512_loadu_ps(from);
    return (pairs)_mm512_cvtne2ps_pbh(numbers, numbers);
}
#else
#define HAS_PAIRS 0
INLINE pairs load_pair_table(const float *from) { return (pairs){*(const uint32_t *)from}; }
#endif
INLINE tables load_tables(const float *from) { return (tables){load_table(from), load_pair_table(from)}; }

INLINE int64_t number_bytes(int form) { return KIND(form) == BYTES ? 1 : form & PAIRS ? 2 : 4; }  // of x
INLINE int64_t step_bytes(int form) {
    if (form & WIDENED) return PANEL * STEP * number_bytes(form);
    return KIND(form) == INT4 ? PANEL * STEP / 2 : PANEL * STEP;
}

// float8_e4m3fn in the high byte, times 2^-8: its bits are those of a float16 without the exponent's lowest bit.
INLINE wide widen_float8(wide_halves x) {
    wide_halves bits = (x & 0x8000) | ((x & 0x7f00) >> 1);
    return __builtin_convertvector((wide_float16)bits, wide);
}

// Input k of a step, for the outputs of vector v.
INLINE wide number_of(int form, const uint8_t *step, int k, int v, tables table) {
    if (form & WIDENED) return ((const wide *)step)[k * VECTORS + v];
    if (KIND(form) == INT4) return look_up(table.floats, ((const wide_bits *)step)[v] >> 4 * k);
    wide_halves halves = ((const wide_halves *)step)[k / 2 * VECTORS + v];
    if (KIND(form) == FLOAT8) return widen_float8(k % 2 ? halves : halves << 8);
    wide_int numbers = (wide_int)__builtin_convertvector(halves, wide_bits) << (k % 2 ? 16 : 24);
    return __builtin_convertvector(numbers >> 24, wide);
}

#if HAS_PAIRS
// Inputs k and k + 4 of a step for INT4, 2k and 2k + 1 otherwise.
INLINE pairs pair_of(int form, const uint8_t *step, int k, int v, tables table) {
    if (form & WIDENED) return ((const pairs *)step)[k * VECTORS + v];
    if (KIND(form) == INT4) {
        __m512i words = _mm512_loadu_si512(step + v * 64);
        return (pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * k), (__m512i)table.pairs);
    }
    const __m128i *from = (const __m128i *)step + (k * VECTORS + v) * 2;
    if (KIND(form) == INT8) {
        __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128(from));
        __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128(from + 1));
        return (pairs)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
    }
    __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
    __m512i bits = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16((short)0xbfff));
    __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
    return (pairs)_mm512_cvtne2ps_pbh(high, low);
}

INLINE wide add_pairs(wide sum, pairs weights, uint32_t numbers) {
    return (wide)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(numbers));
}
#else
INLINE pairs pair_of(int form, const uint8_t *step, int k, int v, tables table) {
    (void)form, (void)step, (void)k, (void)v, (void)table;
    __builtin_unreachable();
}
INLINE wide add_pairs(wide sum, pairs weights, uint32_t numbers) {
    (void)weights, (void)numbers;
    return sum;
}
#endif

// sum + the products of 4 bytes of each output with 4 of x, exactly.
INLINE wide_int add_bytes(wide_int sum, wide_bits weights, uint32_t numbers) {
#if defined(__AVX512VNNI__)
    return (wide_int)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(numbers));
#elif defined(__AVX512BW__)
    __m512i all = (__m512i)weights, x = _mm512_set1_epi32(numbers), low = _mm512_set1_epi16(255);
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(all, low), _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(all, 8), _mm512_srai_epi16(x, 8));
    return sum + (wide_int)even + (wide_int)odd;
#elif defined(__AVX2__)
    __m256i all = (__m256i)weights, x = _mm256_set1_epi32(numbers), low = _mm256_set1_epi16(255);
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(all, low), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(all, 8), _mm256_srai_epi16(x, 8));
    return sum + (wide_int)even + (wide_int)odd;
#else
    for (int byte = 0; byte < 4; byte++)
        sum += (wide_int)(weights >> 8 * byte & 255) * (int32_t)(int8_t)(numbers >> 8 * byte);
    return sum;
#endif
}
