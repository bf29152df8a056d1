// CPU kernels, called by kvasir.kernels.cpu. Each has a reference in plain torch in kvasir.layers. They allocate nothing,
// and the only state is `start`.

#include "team.h"
#include "vector.h"
#include "packed_numbers.h"

#define GRAIN 16384      // numbers per thread, at least
#define LINE 64          // bytes of a cache line
#define MAX_HEAD_NUMBERS 256
#define MAX_TILE_ROWS 16
#define MAX_PAIR_ROWS 64  // of a tile that pairs of bfloat16 multiply
#define FEW_ROWS 8       // a tile with more rows gives each row a lane
#define AT_ONCE 4        // few rows that share the reads of K and V
#define PARTS 4          // vectors of a head's values in registers, for each of these rows
#define SUMS_AT_ONCE 8   // numbers of a head in registers, for many rows
#define KEYS_AT_ONCE 4   // keys whose scores stay in registers, for many rows
#define ROWS_AT_ONCE 4     // of a matrix product: OUTPUTS_AT_ONCE sums for each stay in registers
#define TILES_OF_GROUP 8   // tiles of OUTPUTS_AT_ONCE outputs
#define INPUTS_AT_ONCE 512 // of a matrix product with more than ROWS_AT_ONCE rows
#define GROUP_BYTES 262144 // weights that stay in the L2 cache
#define NUMBERS_OF_SUM 4096 // added up as float32 before the sum becomes double
#define CHUNK_ROWS 128   // of a product with a quantised weight: their totals are on the stack
#define BYTES_AHEAD 4096 // of the prefetched numbers
#define MAX_BLOCK 128    // inputs whose widened numbers stay in the L1 cache
#define LOWEST -1e30f    // finite: the difference of two is not NaN

enum { SILU, GELU_TANH };

struct paged_step {
    const int64_t *slots;   // [num_tokens] where each token's K and V go: block * block_size + offset
    const int32_t *blocks;  // [requests, blocks_stride]
    const int32_t *tiles;   // [num_tiles, 4]: request, first token, tokens, its position
    int64_t num_tokens, num_tiles, blocks_stride;
    int64_t heads, kv_heads, head_dim, block_size;
    int64_t pairs;  // whether bfloat16 is multiplied in pairs: a tile then has up to MAX_PAIR_ROWS rows
};

#include "packed.inc"

// The sizes of fixed arrays, vectors and the structure above. `_LIMITS` in __init__.py must have the same numbers.
const int32_t kvasir_limits[] = {LANES, MAX_TILE_ROWS, MAX_HEAD_NUMBERS, sizeof(struct paged_step)};

// Outputs of a panel, whether bfloat16 is multiplied as such and not as float32, and limits as in packed_product.py.
const int32_t kvasir_packed[] = {PANEL, HAS_PAIRS, MAX_BLOCK, sizeof(struct packed)};

// Rows of a tile of bfloat16.
const int32_t kvasir_pair_rows = HAS_PAIRS ? MAX_PAIR_ROWS : MAX_TILE_ROWS;

void use_team(start_team parallel) { start = parallel; }

#define PASTE(name, type) name##_##type
#define NAME_OF(name, type) PASTE(name, type)
#define NAME(name) NAME_OF(name, T)
#define LOAD NAME(load)
#define STORE NAME(store)
#define LOAD_WIDE NAME(load_wide)

#define T bf16
#define USES_PAIRS HAS_PAIRS
#include "attention.inc"
#include "layers.inc"
#include "linear.inc"
#include "packed_rows.inc"
#undef T
#undef USES_PAIRS
#define T f32
#define USES_PAIRS 0
#include "attention.inc"
#include "layers.inc"
#include "linear.inc"
#include "packed_rows.inc"
