/* Session io: see session_io.h. A piece is a block: layers in order, so that the stages' parts lie one behind
 * another, however many stages there are. */
#include "engine/session_io.h"
#include "engine/flight.h"
#include <errno.h>

_Static_assert(SESSION_IO_TOKENS == OPS_BLOCK_TOKENS, "a piece is a block");

/* Of one token in one layer. */
static size_t layer_bytes(const struct engine *e)
{
    return 2 * (size_t)e->n_head_kv * engine_kv_head_bytes(e->kv_type, e->head_dim);
}

void session_io_kind(const struct engine *e, struct session_io_kind *ret_kind)
{
    *ret_kind = (struct session_io_kind){ .kv_type = engine_kv_name(e->kv_type),
                                          .arithmetic = e->ops->arithmetic(e->stages[0].dev),
                                          .token_bytes = layer_bytes(e) * e->n_layers };
}

uint32_t session_io_get(const struct session *s, uint32_t piece, void *to)
{
    const struct engine *e = s->engine;
    unsigned char *at = to;
    uint32_t n;

    if (piece >= s->n_blocks)
        return 0;
    n = s->len - piece * SESSION_IO_TOKENS;
    n = n < SESSION_IO_TOKENS ? n : SESSION_IO_TOKENS;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        e->ops->kv_get(e->stages[i].kv, s->blocks[piece], n, at);
        at += layer_bytes(e) * e->stages[i].n_layers * n;
    }
    return n;
}

int session_io_put(struct session *s, uint32_t n, const void *from)
{
    const struct engine *e = s->engine;
    const unsigned char *at = from;
    uint32_t block;
    int r;

    if (n < 1 || n > SESSION_IO_TOKENS || s->len % SESSION_IO_TOKENS)
        return -EINVAL;
    r = session_add_block(s, n, &block);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        e->ops->kv_put(e->stages[i].kv, block, n, at);
        at += layer_bytes(e) * e->stages[i].n_layers * n;
    }
    return 0;
}
