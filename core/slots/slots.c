/* Slot table: see slots.h. Every function checks and allocates first and changes things after. */
#include "slots/slots.h"
#include "abi/policy.h"
#include "slots/slots_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int slots_new(const struct slots_options *o, struct slots **ret_slots)
{
    struct slots *s;
    uint32_t block = o->block_tokens ? o->block_tokens : HASH_BLOCK_MAX;
    if (!o->n_slots || o->n_slots > SLOTS_MAX || !o->group_slots || o->n_slots % o->group_slots)
        return -EINVAL;
    if (block % 4 || block > HASH_BLOCK_MAX || o->turn_token < -1)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->o = *o;
    s->o.block_tokens = block;
    s->n = o->n_slots + 1;
    s->h = calloc(s->n, sizeof *s->h);
    s->shared = calloc((size_t)s->n * s->n, sizeof *s->shared);
    if (!s->h || !s->shared) {
        slots_free(s);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        s->h[i].reliable = true;
        s->h[i].version = ++s->versions;
    }
    hasher_init(&s->hasher, o->key, block);
    *ret_slots = s;
    return 0;
}

void slots_free(struct slots *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->h && i < s->n; i++) {
        free(s->h[i].tokens);
        free(s->h[i].hashes);
    }
    free(s->h);
    free(s->shared);
    free(s);
}

const struct slots_options *slots_options(const struct slots *s)
{
    return &s->o;
}

const struct slots_history *slots_at(const struct slots *s, uint32_t i)
{
    return &s->h[i];
}

uint32_t slots_shared(const struct slots *s, uint32_t i, uint32_t j)
{
    return s->shared[(size_t)i * s->n + j];
}

const uint32_t *slots_shared_row(const struct slots *s, uint32_t i)
{
    return s->shared + (size_t)i * s->n;
}

bool slots_any_busy(const struct slots *s)
{
    return s->n_busy > 0;
}

uint32_t tokens_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= 16 && !memcmp(a + i, b + i, 16 * sizeof *a))
        i += 16;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Position of the last turn token after position 0 of the first n; 0 when there is none. */
static uint32_t last_turn(const struct slots *s, const int32_t *tokens, uint32_t n)
{
    if (s->o.turn_token < 0)
        return 0;
    while (n > 1)
        if (tokens[--n] == s->o.turn_token)
            return n;
    return 0;
}

uint32_t slots_turn_tokens(const struct slots *s, const int32_t *tokens, uint32_t n)
{
    uint32_t at = last_turn(s, tokens, n);
    return at ? at : n;
}

static void set_shared(struct slots *s, uint32_t i, uint32_t j, uint32_t n)
{
    s->shared[(size_t)i * s->n + j] = n;
    s->shared[(size_t)j * s->n + i] = n;
    s->h[i].kept_known = s->h[j].kept_known = false;
}

uint32_t slots_kept(struct slots *s, uint32_t i)
{
    struct slots_history *h = &s->h[i];
    if (h->kept_known)
        return h->kept;
    const uint32_t *row = slots_shared_row(s, i);
    h->kept = 0;
    for (uint32_t j = 0; j < s->n; j++)
        if (row[j] > h->kept && j != i && s->h[j].reliable)
            h->kept = row[j];
    h->kept_known = true;
    return h->kept;
}

/* ---- one history's tokens ---- */

static void touch(struct slots *s, uint32_t i)
{
    s->h[i].version = ++s->versions;
}

static void forget(struct slots *s, uint32_t i)
{
    struct slots_history *h = &s->h[i];
    h->n = h->turn_tokens = h->turn_at = 0;
    h->reliable = true;
    h->cut = false;
    h->salt = 0;
    h->label = (struct slots_label){ 0 };
    for (uint32_t j = 0; j < s->n; j++)
        set_shared(s, i, j, 0);
    touch(s, i);
}

/* Buffers for n tokens, old contents kept. */
static int grow(const struct slots *s, struct slots_history *h, uint64_t n)
{
    if (n <= h->cap)
        return 0;
    uint64_t cap = n + n / 2 + 64;
    if (n > UINT32_MAX)
        return -ENOMEM;
    if (cap > UINT32_MAX)
        cap = n;
    int32_t *tokens = realloc(h->tokens, cap * sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    h->tokens = tokens;
    void *hashes = realloc(h->hashes, (cap / s->o.block_tokens + 1) * sizeof *h->hashes);
    if (!hashes)
        return -ENOMEM; /* cap stays: more tokens than it says do no harm */
    h->hashes = hashes;
    h->cap = (uint32_t)cap;
    return 0;
}

/* The first n tokens remain: what follows from that but for turn_tokens. */
static void shorten(struct slots *s, uint32_t i, uint32_t n)
{
    struct slots_history *h = &s->h[i];
    if (n >= h->n)
        return;
    h->n = n;
    if (h->turn_at >= n)
        h->turn_at = last_turn(s, h->tokens, n);
    for (uint32_t j = 0; j < s->n; j++)
        if (slots_shared(s, i, j) > n)
            set_shared(s, i, j, n);
    touch(s, i);
}

/* `to` takes the first n tokens of another history, no labels. turn_tokens is the source's where nothing is
 * missing, otherwise what the tokens say. */
static int take_prefix(struct slots *s, uint32_t to, uint32_t from, uint32_t n)
{
    struct slots_history *t = &s->h[to], *f = &s->h[from];
    int r = grow(s, t, n);
    if (r < 0)
        return r;
    if (n) {
        memcpy(t->tokens, f->tokens, n * sizeof *t->tokens);
        memcpy(t->hashes, f->hashes, n / s->o.block_tokens * sizeof *t->hashes);
    }
    t->n = n;
    t->salt = f->salt;
    t->reliable = f->reliable;
    t->cut = f->cut && n == f->n;
    t->turn_at = f->turn_at < n ? f->turn_at : last_turn(s, t->tokens, n);
    t->turn_tokens = n == f->n ? f->turn_tokens : t->turn_at ? t->turn_at : n;
    for (uint32_t j = 0; j < s->n; j++) {
        uint32_t shared = slots_shared(s, from, j);
        set_shared(s, to, j, shared < n ? shared : n);
    }
    set_shared(s, to, from, n);
    set_shared(s, to, to, n);
    touch(s, to);
    return 0;
}

int slots_reserve(struct slots *s, uint32_t at, uint32_t n)
{
    if (at >= s->n)
        return -EINVAL;
    return grow(s, &s->h[at], (uint64_t)s->h[at].n + n);
}

/* Histories that agreed with all of history i so far may agree with its new tokens too. */
static void extend_shared(struct slots *s, uint32_t i, uint32_t old)
{
    const struct slots_history *h = &s->h[i];
    for (uint32_t j = 0; j < s->n; j++) {
        const struct slots_history *other = &s->h[j];
        if (j == i || slots_shared(s, i, j) < old || other->n <= old || other->salt != h->salt)
            continue;
        uint32_t max = h->n < other->n ? h->n : other->n;
        set_shared(s, i, j, old + tokens_common(h->tokens + old, other->tokens + old, max - old));
    }
    set_shared(s, i, i, h->n);
}

int slots_append(struct slots *s, uint32_t at, const int32_t *tokens, uint32_t n)
{
    if (at >= s->n || !s->h[at].busy)
        return -EINVAL;
    int r = slots_reserve(s, at, n);
    if (r < 0 || !n)
        return r;
    struct slots_history *h = &s->h[at];
    uint32_t old = h->n;
    memcpy(h->tokens + old, tokens, n * sizeof *tokens);
    h->n += n;
    h->fed += n;
    h->cut = false;
    for (uint32_t i = h->n; i > old && i > 1; i--) {
        if (h->tokens[i - 1] == s->o.turn_token) {
            h->turn_at = i - 1;
            break;
        }
    }
    h->turn_tokens = h->turn_at ? h->turn_at : h->n;
    hasher_extend(&s->hasher, h->salt, h->tokens, h->n, old / s->o.block_tokens, h->hashes);
    extend_shared(s, at, old);
    return 0;
}

/* ---- requests ---- */

static bool is_idle(const struct slots *s, uint32_t i)
{
    return i < s->n && !s->h[i].busy;
}

/* The label a copy of this history gets: a request that has fed nothing is not part of it yet. */
static struct slots_label label_of(const struct slots_history *h)
{
    return h->busy && !h->fed ? h->before : h->label;
}

static struct slots_label label_for(const struct slots_request *r, const struct slots_label *before,
                                    bool continues, uint32_t n)
{
    uint32_t turns = continues ? before->turns : 0;
    return (struct slots_label){
        .last_use_ns = before->last_use_ns,
        .turns = r->resumed && turns ? turns : turns + 1,
        .stop_reason = POLICY_STOP_NONE,
        .prompt_tokens = r->prompt_tokens,
        .request_flags = r->flags,
        .client_key = r->client_key,
        .session_key = r->session_key,
        .parent_key = r->parent_key,
        .line_key = r->line_key,
        .request_key = r->request_key,
        .cached = r->resumed && continues ? before->cached : n,
    };
}

int slots_begin(struct slots *s, uint32_t at, uint32_t source, uint32_t n, const struct slots_request *r)
{
    struct slots_label before = { 0 };
    bool continues = false;
    if (at >= s->n || (n && source >= s->n))
        return -EINVAL;
    if (s->h[at].busy)
        return -EBUSY;
    if (n) {
        const struct slots_history *f = &s->h[source];
        if (n > f->n || !f->reliable || f->salt != r->salt)
            return -EINVAL;
        before = label_of(f);
        continues = f->turn_tokens && n >= f->turn_tokens;
    }

    struct slots_history *h = &s->h[at];
    if (!n) {
        forget(s, at);
        h->salt = r->salt;
    } else if (source == at) {
        bool whole = n == h->n;
        shorten(s, at, n);
        if (!whole) {
            h->turn_tokens = h->turn_at ? h->turn_at : n;
            h->cut = false;
        }
    } else {
        int err = take_prefix(s, at, source, n);
        if (err < 0)
            return err;
    }
    h->before = before;
    h->label = label_for(r, &before, continues, n);
    h->fed = 0;
    h->busy = true;
    h->excluded = h->held = false;
    s->n_busy++;
    return 0;
}

static uint32_t stop_reason(enum slots_end how)
{
    switch (how) {
    case SLOTS_END_STOP:
    case SLOTS_END_STRING:
        return POLICY_STOP_END_TURN;
    case SLOTS_END_TOOL_USE:
        return POLICY_STOP_TOOL_USE;
    case SLOTS_END_LENGTH:
        return POLICY_STOP_LENGTH;
    case SLOTS_END_CANCEL:
    case SLOTS_END_FAIL:
    case SLOTS_END_REQUEUE:
        break;
    }
    return POLICY_STOP_CANCELLED;
}

int slots_end(struct slots *s, uint32_t at, enum slots_end how, int64_t now_ns)
{
    if (at >= s->n || !s->h[at].busy)
        return -EINVAL;
    struct slots_history *h = &s->h[at];
    h->label = label_of(h);
    h->busy = false;
    s->n_busy--;
    if (h->fed) {
        h->label.stop_reason = stop_reason(how);
        h->label.last_use_ns = now_ns;
    }
    return 0;
}

int slots_hand_over(struct slots *s, uint32_t from, uint32_t to, int64_t now_ns)
{
    if (from >= s->n || to >= s->n || from == to || !s->h[from].busy)
        return -EINVAL;
    if (s->h[to].busy)
        return -EBUSY;
    struct slots_history *f = &s->h[from], *t = &s->h[to];
    int r = take_prefix(s, to, from, f->n);
    if (r < 0)
        return r;
    t->label = f->label;
    t->before = f->before;
    t->fed = f->fed;
    t->busy = true;
    t->excluded = t->held = false;
    f->label = label_of(f);
    f->label.last_use_ns = now_ns;
    f->busy = false;
    return 0;
}

/* ---- idle histories ---- */

int slots_copy(struct slots *s, uint32_t from, uint32_t to, uint32_t n)
{
    if (from >= s->n || to >= s->n || from == to || n > s->h[from].n)
        return -EINVAL;
    if (!is_idle(s, to))
        return -EBUSY;
    struct slots_history *f = &s->h[from], *t = &s->h[to];
    int r = take_prefix(s, to, from, n);
    if (r < 0)
        return r;
    if (n)
        t->label = label_of(f);
    else
        forget(s, to);
    t->turn_tokens = f->turn_tokens < n ? f->turn_tokens : n;
    t->cut = n && (f->cut || n < f->n);
    return 0;
}

int slots_park(struct slots *s, uint32_t to)
{
    uint32_t main_at = s->o.n_slots;
    if (!is_idle(s, main_at))
        return -EBUSY;
    return s->h[main_at].n ? slots_copy(s, main_at, to, s->h[main_at].n) : -EINVAL;
}

int slots_swap(struct slots *s, uint32_t a, uint32_t b)
{
    if (a >= s->n || b >= s->n)
        return -EINVAL;
    if (a == b)
        return 0;
    struct slots_history held = s->h[a], *x = &s->h[a], *y = &s->h[b];
    bool excluded[2] = { x->excluded, y->excluded }, holds[2] = { x->held, y->held };
    *x = *y;
    *y = held;
    x->excluded = excluded[0];
    x->held = holds[0];
    y->excluded = excluded[1];
    y->held = holds[1];
    for (uint32_t j = 0; j < s->n; j++) {
        if (j == a || j == b)
            continue;
        uint32_t with_a = slots_shared(s, a, j);
        set_shared(s, a, j, slots_shared(s, b, j));
        set_shared(s, b, j, with_a);
    }
    set_shared(s, a, a, x->n); /* versions went along: prompts see that another history lies here */
    set_shared(s, b, b, y->n);
    return 0;
}

int slots_move(struct slots *s, uint32_t from, uint32_t to)
{
    if (from >= s->n || to >= s->n || from == to)
        return -EINVAL;
    if (!is_idle(s, from) || !is_idle(s, to))
        return -EBUSY;
    slots_swap(s, from, to);
    return slots_clear(s, from);
}

int slots_cut(struct slots *s, uint32_t at, uint32_t n)
{
    if (at >= s->n || n > s->h[at].n)
        return -EINVAL;
    if (!is_idle(s, at))
        return -EBUSY;
    if (!n)
        return slots_clear(s, at);
    struct slots_history *h = &s->h[at];
    h->cut = h->cut || n < h->n;
    shorten(s, at, n);
    if (h->turn_tokens > n)
        h->turn_tokens = n;
    return 0;
}

int slots_put(struct slots *s, uint32_t at, const struct slots_given *g)
{
    if (at >= s->n || !g->n || g->turn_tokens > g->n)
        return -EINVAL;
    if (!is_idle(s, at))
        return -EBUSY;
    struct slots_history *h = &s->h[at];
    int r = grow(s, h, g->n);
    if (r < 0)
        return r;
    forget(s, at);
    memcpy(h->tokens, g->tokens, g->n * sizeof *h->tokens);
    h->n = g->n;
    h->turn_tokens = g->turn_tokens;
    h->turn_at = last_turn(s, h->tokens, h->n);
    h->cut = g->cut;
    h->salt = g->salt;
    h->label = g->label;
    hasher_extend(&s->hasher, h->salt, h->tokens, h->n, 0, h->hashes);
    extend_shared(s, at, 0);
    return 0;
}

int slots_clear(struct slots *s, uint32_t at)
{
    if (at >= s->n)
        return -EINVAL;
    if (!is_idle(s, at))
        return -EBUSY;
    struct slots_history *h = &s->h[at];
    forget(s, at);
    free(h->tokens);
    free(h->hashes);
    h->tokens = NULL;
    h->hashes = NULL;
    h->cap = 0;
    return 0;
}

void slots_set_reliable(struct slots *s, uint32_t at, bool reliable)
{
    if (s->h[at].reliable != reliable)
        touch(s, at);
    s->h[at].reliable = reliable;
    for (uint32_t j = 0; j < s->n; j++)
        s->h[j].kept_known = false;
}

void slots_set_excluded(struct slots *s, uint32_t at, bool excluded)
{
    s->h[at].excluded = excluded;
}

void slots_set_held(struct slots *s, uint32_t at, bool held)
{
    s->h[at].held = held;
}
