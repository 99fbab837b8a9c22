/* value: keeps the conversations that would cost most to read again, for as long as somebody is likely to
 * come back to them.
 *
 * The question. A server has fewer slots than conversations. When a request comes that continues none of
 * them, some idle history must make room, and tokens that were read once will be read again if its client
 * returns. Least recently used is the usual rule, and it has two faults here. It gives up a conversation of
 * 100,000 tokens for one of 500 that was used a second later, although reading the first again takes a
 * minute and the second nothing. And it cannot say "none of them": a stream of short requests washes
 * through all slots, one after the other.
 *
 * What a history is worth grows with its length n, but less than n does:
 *
 *     base(n) = (n / 50,000)^0.7 * (n / (n + 2,000))^2
 *
 * The power says that twice the length is not twice the worth: several middling conversations are together
 * more likely to be wanted than one long one. The second factor lets short ones fall to almost nothing: a
 * few hundred tokens are read again before anybody notices. 50,000 tokens are the measure, worth just under
 * 1.
 *
 * Time has two parts. For its first ttl(n) seconds, 10 at 8,000 tokens and 120 at 262,144, a history is
 * protected: a tool is running or a person is reading, and the next turn is the likeliest thing to happen.
 * Nothing takes its slot while any other is left. Its worth is then its retention,
 *
 *     retention = base * (0.25 + 0.75 * fresh),   fresh = 1 - age / ttl, and 0 once age >= ttl
 *
 * which falls in a straight line to a quarter of the base. Past that age the history has expired and what
 * counts is its value,
 *
 *     value = base * 0.25 * (1 - x * x),   x from 0 at age ttl to 1 at age idle_value_zero_s
 *
 * which begins where retention ended and falls slowly at first, faster and faster later: somebody who comes
 * back after a quarter of an hour is served, yesterday's conversation does not weigh against today's. Value
 * never holds the bonus for freshness, protected or not, so that a history that was just used can be compared
 * with one that was not. Age counts from the end of the last use. Copying, moving and parking are no use.
 *
 * Place, in three steps that give up more and more:
 *   1. The prompt continues a history in a free slot: it runs there, or beside it in a blank slot of a less
 *      loaded group, which takes the prefix over. Never in a slot that holds another conversation.
 *   2. Otherwise among the slots whose history is not protected. Those worth less than expired_keep_score
 *      are all alike: among them the load of the groups decides first, and the loss after it. Those worth
 *      more come last.
 *   3. Everything is protected: the least loss, where losses within a tenth count as equal and load decides.
 *      A request never waits for a protection to end.
 * Wherever it runs, its prefix comes from the history that shares most with it.
 *
 * Park. When a request is about to replace what the solo session (main) holds, that history may be copied
 * into a slot. This is an offer, not a need: main must be worth something, nobody may hold it already, no
 * protected history is touched, and an expired one that is worth keeping only when main is worth
 * park_value_ratio times as much. Without that ratio two long conversations would push each other out of
 * the same slot in turns. An older copy of main is overwritten before anything else.
 *
 * Padding. An engine that is not padding safe writes over the idle histories below a row that it starts.
 * That is collateral, and it counts in every loss above as the retention of the protected ones among them.
 * Parking, which starts no row, has none, but keeps away from slots below a row.
 *
 * Numbers are double throughout and each formula is computed as it is written here. "Protected" and x are
 * told by the same two doubles, age and ttl, so no history is neither protected nor expired.
 *
 * Any thread; a decision is a function of its arguments. A call judges each history once, which takes one
 * pass over its row of shared lengths; collateral, where there is any, is the square of that.
 * Must not know: tokens, clocks, who asks. Tests: tests/unit/test_value.c (recorded decisions),
 * tests/property/value_model.c (another implementation, and what must hold for every table) */
#include "policy.h"
#include "policy_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

enum setting {
    SETTING_TTL_MAX_S,
    SETTING_EXPIRED_KEEP_SCORE,
    SETTING_IDLE_VALUE_ZERO_S,
    SETTING_PARK_VALUE_RATIO,
    SETTING_PARK_MIN_VALUE,
    SETTING_PARK_KEPT_SHARE,
    SETTINGS,
};

static const struct policy_setting setting_table[SETTINGS] = {
    [SETTING_TTL_MAX_S] = {
        .name = "ttl_max_s", .kind = POLICY_SECONDS, .min = 0, .max = 86400, .default_text = "120",
        .unit = "s", .env = "STRATA_SLOT_TTL_MAX_S",
        .help = "Protection of a conversation of 262,144 tokens after its last use; shorter ones have less.",
    },
    [SETTING_EXPIRED_KEEP_SCORE] = {
        .name = "expired_keep_score", .kind = POLICY_REAL, .min = 0, .max = 10, .default_text = "0.01",
        .unit = "", .env = "STRATA_SLOT_EXPIRED_KEEP_SCORE",
        .help = "An expired conversation worth at least this is given up last.",
    },
    [SETTING_IDLE_VALUE_ZERO_S] = {
        .name = "idle_value_zero_s", .kind = POLICY_SECONDS, .min = 0, .max = 604800, .default_text = "1800",
        .unit = "s", .env = "STRATA_SLOT_IDLE_VALUE_ZERO_S",
        .help = "Time since the last use at which a conversation is worth nothing; 0: it keeps its worth.",
    },
    [SETTING_PARK_VALUE_RATIO] = {
        .name = "park_value_ratio", .kind = POLICY_REAL, .min = 0, .max = 1000, .default_text = "2",
        .unit = "", .env = "STRATA_SLOT_PARK_VALUE_RATIO",
        .help = "The solo session's conversation replaces one worth keeping only when it is worth this many "
                "times more; 0: never.",
    },
    [SETTING_PARK_MIN_VALUE] = {
        .name = "park_min_value", .kind = POLICY_REAL, .min = 0, .max = 10, .default_text = "0.01",
        .unit = "", .env = "STRATA_SLOT_PARK_MIN_VALUE",
        .help = "The solo session's conversation is not kept when it is worth less than this.",
    },
    [SETTING_PARK_KEPT_SHARE] = {
        .name = "park_kept_share", .kind = POLICY_REAL, .min = 0.01, .max = 1, .default_text = "0.98",
        .unit = "", .env = "STRATA_SLOT_PARK_KEPT_SHARE",
        .help = "A slot that holds this share of the solo session's conversation keeps it already.",
    },
};

struct value {
    double set[SETTINGS];
};

/* ---- reasons ---- */

enum reason {
    REASON_NONE,
    REASON_CONTINUE,
    REASON_CONTINUE_MOVED,
    REASON_NEW_BLANK,
    REASON_NEW_EXPIRED,
    REASON_NEW_KEPT,
    REASON_PROTECTED_OVERWRITTEN,
    REASON_NO_MAIN,
    REASON_SAME_CONVERSATION,
    REASON_MAIN_LOW_VALUE,
    REASON_ALREADY_KEPT,
    REASON_OWN_COPY,
    REASON_PARKED,
    REASON_NO_DESTINATION,
    REASONS,
};

static const struct policy_reason reason_table[REASONS] = {
    [REASON_NONE] = { "none", "No slot is free." },
    [REASON_CONTINUE] = { "continue", "The request continues the conversation in this slot." },
    [REASON_CONTINUE_MOVED] = { "continue_moved",
                                "The request continues a conversation whose group is busier: this slot was "
                                "blank and takes it over." },
    [REASON_NEW_BLANK] = { "new_blank", "The slot held nothing that would be missed." },
    [REASON_NEW_EXPIRED] = { "new_expired", "The slot's conversation had expired and was worth little." },
    [REASON_NEW_KEPT] = { "new_kept",
                          "Every expired conversation was worth keeping; the least of them went." },
    [REASON_PROTECTED_OVERWRITTEN] = { "protected_overwritten",
                                       "Every free slot was protected; the least loss went." },
    [REASON_NO_MAIN] = { "no_main", "The solo session held nothing to keep." },
    [REASON_SAME_CONVERSATION] = { "same_conversation",
                                   "The request continues the solo session's conversation." },
    [REASON_MAIN_LOW_VALUE] = { "main_low_value",
                                "The solo session's conversation was worth too little at its age." },
    [REASON_ALREADY_KEPT] = { "already_kept",
                              "A slot holds the solo session's conversation, or nearly all of it." },
    [REASON_OWN_COPY] = { "own_copy", "The slot held an older copy of the solo session's conversation." },
    [REASON_PARKED] = { "parked", "The solo session's conversation is kept in this slot." },
    [REASON_NO_DESTINATION] = { "no_destination",
                                "Every free slot held a conversation that must not make room for it." },
};

/* ---- what one history is worth ---- */

/* Seconds of protection for n tokens. */
static double ttl_of(const struct value *x, uint32_t n)
{
    static const struct {
        double tokens, seconds;
    } points[] = { { 0, 0 },      { 500, 0.1 },  { 2000, 2 },    { 8000, 10 },
                   { 32000, 45 }, { 50000, 65 }, { 100000, 90 }, { 262144, 120 } };
    const uint32_t last = sizeof points / sizeof *points - 1;
    double seconds = points[last].seconds;
    for (uint32_t i = 1; i <= last; i++) {
        if (n <= points[i].tokens) {
            double x0 = points[i - 1].tokens, y0 = points[i - 1].seconds;
            double x1 = points[i].tokens, y1 = points[i].seconds;
            seconds = y0 + (y1 - y0) * (n - x0) / (x1 - x0);
            break;
        }
    }
    return seconds * (x->set[SETTING_TTL_MAX_S] / 120);
}

static double base_of(uint32_t tokens)
{
    double n = tokens, share = n / (n + 2000);
    return pow(n / 50000, 0.7) * (share * share);
}

/* How far value has fallen, 0 to 1. */
static double decay_of(const struct value *x, double age, double ttl)
{
    double zero = x->set[SETTING_IDLE_VALUE_ZERO_S];
    if (age < ttl || !(zero > 0))
        return 0;
    /* The zero age lies within the protection, which wins; then nothing is left. */
    if (zero <= ttl)
        return 1;
    double past = (age - ttl) / (zero - ttl);
    return past < 1 ? past : 1;
}

struct worth {
    int blank, is_protected;
    double age, ttl, retention, value;
};

static struct worth worth_of(const struct value *x, const struct policy_snapshot *s, uint32_t i)
{
    const struct policy_history *h = policy_at(s, i);
    struct worth w = { .age = policy_age_s(s, h), .ttl = ttl_of(x, h->tokens) };
    w.blank = policy_blank(s, i);
    if (w.blank)
        return w;
    double base = base_of(h->tokens), decay = decay_of(x, w.age, w.ttl);
    double fresh = w.age < w.ttl ? 1 - w.age / w.ttl : 0;
    w.is_protected = w.age < w.ttl;
    w.retention = base * (0.25 + 0.75 * fresh);
    w.value = base * 0.25 * (1 - decay * decay);
    return w;
}

/* Only what is protected counts as collateral. */
static double protected_worth(const void *arg, const struct policy_snapshot *s, uint32_t i)
{
    struct worth w = worth_of(arg, s, i);
    return w.is_protected ? w.retention : 0;
}

/* ---- slots that could be taken ---- */

struct candidate {
    uint32_t slot; /* POLICY_NO_SLOT: there is none */
    uint32_t rows; /* of its group */
    int blank, is_protected, keep;
    double collateral, loss;
};

static const struct candidate no_candidate = { .slot = POLICY_NO_SLOT };

/* What it costs to start the request in slot i. */
static struct candidate candidate_of(const struct value *x, const struct policy_snapshot *s, uint32_t i)
{
    struct worth w = worth_of(x, s, i);
    struct candidate c = { .slot = i, .blank = w.blank, .is_protected = w.is_protected };
    c.rows = policy_busy_rows(s, policy_at(s, i)->group);
    c.collateral = policy_collateral(s, i, protected_worth, x);
    c.loss = (w.is_protected ? w.retention : w.value) + c.collateral;
    c.keep = !w.blank && c.loss >= x->set[SETTING_EXPIRED_KEEP_SCORE];
    return c;
}

/* What was worth keeping goes last; then the less loaded group, the smaller loss, a blank slot, and order. */
static int better(const struct policy_snapshot *s, const struct candidate *a, const struct candidate *b)
{
    if (b->slot == POLICY_NO_SLOT)
        return 1;
    if (a->keep != b->keep)
        return b->keep;
    if (a->rows != b->rows)
        return a->rows < b->rows;
    if (a->loss < b->loss || a->loss > b->loss)
        return a->loss < b->loss;
    if (a->blank != b->blank)
        return a->blank;
    return policy_before(s, a->slot, b->slot);
}

static void note(struct policy_place *answer, const struct candidate *c)
{
    if (answer->candidate_loss)
        answer->candidate_loss[c->slot] = c->loss;
}

/* ---- place ---- */

/* Histories share nearly the same with a prompt when they differ by no more than 2%, a second of reading, or
 * 4,096 tokens, whichever is least. Those that the prompt continues and that share at least the result are
 * its sources; 0: it continues none. */
static double least_shared_of_sources(const struct policy_snapshot *s)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i <= s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (h && policy_is_reliable(h) && policy_continues(h) && h->shared_prompt > best)
            best = h->shared_prompt;
    }
    double margin = 0.02 * best;
    if (s->prompt_tokens_per_s > 0 && s->prompt_tokens_per_s < margin)
        margin = s->prompt_tokens_per_s;
    if (margin > 4096)
        margin = 4096;
    return best - margin;
}

static int is_source(const struct policy_history *h, double least_shared)
{
    return policy_is_reliable(h) && policy_continues(h) && h->shared_prompt >= least_shared;
}

/* The less loaded group; then a source before a blank slot, which has to take the prefix over; then what
 * shares most with the prompt, and order. */
static int better_to_continue(const struct policy_snapshot *s, double least_shared, uint32_t a, uint32_t b)
{
    const struct policy_history *x = policy_at(s, a), *y = policy_at(s, b);
    uint32_t rows_x = policy_busy_rows(s, x->group), rows_y = policy_busy_rows(s, y->group);
    if (rows_x != rows_y)
        return rows_x < rows_y;
    if (is_source(x, least_shared) != is_source(y, least_shared))
        return is_source(x, least_shared);
    uint32_t shared_x = policy_is_reliable(x) ? x->shared_prompt : 0;
    uint32_t shared_y = policy_is_reliable(y) ? y->shared_prompt : 0;
    if (shared_x != shared_y)
        return shared_x > shared_y;
    return policy_before(s, a, b);
}

/* Step 1: where the conversation lies, or beside it. */
static struct candidate continue_it(const struct value *x, const struct policy_snapshot *s,
                                    struct policy_place *answer)
{
    struct candidate best = no_candidate;
    double least_shared = least_shared_of_sources(s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++)
        n += policy_is_free(policy_at(s, i)) && is_source(policy_at(s, i), least_shared);
    for (uint32_t i = 0; n && i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        int source = is_source(h, least_shared);
        if (!policy_is_free(h) || !(source || policy_blank(s, i)))
            continue;
        struct candidate c = { .slot = i, .collateral = policy_collateral(s, i, protected_worth, x) };
        if (!source && c.collateral > 0)
            continue;
        c.loss = c.collateral; /* the history in it goes on, or is nothing */
        note(answer, &c);
        if (best.slot == POLICY_NO_SLOT || better_to_continue(s, least_shared, i, best.slot))
            best = c;
    }
    if (n)
        answer->reason =
            is_source(policy_at(s, best.slot), least_shared) ? REASON_CONTINUE : REASON_CONTINUE_MOVED;
    return best;
}

/* Every free slot, judged once. `list` has room for all slots. */
static uint32_t list_free(const struct value *x, const struct policy_snapshot *s, struct candidate *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (policy_is_free(policy_at(s, i)))
            list[n++] = candidate_of(x, s, i);
    return n;
}

/* Step 2: where nothing that is protected is lost. */
static struct candidate take_unprotected(const struct policy_snapshot *s, const struct candidate *list,
                                         uint32_t n, struct policy_place *answer)
{
    struct candidate best = no_candidate;
    for (uint32_t k = 0; k < n; k++) {
        if (list[k].is_protected || list[k].collateral > 0)
            continue;
        note(answer, &list[k]);
        if (better(s, &list[k], &best))
            best = list[k];
    }
    answer->reason = best.blank ? REASON_NEW_BLANK : best.keep ? REASON_NEW_KEPT : REASON_NEW_EXPIRED;
    return best;
}

/* Step 3: something protected goes. Losses within a tenth of the least are alike. */
static struct candidate take_protected(const struct policy_snapshot *s, struct candidate *list, uint32_t n,
                                       struct policy_place *answer)
{
    struct candidate best = no_candidate;
    double least = INFINITY;
    for (uint32_t k = 0; k < n; k++) {
        note(answer, &list[k]);
        if (list[k].loss < least)
            least = list[k].loss;
    }
    for (uint32_t k = 0; k < n; k++) {
        list[k].keep = 0; /* here all are */
        if (list[k].loss <= 1.10 * least && better(s, &list[k], &best))
            best = list[k];
    }
    answer->reason = REASON_PROTECTED_OVERWRITTEN;
    return best;
}

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *request,
                 struct policy_place *answer)
{
    (void)request;
    struct candidate list[POLICY_SLOTS_MAX];
    struct candidate chosen = continue_it(self, s, answer);
    if (chosen.slot == POLICY_NO_SLOT) {
        uint32_t n = list_free(self, s, list);
        chosen = take_unprotected(s, list, n, answer);
        if (chosen.slot == POLICY_NO_SLOT)
            chosen = take_protected(s, list, n, answer);
    }

    answer->slot = chosen.slot;
    if (chosen.slot == POLICY_NO_SLOT) {
        answer->reason = REASON_NONE;
        return POLICY_NONE;
    }
    answer->loss = chosen.loss;
    policy_choose_source(s, answer);
    answer->tokens_lost = policy_tokens_lost(s, answer);
    return POLICY_DECIDED;
}

/* ---- park_destination ---- */

/* Why main's history is not to be kept, whatever the slots hold; REASON_NONE: it is. */
static enum reason refusal(const struct value *x, const struct policy_snapshot *s,
                           const struct worth *of_main)
{
    if (policy_continues(s->main_history))
        return REASON_SAME_CONVERSATION;
    if (of_main->value < x->set[SETTING_EXPIRED_KEEP_SCORE] ||
        of_main->value < x->set[SETTING_PARK_MIN_VALUE])
        return REASON_MAIN_LOW_VALUE;
    double enough = x->set[SETTING_PARK_KEPT_SHARE] * (double)s->main_history->tokens;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (policy_is_reliable(h) && !(h->flags & POLICY_EXCLUDED) &&
            policy_shared(s, i, s->n_slots) >= enough)
            return REASON_ALREADY_KEPT;
    }
    return REASON_NONE;
}

/* A row above would pad over what is parked below it. */
static int can_keep(const struct policy_snapshot *s, uint32_t i)
{
    return policy_is_free(policy_at(s, i)) && ((s->flags & POLICY_PADDING_SAFE) || !policy_row_above(s, i));
}

/* The older copy of main that shares most with it. */
static uint32_t own_copy(const struct policy_snapshot *s)
{
    uint32_t best = POLICY_NO_SLOT, most = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (!can_keep(s, i) || !policy_superseded_by(s, i, s->n_slots))
            continue;
        uint32_t shared = policy_shared(s, i, s->n_slots);
        if (best == POLICY_NO_SLOT || shared > most || (shared == most && policy_before(s, i, best)))
            best = i;
        most = policy_shared(s, best, s->n_slots);
    }
    return best;
}

/* The slot that can best be spared for main. */
static uint32_t spared(const struct value *x, const struct policy_snapshot *s, const struct worth *of_main)
{
    double ratio = x->set[SETTING_PARK_VALUE_RATIO];
    struct candidate best = no_candidate;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (!can_keep(s, i))
            continue;
        struct worth w = worth_of(x, s, i);
        struct candidate c = { .slot = i, .blank = w.blank, .loss = w.value };
        c.rows = policy_busy_rows(s, policy_at(s, i)->group);
        c.keep = !w.blank && w.value >= x->set[SETTING_EXPIRED_KEEP_SCORE];
        if (w.is_protected || (c.keep && !(ratio > 0 && of_main->value >= ratio * w.value)))
            continue;
        if (better(s, &c, &best))
            best = c;
    }
    return best.slot;
}

static int park_destination(const void *self, const struct policy_snapshot *s,
                            const struct policy_request *request, struct policy_park *answer)
{
    (void)request;
    answer->slot = POLICY_NO_SLOT;
    answer->reason = REASON_NO_MAIN;
    if (policy_blank(s, s->n_slots))
        return POLICY_NONE;
    struct worth of_main = worth_of(self, s, s->n_slots);
    answer->reason = refusal(self, s, &of_main);
    if (answer->reason != REASON_NONE)
        return POLICY_NONE;

    answer->reason = REASON_OWN_COPY;
    answer->slot = own_copy(s);
    if (answer->slot != POLICY_NO_SLOT)
        return POLICY_DECIDED;
    answer->reason = REASON_PARKED;
    answer->slot = spared(self, s, &of_main);
    if (answer->slot != POLICY_NO_SLOT)
        return POLICY_DECIDED;
    answer->reason = REASON_NO_DESTINATION;
    return POLICY_NONE;
}

/* ---- cache_state, superseded_slots ---- */

static void fill_worth(const struct value *x, const struct policy_snapshot *s, uint32_t i,
                       struct policy_worth *answer)
{
    struct worth w = worth_of(x, s, i);
    answer->state = w.blank          ? POLICY_STATE_BLANK
                    : w.is_protected ? POLICY_STATE_PROTECTED
                                     : POLICY_STATE_EXPIRED;
    answer->retention = w.retention;
    answer->value = w.value;
    answer->age_s = w.age;
    answer->ttl_s = w.ttl;
    answer->give_up = w.blank ? 0 : (w.is_protected ? w.retention : w.value) / policy_at(s, i)->tokens;
}

static int cache_state(const void *self, const struct policy_snapshot *s, struct policy_state *answer)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        fill_worth(self, s, i, policy_worth_at(answer, i));
    if (answer->of_main)
        fill_worth(self, s, s->n_slots, answer->of_main);
    return POLICY_DECIDED;
}

static int superseded_slots(const void *self, const struct policy_snapshot *s, struct policy_set *answer)
{
    (void)self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (policy_superseded(s, i))
            policy_set_add(answer, i);
    return POLICY_DECIDED;
}

/* ---- life ---- */

static void *create(const struct policy_create_args *args)
{
    static const char no_memory[] = "out of memory";
    struct value *x = malloc(sizeof *x);
    if (!x) {
        memcpy(args->error, no_memory, sizeof no_memory);
        return NULL;
    }
    for (uint32_t i = 0; i < SETTINGS; i++)
        x->set[i] = ((const struct policy_value *)policy_element(args->values, i, args->value_stride))->real;
    return x;
}

static void destroy(void *self)
{
    free(self);
}

const struct slot_policy slot_policy_entry = {
    .head = POLICY_HEAD(0),
    .name = "value",
    .version = "1",
    .summary = "Keeps what would cost most to read again: protected for a while after use, then fading.",
    .reasons = reason_table,
    .settings = setting_table,
    .n_reasons = REASONS,
    .n_settings = SETTINGS,
    .create = create,
    .destroy = destroy,
    .place = place,
    .park_destination = park_destination,
    .cache_state = cache_state,
    .superseded_slots = superseded_slots,
};
