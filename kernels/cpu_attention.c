/* Cpu attention: cuts the attention of a window into pieces and hands them to the pool's threads.
 *
 * Rows of the window are cut into tiles of some tokens; a piece is one tile and one KV head, either over all
 * positions (a long prompt has pieces enough) or over one split of the positions only (decoding: what a long
 * context costs must be shared by all threads). Sums are the same either way: see the order in
 * cpu_attention.h. Whoever completes the last split of a tile and head folds its splits.
 *
 * K and V of the window are stored before anything is read: in a phase of their own, or, when every row has
 * one token and no row reads another's, by the piece that holds the token's own position, which saves the
 * wait.
 *
 * Thread: the stage thread, and inside a section the pool's. Must not know: sessions, layers' meaning.
 * Tests: tests/kernels/test_attention.c */
#include "cpu_attention.h"

#include <errno.h>
#include <string.h>

#define TILE_ROWS 96u /* of a KV head: what converting a block to float is shared by */
#define TILE_ROWS_MIN 24u
#define PIECES_PER_THREAD 4u      /* fewer would leave threads idle at the end */
#define PARTIALS_MOST (32u << 20) /* floats: above it, no splitting over positions */

struct tile {
    uint32_t row;
    uint32_t token, n; /* in the window */
    uint32_t pos;
    uint32_t first_split, splits; /* which it sees any of, how many */
    uint32_t first_piece;
    size_t partial;   /* floats before this tile's sums */
    uint32_t pending; /* index of its first counter */
};

struct job {
    const struct ops_attention *a;
    const struct cpu_attention_set *set;
    uint32_t kv_heads, group;
    bool by_split;
    bool store_first;
    bool turns;         /* queries are normed or rotated */
    uint32_t tile_rows; /* the most a tile has */
    uint32_t n_tiles, pieces;
    struct tile *tiles;
    uint32_t *first_store;     /* per row, the number of its first store piece */
    _Atomic uint32_t *pending; /* per tile and KV head: splits to come */
    float *partials;
    struct cpu_work stores, tiles_work;
};

static inline size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* ---- sums in memory ---- */

static size_t sums_floats(size_t rows, uint32_t padded)
{
    return 2 * round16(rows) + rows * padded;
}

static struct cpu_sums sums_at(float *at, size_t rows)
{
    return (struct cpu_sums){ .m = at, .l = at + round16(rows), .acc = at + 2 * round16(rows) };
}

struct scratch {
    float *q, *k, *v, *score, *lanes;
    struct cpu_query *q8;
    struct cpu_sums total, split;
};

/* Cuts a thread's memory up, or with at == NULL just counts the floats. */
static size_t scratch_cut(const struct job *j, float *at, struct scratch *s)
{
    const struct ops_kv *kv = j->a->kv;
    const size_t rows = j->tile_rows, d = kv->shape.head_dim, padded = kv->is.padded;
    const size_t sizes[] = { rows * d,
                             d * OPS_BLOCK_TOKENS,
                             padded * OPS_BLOCK_TOKENS,
                             CPU_GROUP_ROWS * OPS_BLOCK_TOKENS,
                             rows * 16,
                             sums_floats(rows, kv->is.padded),
                             sums_floats(rows, kv->is.padded),
                             kv->shape.type == OPS_KV_Q8_0 ? rows * (d / 32) * sizeof *s->q8 / sizeof *at
                                                           : 0 };
    size_t start[9] = { 0 };
    for (int i = 0; i < 8; i++)
        start[i + 1] = start[i] + round16(sizes[i]);
    if (at)
        *s = (struct scratch){ .q = at + start[0],
                               .k = at + start[1],
                               .v = at + start[2],
                               .score = at + start[3],
                               .lanes = at + start[4],
                               .total = sums_at(at + start[5], rows),
                               .split = sums_at(at + start[6], rows),
                               .q8 = (struct cpu_query *)(void *)(at + start[7]) };
    return start[8];
}

/* ---- storing ---- */

static uint32_t blocks_touched(const struct ops_row *row)
{
    return (row->pos + row->n - 1) / OPS_BLOCK_TOKENS - row->pos / OPS_BLOCK_TOKENS + 1;
}

/* One block of one row, one KV head: two threads never write the same cache line of K. */
static void store_piece(const struct job *j, uint32_t piece)
{
    const struct ops_attention *a = j->a;
    uint32_t i = 0;
    while (i + 1 < a->n_rows && j->first_store[i + 1] <= piece)
        i++;
    const struct ops_row *row = &a->rows[i];
    const uint32_t head = (piece - j->first_store[i]) % j->kv_heads;
    const uint32_t block = row->pos / OPS_BLOCK_TOKENS + (piece - j->first_store[i]) / j->kv_heads;
    const uint32_t start = block * OPS_BLOCK_TOKENS > row->pos ? block * OPS_BLOCK_TOKENS : row->pos;
    uint32_t end = (block + 1) * OPS_BLOCK_TOKENS;
    end = end < row->pos + row->n ? end : row->pos + row->n;

    const struct cpu_store s = { .a = a,
                                 .head = head,
                                 .token = row->first + (start - row->pos),
                                 .n = end - start,
                                 .block = row->blocks[block],
                                 .place = start % OPS_BLOCK_TOKENS };
    j->set->store(&s);
    const uint32_t dim = a->kv->shape.head_dim;
    for (uint32_t t = s.token; j->turns && t < s.token + s.n; t++)
        for (uint32_t g = 0; g < j->group; g++) {
            float *q = a->q + ((size_t)t * a->heads + head * j->group + g) * dim;
            j->set->rotate(a, t, a->q_norm, q, q);
        }
}

/* ---- pieces ---- */

static uint32_t tile_pieces(const struct job *j, const struct tile *t)
{
    return j->kv_heads * (j->by_split ? t->splits : 1);
}

/* The tile's queries, scaled so that probabilities are powers of 2; rotated here if no store phase did. */
static void load_queries(const struct job *j, const struct tile *t, uint32_t head, const struct scratch *s)
{
    const struct ops_attention *a = j->a;
    float *to = s->q;
    const uint32_t dim = a->kv->shape.head_dim;
    const float scale = a->scale * 1.44269504f;
    for (uint32_t i = 0; i < t->n; i++) {
        const uint32_t token = t->token + i;
        const float *q = a->q + ((size_t)token * a->heads + head * j->group) * dim;
        for (uint32_t g = 0; g < j->group; g++, q += dim, to += dim) {
            if (j->turns && !j->store_first)
                j->set->rotate(a, token, a->q_norm, q, to);
            else
                memcpy(to, q, dim * sizeof *to);
            for (uint32_t d = 0; d < dim; d++)
                to[d] *= scale;
        }
    }
    if (a->kv->shape.type == OPS_KV_Q8_0)
        j->set->quantize(s->q, t->n * j->group * dim, s->q8);
}

static void write_out(const struct job *j, const struct tile *t, uint32_t head, const struct cpu_sums *total)
{
    const struct ops_attention *a = j->a;
    const uint32_t dim = a->kv->shape.head_dim;
    for (uint32_t r = 0; r < t->n * j->group; r++) {
        float *to =
            a->out + ((size_t)(t->token + r / j->group) * a->heads + head * j->group + r % j->group) * dim;
        j->set->finish(total, r, dim, a->kv->is.padded, to);
    }
}

static struct cpu_tile kernel_tile(const struct job *j, const struct tile *t, uint32_t head,
                                   const struct scratch *s)
{
    const struct ops_attention *a = j->a;
    return (struct cpu_tile){ .kv = a->kv,
                              .layer = a->layer,
                              .head = head,
                              .group = j->group,
                              .window = a->window,
                              .pos = t->pos,
                              .rows = t->n * j->group,
                              .blocks = a->rows[t->row].blocks,
                              .q = s->q,
                              .q8 = s->q8,
                              .k = s->k,
                              .v = s->v,
                              .score = s->score,
                              .lanes = s->lanes };
}

/* All splits of a tile and head, folded as they come. */
static void whole_piece(const struct job *j, const struct tile *t, uint32_t head, const struct scratch *s)
{
    const struct cpu_tile tile = kernel_tile(j, t, head, s);
    load_queries(j, t, head, s);
    j->set->split(&tile, t->first_split, &s->total);
    for (uint32_t i = 1; i < t->splits; i++) {
        j->set->split(&tile, t->first_split + i, &s->split);
        j->set->fold(&tile, t->first_split + i, &s->total, &s->split);
    }
    write_out(j, t, head, &s->total);
}

/* split: counted from the tile's first. */
static struct cpu_sums partial(const struct job *j, const struct tile *t, uint32_t head, uint32_t split)
{
    const size_t rows = (size_t)t->n * j->group;
    const size_t index = (size_t)head * t->splits + split;
    return sums_at(j->partials + t->partial + index * round16(sums_floats(rows, j->a->kv->is.padded)), rows);
}

/* The token of a row that has one, by the piece of its own position: nobody else reads it. */
static void store_own(const struct job *j, const struct tile *t, uint32_t head)
{
    const struct cpu_store s = { .a = j->a,
                                 .head = head,
                                 .token = t->token,
                                 .n = 1,
                                 .block = j->a->rows[t->row].blocks[t->pos / OPS_BLOCK_TOKENS],
                                 .place = t->pos % OPS_BLOCK_TOKENS };
    j->set->store(&s);
}

static void fold_splits(const struct job *j, const struct tile *t, const struct cpu_tile *tile)
{
    const struct ops_attention *a = j->a;
    const uint32_t head = tile->head;
    const struct cpu_sums total = partial(j, t, head, 0);
    for (uint32_t i = 1; i < t->splits; i++) {
        const struct cpu_sums sums = partial(j, t, head, i);
        j->set->fold(tile, t->first_split + i, &total, &sums);
    }
    write_out(j, t, head, &total);
    /* Only now: the other splits read the queries as they came. */
    for (uint32_t g = 0; j->turns && !j->store_first && g < j->group; g++) {
        float *q = a->q + ((size_t)t->token * a->heads + head * j->group + g) * a->kv->shape.head_dim;
        j->set->rotate(a, t->token, a->q_norm, q, q);
    }
}

static void split_piece(const struct job *j, const struct tile *t, uint32_t piece, const struct scratch *s)
{
    const uint32_t head = piece % j->kv_heads, split = piece / j->kv_heads;
    const struct cpu_tile tile = kernel_tile(j, t, head, s);
    const struct cpu_sums sums = partial(j, t, head, split);
    if (!j->store_first && split == t->splits - 1)
        store_own(j, t, head);
    load_queries(j, t, head, s);
    j->set->split(&tile, t->first_split + split, &sums);
    if (atomic_fetch_sub_explicit(&j->pending[t->pending + head], 1, memory_order_acq_rel) == 1)
        fold_splits(j, t, &tile);
}

static void run_piece(const struct job *j, uint32_t piece, const struct scratch *s)
{
    /* The last tile whose first piece is not above this one. */
    uint32_t low = 0, high = j->n_tiles;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (j->tiles[middle].first_piece <= piece)
            low = middle;
        else
            high = middle;
    }
    const struct tile *t = &j->tiles[low];
    if (j->by_split)
        split_piece(j, t, piece - t->first_piece, s);
    else
        whole_piece(j, t, piece - t->first_piece, s);
}

static void attention_thread(void *arg, uint32_t thread)
{
    struct job *j = arg;
    struct scratch s;
    scratch_cut(j, cpu_scratch(j->a->kv->dev, thread), &s);
    uint32_t piece;
    if (j->store_first) {
        while (cpu_work_take(&j->stores, &piece)) {
            store_piece(j, piece);
            cpu_work_finish(&j->stores);
        }
        cpu_work_wait(&j->stores);
    }
    while (cpu_work_take(&j->tiles_work, &piece))
        /* From the end: later positions see more, and large pieces should not come last. */
        run_piece(j, j->pieces - 1 - piece, &s);
}

/* ---- planning ---- */

/* Does a row read the block another one writes? Blocks hold fixed positions, so a shared one has the same
 * index in both. */
static bool rows_share(const struct ops_attention *a)
{
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const uint32_t at = a->rows[i].pos / OPS_BLOCK_TOKENS;
        for (uint32_t k = 0; k < a->n_rows; k++)
            if (k != i && a->rows[k].pos / OPS_BLOCK_TOKENS >= at &&
                a->rows[k].blocks[at] == a->rows[i].blocks[at])
                return true;
    }
    return false;
}

/* Which splits n positions from `pos` on see any of. */
static uint32_t splits_seen(const struct ops_attention *a, uint32_t pos, uint32_t n, uint32_t *ret_first)
{
    *ret_first = cpu_sees_from(a->window, pos) / CPU_SPLIT;
    return (pos + n - 1) / CPU_SPLIT - *ret_first + 1;
}

static uint32_t count_tiles(const struct ops_attention *a, uint32_t tokens)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_rows; i++)
        n += (a->rows[i].n + tokens - 1) / tokens;
    return n;
}

static size_t partial_floats(const struct job *j, uint32_t tokens)
{
    const struct ops_attention *a = j->a;
    size_t n = 0;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const struct ops_row *row = &a->rows[i];
        const size_t tiles = (row->n + tokens - 1) / tokens;
        uint32_t first;
        const size_t splits = splits_seen(a, row->pos, row->n, &first); /* of all tiles: of one at most */
        n += tiles * splits * j->kv_heads * round16(sums_floats((size_t)tokens * j->group, a->kv->is.padded));
    }
    return n;
}

/* How many tokens a tile has, and whether positions are split: bits depend on neither. */
static uint32_t choose_tiles(struct job *j)
{
    const struct ops_attention *a = j->a;
    const uint32_t enough = a->kv->dev->threads > 1 ? a->kv->dev->threads * PIECES_PER_THREAD : 1;
    uint32_t tokens = TILE_ROWS / j->group ? TILE_ROWS / j->group : 1;
    while (count_tiles(a, tokens) * j->kv_heads < enough && tokens * j->group / 2 >= TILE_ROWS_MIN)
        tokens /= 2;
    j->by_split = !j->store_first || (count_tiles(a, tokens) * j->kv_heads < enough &&
                                      partial_floats(j, tokens) <= PARTIALS_MOST);
    return tokens;
}

static void plan_row(struct job *j, uint32_t index, uint32_t tokens)
{
    const struct ops_row *row = &j->a->rows[index];
    for (uint32_t done = 0; done < row->n; done += tokens) {
        struct tile *t = &j->tiles[j->n_tiles], *before = j->n_tiles ? t - 1 : NULL;
        const uint32_t n = row->n - done < tokens ? row->n - done : tokens;
        *t = (struct tile){ .row = index, .token = row->first + done, .n = n, .pos = row->pos + done };
        t->splits = splits_seen(j->a, t->pos, n, &t->first_split);
        t->pending = j->n_tiles * j->kv_heads;
        if (before) {
            const size_t sums = round16(sums_floats((size_t)before->n * j->group, j->a->kv->is.padded));
            t->first_piece = before->first_piece + tile_pieces(j, before);
            t->partial = before->partial + before->splits * j->kv_heads * sums;
        }
        j->tile_rows = n * j->group > j->tile_rows ? n * j->group : j->tile_rows;
        j->pieces = t->first_piece + tile_pieces(j, t);
        j->n_tiles++;
        for (uint32_t h = 0; j->by_split && h < j->kv_heads; h++)
            atomic_init(&j->pending[t->pending + h], t->splits);
    }
}

/* Lays the plan and the partial sums out in the device's shared memory. */
static int plan(struct job *j)
{
    const struct ops_attention *a = j->a;
    const uint32_t tokens = choose_tiles(j), n_tiles = count_tiles(a, tokens);
    const size_t tiles_bytes = round16(n_tiles * sizeof(struct tile));
    const size_t pending_bytes = round16((size_t)n_tiles * j->kv_heads * sizeof *j->pending);
    const size_t stores_bytes = (a->n_rows * sizeof *j->first_store + 63) / 64 * 64;
    const size_t partial_bytes = j->by_split ? partial_floats(j, tokens) * sizeof(float) : 0;
    const size_t before = (tiles_bytes + pending_bytes + 63) / 64 * 64 + stores_bytes;
    unsigned char *at = cpu_shared(a->kv->dev, before + partial_bytes);
    if (!at)
        return -ENOMEM;
    j->tiles = (struct tile *)at;
    j->pending = (_Atomic uint32_t *)(at + tiles_bytes);
    j->first_store = (uint32_t *)(at + before - stores_bytes);
    j->partials = (float *)(at + before);

    uint32_t stores = 0;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        plan_row(j, i, tokens);
        j->first_store[i] = stores;
        stores += blocks_touched(&a->rows[i]) * j->kv_heads;
    }
    cpu_work_init(&j->stores, stores);
    cpu_work_init(&j->tiles_work, j->pieces);
    return cpu_scratch_reserve(a->kv->dev, scratch_cut(j, NULL, NULL) * sizeof(float));
}

static const struct cpu_attention_set *set_of(const struct ops_dev *d)
{
#if defined(__x86_64__)
    if (d->isa >= CPU_AVX512)
        return &cpu_attention_avx512;
    if (d->isa >= CPU_AVX2)
        return &cpu_attention_avx2;
#endif
    (void)d;
    return &cpu_attention_portable;
}

void cpu_attention(struct ops_dev *d, const struct ops_attention *a)
{
    if (!a->n_tokens)
        return;
    struct job j = {
        .a = a, .set = set_of(d), .kv_heads = a->kv->shape.heads, .group = a->heads / a->kv->shape.heads
    };
    j.turns = a->rope_dims || a->q_norm;
    j.store_first = a->n_tokens != a->n_rows || rows_share(a);
    if (plan(&j) < 0)
        return;
    cpu_parallel(d, j.pieces, attention_thread, &j);
}
