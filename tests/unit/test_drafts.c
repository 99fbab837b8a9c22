/* Tests of core/engine/drafts.c: the right guess, found the fast way as by searching the whole history. */
#include "engine/drafts.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static struct drafts *drafts_of(const int32_t *tokens, uint32_t n)
{
    struct drafts *d = NULL;
    cr_assert_eq(drafts_new(&d), 0);
    cr_assert_eq(drafts_update(d, tokens, 0, n), 0);
    return d;
}

/* What the header promises, by looking at everything: of the latest DRAFTS_CANDIDATES earlier places that end
 * with the same key, the one with the longest common past, the latest of equals. */
static uint32_t slow_propose(const int32_t *t, uint32_t n, uint32_t length, int32_t *draft)
{
    uint32_t best = 0, best_match = 0, candidates = 0;
    for (uint32_t at = n - 1; at-- > 0 && candidates < DRAFTS_CANDIDATES;) {
        uint32_t match = 0;
        while (match < DRAFTS_MATCH_MAX && match <= at && t[at - match] == t[n - 1 - match])
            match++;
        if (match < DRAFTS_KEY)
            continue;
        candidates++;
        if (match > best_match) {
            best = at;
            best_match = match;
        }
    }
    if (!best_match)
        return 0;
    for (uint32_t i = 0; i < length; i++)
        draft[i] = best + 1 + i < n ? t[best + 1 + i] : draft[best + 1 + i - n];
    return length;
}

Test(drafts, guesses_what_came_after_the_same_words)
{
    const int32_t t[] = { 10, 11, 12, 13, 14, 15, 16, 90, 91, 11, 12, 13 };
    int32_t draft[DRAFTS_MAX];
    struct drafts *d = drafts_of(t, 12);
    cr_expect_eq(drafts_propose(d, t, 3, draft), 3);
    cr_expect(draft[0] == 14 && draft[1] == 15 && draft[2] == 16);
    drafts_free(d);
}

Test(drafts, guesses_nothing_where_nothing_agrees)
{
    int32_t t[100], draft[DRAFTS_MAX];
    for (int i = 0; i < 100; i++)
        t[i] = i;
    struct drafts *d = drafts_of(t, 100);
    cr_expect_eq(drafts_propose(d, t, 8, draft), 0);
    t[0] = 98;
    t[1] = 99; /* two tokens agree, three must */
    cr_assert_eq(drafts_update(d, t, 0, 100), 0);
    cr_expect_eq(drafts_propose(d, t, 8, draft), 0);
    cr_assert_eq(drafts_update(d, t, 0, 2), 0);
    cr_expect_eq(drafts_propose(d, t, 8, draft), 0);
    cr_assert_eq(drafts_update(d, t, 0, 0), 0);
    cr_expect_eq(drafts_propose(d, t, 8, draft), 0);
    drafts_free(d);
}

Test(drafts, goes_on_past_the_end_where_the_text_repeats_itself)
{
    const int32_t t[] = { 7, 8, 9, 7, 8, 9 };
    int32_t draft[DRAFTS_MAX];
    struct drafts *d = drafts_of(t, 6);
    drafts_result(d, 4, 4);
    cr_assert_eq(drafts_propose(d, t, 8, draft), 8);
    for (int i = 0; i < 8; i++)
        cr_expect_eq(draft[i], 7 + i % 3);
    drafts_free(d);
}

Test(drafts, prefers_the_longest_common_past_then_the_latest)
{
    const int32_t t[] = { 1, 2, 3, 4, 5, 70, 3, 4, 5, 71, 2, 3, 4, 5, 72, 3, 4, 5, 73, 1, 2, 3, 4, 5 };
    int32_t draft[DRAFTS_MAX];
    struct drafts *d = drafts_of(t, 24);
    cr_assert_gt(drafts_propose(d, t, 1, draft), 0);
    cr_expect_eq(draft[0], 70);
    cr_assert_eq(drafts_update(d, t + 5, 0, 19), 0);
    cr_assert_gt(drafts_propose(d, t + 5, 1, draft), 0);
    cr_expect_eq(draft[0], 72, "with four tokens in common");
    drafts_free(d);
}

/* Random texts over few words grow and are cut; every guess equals that of a search through everything. */
Test(drafts, equal_a_search_through_the_whole_history)
{
    uint32_t guesses = 0;
    for (uint32_t round = 0; round < 300; round++) {
        int32_t t[700] = { 0 }, fast[DRAFTS_MAX], slow[DRAFTS_MAX];
        uint32_t n = 0, words = 2 + below(12);
        struct drafts *d = drafts_of(t, 0);
        for (uint32_t step = 0; step < 60; step++) {
            uint32_t kept = below(8) ? n : below(n + 1), more = below(12);
            n = kept;
            for (uint32_t i = 0; i < more && n < 700; i++, n++)
                t[n] = n > 40 && below(3) ? t[n - 40] : (int32_t)below(words);
            cr_assert_eq(drafts_update(d, t, kept, n), 0);
            uint32_t got = drafts_propose(d, t, 4, fast);
            uint32_t expected = n > DRAFTS_KEY ? slow_propose(t, n, 4, slow) : 0;
            cr_assert_eq(got, expected, "round %u, %u tokens", round, n);
            cr_assert(!memcmp(fast, slow, got * sizeof *fast), "round %u, %u tokens", round, n);
            guesses += got > 0;
        }
        drafts_free(d);
    }
    cr_expect_gt(guesses, 5000);
}

Test(drafts, grow_with_success_and_shrink_to_what_was_accepted)
{
    int32_t t[200], draft[64];
    for (int i = 0; i < 200; i++)
        t[i] = i % 100;
    struct drafts *d = drafts_of(t, 200);
    cr_expect_eq(drafts_propose(d, t, 64, draft), 4);
    drafts_result(d, 4, 4);
    cr_expect_eq(drafts_propose(d, t, 64, draft), 8);
    drafts_result(d, 8, 8);
    cr_expect_eq(drafts_propose(d, t, 64, draft), DRAFTS_MAX);
    drafts_result(d, DRAFTS_MAX, DRAFTS_MAX);
    cr_expect_eq(drafts_propose(d, t, 64, draft), DRAFTS_MAX, "no longer than that");
    cr_expect_eq(drafts_propose(d, t, 5, draft), 5, "nor than asked for");
    drafts_result(d, 5, 2);
    cr_expect_eq(drafts_propose(d, t, 64, draft), 3);
    drafts_result(d, 3, 0);
    cr_expect_eq(drafts_propose(d, t, 64, draft), 1, "a past of 32 tokens is still tried");
    drafts_result(d, 0, 0);
    drafts_reset(d);
    cr_assert_eq(drafts_update(d, t, 0, 200), 0);
    cr_expect_eq(drafts_propose(d, t, 64, draft), 4);
    drafts_free(d);
}

/* Where guesses are always wrong, few are made; once they are right again, they are made again. */
Test(drafts, give_up_on_text_that_cannot_be_guessed_and_come_back)
{
    enum { N = 6000 };
    int32_t *t = calloc(N, sizeof *t), draft[DRAFTS_MAX];
    struct drafts *d = drafts_of(t, 0);
    uint32_t made = 0, possible = 0;
    for (uint32_t n = 0; n < 4000; n++) {
        t[n] = (int32_t)below(6);
        cr_assert_eq(drafts_update(d, t, n, n + 1), 0);
        possible += n > 1000;
        uint32_t k = drafts_propose(d, t, 8, draft);
        made += n > 1000 && k;
        drafts_result(d, k, 0);
    }
    cr_expect_lt(made, possible / 4, "%u of %u", made, possible);
    uint32_t accepted = 0;
    for (uint32_t n = 4000; n < 4200; n++) { /* now it says again what it said at 2,000 */
        uint32_t k = drafts_propose(d, t, 8, draft), ok = 0;
        while (ok < k && draft[ok] == t[n - 2000 + ok])
            ok++;
        drafts_result(d, k, ok);
        accepted += ok;
        t[n] = t[n - 2000];
        cr_assert_eq(drafts_update(d, t, n, n + 1), 0);
    }
    cr_expect_gt(accepted, 800);
    drafts_free(d);
    free(t);
}

Test(drafts, survive_the_longest_histories)
{
    enum { N = 300000 };
    int32_t *t = malloc(N * sizeof *t), draft[DRAFTS_MAX];
    for (uint32_t i = 0; i < N; i++)
        t[i] = i % 50000 < 40000 ? (int32_t)(i % 50000) : 3; /* long runs of one token too */
    struct drafts *d = drafts_of(t, N - 1);
    cr_assert_eq(drafts_update(d, t, N - 1, N), 0);
    cr_assert_eq(drafts_propose(d, t, 4, draft), 4);
    cr_expect_eq(draft[0], 3);
    cr_assert_eq(drafts_update(d, t, 51000, 51000), 0);
    cr_assert_eq(drafts_propose(d, t, 4, draft), 4);
    cr_expect_eq(draft[0], 1000);
    drafts_free(d);
    drafts_free(NULL);
    free(t);
}
