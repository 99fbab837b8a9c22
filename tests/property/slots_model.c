/* The slot table against a slow model. Random operations run on a table of 2 groups of 2 slots and main, and
 * on a model that stores every history as an array of tokens and computes every length by looking: shared
 * lengths, turn tokens, what a prompt shares, the whole snapshot, and what is superseded. Then the plans of
 * giving up memory against a search that frees one block after another. */
#include "../cases.h"
#include "../unit/slots_rig.h"

#include "abi/policy_words.h"
#include "slots/giveup.h"
#include "slots/snapshot.h"

#define SLOTS 4
#define ALL (SLOTS + 1) /* main included */
#define MAX_LEN 160
#define SEQUENCES 200000
#define OPERATIONS 20

struct slow {
    int32_t tokens[MAX_LEN];
    uint32_t n;
    bool cut; /* by the host, and nothing was added since: turns says how many turn tokens are left */
    uint32_t turns;
    bool busy, excluded, held, reliable;
    uint64_t salt;
    uint32_t fed;
    struct slots_label label, before;
};

struct world {
    struct slots *s;
    struct snapshot *snapshot;
    struct slow h[ALL];
    uint64_t seed;
    int64_t now;
    int32_t prompt[MAX_LEN];
    struct slots_prompt *p;
    uint32_t n_prompt;
    uint64_t done[16];
};

static uint32_t below(struct world *w, uint32_t n)
{
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33) % n;
}

/* ---- the model ---- */

static uint32_t slow_turns(const struct slow *h)
{
    uint32_t n = h->n;
    if (h->cut)
        return h->turns;
    for (uint32_t i = 1; i < h->n; i++)
        if (h->tokens[i] == TURN)
            n = i;
    return n;
}

static uint32_t slow_shared(const struct slow *a, const struct slow *b)
{
    uint32_t n = 0;
    if (a->salt != b->salt && a != b)
        return 0;
    while (n < a->n && n < b->n && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

static void slow_empty(struct slow *h)
{
    h->n = 0;
    h->cut = false;
    h->reliable = true;
    h->salt = 0;
    h->label = (struct slots_label){ 0 };
}

static void slow_cut(struct slow *h, uint32_t n)
{
    uint32_t turns = slow_turns(h);
    if (!n) {
        slow_empty(h);
        return;
    }
    h->cut = h->cut || n < h->n;
    h->turns = turns < n ? turns : n;
    h->n = n;
}

/* The tokens of another, and nothing of who it is. */
static void slow_take(struct slow *to, const struct slow *from)
{
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    to->n = from->n;
    to->cut = from->cut;
    to->turns = from->turns;
    to->reliable = from->reliable;
    to->salt = from->salt;
}

static struct slots_label slow_label(const struct slow *h)
{
    return h->busy && !h->fed ? h->before : h->label;
}

/* ---- comparing ---- */

static void compare_history(const struct world *w, uint32_t i)
{
    const struct slow *m = &w->h[i];
    const struct slots_history *h = slots_at(w->s, i);
    cr_assert_eq(h->n, m->n);
    cr_assert(!m->n || !memcmp(h->tokens, m->tokens, m->n * sizeof *m->tokens));
    cr_assert_eq(h->turn_tokens, slow_turns(m));
    cr_assert(h->busy == m->busy && h->excluded == m->excluded && h->held == m->held);
    cr_assert_eq(h->reliable, m->reliable);
    cr_assert_eq(h->cut, m->cut && m->n);
    cr_assert_eq(memcmp(&h->label, &m->label, sizeof m->label), 0);
    for (uint32_t j = 0; j < ALL; j++)
        cr_assert_eq(slots_shared(w->s, i, j), slow_shared(m, &w->h[j]), "%u and %u", i, j);
}

static void compare_prompt(struct world *w)
{
    const uint32_t *shared = slots_prompt_shared(w->s, w->p);
    struct slow prompt = { .n = w->n_prompt - 1 };
    memcpy(prompt.tokens, w->prompt, sizeof w->prompt);
    for (uint32_t i = 0; i < ALL; i++) {
        prompt.salt = w->p->salt;
        cr_assert_eq(shared[i], slow_shared(&prompt, &w->h[i]), "prompt and %u", i);
    }
    uint32_t i = below(w, ALL);
    cr_assert_eq(slots_prompt_verify(w->s, w->p, i), slow_shared(&prompt, &w->h[i]));
}

static int64_t slow_last_use(const struct world *w, uint32_t i)
{
    return w->h[i].busy ? w->now : w->h[i].label.last_use_ns;
}

/* Section 1's sentence, word by word. */
static bool slow_superseded(const struct world *w, uint32_t a)
{
    const struct slow *x = &w->h[a];
    if (x->busy || !x->reliable || !slow_turns(x))
        return false;
    for (uint32_t b = 0; b < ALL; b++) {
        const struct slow *y = &w->h[b];
        uint32_t shared = slow_shared(x, y);
        int64_t use_x = slow_last_use(w, a), use_y = slow_last_use(w, b);
        if (a == b || !y->reliable || shared < slow_turns(x) || y->n < x->n || use_y < use_x)
            continue;
        if (y->n > x->n || use_y > use_x)
            return true;
        if (shared == x->n && b < SLOTS && a > b)
            return true;
    }
    return false;
}

static void compare_snapshot(struct world *w)
{
    struct prompt_rate rate;
    struct snapshot_input in = { .now_ns = w->now,
                                 .shared_prompt = slots_prompt_shared(w->s, w->p),
                                 .rate = &rate };
    prompt_rate_init(&rate);
    const struct policy_snapshot *v = snapshot_build(w->snapshot, w->s, &in);
    uint32_t rows[2] = { 0 };
    for (uint32_t i = 0; i < ALL; i++) {
        const struct policy_history *h = policy_at(v, i);
        const struct slow *m = &w->h[i];
        uint32_t kept = 0;
        for (uint32_t j = 0; j < ALL; j++)
            if (j != i && w->h[j].reliable && slow_shared(m, &w->h[j]) > kept)
                kept = slow_shared(m, &w->h[j]);
        cr_assert_eq(h->recompute_ns, prompt_rate_ns(&rate, kept, m->n));
        uint32_t flags = (m->busy ? POLICY_BUSY : 0) | (m->excluded ? POLICY_EXCLUDED : 0) |
                         (m->held ? POLICY_HELD : 0) | (m->reliable ? POLICY_RELIABLE : 0);
        cr_assert(h->tokens == m->n && h->turn_tokens == slow_turns(m) && h->flags == flags);
        cr_assert(h->last_use_ns == slow_last_use(w, i) && h->turns == m->label.turns);
        cr_assert(h->stop_reason == m->label.stop_reason && h->session_key == m->label.session_key);
        cr_assert(h->shared_prompt == in.shared_prompt[i]);
        if (i < SLOTS) {
            rows[i / 2] += m->busy || m->excluded;
            cr_assert_eq(policy_superseded(v, i), slow_superseded(w, i), "slot %u", i);
        }
    }
    cr_assert(policy_busy_rows(v, 0) == rows[0] && policy_busy_rows(v, 1) == rows[1]);
}

/* ---- operations ---- */

static void op_begin(struct world *w)
{
    uint32_t at = below(w, ALL), from = below(w, ALL + 1), n = below(w, MAX_LEN);
    struct slots_request r = { .session_key = 1 + below(w, 5),
                               .request_key = below(w, 9),
                               .prompt_tokens = n,
                               .resumed = !below(w, 4),
                               .salt = !below(w, 10) };
    const struct slow *f = from < ALL ? &w->h[from] : NULL;
    if (f && below(w, 2))
        n = f->n;
    if (f && below(w, 4))
        r.salt = f->salt;
    int expected = 0;
    if (n && !f)
        expected = -EINVAL;
    else if (w->h[at].busy)
        expected = -EBUSY;
    else if (n && (n > f->n || !f->reliable || f->salt != r.salt))
        expected = -EINVAL;
    cr_assert_eq(slots_begin(w->s, at, f ? from : SLOTS_NONE, n, &r), expected);
    if (expected)
        return;

    struct slow *h = &w->h[at];
    struct slots_label before = { 0 };
    uint32_t turns = 0;
    bool same = false;
    if (n) {
        before = slow_label(f);
        same = slow_turns(f) && n >= slow_turns(f);
        turns = same ? before.turns : 0;
        bool whole = n == f->n;
        if (f != h)
            slow_take(h, f);
        h->n = n;
        h->cut = h->cut && whole;
    } else {
        slow_empty(h);
        h->salt = r.salt;
    }
    h->before = before;
    h->label = (struct slots_label){ .last_use_ns = before.last_use_ns,
                                     .turns = turns + !(r.resumed && turns),
                                     .prompt_tokens = r.prompt_tokens,
                                     .session_key = r.session_key,
                                     .request_key = r.request_key,
                                     .cached = r.resumed && same ? before.cached : n };
    h->fed = 0;
    h->busy = true;
    h->excluded = h->held = false;
    w->done[0]++;
}

static void op_append(struct world *w)
{
    uint32_t at = below(w, ALL), n = 1 + below(w, below(w, 3) ? 3 : 30);
    struct slow *h = &w->h[at];
    int32_t t[32];
    if (h->n + n > MAX_LEN)
        return;
    /* Mostly what the prompt or another history has there, so that much is shared. */
    const struct slow *like = &w->h[below(w, ALL)];
    uint32_t way = below(w, 4);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = h->n + i;
        t[i] = way == 0                  ? (int32_t)below(w, 3)
               : way == 1 && p < like->n ? like->tokens[p]
               : way <= 2                ? w->prompt[p]
                                         : 2;
    }
    cr_assert_eq(slots_append(w->s, at, t, n), h->busy ? 0 : -EINVAL);
    if (!h->busy)
        return;
    memcpy(h->tokens + h->n, t, n * sizeof *t);
    h->n += n;
    h->fed += n;
    h->cut = false;
    w->done[1]++;
}

static void op_end(struct world *w)
{
    static const uint32_t reasons[] = { 1, 1, 2, 3, 4, 4, 4 };
    uint32_t at = below(w, ALL), how = below(w, 7);
    struct slow *h = &w->h[at];
    cr_assert_eq(slots_end(w->s, at, (enum slots_end)how, w->now), h->busy ? 0 : -EINVAL);
    if (!h->busy)
        return;
    h->label = slow_label(h);
    h->busy = false;
    if (h->fed) {
        h->label.stop_reason = reasons[how];
        h->label.last_use_ns = w->now;
    }
    w->done[2]++;
}

static void op_hand_over(struct world *w)
{
    uint32_t from = below(w, ALL), to = below(w, ALL);
    struct slow *f = &w->h[from], *t = &w->h[to];
    int expected = from == to || !f->busy ? -EINVAL : t->busy ? -EBUSY : 0;
    cr_assert_eq(slots_hand_over(w->s, from, to, w->now), expected);
    if (expected)
        return;
    *t = *f;
    t->excluded = t->held = false;
    f->label = slow_label(f);
    f->label.last_use_ns = w->now;
    f->busy = false;
    w->done[3]++;
}

static void op_copy(struct world *w)
{
    uint32_t from = below(w, ALL), to = below(w, ALL), n;
    bool park = !below(w, 2);
    if (park)
        from = SLOTS;
    struct slow *f = &w->h[from], *t = &w->h[to];
    n = park || below(w, 2) ? f->n : below(w, MAX_LEN);
    int expected = from == to || n > f->n || (park && !n) ? -EINVAL : t->busy ? -EBUSY : 0;
    if (park && f->busy)
        expected = -EBUSY;
    cr_assert_eq(park ? slots_park(w->s, to) : slots_copy(w->s, from, to, n), expected);
    if (expected)
        return;
    slow_take(t, f);
    t->label = slow_label(f);
    slow_cut(t, n);
    w->done[park ? 4 : 5]++;
}

static void op_move(struct world *w)
{
    uint32_t from = below(w, ALL), to = below(w, ALL);
    struct slow *f = &w->h[from], *t = &w->h[to];
    int expected = from == to ? -EINVAL : f->busy || t->busy ? -EBUSY : 0;
    cr_assert_eq(slots_move(w->s, from, to), expected);
    if (expected)
        return;
    slow_take(t, f);
    t->label = f->label;
    slow_empty(f);
    w->done[6]++;
}

static void op_swap(struct world *w)
{
    uint32_t a = below(w, ALL), b = below(w, ALL);
    cr_assert_eq(slots_swap(w->s, a, b), 0);
    struct slow x = w->h[a], y = w->h[b];
    if (a == b)
        return;
    w->h[a] = y;
    w->h[b] = x;
    w->h[a].excluded = x.excluded;
    w->h[a].held = x.held;
    w->h[b].excluded = y.excluded;
    w->h[b].held = y.held;
    w->done[7]++;
}

static void op_cut(struct world *w)
{
    uint32_t at = below(w, ALL);
    struct slow *h = &w->h[at];
    uint32_t n = below(w, h->n + 2);
    int expected = n > h->n ? -EINVAL : h->busy ? -EBUSY : 0;
    cr_assert_eq(slots_cut(w->s, at, n), expected);
    if (!expected) {
        slow_cut(h, n);
        w->done[8]++;
    }
}

static void op_put(struct world *w)
{
    uint32_t at = below(w, ALL);
    const struct slow *like = &w->h[below(w, ALL)];
    int32_t tokens[MAX_LEN];
    struct slots_given g = { .tokens = tokens, .salt = !below(w, 8), .cut = below(w, 2) };
    for (uint32_t i = 0; i < MAX_LEN; i++)
        tokens[i] = i < like->n && below(w, 30) ? like->tokens[i] : (int32_t)below(w, 3);
    struct slow given = { .n = g.n = below(w, MAX_LEN), .reliable = true, .salt = g.salt };
    memcpy(given.tokens, tokens, sizeof given.tokens);
    given.turns = g.turn_tokens = g.cut ? below(w, g.n + 2) : slow_turns(&given);
    given.cut = g.cut;
    g.label = given.label = (struct slots_label){ .last_use_ns = w->now, .turns = below(w, 9) };
    struct slow *h = &w->h[at];
    int expected = !g.n || g.turn_tokens > g.n ? -EINVAL : h->busy ? -EBUSY : 0;
    cr_assert_eq(slots_put(w->s, at, &g), expected);
    if (expected)
        return;
    given.excluded = h->excluded;
    given.held = h->held;
    *h = given;
    w->done[9]++;
}

static void op_flags(struct world *w)
{
    uint32_t at = below(w, ALL), bit = below(w, 2);
    switch (below(w, 4)) {
    case 0:
        slots_set_excluded(w->s, at, bit);
        w->h[at].excluded = bit;
        break;
    case 1:
        slots_set_held(w->s, at, bit);
        w->h[at].held = bit;
        break;
    case 2:
        slots_set_reliable(w->s, at, bit);
        w->h[at].reliable = bit;
        break;
    default:
        if (!w->h[at].busy) {
            cr_assert_eq(slots_clear(w->s, at), 0);
            slow_empty(&w->h[at]);
        }
        break;
    }
}

static void another_prompt(struct world *w)
{
    const struct slow *like = &w->h[below(w, ALL)];
    slots_prompt_free(w->p);
    w->p = NULL;
    for (uint32_t i = 0; i < MAX_LEN; i++)
        w->prompt[i] = i < like->n && below(w, 20) ? like->tokens[i] : (int32_t)below(w, 3);
    w->n_prompt = 1 + below(w, MAX_LEN - 1);
    cr_assert_eq(slots_prompt_new(w->s, w->prompt, w->n_prompt, !below(w, 8), &w->p), 0);
}

static void operate(struct world *w)
{
    static void (*const operations[])(
        struct world *) = { op_begin, op_append,    op_append, op_append, op_end, op_begin, op_append,
                            op_copy,  op_hand_over, op_move,   op_swap,   op_cut, op_put,   op_flags };
    w->now += below(w, 3) * 5; /* equal times happen */
    if (below(w, 16) == 0)
        another_prompt(w);
    operations[below(w, sizeof operations / sizeof *operations)](w);
}

static void start(struct world *w, uint32_t block_tokens)
{
    struct slots_options o = {
        .n_slots = SLOTS, .group_slots = 2, .turn_token = TURN, .key = { 3, 4 }, .block_tokens = block_tokens
    };
    cr_assert_eq(slots_new(&o, &w->s), 0);
    cr_assert_eq(snapshot_new(w->s, NULL, &w->snapshot), 0);
    memset(w->h, 0, sizeof w->h);
    for (uint32_t i = 0; i < ALL; i++)
        w->h[i].reliable = true;
    another_prompt(w);
}

static void finish(struct world *w)
{
    slots_prompt_free(w->p);
    w->p = NULL;
    snapshot_free(w->snapshot);
    slots_free(w->s);
}

static void check(struct world *w)
{
    for (uint32_t i = 0; i < ALL; i++)
        compare_history(w, i);
    compare_prompt(w);
    compare_snapshot(w);
}

/* The table is not emptied between most sequences: histories grow long over some of them. */
static void run(uint32_t sequences, uint32_t block_tokens, uint64_t seed)
{
    struct world w = { .seed = seed, .now = 1000 };
    start(&w, block_tokens);
    for (uint32_t i = 0; i < sequences; i++) {
        for (uint32_t k = 0; k < OPERATIONS; k++) {
            operate(&w);
            if (below(&w, 8) == 0)
                compare_history(&w, below(&w, ALL));
        }
        check(&w);
        if (below(&w, 4) == 0) {
            finish(&w);
            start(&w, block_tokens);
        }
    }
    finish(&w);
    for (uint32_t k = 0; k <= 8; k++)
        cr_assert_gt(w.done[k], sequences / 50, "operation %u hardly ever happened", k);
}

Test(slots_model, small_blocks)
{
    run(cases_of(SEQUENCES / 2, 6), 4, 1);
}

Test(slots_model, middling_blocks)
{
    run(cases_of(SEQUENCES / 4, 6), 20, 2);
}

Test(slots_model, whole_blocks)
{
    run(cases_of(SEQUENCES / 4, 6), 64, 3);
}

/* ---- giving up memory ---- */

#define POOL 40
#define BLOCK 8
#define HOLDERS 7
#define LONGEST 6

struct pool {
    uint64_t seed;
    uint32_t blocks[HOLDERS][LONGEST], n;
    struct giveup_history h[HOLDERS];
};

static uint32_t draw(struct pool *p, uint32_t n)
{
    p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->seed >> 33) % n;
}

/* Histories that share prefixes, as forks make them. */
static void fill_pool(struct pool *p)
{
    uint32_t next = 0;
    p->n = 1 + draw(p, HOLDERS);
    for (uint32_t i = 0; i < p->n; i++) {
        struct giveup_history *h = &p->h[i];
        uint32_t from = i ? draw(p, i) : 0, n = draw(p, LONGEST + 1);
        uint32_t shared = i && draw(p, 3) ? draw(p, p->h[from].n_blocks + 1) : 0;
        if (shared > n)
            shared = n;
        for (uint32_t b = 0; b < n; b++)
            p->blocks[i][b] = b < shared ? p->blocks[from][b] : next++ % POOL;
        *h = (struct giveup_history){ .blocks = p->blocks[i],
                                      .n_blocks = n,
                                      .tokens = n ? n * BLOCK - draw(p, BLOCK) : 0,
                                      .busy = !draw(p, 6),
                                      .reliable = draw(p, 8),
                                      .wanted = !draw(p, 5),
                                      .worthless = !draw(p, 5),
                                      .state = 1 + draw(p, 3),
                                      .give_up = draw(p, 4) / 2.0 };
    }
}

/* Whether a goes before b, as the rules say it; a's index is lower. */
static bool goes_first(const struct giveup_history *a, const struct giveup_history *b)
{
    if (a->wanted != b->wanted)
        return !a->wanted;
    uint32_t x = a->worthless || a->state == POLICY_STATE_BLANK ? 0 : a->state;
    uint32_t y = b->worthless || b->state == POLICY_STATE_BLANK ? 0 : b->state;
    return x != y ? x < y : a->give_up <= b->give_up;
}

/* Whether history i ranks above j. */
static bool ranks_above(const struct pool *p, uint32_t i, uint32_t j)
{
    return i > j ? goes_first(&p->h[j], &p->h[i]) : !goes_first(&p->h[i], &p->h[j]);
}

static bool may_go(const struct giveup_history *h, bool take_wanted)
{
    return !h->busy && (!h->reliable || !h->wanted || take_wanted);
}

static bool holds(const uint32_t *len, const struct pool *p, uint32_t i, uint32_t block)
{
    for (uint32_t b = 0; b < len[i]; b++)
        if (p->blocks[i][b] == block)
            return true;
    return false;
}

static uint32_t blocks_held(const struct pool *p, const uint32_t *len)
{
    uint32_t n = 0;
    for (uint32_t block = 0; block < POOL; block++)
        for (uint32_t i = 0; i < p->n; i++)
            if (holds(len, p, i, block)) {
                n++;
                break;
            }
    return n;
}

/* The next block to go: the last of the lowest history that nobody higher holds too. */
static bool next_block(const struct pool *p, const uint32_t *len, bool take_wanted, uint32_t *ret_block)
{
    int64_t lowest = -1;
    for (uint32_t i = 0; i < p->n; i++) {
        bool sole = len[i] > 0;
        for (uint32_t j = 0; j < p->n && sole; j++)
            if (j != i && holds(len, p, j, p->blocks[i][len[i] - 1]))
                sole = may_go(&p->h[j], take_wanted) && !ranks_above(p, j, i);
        if (!sole || !may_go(&p->h[i], take_wanted))
            continue;
        if (lowest < 0 || ranks_above(p, (uint32_t)lowest, i))
            lowest = i;
    }
    if (lowest >= 0)
        *ret_block = p->blocks[lowest][len[lowest] - 1];
    return lowest >= 0;
}

static void brute_plan(const struct pool *p, uint32_t needed, bool take_wanted, uint32_t *len)
{
    uint32_t block, before;
    for (uint32_t i = 0; i < p->n; i++)
        len[i] = p->h[i].n_blocks;
    before = blocks_held(p, len);
    for (uint32_t i = 0; i < p->n; i++)
        if (!p->h[i].busy && !p->h[i].reliable)
            len[i] = 0;
    while (before - blocks_held(p, len) < needed && next_block(p, len, take_wanted, &block)) {
        for (uint32_t i = 0; i < p->n; i++) /* every holder is cut there */
            for (uint32_t b = 0; b < len[i]; b++)
                if (p->blocks[i][b] == block)
                    len[i] = b;
    }
}

Test(slots_model, plans_of_giving_up_are_those_of_a_search)
{
    struct pool p = { .seed = 5 };
    struct giveup *g = NULL;
    uint32_t partly = 0;
    cr_assert_eq(giveup_new(POOL, BLOCK, HOLDERS, &g), 0);
    for (uint32_t round = 0; round < cases_of(60000, 6); round++) {
        uint32_t to[HOLDERS], len[HOLDERS], whole[HOLDERS], needed = draw(&p, 15);
        bool take_wanted = draw(&p, 2);
        fill_pool(&p);
        int64_t freed = giveup_plan(g, p.h, p.n, needed, take_wanted, to);
        brute_plan(&p, needed, take_wanted, len);
        for (uint32_t i = 0; i < p.n; i++) {
            uint32_t expected = len[i] == p.h[i].n_blocks ? p.h[i].tokens : len[i] * BLOCK;
            cr_assert_eq(to[i], expected, "round %u, history %u: %u instead of %u", round, i, to[i],
                         expected);
            whole[i] = p.h[i].n_blocks;
            partly += len[i] && len[i] < whole[i];
        }
        cr_assert_eq(freed, blocks_held(&p, whole) - blocks_held(&p, len));
    }
    cr_assert_gt(partly, cases_of(10000, 6));
    giveup_free(g);
}
