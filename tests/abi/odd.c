/* A policy that is wrong in one way, for tests of the loader and the host. tests/abi/meson.build builds it
 * once for each way: -DODD=... is one of the numbers below. But for that it is a right one: it takes the
 * first free slot.
 *
 * Those that are wrong in an answer are so when the setting `when` says: "always", or "asked": for a request
 * of 77 new tokens, and in questions without a request when the last prompt of some history had 77. */
#include "policy.h"
#include "policy_words.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RIGHT 0
#define WRONG_MAGIC 1
#define NEWER_MAJOR 2
#define NEEDS_NEWER_MINOR 3
#define SHORT_SIZE 4
#define LONG_SIZE 5
#define HUGE_STRUCT 6
#define NO_ENTRY 7
#define ENTRY_IS_CODE 8
#define SMALL_ENTRY 9
#define NO_NAME 10
#define NO_REASONS 11
#define WRONG_DEFAULT 12
#define UNDEFINED_SYMBOL 13
#define CONSTRUCTOR_ABORTS 14
#define CONSTRUCTOR_HANGS 15
#define CREATE_HANGS 16
#define CREATE_CRASHES 17
#define CREATE_FAILS 18
#define CREATE_NULL 19
#define OLDER 20  /* right, but built before there was more than place */
#define STICKY 21 /* right, but linked so that it cannot be unloaded */
#define SLOT_RANGE 22
#define SLOT_BUSY 23
#define SLOT_EXCLUDED 24
#define SCORE_NAN 25
#define BITS_BEYOND 26
#define FICKLE 27
#define SLOW 28
#define ENDLESS 29
#define CRASHES 30
#define RECURSES 31

struct state {
    int64_t when; /* 0: never, 1: always, 2: asked */
};

#if ODD == UNDEFINED_SYMBOL
extern int nobody_has_this_function(void);
#endif

#if ODD == CONSTRUCTOR_ABORTS
__attribute__((constructor)) static void begin(void)
{
    abort();
}
#elif ODD == CONSTRUCTOR_HANGS
__attribute__((constructor)) static void begin(void)
{
    for (;;)
        nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
}
#endif

static int is_asked(const struct policy_snapshot *s)
{
    uint32_t i;
    for (i = 0; i <= s->n_slots; i++)
        if (policy_at(s, i) && policy_at(s, i)->prompt_tokens == 77)
            return 1;
    return 0;
}

static int is_now(const void *self, const struct policy_snapshot *s, const struct policy_request *r)
{
    const struct state *state = self;
    if (state->when < 2)
        return (int)state->when;
    return r ? r->max_new_tokens == 77 : is_asked(s);
}

static uint32_t first_with(const struct policy_snapshot *s, uint32_t flag)
{
    uint32_t i;
    for (i = 0; i < s->n_slots; i++)
        if (policy_at(s, i)->flags & flag)
            return i;
    return POLICY_NO_SLOT;
}

/* Not inlined and not a loop, whatever the compiler thinks of it. */
__attribute__((noinline)) static int recurse(volatile char *above)
{
    volatile char here[4096];
    here[0] = above[0];
    return above[0] ? 0 : here[0] + recurse(here) + above[1]; /* it never is */
}

static void misbehave(const struct policy_snapshot *s, struct policy_place *a)
{
    static int calls;               /* what must not be: state from call to call */
    volatile uintptr_t nowhere = 8; /* the compiler must not know it */
    char top[2] = { 0 };
    uint32_t i;

    switch (ODD) {
    case SLOT_RANGE:
        a->slot = s->n_slots + 5;
        break;
    case SLOT_BUSY:
        i = first_with(s, POLICY_BUSY);
        a->slot = i == POLICY_NO_SLOT ? a->slot : i;
        break;
    case SLOT_EXCLUDED:
        i = first_with(s, POLICY_EXCLUDED);
        a->slot = i == POLICY_NO_SLOT ? a->slot : i;
        break;
    case SCORE_NAN:
        a->loss = NAN;
        break;
    case FICKLE:
        a->tokens_lost = (uint64_t)++calls;
        break;
    case SLOW:
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        break;
    case ENDLESS:
        for (;;)
            nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
    case CRASHES:
        *(volatile int *)nowhere = 1;
        break;
    case RECURSES:
        a->tokens_lost = (uint64_t)recurse(top);
        break;
    default:
        break;
    }
}

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                 struct policy_place *a)
{
    uint32_t i;
    for (i = 0; i < s->n_slots && !policy_is_free(policy_at(s, i)); i++)
        ;
    if (i == s->n_slots)
        return POLICY_NONE;
    a->slot = i;
    if (is_now(self, s, r))
        misbehave(s, a);
    return POLICY_DECIDED;
}

static int park_destination(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                            struct policy_park *a)
{
    (void)self;
    (void)s;
    (void)r;
    (void)a;
    return POLICY_NONE;
}

static int cache_state(const void *self, const struct policy_snapshot *s, struct policy_state *a)
{
    uint32_t i;
    for (i = 0; i < s->n_slots; i++)
        policy_worth_at(a, i)->state = POLICY_STATE_EXPIRED;
    if (a->of_main)
        a->of_main->state = POLICY_STATE_EXPIRED;
    if (ODD == SCORE_NAN && is_now(self, s, NULL))
        policy_worth_at(a, 0)->value = NAN;
    return POLICY_DECIDED;
}

static int superseded_slots(const void *self, const struct policy_snapshot *s, struct policy_set *a)
{
    if (ODD == BITS_BEYOND && is_now(self, s, NULL))
        policy_set_add(a, s->n_slots);
    return POLICY_DECIDED;
}

static void *create(const struct policy_create_args *args)
{
    volatile uintptr_t nowhere = 8; /* the compiler must not know it */
    struct state *state;
    if (ODD == CREATE_FAILS)
        snprintf(args->error, args->error_size, "the moon is not full\nand more");
    if (ODD == CREATE_FAILS || ODD == CREATE_NULL)
        return NULL;
    if (ODD == CREATE_CRASHES)
        *(volatile int *)nowhere = 1;
    while (ODD == CREATE_HANGS)
        nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
    state = malloc(sizeof *state);
    if (state)
        state->when = args->values[0].number;
#if ODD == UNDEFINED_SYMBOL
    if (state)
        state->when += nobody_has_this_function();
#endif
    return state;
}

static void destroy(void *self)
{
    free(self);
}

static const struct policy_reason reasons[] = { { "first_free", "The first slot that is free." } };

static const char *const whens[] = { "never", "always", "asked" };

static const struct policy_setting settings[] = { {
    .name = "when",
    .kind = POLICY_CHOICE,
    .n_choices = 3,
    .default_text = ODD == WRONG_DEFAULT ? "perhaps" : "never",
    .unit = "",
    .help = "When its fault shows.",
    .env = "ODD_WHEN",
    .choices = whens,
} };

#if ODD == ENTRY_IS_CODE
__attribute__((visibility("default"))) int slot_policy_entry_code(void) __asm__("slot_policy_entry");
int slot_policy_entry_code(void)
{
    return reasons[0].name == settings[0].name;
}
void *unused[] = { (void *)place,  (void *)park_destination, (void *)cache_state, (void *)superseded_slots,
                   (void *)create, (void *)destroy };
#else

#if ODD == NO_ENTRY
#define slot_policy_entry another_entry
__attribute__((visibility("default"))) extern const struct slot_policy another_entry;
#endif

#if ODD == SMALL_ENTRY
__attribute__((visibility("default"))) extern const uint64_t small_entry __asm__("slot_policy_entry");
const uint64_t small_entry = POLICY_MAGIC;
#define slot_policy_entry big_entry
extern const struct slot_policy big_entry;
#endif

const struct slot_policy slot_policy_entry = {
    .head = {
        .magic = ODD == WRONG_MAGIC ? 1234 : POLICY_MAGIC,
        .abi_major = ODD == NEWER_MAJOR ? POLICY_ABI_MAJOR + 1 : POLICY_ABI_MAJOR,
        .abi_minor = POLICY_ABI_MINOR,
        .needs_minor = ODD == NEEDS_NEWER_MINOR ? POLICY_ABI_MINOR + 7 : 0,
        .size = ODD == SHORT_SIZE  ? sizeof(struct policy_head) + 8
                : ODD == LONG_SIZE ? sizeof(struct slot_policy) + 64
                : ODD == OLDER     ? offsetof(struct slot_policy, park_destination)
                                   : sizeof(struct slot_policy),
        .size_snapshot = sizeof(struct policy_snapshot),
        .size_history = ODD == HUGE_STRUCT ? 5000 : sizeof(struct policy_history),
        .size_group = sizeof(struct policy_group),
        .size_returns = sizeof(struct policy_returns),
        .size_request = sizeof(struct policy_request),
        .size_place = sizeof(struct policy_place),
        .size_park = sizeof(struct policy_park),
        .size_state = sizeof(struct policy_state),
        .size_worth = sizeof(struct policy_worth),
        .size_set = sizeof(struct policy_set),
        .size_reason = sizeof(struct policy_reason),
        .size_setting = sizeof(struct policy_setting),
        .size_value = sizeof(struct policy_value),
        .size_create_args = sizeof(struct policy_create_args),
    },
    .name = ODD == NO_NAME ? "An Odd One" : "odd",
    .version = "1",
    .summary = "Takes the first free slot.",
    .reasons = reasons,
    .settings = settings,
    .n_reasons = ODD == NO_REASONS ? 0 : 1,
    .n_settings = 1,
    .create = create,
    .destroy = destroy,
    .place = place,
    .park_destination = park_destination,
    .cache_state = cache_state,
    .superseded_slots = superseded_slots,
};
#endif
