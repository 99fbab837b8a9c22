/* Cuda attention: the attention of a window over paged keys and values, for one token or many in each row.
 *
 *   score[key] = sum over d of q[d] k[d][key]     p = 2^(score - m)     acc[d] = sum over keys of p[key]
 * v[key][d]
 *
 * The one decision: the CPU's order of sums (cpu_attention.h) is also a natural one here. Positions are split
 * at multiples of 256; a block of threads takes one KV head and up to 16 rows (a row: one query head of one
 * token), 64 keys at a time: first a thread is a key, then a warp finds the maximum of a row, then a thread
 * is a dimension. With few rows and a long past there is a block of threads for each split, and their sums
 * are folded in order by a kernel of their own; with many rows one goes through all splits and folds as it
 * goes. Same bits.
 *
 * Keys in q8_0 are multiplied as bytes by queries in bytes, block of 32 after block:
 *   score = fma(d s, sum over 32 of q k, score)
 * and values as the floats d v that they stand for, exactly.
 *
 * Keys a row does not see, after its own position or before its window: their scores are replaced before
 * anything is compared with them, and the sum over values leaves them out, so what lies there may be NaN. A
 * row's sums begin with the first block and the first split that it sees. Thread: the stage thread
 * launches. Must not know: sessions, layers' meaning. Tests: tests/kernels/test_attention.c */
#include "cuda_common.cuh"

#include <stdlib.h>
#include <string.h>

#define THREADS 256u
#define WARPS (THREADS / 32)
#define ROWS 16u /* at most, of a tile */
#define BLOCK OPS_BLOCK_TOKENS
#define PARTIALS_MOST ((size_t)256 << 20) /* bytes: above it a block of threads goes through all splits */

/* Rows of one sequence: row r is head r % group of token r / group. */
struct tile {
    uint32_t token, pos; /* of row 0: index in the window, and position */
    uint32_t first, rows;
    uint32_t blocks; /* where the sequence's block numbers start */
    uint32_t splits;
    uint32_t partial; /* splits of the tiles before it */
};

/* Where a token's keys and values go. */
struct place {
    uint32_t block, at;
};

struct args {
    float *q, *k;
    const float *v, *cosine, *sine, *q_norm, *k_norm;
    float *out;
    unsigned char *kv;                       /* of the layer, in block 0 */
    size_t block_bytes, head_bytes, k_bytes; /* of a block, a head, its K */
    const struct tile *tiles;
    const struct place *places;
    const uint32_t *blocks;
    float *partials;
    uint32_t heads, group, dim, padded, pairs, most_rows;
    uint32_t window;
    bool halves;
    float scale, eps;
};

template <typename T> static __device__ __forceinline__ float to_float(T v);
template <> __device__ __forceinline__ float to_float(__half v)
{
    return __half2float(v);
}
template <> __device__ __forceinline__ float to_float(float v)
{
    return v;
}
template <typename T> static __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ __half from_float(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ float from_float(float v)
{
    return v;
}

/* Value d of key j. */
template <typename T>
static __device__ __forceinline__ float value_at(const T *v, const struct args &a, uint32_t j, uint32_t d)
{
    return to_float<T>(v[j * a.padded + d]);
}
template <>
__device__ __forceinline__ float value_at(const int8_t *v, const struct args &a, uint32_t j, uint32_t d)
{
    const __half *scale = (const __half *)(v + BLOCK * a.dim);
    return __half2float(scale[(j * a.dim + d) / SHAPE_KV_BLOCK]) * (float)v[j * a.dim + d];
}

/* ---- rotating and storing ---- */

/* A warp: the norm of one head, in place; its lanes 0..15 sum as the CPU's 16. */
static __device__ void norm_head(float *x, const float *norm, float eps, uint32_t dim)
{
    const uint32_t lane = threadIdx.x % 32;
    float sum = 0;
    for (uint32_t i = lane; lane < 16 && i < dim; i += 16)
        sum = fmaf(x[i], x[i], sum);
    sum = __shfl_sync(CUDA_ALL, sum_16(sum), 0);
    const float factor = 1.0f / sqrtf(sum / (float)dim + eps);
    for (uint32_t i = lane; i < dim; i += 32)
        x[i] = x[i] * factor * norm[i];
}

/* A token's keys and values, rotated, into place. */
template <typename T>
static __device__ __forceinline__ void store(const struct args &a, const float *k, const float *v,
                                             uint32_t kv_heads, unsigned char *block, uint32_t place)
{
    for (uint32_t i = threadIdx.x; i < kv_heads * a.dim; i += blockDim.x) {
        const uint32_t head = i / a.dim, d = i % a.dim;
        T *at = (T *)(block + head * a.head_bytes);
        at[d * BLOCK + place] = from_float<T>(k[i]);
        at[a.dim * BLOCK + place * a.padded + d] = from_float<T>(v[i]);
    }
}

/* A warp takes 32 numbers. */
template <>
__device__ __forceinline__ void store<int8_t>(const struct args &a, const float *k, const float *v,
                                              uint32_t kv_heads, unsigned char *block, uint32_t place)
{
    const uint32_t lane = threadIdx.x % 32, blocks = a.dim / SHAPE_KV_BLOCK;
    for (uint32_t i = threadIdx.x / 32; i < 2 * kv_heads * blocks; i += blockDim.x / 32) {
        const bool is_v = i >= kv_heads * blocks;
        const uint32_t part = is_v ? i - kv_heads * blocks : i, b = part % blocks;
        unsigned char *at = block + part / blocks * a.head_bytes + (is_v ? a.k_bytes : 0);
        __half *scale = (__half *)(at + BLOCK * a.dim);
        float s;
        const int q = quantize_32((is_v ? v : k)[part * SHAPE_KV_BLOCK + lane], &s);
        if (is_v)
            at[place * a.dim + b * SHAPE_KV_BLOCK + lane] = (unsigned char)q;
        else
            at[((b * 8 + lane / 4) * BLOCK + place) * 4 + lane % 4] = (unsigned char)(q + 128);
        if (lane == 0)
            scale[is_v ? place * blocks + b : b * BLOCK + place] = __float2half_rn(s);
    }
}

/* One block of threads a token. */
template <typename T> static __global__ void store_kernel(struct args a)
{
    const uint32_t token = blockIdx.x, kv_heads = a.heads / a.group;
    const float *cosine = a.cosine + (size_t)token * a.pairs, *sine = a.sine + (size_t)token * a.pairs;
    float *q = a.q + (size_t)token * a.heads * a.dim, *k = a.k + (size_t)token * kv_heads * a.dim;
    const float *v = a.v + (size_t)token * kv_heads * a.dim;
    for (uint32_t head = threadIdx.x / 32; head < a.heads + kv_heads; head += blockDim.x / 32) {
        const float *norm = head < a.heads ? a.q_norm : a.k_norm;
        if (norm)
            norm_head(head < a.heads ? q + head * a.dim : k + (head - a.heads) * a.dim, norm, a.eps, a.dim);
    }
    __syncthreads(); /* a head is rotated by other threads than normed it */
    for (uint32_t i = threadIdx.x; i < (a.heads + kv_heads) * a.pairs; i += blockDim.x) {
        const uint32_t head = i / a.pairs, p = i % a.pairs;
        float *x = head < a.heads ? q + head * a.dim : k + (head - a.heads) * a.dim;
        float *one = a.halves ? x + p : x + 2 * p, *two = a.halves ? x + p + a.pairs : x + 2 * p + 1;
        const float c = cosine[p], s = sine[p], first = *one, second = *two;
        *one = first * c - second * s;
        *two = first * s + second * c;
    }
    __syncthreads(); /* k is stored by other threads than rotated it */
    const struct place to = a.places[token];
    store<T>(a, k, v, kv_heads, a.kv + to.block * a.block_bytes, to.at);
}

/* ---- one split ---- */

/* What a block of threads shares. */
template <uint32_t DIM> struct attention_shared {
    float p[ROWS][BLOCK]; /* scores, then probabilities */
    float scale[ROWS];    /* of what was summed before */
    float fold[ROWS][2];  /* of the total, of the split */
    float total[ROWS];    /* sum of probabilities */
};

/* And the tile's queries: floats, or s * q for keys in q8_0. */
template <typename T, uint32_t DIM> struct queries {
    float q[ROWS][DIM];
};
template <uint32_t DIM> struct queries<int8_t, DIM> {
    int q[ROWS][DIM / 4]; /* four bytes each */
    float s[ROWS][DIM / SHAPE_KV_BLOCK];
};

/* What a warp knows of its rows: warp, warp + WARPS. Each of the first 16 lanes has its own sum. */
struct row_sums {
    float m, lanes;       /* of the split */
    float total_m, total; /* of all splits so far */
};

static __device__ __forceinline__ uint32_t position(const struct tile &t, const struct args &a, uint32_t r)
{
    return t.pos + (t.first + r) / a.group;
}

/* The first position that row r sees. */
static __device__ __forceinline__ uint32_t sees_from(const struct tile &t, const struct args &a, uint32_t r)
{
    const uint32_t own = position(t, a, r);
    return a.window && own >= a.window ? own - a.window + 1 : 0;
}

/* Keys of the 64 from `start` that row r sees: first .. end-1, none when they are the same. Both ascend with
 * r. */
struct keys {
    uint32_t first, end;
};

static __device__ __forceinline__ struct keys keys_seen(const struct tile &t, const struct args &a,
                                                        uint32_t r, uint32_t start)
{
    const uint32_t end = position(t, a, r) + 1, first = sees_from(t, a, r);
    struct keys k;
    k.first = first <= start ? 0 : min(first - start, BLOCK);
    k.end = end <= start ? 0 : min(end - start, BLOCK);
    return k;
}

/* A thread is a key, for every fourth row. */
template <typename T, uint32_t DIM>
static __device__ __forceinline__ void scores(const struct queries<T, DIM> &of, const T *k, uint32_t rows,
                                              uint32_t dim, float p[ROWS][BLOCK])
{
    const uint32_t key = threadIdx.x % BLOCK, first = threadIdx.x / BLOCK;
    constexpr uint32_t EACH = ROWS / (THREADS / BLOCK), APART = THREADS / BLOCK;
    float sum[EACH] = {};
    for (uint32_t d = 0; d < dim; d++) {
        const float at = to_float<T>(k[d * BLOCK + key]);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            if (first + APART * i < rows)
                sum[i] = fmaf(of.q[first + APART * i][d], at, sum[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        if (first + APART * i < rows)
            p[first + APART * i][key] = sum[i];
}

template <uint32_t DIM>
static __device__ __forceinline__ void scores(const struct queries<int8_t, DIM> &of, const int8_t *k,
                                              uint32_t rows, uint32_t dim, float p[ROWS][BLOCK])
{
    const uint32_t key = threadIdx.x % BLOCK, first = threadIdx.x / BLOCK;
    constexpr uint32_t EACH = ROWS / (THREADS / BLOCK), APART = THREADS / BLOCK;
    const __half *scale = (const __half *)(k + BLOCK * dim);
    float sum[EACH] = {};
    for (uint32_t b = 0; b < dim / SHAPE_KV_BLOCK; b++) {
        const float d = __half2float(scale[b * BLOCK + key]);
        int dot[EACH] = {};
#pragma unroll
        for (uint32_t j = 8 * b; j < 8 * b + 8; j++) {
            const int four = ((const int *)k)[j * BLOCK + key] ^ (int)0x80808080u; /* kept without signs */
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                if (first + APART * i < rows)
                    dot[i] = __dp4a(four, of.q[first + APART * i][j], dot[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            if (first + APART * i < rows)
                sum[i] = fmaf(d * of.s[first + APART * i][b], (float)dot[i], sum[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        if (first + APART * i < rows)
            p[first + APART * i][key] = sum[i];
}

/* A warp is a row: scores become probabilities in place. */
static __device__ __forceinline__ void probabilities(float p[BLOCK], float *scale, struct keys seen,
                                                     struct row_sums *sums)
{
    const uint32_t lane = threadIdx.x % 32;
    const bool sees_low = lane >= seen.first && lane < seen.end,
               sees_high = lane + 32 >= seen.first && lane + 32 < seen.end;
    const float low = sees_low ? p[lane] : -INFINITY, high = sees_high ? p[lane + 32] : -INFINITY;
    float most = low > high ? low : high;
    for (int other = 16; other > 0; other /= 2) {
        const float theirs = __shfl_xor_sync(CUDA_ALL, most, other);
        most = most > theirs ? most : theirs;
    }
    most = most > sums->m ? most : sums->m;
    const float before = exp2_f(sums->m - most);
    sums->m = most;
    const float a = sees_low ? exp2_f(low - most) : 0, b = sees_high ? exp2_f(high - most) : 0;
    p[lane] = a;
    p[lane + 32] = b;
    /* Keys lane, lane + 16 and lane + 32, lane + 48, each pair first. */
    const float near = a + __shfl_xor_sync(CUDA_ALL, a, 16), far = b + __shfl_xor_sync(CUDA_ALL, b, 16);
    sums->lanes = fmaf(sums->lanes, before, near + far);
    if (lane == 0)
        *scale = before;
}

/* Keys first .. end-1 of a block; `some`: not every row sees all of them. */
template <typename T, uint32_t DIM>
static __device__ __forceinline__ void add_values(const struct attention_shared<DIM> &s, const T *v,
                                                  const struct tile &t, const struct args &a, uint32_t start,
                                                  uint32_t first, uint32_t end, const bool some,
                                                  float acc[ROWS * DIM / THREADS])
{
    constexpr uint32_t EACH = ROWS * DIM / THREADS, APART = THREADS / DIM;
    const uint32_t d = threadIdx.x % DIM, row = threadIdx.x / DIM;
    for (uint32_t j = first; j < end; j++) {
        const float at = value_at<T>(v, a, j, d);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t r = row + APART * i;
            if (r >= t.rows)
                continue;
            const struct keys seen = some ? keys_seen(t, a, r, start) : keys{ 0, BLOCK };
            if (j >= seen.first && j < seen.end)
                acc[i] = fmaf(s.p[r][j], at, acc[i]);
        }
    }
}

/* A thread is a dimension, for some rows. */
template <typename T, uint32_t DIM>
static __device__ __forceinline__ void values(const struct attention_shared<DIM> &s, const T *v,
                                              const struct tile &t, const struct args &a, uint32_t start,
                                              float acc[ROWS * DIM / THREADS])
{
    constexpr uint32_t EACH = ROWS * DIM / THREADS, APART = THREADS / DIM;
    const uint32_t row = threadIdx.x / DIM;
    const struct keys least = keys_seen(t, a, 0, start), most = keys_seen(t, a, t.rows - 1, start);
    if (threadIdx.x % DIM >= a.dim)
        return;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t r = row + APART * i;
        const struct keys seen = keys_seen(t, a, min(r, t.rows - 1), start);
        if (r < t.rows && seen.first < seen.end)
            acc[i] *= s.scale[r];
    }
    /* All rows see the keys from where the last one begins to where the first one ends. */
    const uint32_t common = max(most.first, least.end);
    add_values<T, DIM>(s, v, t, a, start, least.first, min(most.first, most.end), true, acc);
    add_values<T, DIM>(s, v, t, a, start, most.first, least.end, false, acc);
    add_values<T, DIM>(s, v, t, a, start, common, most.end, true, acc);
}

/* All of a split that some row sees. */
template <typename T, uint32_t DIM>
static __device__ void attend_split(struct attention_shared<DIM> &s, const struct queries<T, DIM> &q,
                                    const struct tile &t, const struct args &a, uint32_t split,
                                    struct row_sums sums[2], float acc[ROWS * DIM / THREADS])
{
    const uint32_t warp = threadIdx.x / 32, last = position(t, a, t.rows - 1), from = sees_from(t, a, 0);
    for (uint32_t i = 0; i < 2; i++) {
        sums[i].m = -INFINITY;
        sums[i].lanes = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS * DIM / THREADS; i++)
        acc[i] = 0;
    for (uint32_t start = split * CUDA_SPLIT; start < (split + 1) * CUDA_SPLIT && start <= last;
         start += BLOCK) {
        if (start + BLOCK <= from)
            continue;
        const uint32_t block = a.blocks[t.blocks + start / BLOCK];
        const T *k = (const T *)(a.kv + block * a.block_bytes + blockIdx.y * a.head_bytes),
                *v = (const T *)((const unsigned char *)k + a.k_bytes);
        scores(q, k, t.rows, a.dim, s.p);
        __syncthreads(); /* a row's scores come from many threads */
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t r = warp + WARPS * i;
            const struct keys seen = r < t.rows ? keys_seen(t, a, r, start) : keys{ 0, 0 };
            if (seen.first < seen.end)
                probabilities(s.p[r], &s.scale[r], seen, &sums[i]);
        }
        __syncthreads(); /* every thread reads all probabilities of its rows */
        values<T, DIM>(s, v, t, a, start, acc);
        __syncthreads(); /* the next block's scores overwrite them */
    }
}

/* ---- folding ---- */

/* Sums l, acc of a split with maximum m are added to a total: what each is multiplied by. */
static __device__ __forceinline__ void fold_scales(float total_m, float m, float *ret_m, float *total_by,
                                                   float *by)
{
    const float most = total_m > m ? total_m : m;
    *total_by = exp2_f(total_m - most);
    *by = exp2_f(m - most);
    *ret_m = most;
}

static __device__ __forceinline__ float fold(float total, float total_by, float split, float by)
{
    return total * total_by + split * by;
}

static __device__ __forceinline__ float *partial_at(const struct args &a, const struct tile &t,
                                                    uint32_t split)
{
    const size_t slot = (size_t)(t.partial + split) * gridDim.y + blockIdx.y;
    return a.partials + slot * a.most_rows * (2 + a.padded);
}

/* Where row r's head begins in q and in out. */
static __device__ __forceinline__ size_t head_at(const struct args &a, const struct tile &t, uint32_t r)
{
    const uint32_t row = t.first + r, head = blockIdx.y * a.group + row % a.group;
    return ((size_t)(t.token + row / a.group) * a.heads + head) * a.dim;
}

/* The tile's queries, scaled so that probabilities are powers of 2. */
template <typename T, uint32_t DIM>
static __device__ void load_queries(struct queries<T, DIM> &to, const struct tile &t, const struct args &a)
{
    const float scale = a.scale * 1.44269504f;
    for (uint32_t i = threadIdx.x; i < t.rows * a.dim; i += THREADS)
        to.q[i / a.dim][i % a.dim] = a.q[head_at(a, t, i / a.dim) + i % a.dim] * scale;
    __syncthreads(); /* all keys are multiplied with all of them */
}

template <uint32_t DIM>
static __device__ void load_queries(struct queries<int8_t, DIM> &to, const struct tile &t,
                                    const struct args &a)
{
    const float scale = a.scale * 1.44269504f;
    const uint32_t lane = threadIdx.x % 32, blocks = a.dim / SHAPE_KV_BLOCK;
    for (uint32_t i = threadIdx.x / 32; i < t.rows * blocks; i += WARPS) {
        const uint32_t r = i / blocks, b = i % blocks;
        float s;
        const int q = quantize_32(a.q[head_at(a, t, r) + b * SHAPE_KV_BLOCK + lane] * scale, &s);
        ((int8_t *)to.q[r])[b * SHAPE_KV_BLOCK + lane] = (int8_t)q;
        if (lane == 0)
            to.s[r][b] = s;
    }
    __syncthreads(); /* all keys are multiplied with all of them */
}

/* A block of threads for each tile, KV head and split: the split's sums go to memory. */
template <typename T, uint32_t DIM>
static __global__ void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2) split_kernel(struct args a)
{
    GPU_SHARED(struct attention_shared<DIM>, shared_memory, [1]);
    typedef struct queries<T, DIM> tile_queries; /* a comma less */
    GPU_SHARED(tile_queries, q, [1]);
    struct attention_shared<DIM> &s = shared_memory[0];
    constexpr uint32_t EACH = ROWS * DIM / THREADS, APART = THREADS / DIM;
    const struct tile t = a.tiles[blockIdx.x];
    const uint32_t d = threadIdx.x % DIM, lane = threadIdx.x % 32, split = blockIdx.z;
    struct row_sums sums[2];
    float acc[EACH];
    if (split >= t.splits || (split + 1) * CUDA_SPLIT <= sees_from(t, a, 0))
        return;
    load_queries(q[0], t, a);
    attend_split<T, DIM>(s, q[0], t, a, split, sums, acc);
    float *m = partial_at(a, t, split), *l = m + a.most_rows, *to = l + a.most_rows;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = threadIdx.x / 32 + WARPS * i;
        const float sum = sum_16(sums[i].lanes);
        if (r < t.rows && lane == 0) {
            m[r] = sums[i].m;
            l[r] = sum;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t r = threadIdx.x / DIM + APART * i;
        if (r < t.rows && d < a.dim)
            to[r * a.padded + d] = acc[i];
    }
}

/* Where the row's sums begin. */
static __device__ __forceinline__ uint32_t first_split(const struct tile &t, const struct args &a, uint32_t r)
{
    return sees_from(t, a, r) / CUDA_SPLIT;
}

/* Whether a split is added to what the row has of those before. */
static __device__ __forceinline__ bool adds(const struct tile &t, const struct args &a, uint32_t r,
                                            uint32_t split)
{
    return position(t, a, r) >= split * CUDA_SPLIT && split > first_split(t, a, r);
}

/* A block of threads for each tile and KV head. */
static __global__ void __launch_bounds__(THREADS) fold_kernel(struct args a)
{
    const struct tile t = a.tiles[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < t.rows * a.dim; i += THREADS) {
        const uint32_t r = i / a.dim, d = i % a.dim;
        uint32_t split = first_split(t, a, r);
        const float *first = partial_at(a, t, split);
        float m = first[r], l = first[a.most_rows + r], acc = first[2 * a.most_rows + r * a.padded + d];
        for (split++; split < t.splits && adds(t, a, r, split); split++) {
            const float *p = partial_at(a, t, split);
            float total_by, by;
            fold_scales(m, p[r], &m, &total_by, &by);
            l = fold(l, total_by, p[a.most_rows + r], by);
            acc = fold(acc, total_by, p[2 * a.most_rows + r * a.padded + d], by);
        }
        a.out[head_at(a, t, r) + d] = acc / l;
    }
}

/* The warp's rows: the split's maximum and sum are folded into the total's. */
template <uint32_t DIM>
static __device__ __forceinline__ void fold_rows(struct attention_shared<DIM> &s, const struct tile &t,
                                                 const struct args &a, uint32_t split,
                                                 struct row_sums sums[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = threadIdx.x / 32 + WARPS * i;
        const float l = __shfl_sync(CUDA_ALL, sum_16(sums[i].lanes), 0);
        float total_by = 1, by = 1;
        if (r >= t.rows)
            continue;
        if (split == first_split(t, a, r)) {
            sums[i].total_m = sums[i].m;
            sums[i].total = l;
        } else if (adds(t, a, r, split)) {
            fold_scales(sums[i].total_m, sums[i].m, &sums[i].total_m, &total_by, &by);
            sums[i].total = fold(sums[i].total, total_by, l, by);
        }
        if (threadIdx.x % 32 == 0) {
            s.fold[r][0] = total_by;
            s.fold[r][1] = by;
            s.total[r] = sums[i].total;
        }
    }
}

/* A block of threads for each tile and KV head goes through all splits. */
template <typename T, uint32_t DIM>
static __global__ void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2) whole_kernel(struct args a)
{
    GPU_SHARED(struct attention_shared<DIM>, shared_memory, [1]);
    typedef struct queries<T, DIM> tile_queries; /* a comma less */
    GPU_SHARED(tile_queries, q, [1]);
    struct attention_shared<DIM> &s = shared_memory[0];
    constexpr uint32_t EACH = ROWS * DIM / THREADS, APART = THREADS / DIM;
    const struct tile t = a.tiles[blockIdx.x];
    const uint32_t d = threadIdx.x % DIM, first = threadIdx.x / DIM;
    struct row_sums sums[2] = {};
    float acc[EACH], total[EACH] = {};
    load_queries(q[0], t, a);
    for (uint32_t split = first_split(t, a, 0); split < t.splits; split++) {
        attend_split<T, DIM>(s, q[0], t, a, split, sums, acc);
        fold_rows<DIM>(s, t, a, split, sums);
        __syncthreads(); /* every thread needs the scales of its rows; the next split's come after its
                            barriers */
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t r = first + APART * i;
            if (r >= t.rows)
                continue;
            if (split == first_split(t, a, r))
                total[i] = acc[i];
            else if (adds(t, a, r, split))
                total[i] = fold(total[i], s.fold[r][0], acc[i], s.fold[r][1]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t r = first + APART * i;
        if (r < t.rows && d < a.dim)
            a.out[head_at(a, t, r) + d] = total[i] / s.total[r];
    }
}

/* ---- launching ---- */

struct grid {
    uint32_t tokens, tiles, kv_heads, splits;
    bool by_split;
};

template <typename T, uint32_t DIM>
static void launch(const struct args &a, const struct grid &g, cudaStream_t stream)
{
    GPU_LAUNCH(store_kernel<T>, g.tokens, 128, 0, stream, a);
    if (!g.by_split) {
        GPU_LAUNCH((whole_kernel<T, DIM>), dim3(g.tiles, g.kv_heads), THREADS, 0, stream, a);
        return;
    }
    GPU_LAUNCH((split_kernel<T, DIM>), dim3(g.tiles, g.kv_heads, g.splits), THREADS, 0, stream, a);
    GPU_LAUNCH(fold_kernel, dim3(g.tiles, g.kv_heads), THREADS, 0, stream, a);
}

template <typename T> static void launch_dim(const struct args &a, const struct grid &g, cudaStream_t stream)
{
    if (a.dim <= 64)
        launch<T, 64>(a, g, stream);
    else if (a.dim <= 128)
        launch<T, 128>(a, g, stream);
    else
        launch<T, 256>(a, g, stream);
}

/* ---- planning, on the host ---- */

struct plan {
    uint32_t tiles, blocks; /* how many; tiles come first, then the places of tokens, then block numbers */
    uint32_t most_splits, all_splits, most_rows;
    size_t words;
};

#define TILE_WORDS (sizeof(struct tile) / sizeof(uint32_t))
#define PLACE_WORDS (sizeof(struct place) / sizeof(uint32_t))

static struct plan measure(const struct ops_attention *a, uint32_t group)
{
    struct plan p = {};
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const struct ops_row *row = &a->rows[i];
        p.tiles += (row->n * group + ROWS - 1) / ROWS;
        p.blocks += (row->pos + row->n - 1) / BLOCK + 1;
    }
    p.words = p.tiles * TILE_WORDS + a->n_tokens * PLACE_WORDS + p.blocks;
    return p;
}

static bool plan_room(struct ops_dev *d, size_t words)
{
    if (words <= d->plan_cap)
        return true;
    const size_t cap = words + words / 2;
    uint32_t *host = (uint32_t *)realloc(d->plan_host, cap * sizeof *host);
    if (host)
        d->plan_host = host;
    uint32_t *other = (uint32_t *)realloc(d->plan_new, cap * sizeof *other);
    if (other)
        d->plan_new = other;
    if (!host || !other) {
        cuda_fail(d, -ENOMEM, "no memory for the plan of a window's attention");
        return false;
    }
    d->plan_cap = cap;
    return true;
}

static uint32_t plan_tiles(const struct ops_row *row, uint32_t group, uint32_t blocks, struct tile *to,
                           struct plan *p)
{
    uint32_t n = 0;
    for (uint32_t first = 0; first < row->n * group; first += ROWS, n++) {
        struct tile *t = &to[n];
        const uint32_t left = row->n * group - first, rows = left < ROWS ? left : ROWS;
        const uint32_t last = row->pos + (first + rows - 1) / group;
        *t = (struct tile){ row->first, row->pos, first, rows, blocks, last / CUDA_SPLIT + 1, p->all_splits };
        p->all_splits += t->splits;
        p->most_splits = t->splits > p->most_splits ? t->splits : p->most_splits;
        p->most_rows = rows > p->most_rows ? rows : p->most_rows;
    }
    return n;
}

static void fill(const struct ops_attention *a, uint32_t group, uint32_t *words, struct plan *p)
{
    struct tile *tiles = (struct tile *)words;
    struct place *places = (struct place *)(words + p->tiles * TILE_WORDS);
    uint32_t *blocks = (uint32_t *)(places + a->n_tokens), at = 0, n_tiles = 0;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const struct ops_row *row = &a->rows[i];
        const uint32_t n_blocks = (row->pos + row->n - 1) / BLOCK + 1;
        n_tiles += plan_tiles(row, group, at, tiles + n_tiles, p);
        memcpy(blocks + at, row->blocks, n_blocks * sizeof *blocks);
        for (uint32_t t = 0; t < row->n; t++)
            places[row->first + t] =
                (struct place){ row->blocks[(row->pos + t) / BLOCK], (row->pos + t) % BLOCK };
        at += n_blocks;
    }
}

/* The plan on the device: all layers of a window have the same, and only the first one sends it. */
static const uint32_t *send_plan(struct ops_dev *d, const struct ops_attention *a, uint32_t group,
                                 struct plan *p)
{
    *p = measure(a, group);
    if (!plan_room(d, p->words))
        return NULL;
    fill(a, group, d->plan_new, p);
    const bool same =
        d->plan_words == p->words && !memcmp(d->plan_new, d->plan_host, p->words * sizeof *d->plan_new);
    if (same)
        return (const uint32_t *)d->plan.at;
    d->plan_words = 0; /* until it is there */
    void *at = cuda_room(d, &d->plan, p->words * sizeof *d->plan_new, "the plan of a window's attention");
    if (!at)
        return NULL;
    cuda_upload(d, at, d->plan_new, p->words * sizeof *d->plan_new);
    uint32_t *old = d->plan_host;
    d->plan_host = d->plan_new;
    d->plan_new = old;
    d->plan_words = p->words;
    return (const uint32_t *)at;
}

/* Whether splits get blocks of threads of their own, and memory for their sums. */
static bool choose(struct ops_dev *d, const struct plan *p, struct args *args, struct grid *g)
{
    const size_t bytes =
        (size_t)p->all_splits * g->kv_heads * p->most_rows * (2 + args->padded) * sizeof(float);
    g->by_split = p->most_splits > 1 && p->tiles * g->kv_heads < 2 * d->processors &&
                  bytes <= PARTIALS_MOST && p->most_splits <= 65535;
    args->partials = g->by_split ? (float *)cuda_room(d, &d->partials, bytes, "sums of attention") : NULL;
    return !g->by_split || args->partials;
}

void cuda_attention(struct ops_dev *d, const struct ops_attention *a)
{
    const struct ops_kv *kv = a->kv;
    struct plan p;
    if (!a->n_tokens)
        return;
    cuda_use(d);
    struct args args = {};
    struct grid g = { a->n_tokens, 0, kv->shape.heads, 0, false };
    args.group = a->heads / kv->shape.heads;
    const uint32_t *words = send_plan(d, a, args.group, &p);
    args.padded = kv->is.padded;
    g.tiles = p.tiles;
    g.splits = p.most_splits;
    if (!words || !choose(d, &p, &args, &g))
        return;
    args.q = a->q;
    args.k = a->k;
    args.v = a->v;
    args.cosine = a->rope_cos;
    args.sine = a->rope_sin;
    args.out = a->out;
    args.kv = kv->base + a->layer * kv->is.layer_bytes;
    args.block_bytes = kv->is.block_bytes;
    args.head_bytes = kv->is.head_bytes;
    args.k_bytes = kv->is.k_bytes;
    args.tiles = (const struct tile *)words;
    args.places = (const struct place *)(words + p.tiles * TILE_WORDS);
    args.blocks = (const uint32_t *)(args.places + a->n_tokens);
    args.heads = a->heads;
    args.dim = kv->shape.head_dim;
    args.pairs = a->rope_dims / 2;
    args.most_rows = p.most_rows;
    args.halves = a->rope_halves;
    args.scale = a->scale;
    args.q_norm = a->q_norm;
    args.k_norm = a->k_norm;
    args.eps = a->norm_eps;
    args.window = a->window;
    if (kv->shape.type == OPS_KV_F16)
        launch_dim<__half>(args, g, d->stream);
    else if (kv->shape.type == OPS_KV_F32)
        launch_dim<float>(args, g, d->stream);
    else
        launch_dim<int8_t>(args, g, d->stream);
    cuda_launched(d, "attention");
}
