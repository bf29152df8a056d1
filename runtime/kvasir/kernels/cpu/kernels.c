// Kvasir's kernels for CPUs, called by kvasir.kernels.cpu: each has a reference in plain torch in
// kvasir.layers, and tests compare the two. No allocation, no state but the team's starter.

#include "team.h"
#include "vector.h"

#define GRAIN 16384      // numbers that are not worth a second thread
#define LINE 64          // bytes of a cache line
#define MAX_HEAD_NUMBERS 256 // of a head
#define MAX_TILE_ROWS 16     // of a tile
#define FEW_ROWS 8       // of a tile whose rows do not take a lane each
#define AT_ONCE 4        // of these: they share the reads of K and V
#define PARTS 4          // vectors of a head's values that stay in registers for each of these
#define SUMS_AT_ONCE 8   // of many rows, likewise
#define KEYS_AT_ONCE 4   // of their scores
#define ROWS_AT_ONCE 4     // of a matrix product, with OUTPUTS_AT_ONCE: their sums stay in registers
#define TILES_OF_GROUP 8   // of so many outputs
#define INPUTS_AT_ONCE 512 // of a matrix product with more rows
#define GROUP_BYTES 262144 // of weights, which stay in the second cache
#define NUMBERS_OF_SUM 4096 // that are added up as float32 before they are as double
#define LOWEST -1e30f    // below every sane score, and finite: a difference of two is not NaN

enum { SILU, GELU_TANH };

struct paged_step {
    const int64_t *slots;   // [num_tokens] where each token's K and V go: block * block_size + offset
    const int32_t *blocks;  // [requests, blocks_stride]
    const int32_t *tiles;   // [num_tiles, 4]: request, first token, tokens, its position
    int64_t num_tokens, num_tiles, blocks_stride;
    int64_t heads, kv_heads, head_dim, block_size;
};

// What callers must agree on: the sizes of fixed arrays, of vectors and of the structure above. `_LIMITS` in
// __init__.py is compared with it when the library is loaded.
const int32_t kvasir_limits[] = {LANES, MAX_TILE_ROWS, MAX_HEAD_NUMBERS, sizeof(struct paged_step)};

void use_team(start_team parallel) { start = parallel; }

#define PASTE(name, type) name##_##type
#define NAME_OF(name, type) PASTE(name, type)
#define NAME(name) NAME_OF(name, T)
#define LOAD NAME(load)
#define STORE NAME(store)
#define LOAD_WIDE NAME(load_wide)

#define T bf16
#include "attention.inc"
#include "layers.inc"
#include "linear.inc"
#undef T
#define T f32
#include "attention.inc"
#include "layers.inc"
#include "linear.inc"
